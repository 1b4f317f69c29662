"""The locks lie where flock is a true lock.

Proves: on this file system a lock is not seen by every process of this host (9p and DrvFs turn flock into something
else or ignore it), so that two supervisors could each believe to be alone.

Near misses: checkpoints may well lie on such a file system: their locks then move to the state folder, which two
configurations with different state folders do not share; hence a warning. A cache needs no lock at all.
"""

from __future__ import annotations

from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAME = "lock-path"
NEEDS = ("disks",)
_WITHOUT_FLOCK = {"state": Severity.CRITICAL, "checkpoints": Severity.WARNING}


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each folder that may hold a lock (disk-space tells of disks that could not be read)."""
    return tuple(
        _judge(disk.value) for disk in facts.disks if isinstance(disk, Known) and disk.value.purpose in _WITHOUT_FLOCK
    )


def _judge(disk: Disk) -> Finding:
    if disk.true_flock:
        return Finding(
            check=NAME,
            severity=Severity.OK,
            subject=f"{disk.purpose} folder",
            reason=f"{disk.filesystem} has true flock",
            evidence=(disk.path,),
        )
    reason = f"{disk.filesystem} is not known to have a flock that every process sees"
    if disk.purpose == "checkpoints":
        reason += "; the locks of the job are kept in the state folder, so use one state folder only"
    return Finding(
        check=NAME,
        severity=_WITHOUT_FLOCK[disk.purpose],
        subject=f"{disk.purpose} folder",
        reason=reason,
        evidence=(disk.path,),
        remedy=Remedy.MOVE_STATE,
    )
