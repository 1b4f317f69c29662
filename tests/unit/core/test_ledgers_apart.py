"""Two ledgers, the trainer's and the host's; and the error that repeats itself: what each spends, and what holds."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.core.world import OPEN, chosen, events_of, make_policy, running
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.facts import Absent
from watchdog.core.history import fold
from watchdog.core.phase import Phase
from watchdog.core.restore import restore
from watchdog.core.seen import EndSeen, Request, Seen, Shim
from watchdog.core.state import Ended, Launch, Plan, Policy, State, Wish

POLICY = make_policy(target_step=None)
PLACE = "TypeError at /u/train.py:12 in step"


def weigh(
    state: State, cause: Cause, *, step: int = 10, policy: Policy = POLICY, **ended: object
) -> tuple[State, Plan]:
    """The state after a run that ended so, with that step verified; its baseline was step 10."""
    values: dict[str, object] = {"number": 1, "run_id": "1-a", "words": "exit 1: the program failed", "last_step": 13}
    end = Ended(cause=cause, baseline_step=10, **(values | ended))  # type: ignore[arg-type]
    state = dataclasses.replace(state, phase=Phase.WEIGHING, ended=end, run=None, hold=None)
    return decide(state, Seen(now_s=5.0, choice=chosen(step)), policy)


START = State(phase=Phase.WEIGHING, since_s=0.0)


def test_a_host_that_fails_twice_does_not_spend_the_trainers_patience() -> None:
    state = START
    for cause in (Cause.HOST_MEMORY, Cause.EXITED, Cause.DISK_FULL, Cause.SIGNALLED):
        state, plan = weigh(state, cause)
        assert state.phase is not Phase.HOLD, plan.records
    assert (state.failures, state.host_failures) == (2, 2)
    state, plan = weigh(state, Cause.OOM_KILL)
    assert state.phase is Phase.HOLD
    assert "3 runs in a row" in (state.hold or "")
    assert "fault of the host" in (state.hold or "")


def test_a_new_checkpoint_clears_both() -> None:
    state, _ = weigh(dataclasses.replace(START, failures=2, host_failures=2), Cause.HOST_MEMORY, step=20)
    assert (state.failures, state.host_failures) == (0, 0)


def test_the_record_says_whose_ledger_was_spent_and_what_is_to_be_done() -> None:
    _, plan = weigh(START, Cause.HOST_MEMORY)
    (weighed,) = [record for record in plan.records if record.kind == "run_weighed"]
    assert (weighed.data["spends"], weighed.data["failures"], weighed.data["host_failures"]) == ("host", 0, 1)
    assert "make room in host memory" in weighed.sentence
    assert "1 in a row of the host's" in weighed.sentence


def test_the_same_error_at_the_same_place_and_step_holds_at_the_second_time() -> None:
    state, _ = weigh(START, Cause.CODE_ERROR, fault=PLACE)
    assert state.phase is Phase.GATING
    state, _ = weigh(state, Cause.CODE_ERROR, fault=PLACE)
    assert state.phase is Phase.HOLD
    assert f"twice the same: {PLACE}, step 13" in (state.hold or "")


@pytest.mark.parametrize(
    "second",
    [
        {"fault": PLACE, "last_step": 14},
        {"fault": "TypeError at /u/train.py:13 in step"},
        {"fault": "KeyError at /u/train.py:12 in step"},
        {"fault": None},
        {"fault": PLACE, "step": 12},
    ],
    ids=["another step", "another line", "another class", "no place", "after progress"],
)
def test_what_is_not_the_same_is_tried_again(second: dict) -> None:
    state, _ = weigh(START, Cause.CODE_ERROR, fault=PLACE)
    state, _ = weigh(state, Cause.CODE_ERROR, **second)
    assert state.phase is not Phase.HOLD


@pytest.mark.parametrize("cause", [Cause.HOST_MEMORY, Cause.DISK_FULL, Cause.EXITED, Cause.CUDA_OUT_OF_MEMORY])
def test_a_shortage_at_the_same_place_is_no_error_of_the_program(cause: Cause) -> None:
    """Memory runs out where the load is: twice at the same line says nothing about the line."""
    state, _ = weigh(START, cause, fault=PLACE)
    state, _ = weigh(state, cause, fault=PLACE)
    assert state.phase is not Phase.HOLD


def test_another_end_in_between_begins_anew() -> None:
    state = START
    for cause in (Cause.CODE_ERROR, Cause.KILLED, Cause.CODE_ERROR):
        state, _ = weigh(state, cause, fault=PLACE if cause is Cause.CODE_ERROR else None)
    assert state.phase is not Phase.HOLD


def test_it_is_remembered_over_a_restart_and_forgotten_when_a_person_lifts_the_hold() -> None:
    state, plan = weigh(START, Cause.CODE_ERROR, fault=PLACE)
    history = fold(events_of(plan.records))
    again = restore(history, None, 9.0, POLICY, wall_s=9.0, boot_id="boot")
    assert (again.fault, again.failures) == (state.fault, 1)
    held, plan = weigh(again, Cause.CODE_ERROR, fault=PLACE)
    assert held.phase is Phase.HOLD
    free, plan = decide(held, Seen(now_s=10.0, request=Request.RELAUNCH), make_policy(leave_on_hold=False))
    assert (free.fault, free.failures, free.host_failures) == (None, 0, 0)
    history = fold(events_of(plan.records), history)
    assert (history.fault, history.host_failures) == (None, 0)


def test_memory_that_ran_out_resumes_from_the_same_checkpoint() -> None:
    """Never a reason to fall back: the newest that is verified is launched from again."""
    state, _ = weigh(START, Cause.HOST_MEMORY)
    assert state.phase is Phase.GATING
    _, plan = decide(state, Seen(now_s=6.0, gates=OPEN, choice=chosen(10)), POLICY)
    (launch,) = plan.actions
    assert isinstance(launch, Launch)
    assert launch.checkpoint is not None
    assert launch.checkpoint.step == 10


def test_a_run_is_not_called_over_before_its_end_was_heard() -> None:
    end = EndSeen(cause=Cause.EXITED, words="exit 1")
    state = running()
    seen = Seen(now_s=1.0, shim=Shim.ENDED, end=end, end_awaited=True, beat=Absent())
    after, plan = decide(state, seen, POLICY)
    assert (after.phase, plan.rule, plan.records) == (Phase.RUNNING, "hearing its end", ())
    after, plan = decide(after, dataclasses.replace(seen, now_s=1.1, end_awaited=False), POLICY)
    assert after.phase is Phase.WEIGHING


def test_the_confidence_is_that_of_the_classifier() -> None:
    for likely, said in ((True, "likely"), (False, "certain")):
        end = EndSeen(cause=Cause.OOM_KILL, words="x", likely=likely)
        _, plan = decide(running(), Seen(now_s=1.0, shim=Shim.ENDED, end=end), POLICY)
        (ended,) = [record for record in plan.records if record.kind == "run_ended"]
        assert ended.data["confidence"] == said


def test_a_person_who_stops_at_the_last_failure_leaves_a_hold_behind() -> None:
    """Else the next supervisor would find a spent budget and no hold, and launch once more."""
    state, plan = weigh(dataclasses.replace(START, failures=2, wish=Wish.LEAVE), Cause.EXITED)
    assert (state.phase, state.failures) == (Phase.HOLD, 3)
    assert [record.kind for record in plan.records] == ["hold", "run_weighed"]
