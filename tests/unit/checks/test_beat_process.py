"""The process that beat is gone, though its run did not say that it was finished."""

from __future__ import annotations

import pytest

from watchdog.checks import beat_process
from watchdog.core.facts import Absent, BeatFact, Facts, Known
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize(
    ("alive", "phase", "severity"),
    [
        (True, "train", Severity.OK),
        (False, "train", Severity.CRITICAL),
        (False, "drain", Severity.CRITICAL),
        (False, "finished", Severity.OK),
    ],
)
def test_gone(alive: bool, phase: str, severity: Severity) -> None:
    beat = BeatFact(
        run_id="run-3", pid=777, phase=phase, age_s=0.3, deadline_s=60.0, step=214, target_step=600, alive=alive
    )
    facts = Facts(at_s=1.0, memory=Absent(), disks=(), locks=(), driver=Absent(), beat=Known(beat, 1.0))
    (finding,) = beat_process.check(facts, Limits())
    assert finding.severity is severity
    assert "777" in finding.reason


def test_without_a_beat_there_is_nothing_to_say() -> None:
    facts = Facts(at_s=1.0, memory=Absent(), disks=(), locks=(), driver=Absent(), beat=Absent())
    assert beat_process.check(facts, Limits()) == ()
