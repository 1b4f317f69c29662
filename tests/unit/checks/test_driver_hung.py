"""A question to NVML without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import host
from tests.unit.checks.test_driver import wsl
from watchdog.checks import driver_hung
from watchdog.core.facts import Absent, Driver, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, calls_for_a_stop
from watchdog.core.limits import Limits


def judge(silent_s: float, **changes: Any) -> Finding | tuple[Finding, ...]:
    return driver_hung.check(
        host(driver=Driver(version="560", devices=1, silent_s=silent_s), **changes), Limits(driver_hung_s=60.0)
    )


@pytest.mark.parametrize(("changes", "remedy"), [({}, Remedy.REBOOT), ({"wsl": wsl(dxg=True)}, Remedy.WSL_SHUTDOWN)])
def test_fires_at_the_limit_and_ends_no_run(changes: dict[str, Any], remedy: Remedy) -> None:
    finding = judge(60.0, **changes)
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, remedy)
    assert finding.reason.startswith("NVML has not answered for 60 s")
    assert not calls_for_a_stop(finding)


def test_a_stall_is_not_hung_and_not_fine() -> None:
    assert judge(59.9) == ()


def test_an_answer_is_fine() -> None:
    finding = judge(0.0)
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.OK


@pytest.mark.parametrize("fact", [Unknown("not asked"), Absent("no driver"), Driver(code=9)])
def test_says_nothing_of_what_others_tell(fact: Any) -> None:
    assert driver_hung.check(host(driver=fact), Limits()) == ()
