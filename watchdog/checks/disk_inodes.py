"""Inodes run out where the job writes.

Proves: so few files can still be created that a checkpoint, a log or a ledger may fail with "no space left on
device" while gigabytes are free.

Near misses: btrfs, 9p and others do not count inodes; they say 0 of 0, which is no shortage.
"""

from __future__ import annotations

from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAME = "disk-inodes"
NEEDS = ("disks",)
LIMITS = ("inodes_least",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.FREE_DISK,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each disk the job writes to that could be read (disk-space tells of the others)."""
    return tuple(
        _judge(disk.value, limits.inodes_least)
        for disk in facts.disks
        if isinstance(disk, Known) and disk.value.purpose != "windows"
    )


def _judge(disk: Disk, least: int) -> Finding:
    severity = Severity.OK
    if disk.free_inodes is None:
        reason = f"{disk.filesystem} does not count inodes"
    else:
        reason = f"{disk.free_inodes:,} inodes free, at least {least:,} are asked for"
        if disk.free_inodes < least:
            severity = Severity.CRITICAL
        elif disk.free_inodes < 2 * least:
            severity = Severity.WARNING
    return Finding(
        check=NAME,
        severity=severity,
        subject=f"{disk.purpose} disk",
        reason=reason,
        evidence=(disk.path,),
        remedy=Remedy.NONE if severity is Severity.OK else Remedy.FREE_DISK,
    )
