"""A read-only file system is critical."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import disk, host
from watchdog.checks import disk_read_only
from watchdog.core.facts import Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize(
    ("read_only", "severity", "remedy"),
    [(True, Severity.CRITICAL, Remedy.REMOUNT), (False, Severity.OK, Remedy.NONE)],
)
def test_read_only(read_only: bool, severity: Severity, remedy: Remedy) -> None:
    disks = (Unknown("told by disk-space"), disk("checkpoints", read_only=read_only))
    (finding,) = disk_read_only.check(host(disks=disks), Limits())
    assert (finding.severity, finding.remedy, finding.subject) == (severity, remedy, "checkpoints disk")


def test_the_job_writes_nothing_to_the_windows_drive() -> None:
    assert disk_read_only.check(host(disks=(disk("windows", read_only=True),)), Limits()) == ()
