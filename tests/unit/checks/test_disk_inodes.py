"""Free inodes; a file system that counts none is not full."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import disk, host
from watchdog.checks import disk_inodes
from watchdog.core.facts import Facts, Unknown
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits


def facts(free_inodes: int | None) -> Facts:
    return host(disks=(disk(filesystem="btrfs", free_inodes=free_inodes), Unknown("told by disk-space")))


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


def test_the_job_writes_nothing_to_the_windows_drive() -> None:
    assert disk_inodes.check(host(disks=(disk("windows", free_inodes=0),)), Limits()) == ()
