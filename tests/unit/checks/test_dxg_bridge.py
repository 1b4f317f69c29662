"""The GPU bridge of WSL, by the kernel log."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import AT_S, host
from watchdog.checks import dxg_bridge
from watchdog.core.facts import Absent, KernelLine, KernelLog, Unknown, Wsl
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

WSL = Wsl(version=2, kernel="5.15", systemd=True, guest_settings=Absent(), windows_settings=Absent())


def judge(ago_s: float, kind: KernelKind = KernelKind.DXG_BRIDGE) -> Finding:
    line = KernelLine(at_s=AT_S - ago_s, kind=kind, text="dxgvmb_send_create_process: create_process failed -75")
    found = dxg_bridge.check(host(wsl=WSL, kernel=KernelLog(lines=(line,), since_s=0.0)), Limits())
    assert isinstance(found, Finding)
    return found


def test_a_line_is_critical_and_no_relaunch_is_advised() -> None:
    finding = judge(185.0)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.WSL_SHUTDOWN)
    assert "1 process could not be made on the Windows side, the last one 3 min 05 s ago" in finding.reason
    assert "-75" in finding.evidence[0]


@pytest.mark.parametrize(("ago_s", "kind"), [(3601.0, KernelKind.DXG_BRIDGE), (1.0, KernelKind.DXG_RESIDENCY)])
def test_old_and_other_lines(ago_s: float, kind: KernelKind) -> None:
    assert judge(ago_s, kind).severity is Severity.OK


def test_nothing_to_say_elsewhere_or_without_a_log() -> None:
    assert dxg_bridge.check(host(), Limits()) == ()
    assert dxg_bridge.check(host(wsl=WSL, kernel=Unknown("told by io-errors")), Limits()) == ()
