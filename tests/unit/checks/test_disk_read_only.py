"""A read-only file system is critical."""

from __future__ import annotations

import pytest

from watchdog.checks import disk_read_only
from watchdog.core.facts import Absent, Disk, Facts, Known, Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize(
    ("read_only", "severity", "remedy"),
    [(True, Severity.CRITICAL, Remedy.REMOUNT), (False, Severity.OK, Remedy.NONE)],
)
def test_read_only(read_only: bool, severity: Severity, remedy: Remedy) -> None:
    disk = Disk(
        path="/s",
        purpose="checkpoints",
        filesystem="ext4",
        free_bytes=1,
        total_bytes=1,
        free_inodes=1,
        read_only=read_only,
        true_flock=True,
    )
    disks = (Unknown("told by disk-space"), Known(disk, 1.0))
    facts = Facts(at_s=1.0, memory=Absent(), disks=disks, locks=(), driver=Absent(), beat=Absent())
    (finding,) = disk_read_only.check(facts, Limits())
    assert (finding.severity, finding.remedy, finding.subject) == (severity, remedy, "checkpoints disk")
