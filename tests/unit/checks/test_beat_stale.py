"""A stale beat, by its phase's own deadline."""

from __future__ import annotations

import pytest

from watchdog.checks import beat_stale
from watchdog.core.facts import Absent, BeatFact, Fact, Facts, Known
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


def facts(beat: Fact[BeatFact]) -> Facts:
    return Facts(at_s=1.0, memory=Absent(), disks=(), locks=(), driver=Absent(), beat=beat)


def beat(age_s: float, phase: str = "train") -> Known[BeatFact]:
    value = BeatFact(
        run_id="run-3", pid=7, phase=phase, age_s=age_s, deadline_s=60.0, step=1412, target_step=None, alive=True
    )
    return Known(value, 1.0)


@pytest.mark.parametrize(
    ("age_s", "severity"),
    [
        (0.0, Severity.OK),
        (60.0, Severity.OK),
        (60.1, Severity.WARNING),
        (120.0, Severity.WARNING),
        (120.1, Severity.CRITICAL),
    ],
)
def test_the_deadline_and_twice_the_deadline(age_s: float, severity: Severity) -> None:
    finding = beat_stale.check(facts(beat(age_s)), Limits())
    assert finding.severity is severity
    assert (finding.remedy is Remedy.WAIT) is (severity is not Severity.OK)


def test_a_finished_run_beats_no_more() -> None:
    assert beat_stale.check(facts(beat(1e6, "finished")), Limits()).severity is Severity.OK


def test_figures_are_told() -> None:
    reason = beat_stale.check(facts(beat(185.0)), Limits()).reason
    assert reason == "last beat 3 min 05 s ago in phase train, at step 1,412; this phase is allowed 60 s"


def test_no_run_is_said_and_no_fault() -> None:
    finding = beat_stale.check(facts(Absent("no run of this job is alive")), Limits())
    assert (finding.severity, finding.reason) == (Severity.OK, "no run of this job is alive")
