"""A relaunch asked for while a run is ended or weighed: it is granted, or it is said that it is not. Never dropped."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.core.test_restart import EXIT_0, alive, ended
from tests.unit.core.world import OPEN, chosen, make_beat, make_policy, running
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.phase import Phase
from watchdog.core.seen import EndSeen, Request, Seen
from watchdog.core.state import Launch, Plan, State

POLICY = make_policy(leave_on_hold=False)
KILLED = EndSeen(cause=Cause.SIGNALLED, words="died of SIGKILL, which was not ours")


def lived(state: State, *looks: Seen) -> tuple[State, list[Plan]]:
    plans = []
    for seen in looks:
        state, plan = decide(state, seen, POLICY)
        plans.append(plan)
    return state, plans


def stalled() -> State:
    """A run that is being ended for a stall, the second failure in a row; its grace runs."""
    silent = [alive(now_s, beat=make_beat(1.0)) for now_s in (70.0, 71.0, 80.0)]
    state, _ = lived(dataclasses.replace(running(), failures=1), *silent)
    assert state.phase is Phase.STOPPING
    return state


@pytest.mark.parametrize("when", ["stopping", "weighing", "afresh"])
def test_it_follows_without_the_wait_that_would_have_been(when: str) -> None:
    request = Request.RELAUNCH_AFRESH if when == "afresh" else Request.RELAUNCH
    during = request if when != "weighing" else None
    weighed = request if when == "weighing" else None
    state, plans = lived(
        stalled(),
        alive(81.0, beat=make_beat(1.0), request=during),
        ended(90.0, KILLED),
        Seen(now_s=91.0, choice=chosen(10), request=weighed, luck=0.9),
    )
    assert state.phase is Phase.GATING
    assert state.failures == (1 if when == "afresh" else 2), "it is weighed as ever"
    assert not state.relaunch_asked
    assert next(record for record in plans[-1].records if record.kind == "run_weighed").data["wait_s"] == 0.0
    _, (plan,) = lived(state, Seen(now_s=92.0, choice=chosen(10), gates=OPEN))
    assert isinstance(plan.actions[-1], Launch)


def test_without_it_the_wait_is_as_ever() -> None:
    state, _ = lived(stalled(), ended(90.0, KILLED), Seen(now_s=91.0, choice=chosen(10), luck=0.9))
    assert state.phase is Phase.BACKOFF


def test_beside_a_stop_that_a_person_asked_for_it_is_dropped_and_told() -> None:
    drained, _ = lived(running(), alive(1.0, request=Request.DRAIN))
    state, (plan,) = lived(drained, alive(2.0, request=Request.RELAUNCH))
    assert [record.kind for record in plan.records] == ["request_dropped"]
    assert "watchdog run" in plan.records[0].sentence
    state, plans = lived(state, ended(3.0, EXIT_0), Seen(now_s=4.0, choice=chosen(10), request=Request.RELAUNCH))
    assert state.phase is Phase.LEFT
    assert "request_dropped" in {record.kind for record in plans[-1].records}


def test_it_lifts_no_limit_of_failures() -> None:
    """Who asked did not know yet that this run was the third; the hold says so, and asking again lifts it."""
    policy = make_policy(leave_on_hold=False, failure_limit=2)
    state, _ = decide(stalled(), alive(81.0, beat=make_beat(1.0), request=Request.RELAUNCH), policy)
    state, _ = decide(state, ended(90.0, KILLED), policy)
    state, _ = decide(state, Seen(now_s=91.0, choice=chosen(10)), policy)
    assert state.phase is Phase.HOLD
