"""A folder of the job lies on a Windows drive, a network share or a FUSE file system.

Proves: the file system under the state or checkpoint folder is one whose writes go through another machine or
process: a successful write may not have arrived (truncated checkpoints on DrvFs), and its flock is not seen by all.

Near misses: a cache there does no harm. Other file systems whose flock is not trusted (vfat, exfat, ntfs3) are
lock-path's. Copies of checkpoints that were made there afterwards, and verified, are a good habit.
"""

from __future__ import annotations

from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "drvfs"
NEEDS = ("disks",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.MOVE_STATE,)
_SEVERITIES = {"state": Severity.CRITICAL, "checkpoints": Severity.WARNING}
_KINDS = frozenset({"9p", "virtiofs", "drvfs", "cifs", "smb3", "nfs", "nfs4"})


def covers(disk: Disk) -> bool:
    """Whether this check speaks of the folder; lock-path then does not say the same again."""
    return disk.purpose in _SEVERITIES and (
        disk.drvfs or disk.filesystem in _KINDS or disk.filesystem.startswith("fuse")
    )


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each folder that has to be durable (disk-space tells of what could not be read)."""
    return tuple(
        _judge(disk.value) for disk in facts.disks if isinstance(disk, Known) and disk.value.purpose in _SEVERITIES
    )


def _judge(disk: Disk) -> Finding:
    subject = f"{disk.purpose} folder"
    if not covers(disk):
        return fine(NAME, subject, f"on {disk.filesystem}, on this host", disk.path)
    what = f"a Windows drive ({disk.filesystem})" if disk.drvfs else f"{disk.filesystem}, not a disk of this kernel"
    harm = "checkpoints get truncated there" if disk.purpose == "checkpoints" else "no lock or ledger is safe there"
    return Finding(
        check=NAME,
        severity=_SEVERITIES[disk.purpose],
        subject=subject,
        reason=f"on {what}: {harm}, and flock is not seen by every process",
        evidence=(disk.path,),
        cause="a write there succeeds before the data has arrived",
        remedy=Remedy.MOVE_STATE,
    )
