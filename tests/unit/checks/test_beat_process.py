"""The process that beat is gone, though its run did not say that it was finished."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import beat, host
from watchdog.checks import beat_process
from watchdog.core.facts import Absent, Unknown
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize(
    ("alive", "phase", "severity"),
    [
        (True, "train", Severity.OK),
        (False, "train", Severity.CRITICAL),
        (False, "drain", Severity.CRITICAL),
        (False, "finished", Severity.OK),
        (None, "train", Severity.UNKNOWN),
    ],
)
def test_gone(alive: bool | None, phase: str, severity: Severity) -> None:
    (finding,) = beat_process.check(host(beat=beat(pid=777, phase=phase, alive=alive)), Limits())
    assert finding.severity is severity
    assert "777" in finding.reason


@pytest.mark.parametrize("fact", [Absent(), Unknown("told by beat-stale")])
def test_without_a_beat_there_is_nothing_to_say(fact: Absent | Unknown) -> None:
    assert beat_process.check(host(beat=fact), Limits()) == ()
