"""Facts: what was seen, when, and what could not be seen. Frozen, and without an opinion.

Every field is `Known(value, at_s)`, `Unknown(why)` (we looked and could not see) or `Absent()` (there is nothing to
see on this host). Unknown is never healthy; absent is never a fault by itself.
Refuses to read anything: collectors make facts, checks judge them.
"""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A value and the CLOCK_MONOTONIC second at which it was read."""

    value: T
    at_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """We looked and could not see; `why` is a sentence for a person."""

    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Absent:
    """There is no such thing on this host; `why` says how we know."""

    why: str = ""


Fact = Known[T] | Unknown | Absent


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Host memory in bytes. `limit_*` come from the tightest ancestor cgroup, where there is one.

    `available_bytes` is what the job can get: the least of MemAvailable and, for each ancestor cgroup,
    limit - (usage - inactive_file - active_file).
    """

    total_bytes: int
    available_bytes: int
    host_available_bytes: int
    limit_bytes: int | None = None
    limit_cgroup: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """One path the job writes to, and the file system under it."""

    path: str
    purpose: str  # "state", "checkpoints", "cache"
    filesystem: str  # as in mountinfo: ext4, tmpfs, 9p, ...
    free_bytes: int
    total_bytes: int
    free_inodes: int | None  # None where the file system does not count them
    read_only: bool
    true_flock: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LockHolder:
    """A process that has the lock file open while the kernel lists a lock on its inode."""

    pid: int
    command: str  # masked; "" where it cannot be read
    since_wall_s: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A lock as the kernel sees it (`/proc/locks`, matched by device and inode), without touching it."""

    path: str
    purpose: str  # "supervisor" or "run"
    held: bool
    exclusive: bool
    holders: tuple[LockHolder, ...]  # living processes; empty while held = a ghost's, or another namespace's
    unlinked: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The NVIDIA driver as NVML reports it."""

    version: str
    devices: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BeatFact:
    """The run's last beat as facts. `age_s` is measured on the monotonic clock."""

    run_id: str
    pid: int
    phase: str
    age_s: float
    deadline_s: float  # what this phase is allowed
    step: int | None
    target_step: int | None
    alive: bool  # the beating process is alive and is the one that beat


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """One frozen snapshot of the host, as far as the checks need it."""

    at_s: float
    memory: Fact[Memory]
    disks: tuple[Fact[Disk], ...]
    locks: tuple[Fact[Lock], ...]
    driver: Fact[Driver]
    beat: Fact[BeatFact]
