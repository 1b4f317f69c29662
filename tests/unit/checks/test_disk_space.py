"""Free space, by the need of a launch; and the one place where an unreadable disk is told."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import GIB, disk, host
from watchdog.checks import disk_space
from watchdog.core.facts import Absent, Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


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
    (finding,) = disk_space.check(host(disks=(disk(free_bytes=free),)), Limits(disk_need_bytes=2 * GIB))
    assert finding.severity is severity
    assert (finding.remedy is Remedy.NONE) is (severity is Severity.OK)


def test_each_disk_has_its_word_and_figures() -> None:
    disks = (disk(free_bytes=GIB, total_bytes=100 * GIB), Unknown("no answer"), disk("cache"))
    found = disk_space.check(host(disks=disks), Limits())
    assert [finding.severity for finding in found] == [Severity.WARNING, Severity.UNKNOWN, Severity.OK]
    assert found[0].reason == "1.0 GiB free of 100 GiB (ext4), a launch needs 1.0 GiB"
    assert found[1].reason == "no answer"
    assert [found[0].subject, found[2].subject] == ["state disk", "cache disk"]


def test_the_windows_drive_is_another_checks_but_for_what_could_not_be_read() -> None:
    assert disk_space.check(host(disks=(disk("windows", free_bytes=0), Absent("no WSL"))), Limits()) == ()
