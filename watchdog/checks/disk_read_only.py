"""A file system the job writes to is mounted read-only.

Proves: nothing can be written there, so no checkpoint, no log and no ledger; often the kernel's answer to a failing
disk.

Near misses: a container may mount a folder read-only on purpose. It cannot be written to all the same, so the
severity stays; the kernel log tells the two apart.
"""

from __future__ import annotations

from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAME = "disk-read-only"
NEEDS = ("disks",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.REMOUNT,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each disk the job writes to that could be read (disk-space tells of the others)."""
    return tuple(
        _judge(disk.value) for disk in facts.disks if isinstance(disk, Known) and disk.value.purpose != "windows"
    )


def _judge(disk: Disk) -> Finding:
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if disk.read_only else Severity.OK,
        subject=f"{disk.purpose} disk",
        reason=f"mounted {'read-only' if disk.read_only else 'for writing'} ({disk.filesystem})",
        evidence=(disk.path,),
        remedy=Remedy.REMOUNT if disk.read_only else Remedy.NONE,
    )
