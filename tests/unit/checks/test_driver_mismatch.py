"""Library and kernel module of different versions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, host
from tests.unit.checks.test_driver import wsl
from watchdog.checks import driver_mismatch
from watchdog.core.facts import Driver, KernelLine, KernelLog, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

TEXT = "NVRM: API mismatch: the client has the version 560.35.05, but this kernel module has 560.35.03"


def log(ago_s: float = 60.0) -> KernelLog:
    return KernelLog(lines=(KernelLine(at_s=AT_S - ago_s, kind=KernelKind.MISMATCH, text=TEXT),), since_s=0.0)


def judge(**changes: Any) -> Finding | tuple[Finding, ...]:
    return driver_mismatch.check(host(**changes), Limits(xid_window_s=3600.0))


@pytest.mark.parametrize("code", [18, 999])
def test_fires_on_the_code_or_on_a_failure_with_the_line(code: int) -> None:
    finding = judge(driver=Driver(code=code, error="mismatch"), kernel=log())
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.RELOAD_DRIVER)
    assert finding.reason.startswith(f"NVML answers with code {code}: mismatch")
    assert finding.evidence == (TEXT,)


def test_the_code_alone_is_enough() -> None:
    finding = judge(driver=Driver(code=18), kernel=Unknown("no permission"), wsl=wsl(dxg=True))
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.WSL_SHUTDOWN)


def test_the_words_of_nvml_end_in_no_full_stop_of_their_own() -> None:
    finding = judge(driver=Driver(code=18, error="Driver/library version mismatch."))
    assert isinstance(finding, Finding)
    assert "mismatch; the library" in finding.reason


def test_a_line_while_nvml_answers_is_somebody_elses() -> None:
    finding = judge(kernel=log())
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.OK


@pytest.mark.parametrize(
    "changes",
    [
        dict(driver=Driver(code=999), kernel=log(ago_s=3601.0)),
        dict(driver=Driver(code=999)),
        dict(driver=Driver(version="560", devices=1, silent_s=5.0), kernel=log()),
        dict(driver=Unknown("not asked")),
    ],
)
def test_other_failures_are_no_mismatch_and_not_fine(changes: dict[str, Any]) -> None:
    assert judge(**changes) == ()
