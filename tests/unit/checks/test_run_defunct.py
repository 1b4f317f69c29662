"""A process of the run that ended and is not collected."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import host, processes
from watchdog.checks import run_defunct
from watchdog.core.facts import RunProcess, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def zombie(seconds: float, pid: int = 4712, **changes: Any) -> RunProcess:
    given: dict[str, Any] = dict(pid=pid, command="python", state="Z", states=(("Z", 1),), defunct_s=seconds)
    return RunProcess(**(given | changes))


def judge(*run: RunProcess) -> Finding:
    found = run_defunct.check(host(processes=processes(run=run)), Limits())
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(("seconds", "severity"), [(29.9, Severity.OK), (30.0, Severity.WARNING)])
def test_by_how_long(seconds: float, severity: Severity) -> None:
    assert judge(zombie(seconds)).severity is severity


def test_figures() -> None:
    finding = judge(zombie(185.0), zombie(40.0, pid=9))
    assert finding.remedy is Remedy.WAIT
    assert finding.reason == "pid 4712 (python) has been defunct for 3 min 05 s, and 1 more of the run"
    assert finding.evidence == ("pid 9 (python)",)


def test_a_leader_whose_threads_live_is_mentioned_and_not_defunct() -> None:
    finding = judge(zombie(900.0, states=(("S", 3), ("Z", 1))))
    assert finding.severity is Severity.OK
    assert finding.evidence == ("pid 4712 (python): the leader has ended, 3 of its threads live on",)


def test_unknown_is_left_to_run_stuck() -> None:
    assert run_defunct.check(host(processes=Unknown("no /proc")), Limits()) == ()
