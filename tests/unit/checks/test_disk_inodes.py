"""Free inodes; a file system that counts none is not full."""

from __future__ import annotations

import pytest

from watchdog.checks import disk_inodes
from watchdog.core.facts import Absent, Disk, Facts, Known, Unknown
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits


def facts(free_inodes: int | None) -> Facts:
    disk = Disk(
        path="/s",
        purpose="state",
        filesystem="btrfs",
        free_bytes=1,
        total_bytes=1,
        free_inodes=free_inodes,
        read_only=False,
        true_flock=True,
    )
    disks = (Known(disk, 1.0), Unknown("told by disk-space"))
    return Facts(at_s=1.0, memory=Absent(), disks=disks, locks=(), driver=Absent(), beat=Absent())


@pytest.mark.parametrize(
    ("free", "severity"),
    [
        (200, Severity.OK),
        (199, Severity.WARNING),
        (100, Severity.WARNING),
        (99, Severity.CRITICAL),
        (0, Severity.CRITICAL),
        (None, Severity.OK),
    ],
)
def test_the_least_and_twice_the_least(free: int | None, severity: Severity) -> None:
    (finding,) = disk_inodes.check(facts(free), Limits(inodes_least=100))
    assert finding.severity is severity


def test_none_counted_is_said() -> None:
    (finding,) = disk_inodes.check(facts(None), Limits())
    assert finding.reason == "btrfs does not count inodes"
