"""A stale beat, by its phase's own deadline."""

from __future__ import annotations

import math

import pytest

from tests.unit.checks.host import beat, host
from watchdog.checks import beat_stale
from watchdog.core.facts import Absent, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(age_s: float, phase: str = "train") -> Finding:
    given = beat(age_s=age_s, phase=phase, deadline_s=60.0, step=1412, target_step=None)
    return beat_stale.check(host(beat=given), Limits())


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
    finding = judge(age_s)
    assert finding.severity is severity
    assert (finding.remedy is Remedy.WAIT) is (severity is not Severity.OK)


def test_who_promised_no_beat_is_never_late() -> None:
    finding = beat_stale.check(host(beat=beat(age_s=1e6, deadline_s=math.inf, step=None)), Limits())
    assert finding.severity is Severity.OK
    assert finding.reason.endswith("in phase train; it promised no more beats")


def test_a_finished_run_beats_no_more() -> None:
    assert judge(1e6, "finished").severity is Severity.OK


def test_figures_are_told() -> None:
    assert judge(185.0).reason == ("last beat 3 min 05 s ago in phase train, at step 1,412; this phase is allowed 60 s")


def test_no_run_is_said_and_no_fault() -> None:
    finding = beat_stale.check(host(beat=Absent("no run of this job is alive")), Limits())
    assert (finding.severity, finding.reason) == (Severity.OK, "no run of this job is alive")


def test_a_beat_that_cannot_be_read_is_told_here() -> None:
    finding = beat_stale.check(host(beat=Unknown("the beat file is torn")), Limits())
    assert (finding.severity, finding.reason) == (Severity.UNKNOWN, "the beat file is torn")
