"""Where people and machines meet the verdict: status, the live line, metrics, autopsies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.core.ledgers import HandLedger
from tests.unit.test_render import VIEW
from tests.unit.test_statusview import Clock
from watchdog.core.history import fold
from watchdog.core.incidents import incidents
from watchdog.core.phase import Phase
from watchdog.core.state import State
from watchdog.core.verdict import Kind, Verdict
from watchdog.core.view import VerdictView
from watchdog.metrics import Metrics
from watchdog.opening import OpenJob
from watchdog.places import folders_of
from watchdog.render import live_line, status_lines, status_record, view_from_record
from watchdog.settings import load
from watchdog.statusview import make_view

HEALTHY = VerdictView(
    kind="healthy",
    rule="beats in time",
    reason="step 412, last beat 0.2 s ago",
    since_wall_s=VIEW.now_wall_s - 200,
    subject="run 3",
    evidence=("beats",),
)
GHOST = dataclasses.replace(HEALTHY, kind="ghost", rule="busy with nothing", reason="100 % at 60 W\x1b[2J")


def test_status_says_it_before_anything_else() -> None:
    assert status_lines(dataclasses.replace(VIEW, verdict=HEALTHY))[1] == (
        "verdict     healthy for 3 min: step 412, last beat 0.2 s ago (rule: beats in time)"
    )
    assert "\x1b" not in "".join(status_lines(dataclasses.replace(VIEW, verdict=GHOST)))
    assert not any(line.startswith("verdict") for line in status_lines(VIEW)), "nobody judges"


def test_the_view_has_it_on_the_wall_clock() -> None:
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    job = cast(OpenJob, SimpleNamespace(folders=folders_of(settings)))
    state, history = State(phase=Phase.HOLD, since_s=40.0, hold="why"), fold([])
    verdict = Verdict(
        kind=Kind.DEAD, rule="no run", reason="why", since_s=40.0, evidence=("exit record",), subject="job"
    )
    shown = make_view(settings, job, state, history, Clock(), verdict=verdict).verdict
    assert shown == VerdictView(
        kind="dead", rule="no run", reason="why", since_wall_s=990.0, subject="job", evidence=("exit record",)
    )
    assert make_view(settings, job, state, history, Clock()).verdict is None


def test_it_survives_the_socket() -> None:
    view = dataclasses.replace(VIEW, verdict=HEALTHY)
    assert view_from_record(json.loads(json.dumps(status_record(view)))).verdict == HEALTHY
    assert view_from_record(json.loads(json.dumps(status_record(VIEW)))).verdict is None


@pytest.mark.parametrize("verdict", ["x", 3, {"kind": "healthy"}, []])
def test_a_verdict_that_is_none_is_an_error_that_is_known(verdict: object) -> None:
    with pytest.raises((TypeError, AttributeError, KeyError, ValueError)):
        view_from_record(status_record(VIEW) | {"verdict": verdict})


def test_the_live_line_has_a_word_where_something_is_wrong() -> None:
    assert "ghost" in live_line(dataclasses.replace(VIEW, verdict=GHOST))
    assert live_line(dataclasses.replace(VIEW, verdict=HEALTHY)) == live_line(VIEW)


def test_one_of_all_verdicts_is_1_and_none_where_nobody_judges() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, states=("running",), version="1")
    metrics.publish(VIEW)
    assert registry.get_sample_value("watchdog_verdict", {"verdict": "healthy"}) is None
    metrics.publish(dataclasses.replace(VIEW, verdict=GHOST))
    values = {kind: registry.get_sample_value("watchdog_verdict", {"verdict": kind.value}) for kind in Kind}
    assert values == {kind: float(kind is Kind.GHOST) for kind in Kind}


@pytest.mark.parametrize(("last", "shown"), [("slow", True), ("healthy", False)])
def test_an_autopsy_begins_with_a_verdict_that_was_bad_before(last: str, shown: bool) -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0)
    ledger.at(12).write("verdict_changed", verdict="slow", sentence="").at(14)
    ledger.write("verdict_changed", verdict=last).at(20).ended(1, step=30, died=20.0).weighed(1)
    ledger.at(22).write("verdict_changed", verdict="dead").launch(2, resume=20).at(25).steps(2, 21, 25.0)
    [incident] = incidents(ledger.events)
    told = [moment for moment in incident.timeline if moment.kind == "verdict_changed"]
    assert [moment.after_s < 0 for moment in told] == [True, False][not shown :]
    assert {moment.role for moment in told} == {"saw"}
