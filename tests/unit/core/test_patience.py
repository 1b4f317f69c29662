"""How long the loop rests: often where an answer is due, awake when a silence becomes one."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.core.world import make_policy, running
from watchdog.core.patience import AT_FIRST_S, YOUNG_S, Waiting, until_next_look_s
from watchdog.core.phase import Phase
from watchdog.core.state import Room, State

POLICY = make_policy(period_s=10.0)
NOW_S = 100.0
QUIET = Waiting()


def at(phase: Phase, since_s: float = 0.0, **changes: object) -> State:
    return dataclasses.replace(State(phase=phase, since_s=since_s), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", list(Phase))
def test_never_longer_than_a_period_and_never_negative(phase: Phase) -> None:
    state = at(phase, retry_at_s=NOW_S + 1000.0)
    assert 0.0 <= until_next_look_s(state, POLICY, QUIET, NOW_S) <= 10.0
    late = at(phase, retry_at_s=NOW_S - 5.0)
    assert until_next_look_s(late, POLICY, QUIET, NOW_S) >= 0.0


def test_an_answer_that_is_due_is_looked_for_often_at_first_and_then_less() -> None:
    unanswered = Waiting(unanswered=True)
    assert until_next_look_s(at(Phase.GATING, NOW_S), POLICY, unanswered, NOW_S) == AT_FIRST_S
    assert until_next_look_s(at(Phase.GATING, NOW_S - YOUNG_S), POLICY, unanswered, NOW_S) > AT_FIRST_S
    assert until_next_look_s(at(Phase.GATING, NOW_S), POLICY, QUIET, NOW_S) == 1.0, "a closed gate is no answer"
    pruning = at(Phase.GATING, NOW_S, pruning=Room.UNDER_WAY)
    assert until_next_look_s(pruning, POLICY, QUIET, NOW_S) == AT_FIRST_S


def test_it_wakes_when_the_run_becomes_late() -> None:
    state = dataclasses.replace(running(), since_s=0.0)
    assert state.run is not None
    state = dataclasses.replace(state, run=dataclasses.replace(state.run, acknowledged=True))
    due = Waiting(due_s=NOW_S + 0.3, looked_s=NOW_S - 1.0)
    assert until_next_look_s(state, POLICY, due, NOW_S) == pytest.approx(0.305)
    told = Waiting(due_s=NOW_S - 3.0, looked_s=NOW_S - 1.0)  # the look knew already
    assert until_next_look_s(state, POLICY, told, NOW_S) == 10.0


def test_a_run_that_starts_or_ends_is_looked_at_closely() -> None:
    state = running()
    assert until_next_look_s(state, POLICY, Waiting(starting=True), NOW_S) <= 0.05
    assert until_next_look_s(state, POLICY, Waiting(hearing_its_end=True), NOW_S) == AT_FIRST_S
    assert until_next_look_s(state, POLICY, Waiting(keeping_stacks=True), NOW_S) <= 0.02
    assert until_next_look_s(at(Phase.STOPPING), POLICY, QUIET, NOW_S) == 0.1
