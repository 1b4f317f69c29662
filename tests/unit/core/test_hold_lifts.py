"""A hold for a run that does not end lifts itself with its proven end, and no other hold ever does."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.core.test_restart import EXIT_1, POLICY, Past, after_runs, alive, ended
from tests.unit.core.world import OPEN, chosen, make_policy, member
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.history import Event, can_fold
from watchdog.core.phase import Phase
from watchdog.core.seen import EndSeen, Request, Seen, Shim
from watchdog.core.state import Choose, Ended, Launch, Policy, Record, State

KILLED = EndSeen(cause=Cause.SIGNALLED, words="died of SIGKILL, which was not ours")
STUCK = member(501, state="D")


def held(past: Past, policy: Policy = POLICY, *, request: Request = Request.RELAUNCH) -> State:
    """Asked to end, KILLed, and still there when the wait was over; in one supervisor, all of it recorded."""
    state = past.restored(20.0)
    looks = (
        alive(20.0, request=request),
        alive(20.0 + 5000.0, members=(STUCK,)),
        alive(20.0 + 5001.0 + policy.kill_wait_s, members=(STUCK,)),
    )
    for seen in looks:
        state, plan = decide(state, seen, policy)
        past.add(*plan.records)
    assert state.phase is Phase.HOLD
    assert "waits in the kernel" in (state.hold or "")
    assert "this hold ends with it" in (state.hold or "")
    return state


def stuck(now_s: float, **changes: object) -> Seen:
    return alive(now_s, members=(STUCK,), **changes)


def test_it_stays_as_long_as_the_run_is_there() -> None:
    state = held(after_runs(0))
    for now_s in (6000.0, 9000.0, 90_000.0):
        state, plan = decide(state, stuck(now_s), POLICY)
        assert (state.phase, plan.records, plan.actions) == (Phase.HOLD, (), ())


def test_it_lifts_itself_weighs_and_launches_through_the_gates() -> None:
    past = after_runs(1)
    state = held(past)
    state, plan = decide(state, ended(9000.0, KILLED), POLICY)
    past.add(*plan.records)
    assert [record.kind for record in plan.records] == ["run_ended", "lifted"]
    lifted = plan.records[-1]
    assert lifted.data["by"] == "end"
    assert lifted.data["run_id"] == "2-a"
    assert lifted.data["proof"] == "shim ended"
    assert plan.actions == (Choose(),)
    assert (state.phase, state.hold, state.until_gone, state.run) == (Phase.WEIGHING, None, None, None)
    state, plan = decide(state, Seen(now_s=9001.0, choice=chosen(10)), POLICY)
    past.add(*plan.records)
    assert state.failures == past.history.failures == 1, "no person has looked: what was counted stays counted"
    assert state.phase is Phase.GATING
    _, plan = decide(state, Seen(now_s=9002.0, choice=chosen(10), gates=OPEN), POLICY)
    assert [type(action) for action in plan.actions] == [Launch]


def test_without_its_shim_only_every_cross_check_lifts_it() -> None:
    state = held(after_runs(0))
    for seen in (
        Seen(now_s=6000.0, shim=Shim.LOST, members=(STUCK,)),
        Seen(now_s=6001.0, shim=Shim.LOST, unclear=(STUCK,), run_lock_free=True),
        Seen(now_s=6002.0, shim=Shim.LOST, run_lock_free=False),
        Seen(now_s=6003.0, shim=Shim.LOST, run_lock_free=None),
    ):
        state, plan = decide(state, seen, POLICY)
        assert (state.phase, plan.records) == (Phase.HOLD, ()), seen
    state, plan = decide(state, Seen(now_s=6004.0, shim=Shim.LOST, run_lock_free=True), POLICY)
    assert [record.kind for record in plan.records] == ["run_ended", "lifted"]
    assert "lock is free" in plan.records[-1].data["proof"]
    assert state.phase is Phase.WEIGHING


def test_what_tells_of_its_end_is_heard_first() -> None:
    """Else it may be taken for another: what a kernel line says of it is not read yet."""
    state = held(after_runs(0))
    waiting, plan = decide(state, dataclasses.replace(ended(9000.0, KILLED), end_awaited=True), POLICY)
    assert (waiting, plan.records, plan.actions) == (state, (), ())
    assert plan.rule == "hearing its end"
    state, _ = decide(waiting, ended(9001.0, EXIT_1), POLICY)
    assert state.ended is not None
    assert "exit 1" in state.ended.words


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_the_next_supervisor_decides_the_same_wherever_the_records_were_cut(cut: int) -> None:
    past = after_runs(1)
    held(past)
    state = past.restored()
    assert (state.phase, state.until_gone) == (Phase.HOLD, "2-a")
    assert state.run is not None
    assert state.run.stop is not None, "what its end counts as is known from the stop"
    past.turn(stuck(8000.0))
    past.turn(ended(9000.0, KILLED), cut)
    state, _ = past.turn(ended(9001.0, KILLED)) if cut == 0 else past.turn(Seen(now_s=9001.0))
    state = past.restored(9002.0)
    assert (state.phase, state.hold, state.failures) == (Phase.WEIGHING, None, 1)
    assert [record.kind for record in past.records].count("run_ended") == 2, "one of each run"
    assert [record.kind for record in past.records].count("lifted") == 1
    state, _ = past.turn(Seen(now_s=9003.0, choice=chosen(10)))
    assert (state.phase, state.failures) == (Phase.GATING, 1), "asked for by a person, it is nobody's failure"


def test_a_reboot_that_took_the_run_lifts_it_as_well() -> None:
    """`reboot` is what the hold itself advises; the next supervisor finds the run over before its first turn."""
    past = after_runs(0)
    held(past)
    data = {"number": 1, "run_id": "1-a", "cause": "host_restarted", "words": "was alive", "baseline_step": 10}
    past.add(Record("run_ended", "was alive when the host went down", data))
    state, plan = past.turn(Seen(now_s=10_000.0))
    assert [record.kind for record in plan.records] == ["lifted"]
    assert plan.records[0].data["proof"] == "its end is recorded"
    assert plan.actions == (Choose(),)
    assert state.phase is Phase.WEIGHING
    state, _ = past.turn(Seen(now_s=10_001.0, choice=chosen(10)))
    assert state.phase is Phase.GATING


def test_what_would_have_been_a_hold_without_it_is_one_after_it() -> None:
    """A run that began anew where it should resume is stuck: its end lifts the one hold, and weighing makes another."""
    past = after_runs(0)
    data = {"run_id": "1-a", "cause": "fresh_start", "reason": "began anew", "kill_now": True, "hold_after": True}
    past.add(Record("run_refused", "", {"run_id": "1-a"}), Record("run_stopping", "", data))
    past.turn(stuck(20.0))
    past.add(Record("hold", "", {"reason": "does not end", "until_gone": "1-a"}))
    past.turn(ended(30.0, KILLED))
    state, _ = past.turn(Seen(now_s=31.0, choice=chosen(10)))
    assert state.phase is Phase.HOLD
    assert state.until_gone is None
    again, plan = past.turn(Seen(now_s=32.0, choice=chosen(10), gates=OPEN))
    assert (again.phase, plan.actions) == (Phase.HOLD, ())


def test_a_hold_that_is_for_something_else_stays_when_the_run_ends() -> None:
    """As older ledgers have it: that the run did not end is not written down as the hold's reason."""
    past = after_runs(0)
    held(past)
    old = Record("hold", "", {"reason": "three runs in a row"})
    past.records = [old if record.kind == "hold" else record for record in past.records]
    past.turn(ended(9000.0, KILLED))
    state, plan = past.turn(Seen(now_s=9001.0, choice=chosen(10), gates=OPEN))
    assert (state.phase, state.hold, plan.actions) == (Phase.HOLD, "three runs in a row", ())


