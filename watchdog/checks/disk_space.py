"""Free space is below the need where the job writes.

Proves: the file system under the state or checkpoint folder has less room than a launch needs (critical), or
less than twice that (warning).

Near misses: the blocks kept for root are not ours to plan with and not counted; on WSL the figure is that of the
virtual disk, which can be larger than what the Windows drive under it has left: enough here proves nothing there, and
windows-drive judges that one.
"""

from __future__ import annotations

from watchdog.checks.figures import size
from watchdog.core.facts import Disk, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, unknown
from watchdog.core.limits import Limits

NAME = "disk-space"
NEEDS = ("disks",)
LIMITS = ("disk_need_bytes",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.FREE_DISK, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each disk; the one place where a disk that could not be read is told."""
    found = []
    for disk in facts.disks:
        if isinstance(disk, Unknown):
            found.append(unknown(NAME, "disk", disk.why))
        elif isinstance(disk, Known) and disk.value.purpose != "windows":
            found.append(_judge(disk.value, limits.disk_need_bytes))
    return tuple(found)


def _judge(disk: Disk, need_bytes: int) -> Finding:
    severity = Severity.OK
    if disk.free_bytes < need_bytes:
        severity = Severity.CRITICAL
    elif disk.free_bytes < 2 * need_bytes:
        severity = Severity.WARNING
    return Finding(
        check=NAME,
        severity=severity,
        subject=f"{disk.purpose} disk",
        reason=f"{size(disk.free_bytes)} free of {size(disk.total_bytes)} ({disk.filesystem}), "
        f"a launch needs {size(need_bytes)}",
        evidence=(disk.path,),
        remedy=Remedy.NONE if severity is Severity.OK else Remedy.FREE_DISK,
    )
