"""Findings: what a check made of the facts. Closed enums, so that everything downstream can be exhaustive."""

from __future__ import annotations

import dataclasses
import enum


class Severity(enum.IntEnum):
    """Ordered by how loudly it is said. UNKNOWN ranks above OK: what was not seen is not fine."""

    OK = 0
    UNKNOWN = 1
    WARNING = 2
    CRITICAL = 3


class Remedy(enum.Enum):
    """The closed set of next steps; the value is what a person reads."""

    NONE = "nothing to do"
    FREE_MEMORY = "free host memory, or lower [memory] need"
    FREE_DISK = "free disk space"
    MOVE_STATE = "put the folder on a native Linux file system"
    REMOUNT = "the disk failed or was remounted read-only: look at the kernel log before anything else"
    ASK_HOLDER = "another process holds the job: watchdog status"
    RELAUNCH = "watchdog relaunch"
    WAIT = "wait; the supervisor is on it"
    CHECK_DRIVER = "look at the NVIDIA driver: nvidia-smi"
    LOOK = "look at the reason given; the watchdog could not see"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check's word about one subject.

    `reason` is a sentence with figures and units; `evidence` are further lines; `subject` names the device, disk
    or process meant.
    """

    check: str
    severity: Severity
    subject: str
    reason: str
    evidence: tuple[str, ...] = ()
    remedy: Remedy = Remedy.NONE
