"""Free space: below the need, below twice the need, enough."""

from __future__ import annotations

import pytest

from watchdog.checks import disk_space
from watchdog.core.facts import Absent, Disk, Facts, Known, Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import GIB, Limits


def disk(free: int, purpose: str = "state") -> Known[Disk]:
    value = Disk(
        path="/home/me/state",
        purpose=purpose,
        filesystem="ext4",
        free_bytes=free,
        total_bytes=100 * GIB,
        free_inodes=10**6,
        read_only=False,
        true_flock=True,
    )
    return Known(value, 1.0)


def facts(*disks: Known[Disk] | Unknown) -> Facts:
    return Facts(at_s=1.0, memory=Absent(), disks=disks, locks=(), driver=Absent(), beat=Absent())


@pytest.mark.parametrize(
    ("free", "severity"),
    [
        (4 * GIB, Severity.OK),
        (4 * GIB - 1, Severity.WARNING),
        (2 * GIB, Severity.WARNING),
        (2 * GIB - 1, Severity.CRITICAL),
        (0, Severity.CRITICAL),
    ],
)
def test_the_need_and_twice_the_need(free: int, severity: Severity) -> None:
    (finding,) = disk_space.check(facts(disk(free)), Limits(disk_need_bytes=2 * GIB))
    assert finding.severity is severity
    assert (finding.remedy is Remedy.NONE) is (severity is Severity.OK)


def test_each_disk_has_its_word_and_figures() -> None:
    found = disk_space.check(facts(disk(GIB), Unknown("no answer"), disk(9 * GIB, "cache")), Limits())
    assert [finding.severity for finding in found] == [Severity.WARNING, Severity.UNKNOWN, Severity.OK]
    assert found[0].reason == "1.0 GiB free of 100 GiB (ext4), a launch needs 1.0 GiB"
    assert found[0].subject == "state disk"
    assert found[2].subject == "cache disk"
