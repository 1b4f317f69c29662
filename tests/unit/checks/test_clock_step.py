"""A wall clock that was set."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import AT_S, host
from watchdog.checks import clock_step
from watchdog.core.facts import Clocks, Jump, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(kind: str, seconds: float, ago_s: float = 185.0) -> Finding:
    jumps = (Jump(kind=kind, at_s=AT_S - ago_s, seconds=seconds),)
    found = clock_step.check(host(clocks=Clocks(boot_id="b", asleep_s=0.0, watched_s=900.0, jumps=jumps)), Limits())
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(("seconds", "words"), [(63.0, "set forward by 63 s"), (-3600.0, "set back by 60 min")])
def test_forward_and_back(seconds: float, words: str) -> None:
    finding = judge("step", seconds)
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.SET_CLOCK)
    assert finding.reason == f"{words}, 3 min 05 s ago"


@pytest.mark.parametrize(
    ("kind", "seconds", "ago_s"), [("step", 4.9, 1.0), ("step", 63.0, 601.0), ("suspend", 63.0, 1.0)]
)
def test_small_old_and_other_leaps(kind: str, seconds: float, ago_s: float) -> None:
    assert judge(kind, seconds, ago_s).severity is Severity.OK


def test_unknown_is_left_to_suspended() -> None:
    assert clock_step.check(host(clocks=Unknown("no boot id")), Limits()) == ()
