"""Room on the Windows drive under the virtual disk."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import GIB, disk, host
from watchdog.checks import windows_drive
from watchdog.core.facts import Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize(
    ("free", "severity"),
    [
        (10 * GIB, Severity.OK),
        (10 * GIB - 1, Severity.WARNING),
        (2 * GIB, Severity.WARNING),
        (2 * GIB - 1, Severity.CRITICAL),
    ],
)
def test_two_lines(free: int, severity: Severity) -> None:
    (finding,) = windows_drive.check(host(disks=(disk("windows", free_bytes=free, filesystem="9p"),)), Limits())
    assert finding.severity is severity
    assert (finding.remedy is Remedy.FREE_DISK) is (severity is not Severity.OK)


def test_figures_and_what_a_full_one_does() -> None:
    (finding,) = windows_drive.check(host(disks=(disk("windows", free_bytes=GIB, total_bytes=500 * GIB),)), Limits())
    assert finding.reason == "1.0 GiB free of 500 GiB, below 2.0 GiB"
    assert "whole virtual machine" in finding.cause


def test_other_disks_and_unknown_ones_are_left_to_others() -> None:
    assert windows_drive.check(host(disks=(disk("state", free_bytes=0), Unknown("hangs"))), Limits()) == ()
