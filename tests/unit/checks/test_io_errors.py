"""Disk errors in the kernel log."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import AT_S, disk, host
from watchdog.checks import io_errors
from watchdog.core.facts import Absent, KernelLine, KernelLog, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits


def line(kind: KernelKind = KernelKind.IO_ERROR, ago_s: float = 60.0, subject: str = "sda1") -> KernelLine:
    return KernelLine(at_s=AT_S - ago_s, kind=kind, text=f"{kind.value} on {subject}", subject=subject)


def judge(*lines: KernelLine, since_s: float = 0.0, dropped: int = 0) -> tuple[Finding, ...]:
    found = io_errors.check(host(kernel=KernelLog(lines=lines, since_s=since_s, dropped=dropped)), Limits())
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize(
    ("kind", "severity"), [(KernelKind.IO_ERROR, Severity.WARNING), (KernelKind.READ_ONLY, Severity.CRITICAL)]
)
def test_errors_and_a_remount(kind: KernelKind, severity: Severity) -> None:
    (finding,) = judge(line(kind))
    assert (finding.severity, finding.remedy, finding.subject) == (severity, Remedy.CHECK_DISK, "sda")
    assert finding.evidence == (f"{kind.value} on sda1",)


def test_figures_and_one_finding_a_device() -> None:
    first, second = judge(line(ago_s=600.0), line(ago_s=185.0), line(subject="nvme0n1"))
    assert first.reason == "2 errors on sda in the kernel log, the newest 3 min 05 s ago"
    assert second.subject == "nvme0n1"


@pytest.mark.parametrize(
    ("named", "name"),
    [
        (("sdb", "sdb1"), "sdb"),
        (("vda2", "vda"), "vda"),
        (("nvme0n1p2", "nvme0n1", "nvme0c1n1"), "nvme0n1"),
        (("mmcblk0", "mmcblk0p1"), "mmcblk0"),
        (("dm-0", "dm-0"), "dm-0"),
        (("md127", "md127"), "md127"),
        (("",), "a disk"),
    ],
)
def test_a_disk_and_its_partitions_are_one(named: tuple[str, ...], name: str) -> None:
    (finding,) = judge(*(line(subject=subject) for subject in named))
    assert finding.subject == name


@pytest.mark.parametrize(
    "given", [line(ago_s=3601.0), line(KernelKind.HUNG_TASK), line(subject="fd0"), line(subject="sr0")]
)
def test_old_lines_other_kinds_and_empty_drives_do_not_fire(given: KernelLine) -> None:
    (finding,) = judge(given)
    assert finding.severity is Severity.OK


@pytest.mark.parametrize(
    ("subject", "disks", "severity"),
    [
        ("sdb1", (("nvme0n1", "nvme0n1p2"),), Severity.WARNING),  # of a data set, of /home, swap?
        ("sdb1", (("nvme0n1",), ("dm-0", "sdb", "sdb1")), Severity.CRITICAL),
        ("sdb2", (("sdb", "sdb1"),), Severity.CRITICAL),  # another partition of the disk that fails
        ("dm-0", (("dm-0", "sda"),), Severity.CRITICAL),
        ("sdb1", (("nvme0n1",), ()), Severity.CRITICAL),  # what one folder lies on is not told
        ("", (("nvme0n1",),), Severity.CRITICAL),
        ("sdb1", (), Severity.CRITICAL),
    ],
)
def test_a_disk_on_which_none_of_the_folders_lies_is_no_emergency_and_no_quiet_one(
    subject: str, disks: tuple[tuple[str, ...], ...], severity: Severity
) -> None:
    facts = host(
        kernel=KernelLog(lines=(line(KernelKind.READ_ONLY, subject=subject),), since_s=0.0),
        disks=tuple(disk(devices=devices) for devices in disks),
    )
    (finding,) = found if isinstance(found := io_errors.check(facts, Limits()), tuple) else (found,)
    assert finding.severity is severity
    assert finding.reason.endswith("; its file system was made read-only")
    assert ("not a disk of the job's folders" in "".join(finding.evidence)) is (severity is Severity.WARNING)


def test_it_claims_no_more_than_was_read() -> None:
    (finding,) = judge(since_s=AT_S - 90.0, dropped=12)
    assert finding.reason == "no disk error in the last 90 s"
    assert finding.evidence == ("12 lines were overwritten before they could be read",)


def test_an_unreadable_log_is_told_here() -> None:
    finding = io_errors.check(host(kernel=Unknown("/dev/kmsg: Operation not permitted")), Limits())
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.UNKNOWN


def test_a_log_that_is_closed_to_this_user_is_said_and_no_alarm() -> None:
    finding = io_errors.check(host(kernel=Absent("closed (dmesg_restrict)")), Limits())
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.reason) == (Severity.OK, "closed (dmesg_restrict)")
