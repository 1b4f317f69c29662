"""Folders of the job on Windows drives and the like."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import disk, host
from watchdog.checks import drvfs
from watchdog.core.facts import Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize("filesystem", ["9p", "virtiofs", "drvfs", "cifs", "nfs", "nfs4", "fuse.sshfs", "fuseblk"])
@pytest.mark.parametrize(("purpose", "severity"), [("state", Severity.CRITICAL), ("checkpoints", Severity.WARNING)])
def test_fires_by_purpose(purpose: str, severity: Severity, filesystem: str) -> None:
    (finding,) = drvfs.check(host(disks=(disk(purpose, filesystem=filesystem, true_flock=False),)), Limits())
    assert (finding.severity, finding.remedy) == (severity, Remedy.MOVE_STATE)
    assert filesystem in finding.reason
    assert finding.evidence == (f"/srv/{purpose}",)


def test_a_windows_drive_is_called_one() -> None:
    (finding,) = drvfs.check(host(disks=(disk("checkpoints", filesystem="9p", drvfs=True),)), Limits())
    assert finding.reason.startswith("on a Windows drive (9p): checkpoints get truncated there")


@pytest.mark.parametrize("filesystem", ["ext4", "overlay", "exfat"])
def test_native_and_local_ones_are_not_meant(filesystem: str) -> None:
    (finding,) = drvfs.check(host(disks=(disk(filesystem=filesystem),)), Limits())
    assert finding.severity is Severity.OK


def test_a_cache_and_an_unreadable_disk_are_left_to_others() -> None:
    disks = (disk("cache", filesystem="9p", drvfs=True), disk("windows", filesystem="9p", drvfs=True), Unknown("hangs"))
    assert drvfs.check(host(disks=disks), Limits()) == ()
