"""Device memory that Windows could not back."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import AT_S, host
from watchdog.checks import dxg_residency
from watchdog.core.facts import Absent, KernelLine, KernelLog, Unknown, Wsl
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

WSL = Wsl(version=2, kernel="5.15", systemd=True, guest_settings=Absent(), windows_settings=Absent())


def judge(*ago_s: float, kind: KernelKind = KernelKind.DXG_RESIDENCY) -> Finding:
    lines = tuple(
        KernelLine(at_s=AT_S - ago, kind=kind, text="dxgkio_make_resident: Ioctl failed: -12") for ago in ago_s
    )
    found = dxg_residency.check(host(wsl=WSL, kernel=KernelLog(lines=lines, since_s=0.0)), Limits())
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(
    ("ago_s", "severity"),
    [
        ((60.0,), Severity.WARNING),
        ((120.0, 60.0), Severity.CRITICAL),
        ((3601.0, 60.0), Severity.WARNING),
        ((3602.0, 3601.0), Severity.OK),
    ],
)
def test_once_and_twice(ago_s: tuple[float, ...], severity: Severity) -> None:
    finding = judge(*ago_s)
    assert (finding.severity, finding.remedy is Remedy.SMALLER) == (severity, severity is not Severity.OK)


def test_figures() -> None:
    assert judge(200.0, 185.0).reason == "could not be made resident 2 times, the last one 3 min 05 s ago"


def test_nothing_to_say_elsewhere_or_without_a_log() -> None:
    assert judge(1.0, kind=KernelKind.DXG_BRIDGE).severity is Severity.OK
    assert dxg_residency.check(host(), Limits()) == ()
    assert dxg_residency.check(host(wsl=WSL, kernel=Unknown("told by io-errors")), Limits()) == ()
