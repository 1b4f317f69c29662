"""Steps that take much longer than this job's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import host, points, progress
from watchdog.checks import throughput
from watchdog.core.facts import Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(**changes: Any) -> tuple[Finding, ...]:
    found = throughput.check(host(progress=progress(**changes)), Limits())
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize(
    ("recent_s", "typical_s", "severity"),
    [
        (2.0, 1.0, Severity.OK),
        (2.1, 1.0, Severity.WARNING),
        (2.1, None, Severity.OK),
        (None, 1.0, Severity.OK),
    ],
)
def test_half_the_pace_is_the_line(recent_s: float | None, typical_s: float | None, severity: Severity) -> None:
    (finding,) = judge(recent_step_s=recent_s, typical_step_s=typical_s)
    assert (finding.severity, finding.remedy is Remedy.LOOK) == (severity, severity is Severity.WARNING)


def test_figures_are_told() -> None:
    (finding,) = judge(recent_step_s=4.0)
    assert finding.reason == "4.0 s a step, 1.0 s is typical of this job: below 50 % of its pace"


def test_other_phases_are_not_judged() -> None:
    assert judge(recent_step_s=9.0, points=points(phase="evaluate")) == ()


def test_unknown_is_left_to_steps_frozen() -> None:
    assert throughput.check(host(progress=Unknown("no log")), Limits()) == ()
