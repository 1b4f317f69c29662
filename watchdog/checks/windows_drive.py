"""The Windows drive under the WSL disk has little room left.

Proves: the drive that holds the virtual disk has fewer bytes free than the limit; the guest's own figure (a nominal
1 TB) does not show it.

Near misses: other Windows drives may be full without harm to the guest; only the one that holds its disk is judged.
"""

from __future__ import annotations

from watchdog.checks.figures import size
from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "windows-drive"
NEEDS = ("disks",)
LIMITS = ("windows_free_warning_bytes", "windows_free_critical_bytes")
WORST = Severity.CRITICAL
REMEDIES = (Remedy.FREE_DISK,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """Nothing where there is no such drive (disk-space tells of one that could not be read)."""
    return tuple(
        _judge(disk.value, limits)
        for disk in facts.disks
        if isinstance(disk, Known) and disk.value.purpose == "windows"
    )


def _judge(disk: Disk, limits: Limits) -> Finding:
    reason = f"{size(disk.free_bytes)} free of {size(disk.total_bytes)}"
    if disk.free_bytes >= limits.windows_free_warning_bytes:
        return fine(NAME, "Windows drive", reason, disk.path)
    critical = disk.free_bytes < limits.windows_free_critical_bytes
    least = limits.windows_free_critical_bytes if critical else limits.windows_free_warning_bytes
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        subject="Windows drive",
        reason=f"{reason}, below {size(least)}",
        evidence=(disk.path,),
        cause="a full Windows drive ends the whole virtual machine",
        remedy=Remedy.FREE_DISK,
    )
