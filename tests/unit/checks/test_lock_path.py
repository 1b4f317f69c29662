"""Where locks lie: the state folder must have true flock, checkpoints should, a cache need not."""

from __future__ import annotations

import pytest

from watchdog.checks import lock_path
from watchdog.core.facts import Absent, Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def findings(purpose: str, true_flock: bool) -> tuple[Finding, ...]:
    disk = Disk(
        path="/mnt/c/x",
        purpose=purpose,
        filesystem="ext4" if true_flock else "9p",
        free_bytes=1,
        total_bytes=1,
        free_inodes=1,
        read_only=False,
        true_flock=true_flock,
    )
    disks = (Known(disk, 1.0),)
    facts = Facts(at_s=1.0, memory=Absent(), disks=disks, locks=(), driver=Absent(), beat=Absent())
    return lock_path.check(facts, Limits())


@pytest.mark.parametrize(("purpose", "severity"), [("state", Severity.CRITICAL), ("checkpoints", Severity.WARNING)])
def test_without_true_flock(purpose: str, severity: Severity) -> None:
    (finding,) = findings(purpose, true_flock=False)
    assert (finding.severity, finding.remedy) == (severity, Remedy.MOVE_STATE)
    assert "9p" in finding.reason


@pytest.mark.parametrize("purpose", ["state", "checkpoints"])
def test_with_true_flock(purpose: str) -> None:
    (finding,) = findings(purpose, true_flock=True)
    assert finding.severity is Severity.OK


def test_a_cache_needs_no_lock() -> None:
    assert findings("cache", true_flock=False) == ()
