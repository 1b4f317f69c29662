"""The kernel log as facts: lines that mean something to a training host, and when they were written.

Refuses to read the log (collectors/kernel_log.py) and to know the patterns (classify/kernel_lines.py).
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from msgspec import Struct


class KernelKind(enum.Enum):
    """What a line means. The value is its word in JSON."""

    XID = "xid"
    MISMATCH = "driver-mismatch"  # NVRM: API mismatch
    DXG_BRIDGE = "dxg-bridge"  # the GPU bridge of WSL does not make processes any more
    DXG_RESIDENCY = "dxg-residency"  # device memory could not be made resident
    OOM_KILL = "oom-kill"
    IO_ERROR = "io-error"
    READ_ONLY = "read-only"  # a file system was remounted read-only
    HUNG_TASK = "hung-task"


class KernelLine(Struct, frozen=True, kw_only=True):
    """One line. `at_s` on CLOCK_MONOTONIC, as the kernel stamped it."""

    at_s: float
    kind: KernelKind
    text: str  # as the kernel wrote it, control characters escaped, up to 300 characters
    number: int | None = None  # of an Xid; of a killed pid; an errno
    subject: str = ""  # PCI address ("0000:01:00.0"), device ("sda1"), process name


class KernelLog(Struct, frozen=True, kw_only=True):
    """The lines that mean something, oldest first, of each kind the newest.

    `since_s`: the stamp of the oldest line of any kind that was read. `dropped`: lines that the kernel
    overwrote before they were read.
    """

    lines: tuple[KernelLine, ...]
    since_s: float
    dropped: int = 0

    def recent(self, kind: KernelKind, *, now_s: float, window_s: float) -> tuple[KernelLine, ...]:
        """The lines of one kind that are at most `window_s` old, oldest first."""
        return tuple(line for line in self.lines if line.kind is kind and now_s - line.at_s <= window_s)

    def hung_tasks(self, pids: Collection[int], *, now_s: float, window_s: float) -> tuple[KernelLine, ...]:
        """What the kernel itself says of these being stuck. Its pids are the threads', in the initial namespace."""
        lines = self.recent(KernelKind.HUNG_TASK, now_s=now_s, window_s=window_s)
        return tuple(line for line in lines if line.number in pids)


NOTHING_LOGGED = KernelLog(lines=(), since_s=0.0)  # for a check that has other evidence as well