def test_who_leaves_on_a_hold_leaves_while_the_run_is_there() -> None:
    policy = make_policy(leave_on_hold=True)
    past = after_runs(0, policy)
    state, plan = decide(held(past, policy), stuck(9000.0), policy)
    assert (state.phase, [action.code for action in plan.actions]) == (Phase.LEFT, [3])  # type: ignore[union-attr]


def test_a_wish_to_leave_is_kept_beyond_it() -> None:
    past = after_runs(0)
    state = held(past, request=Request.DRAIN)
    state, _ = decide(state, ended(9000.0, KILLED), POLICY)
    state, _ = decide(state, Seen(now_s=9001.0, choice=chosen(10)), POLICY)
    assert state.phase is Phase.LEFT


@pytest.mark.parametrize("leaves", [True, False])
def test_a_relaunch_asked_in_the_turn_in_which_it_lifts_itself_changes_nothing_of_that(leaves: bool) -> None:
    """Asked of a supervisor that leaves on a hold, it made it leave where no request would have lifted it."""
    policy = make_policy(leave_on_hold=leaves)
    data = {"number": 1, "run_id": "1-a", "cause": "exited", "words": "exit 1", "baseline_step": 10}
    past = after_runs(1, policy)
    held(past, policy)
    past.add(Record("run_ended", "", {**data, "number": 2, "run_id": "2-a"}))
    state = past.restored(9000.0)
    assert (state.phase, state.run, state.until_gone) == (Phase.HOLD, None, "2-a")
    state, plan = decide(state, Seen(now_s=9000.0, request=Request.RELAUNCH), policy)
    assert (state.phase, [record.kind for record in plan.records]) == (Phase.WEIGHING, ["lifted"])
    state, _ = decide(state, Seen(now_s=9001.0, choice=chosen(10), luck=0.9), policy)
    assert (state.phase, state.failures) == (Phase.GATING, 2), "weighed as ever, and without a wait: a person asked"


