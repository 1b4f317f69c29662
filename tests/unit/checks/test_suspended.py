"""A machine that slept a short while ago."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, host
from watchdog.checks import suspended
from watchdog.core.facts import Absent, Clocks, Jump, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(*jumps: Jump, **changes: Any) -> Finding:
    given: dict[str, Any] = dict(boot_id="b", asleep_s=28_920.0, watched_s=9000.0, jumps=jumps)
    found = suspended.check(host(clocks=Clocks(**(given | changes))), Limits())
    assert isinstance(found, Finding)
    return found


def jump(kind: str, ago_s: float = 180.0, seconds: float = 28_920.0) -> Jump:
    return Jump(kind=kind, at_s=AT_S - ago_s, seconds=seconds)


@pytest.mark.parametrize(("kind", "who"), [("suspend", "the machine slept"), ("freeze", "this process was frozen")])
def test_sleep_and_freeze(kind: str, who: str) -> None:
    finding = judge(jump(kind))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.WAIT)
    assert finding.reason == f"{who} for 8 h 02 min, 3 min ago; every grace begins anew"


@pytest.mark.parametrize("given", [jump("suspend", 601.0), jump("step")])
def test_old_sleeps_and_set_clocks(given: Jump) -> None:
    finding = judge(given)
    assert finding.severity is Severity.OK
    assert finding.reason == "no sleep in the last 10 min, 8 h 02 min asleep since boot"


def test_one_look_claims_nothing() -> None:
    assert judge(watched_s=0.0).reason == "8 h 02 min asleep since boot"


def test_unknown_clocks_are_told_here() -> None:
    finding = suspended.check(host(clocks=Unknown("no boot id")), Limits())
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.UNKNOWN
    assert suspended.check(host(clocks=Absent()), Limits()) == ()
