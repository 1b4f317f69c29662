"""Sampling children that die while they ask NVML."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import host
from watchdog.checks import driver_crash
from watchdog.core.facts import Absent, Driver, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(fact: Any) -> Finding | tuple[Finding, ...]:
    return driver_crash.check(host(driver=fact), Limits(driver_crashes=3))


def test_fires_at_the_limit_with_how_the_last_one_ended() -> None:
    finding = judge(Driver(version="560", devices=1, crashes=3, crash="signal 11 (SIGSEGV)"))
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.CHECK_DRIVER)
    assert finding.reason.startswith("3 children in a row died")
    assert finding.evidence == ("signal 11 (SIGSEGV)",)


def test_an_answer_is_fine() -> None:
    finding = judge(Driver(version="560", devices=1))
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.OK


@pytest.mark.parametrize(
    "fact",
    [
        Driver(version="560", devices=1, crashes=2),
        Driver(version="560", devices=1, crashes=3, crash="SIGSEGV", silent_s=60.0),  # told by driver-hung
        Driver(code=9),
        Unknown("not asked"),
        Absent("none"),
    ],
)
def test_says_nothing_of_what_others_tell(fact: Any) -> None:
    assert judge(fact) == ()