def test_what_was_asked_of_a_run_long_gone_cuts_no_later_wait() -> None:
    """Asked while its end was weighed, which then was a hold that a person lifted."""
    policy = make_policy(leave_on_hold=False)
    failed = Ended(number=1, run_id="1-a", cause=Cause.EXITED, words="exit 1", baseline_step=10)
    state = State(phase=Phase.WEIGHING, since_s=0.0, ended=failed)
    state, _ = decide(state, Seen(now_s=1.0, request=Request.RELAUNCH, choice_error="I/O error"), policy)
    assert state.phase is Phase.HOLD
    state, _ = decide(state, Seen(now_s=2.0, request=Request.RELAUNCH), policy)
    assert (state.phase, state.relaunch_asked) == (Phase.GATING, False)


@pytest.mark.parametrize("data", [{"by": 7}, {"run_id": ["1-a"]}], ids=["by", "run"])
def test_a_lifting_that_is_no_record_is_none(data: dict[str, object]) -> None:
    assert not can_fold(Event(seq=1, wall_s=1.0, kind="lifted", sentence="", data=data))


@pytest.mark.parametrize("request_", [Request.DRAIN, Request.STOP])
@pytest.mark.parametrize("over", [True, False], ids=["weighed", "ended before us"])
def test_a_stop_asked_in_the_turn_in_which_it_lifts_is_not_forgotten(request_: Request, over: bool) -> None:
    """`watchdog stop` with no supervisor begins one and asks it before its first turn: nothing may be launched."""
    past = after_runs(0)
    held(past)
    if over:
        state, plan = past.turn(dataclasses.replace(ended(9000.0, KILLED), request=request_))
        assert state.phase is Phase.WEIGHING
        state, plan = decide(state, Seen(now_s=9001.0, choice=chosen(10), gates=OPEN), POLICY)
    else:
        past.add(Record("run_ended", "", {"number": 1, "run_id": "1-a", "cause": "unknown", "words": "w",
                                          "baseline_step": 10}))  # fmt: skip
        past.add(Record("run_weighed", "", {"run_id": "1-a", "cause": "unknown", "failures": 0}))
        state, plan = past.turn(Seen(now_s=9000.0, choice=chosen(10), gates=OPEN, request=request_))
    assert state.phase is Phase.LEFT
    assert not any(isinstance(action, Launch) for action in plan.actions)
