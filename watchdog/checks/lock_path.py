"""The locks lie where flock is no true lock.

Proves: on this file system a lock is not known to be seen by every process of this host, so that two supervisors
could each believe to be alone.

Near misses: checkpoints may well lie on such a file system: their locks then move to the state folder, which two
configurations with different state folders do not share; hence a warning. A cache needs no lock at all. Windows
drives, network shares and FUSE have more faults than this one: drvfs speaks of them, and this does not.
"""

from __future__ import annotations

from watchdog.checks import drvfs
from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "lock-path"
NEEDS = ("disks",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.MOVE_STATE,)
_WITHOUT_FLOCK = {"state": Severity.CRITICAL, "checkpoints": Severity.WARNING}


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each folder that may hold a lock (disk-space tells of disks that could not be read)."""
    disks = (fact.value for fact in facts.disks if isinstance(fact, Known))
    return tuple(_judge(disk) for disk in disks if disk.purpose in _WITHOUT_FLOCK and not drvfs.covers(disk))


def _judge(disk: Disk) -> Finding:
    subject = f"{disk.purpose} folder"
    if disk.true_flock:
        return fine(NAME, subject, f"{disk.filesystem} has true flock", disk.path)
    reason = f"{disk.filesystem} is not known to have a flock that every process sees"
    if disk.purpose == "checkpoints":
        reason += "; the locks of the job are kept in the state folder, so use one state folder only"
    return Finding(
        check=NAME,
        severity=_WITHOUT_FLOCK[disk.purpose],
        subject=subject,
        reason=reason,
        evidence=(disk.path,),
        remedy=Remedy.MOVE_STATE,
    )
