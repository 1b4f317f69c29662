"""Where locks lie: the state folder must have true flock, checkpoints should, a cache need not."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import disk, host
from watchdog.checks import drvfs, lock_path
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def findings(purpose: str, *, true_flock: bool, filesystem: str = "exfat") -> tuple[Finding, ...]:
    given = disk(purpose, filesystem=filesystem, true_flock=true_flock)
    return lock_path.check(host(disks=(given,)), Limits())


@pytest.mark.parametrize(("purpose", "severity"), [("state", Severity.CRITICAL), ("checkpoints", Severity.WARNING)])
def test_without_true_flock(purpose: str, severity: Severity) -> None:
    (finding,) = findings(purpose, true_flock=False)
    assert (finding.severity, finding.remedy) == (severity, Remedy.MOVE_STATE)
    assert "exfat" in finding.reason


@pytest.mark.parametrize("purpose", ["state", "checkpoints"])
def test_with_true_flock(purpose: str) -> None:
    (finding,) = findings(purpose, true_flock=True, filesystem="ext4")
    assert finding.severity is Severity.OK


@pytest.mark.parametrize("purpose", ["cache", "windows"])
def test_a_cache_needs_no_lock(purpose: str) -> None:
    assert findings(purpose, true_flock=False) == ()


@pytest.mark.parametrize("filesystem", ["ext4", "9p", "exfat", "fuse.sshfs", "nfs4", "some-new-one"])
@pytest.mark.parametrize("purpose", ["state", "checkpoints"])
def test_every_bad_folder_is_told_once(purpose: str, filesystem: str) -> None:
    given = host(disks=(disk(purpose, filesystem=filesystem, true_flock=filesystem == "ext4"),))
    loud = [
        one
        for one in (*lock_path.check(given, Limits()), *drvfs.check(given, Limits()))
        if one.severity is not Severity.OK
    ]
    assert len(loud) == (filesystem != "ext4")
