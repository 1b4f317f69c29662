"""Xid numbers: what each asks for, repeats, both sources, overrides, and where none can be seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, UUID, gpu, host
from tests.unit.checks.test_driver import wsl
from watchdog.checks import xid
from watchdog.checks.xid_table import ACTION, ACTIONS, slot
from watchdog.core.devicefacts import XidFault
from watchdog.core.facts import Absent, KernelLine, KernelLog, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

FINE = (Severity.OK, Remedy.NONE)


def line(number: int, ago_s: float = 60.0, subject: str = "0000:01:00") -> KernelLine:
    text = f"NVRM: Xid (PCI:{subject}): {number}, pid=4711"
    return KernelLine(at_s=AT_S - ago_s, kind=KernelKind.XID, text=text, number=number, subject=subject)


def events(number: int, *ago_s: float) -> dict[str, Any]:
    """As NVML delivered them, each at its moment."""
    faults = tuple(XidFault(number=number, at_s=AT_S - each) for each in ago_s)
    return {"xid_counts": {number: len(ago_s)}, "xid_faults": faults}


def log(*lines: KernelLine) -> KernelLog:
    return KernelLog(lines=lines, since_s=0.0)


def judge(*lines: KernelLine, limits: Limits | None = None, **device: Any) -> tuple[Finding, ...]:
    return xid.check(host(devices=(gpu(**device),), kernel=log(*lines)), limits or Limits())


@pytest.mark.parametrize(
    ("number", "severity", "remedy"),
    [
        (8, Severity.WARNING, Remedy.RELAUNCH),
        (13, Severity.WARNING, Remedy.RELAUNCH),
        (43, *FINE),
        (45, *FINE),
        (48, Severity.CRITICAL, Remedy.RESET_DEVICE),
        (54, Severity.CRITICAL, Remedy.RESEAT),
        (74, Severity.WARNING, Remedy.CHECK_DRIVER),
        (78, Severity.CRITICAL, Remedy.RELOAD_DRIVER),
        (79, Severity.CRITICAL, Remedy.REBOOT),
        (119, Severity.CRITICAL, Remedy.RESET_DEVICE),
        (142, Severity.CRITICAL, Remedy.REPLACE),
        (150, Severity.WARNING, Remedy.CHECK_DRIVER),
        (151, Severity.CRITICAL, Remedy.REBOOT),
        (154, Severity.WARNING, Remedy.CHECK_DRIVER),
        (4242, Severity.WARNING, Remedy.CHECK_DRIVER),
    ],
)
def test_each_number_from_either_source(number: int, severity: Severity, remedy: Remedy) -> None:
    event = events(number, 59.2)
    for found in (judge(line(number)), judge(**event), judge(line(number), **event)):
        (finding,) = found
        assert (finding.severity, finding.remedy, finding.device) == (severity, remedy, UUID)
        assert f"Xid {number}" in finding.reason


def test_the_worst_speaks_and_the_rest_is_named() -> None:
    (finding,) = judge(line(13), line(79), line(45), **events(13, 900.0, 59.2))
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.REBOOT)
    assert finding.reason == "Xid 79 (fell off the bus), Xid 13 × 2 (graphics engine exception)"
    assert finding.evidence[0] == "only to be noted: Xid 45 (clean-up after another error)"
    assert finding.evidence[1:] == (line(13).text, line(79).text, line(45).text)


@pytest.mark.parametrize("number", [13, 31])
def test_repeats_mean_hardware(number: int) -> None:
    repeated = [line(number, ago_s) for ago_s in (900.0, 600.0, 300.0)]
    delivered = events(number, 899.2, 599.2, 299.2)
    for found in (
        judge(*repeated),
        judge(**delivered),
        judge(*repeated, **delivered),
        judge(line(number), **delivered),
    ):
        assert (found[0].severity, found[0].remedy) == (Severity.CRITICAL, Remedy.RESET_DEVICE)
    twice = events(number, 899.2, 599.2)
    for found in (judge(*repeated[:2]), judge(**twice), judge(*repeated[:2], **twice)):
        assert (found[0].severity, found[0].remedy) == (Severity.WARNING, Remedy.RELAUNCH)
    assert judge(line(8, 3.0), **events(8, *range(10, 300, 10)))[0].severity is Severity.WARNING


def test_one_fault_with_many_lines_is_no_repeat() -> None:
    burst = [line(13, 60.0 - i / 100) for i in range(24)]
    (finding,) = judge(*burst, **events(13, 59.2))
    assert finding.severity is Severity.WARNING
    assert "Xid 13 (" in finding.reason


def test_events_count_as_long_as_lines_do() -> None:
    (finding,) = judge(**events(79, 3601.0), limits=Limits(xid_window_s=3600.0))
    assert finding.severity is Severity.OK
    assert finding.reason == "no Xid in the last 60 min (NVML, kernel log)"
    (finding,) = judge(**events(13, 3700.0, 3650.0, 60.0), limits=Limits(xid_window_s=3600.0))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.RELAUNCH)
    assert "Xid 13 (" in finding.reason
    blind = events(79, 60.0) | {"xid_counts": Unknown("code 999")}  # of this moment: what was delivered before stands
    assert judge(**blind)[0].remedy is Remedy.REBOOT


def test_overrides() -> None:
    limits = Limits(xid={13: "reset", 79: "ignore", 31: "restart"})
    assert judge(line(13), limits=limits)[0].remedy is Remedy.RESET_DEVICE
    assert judge(line(79), limits=limits)[0].severity is Severity.OK
    assert judge(**events(31, *range(10, 100, 10)), limits=limits)[0].severity is Severity.WARNING


def test_every_word_of_an_override_is_judged() -> None:
    for action in ACTIONS:
        assert judge(line(13), limits=Limits(xid={13: action}))[0].check == "xid"
    assert set(ACTION.values()) <= set(ACTIONS)


def test_old_lines_do_not_count() -> None:
    (finding,) = judge(line(79, 3601.0), limits=Limits(xid_window_s=3600.0))
    assert finding.severity is Severity.OK
    assert finding.reason == "no Xid in the last 60 min (kernel log)"
    lossy = host(kernel=KernelLog(lines=(), since_s=0.0, dropped=7))
    assert "7 lines of the log were lost" in xid.check(lossy, Limits())[0].reason


@pytest.mark.parametrize("spelling", ["0000:01:00", "0000:01:00.0", "00000000:01:00", "00000000:01:00.0"])
def test_every_spelling_of_a_slot(spelling: str) -> None:
    (finding,) = judge(line(79, subject=spelling), pci_bus_id="00000000:01:00.0")
    assert finding.device == UUID


def test_what_is_no_slot() -> None:
    assert slot("") is None
    assert slot("sda1") is None
    assert slot("0001:0A:1f.7") == (1, 10, 31)


def test_lines_of_a_slot_in_which_nothing_is_seen() -> None:
    ours, other = judge(line(79, subject="0000:41:00"))
    assert (ours.severity, ours.device) == (Severity.OK, UUID)
    assert (other.severity, other.subject) == (Severity.WARNING, "GPU at 0000:41:00")
    # the driver died of it and lists nothing any more
    (finding,) = xid.check(host(devices=Unknown("code 999"), kernel=log(line(79))), Limits())
    assert (finding.severity, finding.subject) == (Severity.CRITICAL, "GPU at 0000:01:00")
    assert xid.check(host(devices=Absent("no driver"), kernel=log(line(79))), Limits()) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(wsl=wsl(dxg=True)), "no Xid events are delivered here (WSL), so none can be seen"),
        (dict(wsl=wsl(dxg=True), kernel=Unknown("no permission")), "(WSL)"),
        (dict(kernel=Absent("no kernel log")), "no kernel log can be read, so none can be seen"),
    ],
)
def test_where_none_can_be_seen_it_says_so(changes: dict[str, Any], words: str) -> None:
    (finding,) = xid.check(host(**changes), Limits())
    assert finding.severity is Severity.OK
    assert words in finding.reason


def test_unknown_is_not_fine() -> None:
    assert xid.check(host(kernel=Unknown("no permission")), Limits()) == ()
    assert xid.check(host(devices=(gpu(xid_counts=Unknown("code 999")),)), Limits()) == ()
    assert xid.check(host(devices=Unknown("no answer")), Limits()) == ()
