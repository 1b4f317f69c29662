"""Each rule of the decisions by example, and the corners where a person, a gap or an end come at a bad moment."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from tests.unit.core.world import (
    BEATER,
    CLOSED,
    OPEN,
    SHORT,
    TARGET,
    acknowledgement,
    chosen,
    digest_of,
    make_beat,
    make_policy,
    make_run,
    member,
    running,
    said,
)
from watchdog.core.causes import Cause
from watchdog.core.choice import Refusal
from watchdog.core.decide import TRANSITIONS, beat_deadline, decide, launched, resumed
from watchdog.core.facts import Absent, Known, Unknown
from watchdog.core.phase import Phase
from watchdog.core.runrecord import Expectation
from watchdog.core.seen import EndSeen, Gate, Request, Seen, Shim, Trouble
from watchdog.core.state import (
    Choose,
    Ended,
    KeepStacks,
    Kill,
    Launch,
    Leave,
    MakeRoom,
    Policy,
    Quarantine,
    Room,
    State,
    Stop,
    Terminate,
    TerminateRest,
    Wish,
)

POLICY = make_policy()
GATING = State(phase=Phase.GATING, since_s=0.0)
EXIT_0 = EndSeen(cause=Cause.FINISHED, words="exit 0")
EXIT_1 = EndSeen(cause=Cause.EXITED, words="exit 1", error="RuntimeError: boom")
KILLED = EndSeen(cause=Cause.SIGNALLED, words="died of SIGKILL, which was not ours")


def alive(now_s: float, **changes: object) -> Seen:
    values: dict[str, object] = {"shim": Shim.ALIVE, "leader_alive": True, "beat": make_beat(now_s)}
    return Seen(now_s=now_s, **(values | changes))  # type: ignore[arg-type]


def stopping(cause: Cause, *, kill_from_s: float = 15.0, hold_after: bool = False, wish: Wish = Wish.RUN) -> State:
    stop = Stop(
        cause=cause,
        reason="a reason",
        since_s=0.0,
        kill_from_s=kill_from_s,
        give_up_s=kill_from_s + 20.0,
        hold_after=hold_after,
        asked_of=BEATER,
    )
    return State(phase=Phase.STOPPING, since_s=0.0, run=make_run(stop=stop), wish=wish)


def weighing(cause: Cause, *, failures: int = 0, wish: Wish = Wish.RUN, **changes: object) -> State:
    values: dict[str, object] = {"number": 1, "run_id": "1-a", "words": "words", "baseline_step": 10}
    ended = Ended(cause=cause, **(values | changes))  # type: ignore[arg-type]
    return State(phase=Phase.WEIGHING, since_s=0.0, ended=ended, failures=failures, wish=wish)


# --- gating -------------------------------------------------------------------------------------------------
def test_nothing_is_launched_before_the_checkpoints_were_read() -> None:
    state, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN), POLICY)
    assert (state, plan.actions, plan.rule) == (GATING, (), "choosing")


def test_checkpoints_that_cannot_be_read_are_a_hold() -> None:
    state, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN, choice_error="I/O error"), POLICY)
    assert state.phase is Phase.HOLD
    assert "I/O error" in (state.hold or "")
    assert [record.kind for record in plan.records] == ["hold"]


def test_a_verified_checkpoint_and_open_gates_launch() -> None:
    _, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN, choice=chosen(10)), POLICY)
    (launch,) = plan.actions
    assert isinstance(launch, Launch)
    assert launch.checkpoint is not None
    assert launch.checkpoint.step == 10


def test_a_first_start_launches_without_a_checkpoint() -> None:
    _, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN, choice=chosen(None, first_start=True)), POLICY)
    assert plan.actions == (Launch(None),)


def test_lost_checkpoints_are_a_hold_and_never_a_fresh_start() -> None:
    refusal = Refusal(manifest="/c/x.manifest.json", step=40, why="one bit is off")
    state, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN, choice=chosen(None, refused=(refusal,))), POLICY)
    assert state.phase is Phase.HOLD
    assert "one bit is off" in (state.hold or "")
    assert plan.actions == (Quarantine((refusal,)),)


def test_what_was_refused_is_moved_aside_before_the_launch() -> None:
    refusal = Refusal(manifest="/c/x.manifest.json", step=40, why="one bit is off")
    _, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN, choice=chosen(10, refused=(refusal,))), POLICY)
    assert [type(action) for action in plan.actions] == [Quarantine, Launch]


@pytest.mark.parametrize("gates", [CLOSED, (*OPEN, *CLOSED), ()])
def test_a_closed_gate_or_none_at_all_launches_nothing(gates: tuple) -> None:
    state, plan = decide(GATING, Seen(now_s=1.0, gates=gates, choice=chosen(10)), POLICY)
    assert (state, plan.actions) == (dataclasses.replace(GATING, waited=bool(gates)), ())
    state, plan = decide(GATING, Seen(now_s=300.0, gates=gates, choice=chosen(10)), POLICY)
    assert state.phase is Phase.HOLD
    assert plan.actions == ()


def test_short_memory_is_worth_one_try_and_then_the_wait_begins_anew() -> None:
    seen = Seen(now_s=1.0, gates=SHORT, choice=chosen(10))
    state, plan = decide(GATING, seen, POLICY)
    assert (state.room, plan.actions) == (Room.UNDER_WAY, (MakeRoom(),))
    state, plan = decide(state, dataclasses.replace(seen, now_s=400.0), POLICY)
    assert (state.phase, plan.actions) == (Phase.GATING, ()), "it is bounded by itself"
    state, plan = decide(state, dataclasses.replace(seen, now_s=401.0, room_made=True), POLICY)
    assert (state.room, state.since_s, plan.actions) == (Room.TRIED, 401.0, ())
    again, plan = decide(state, dataclasses.replace(seen, now_s=402.0, room_made=True), POLICY)
    assert (again, plan.rule) == (state, "gate closed"), "once per stay at the gates"
    held, _ = decide(state, dataclasses.replace(seen, now_s=701.0, room_made=True), POLICY)
    assert held.phase is Phase.HOLD
    waits = make_policy(leave_on_hold=False)
    lifted, _ = decide(held, dataclasses.replace(seen, now_s=702.0, request=Request.RELAUNCH), waits)
    assert (lifted.phase, lifted.room) == (Phase.GATING, Room.UNTRIED)


def test_where_a_person_reclaims_by_hand_nothing_is_tried_and_the_wait_is_the_usual_one() -> None:
    by_hand = make_policy(reclaims=False)
    seen = Seen(now_s=1.0, gates=SHORT, choice=chosen(10))
    state, plan = decide(GATING, seen, by_hand)
    assert (state, plan.actions, plan.rule) == (dataclasses.replace(GATING, waited=True), (), "gate closed")
    held, _ = decide(state, dataclasses.replace(seen, now_s=301.0), by_hand)
    assert held.phase is Phase.HOLD
    assert SHORT[0].words in (held.hold or "")


def test_no_cache_is_dropped_under_a_run() -> None:
    state = dataclasses.replace(GATING, room=Room.UNDER_WAY)
    seen = Seen(now_s=1.0, gates=OPEN, choice=chosen(10))
    after, plan = decide(state, seen, POLICY)
    assert (after, plan.actions) == (state, ())
    after, plan = decide(state, dataclasses.replace(seen, room_made=True), POLICY)
    assert plan.actions == ()
    _, plan = decide(after, dataclasses.replace(seen, room_made=True), POLICY)
    assert isinstance(plan.actions[0], Launch)
    _, plan = decide(state, dataclasses.replace(seen, request=Request.DRAIN), POLICY)
    assert plan.actions == (Leave(5),), "whoever asks to leave does not wait for it"


def test_no_cache_is_dropped_where_another_gate_is_closed_as_well() -> None:
    disk = Gate(name="disk", open=False, words="disk 0 < 1 GiB")
    state, plan = decide(GATING, Seen(now_s=1.0, gates=(*SHORT, disk), choice=chosen(10)), POLICY)
    assert (state, plan.actions) == (dataclasses.replace(GATING, waited=True), ())


def test_a_gap_restarts_the_patience_with_a_closed_gate() -> None:
    """After an hour asleep the gate has been seen closed for one look, not for an hour."""
    state, _ = decide(GATING, Seen(now_s=3600.0, gap=True, gates=CLOSED, choice=chosen(10)), POLICY)
    assert state.phase is Phase.GATING
    state, _ = decide(state, Seen(now_s=3602.0, gates=CLOSED, choice=chosen(10)), POLICY)
    assert state.phase is Phase.GATING


def test_a_verified_target_is_finished_without_a_run() -> None:
    state, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN, choice=chosen(TARGET)), POLICY)
    assert state.phase is Phase.FINISHED
    assert [record.kind for record in plan.records] == ["finished"]
    state, plan = decide(state, Seen(now_s=2.0), POLICY)
    assert (state.phase, plan.actions) == (Phase.LEFT, (Leave(0),))


def test_a_launch_that_failed_for_what_stays_is_a_hold() -> None:
    seen = Seen(now_s=1.0, gates=OPEN, choice=chosen(10), trouble=Trouble(words="no such folder"))
    state, plan = decide(GATING, seen, POLICY)
    assert state.phase is Phase.HOLD
    assert not plan.actions
    assert "no such folder" in (state.hold or "")


@pytest.mark.parametrize("level", [0, 1])
def test_without_checkpoints_nothing_is_chosen(level: int) -> None:
    _, plan = decide(GATING, Seen(now_s=1.0, gates=OPEN), make_policy(level=level))
    assert plan.actions == (Launch(None),)


@pytest.mark.parametrize("phase", list(Phase))
def test_launched_is_refused_outside_gating_and_beside_a_run(phase: Phase) -> None:
    state = State(phase=phase, since_s=0.0, run=make_run() if phase is Phase.GATING else None)
    with pytest.raises(AssertionError):
        launched(state, make_run(), 1.0)


# --- restoring what was verified -----------------------------------------------------------------------------
WRONG = [
    (said(acknowledgement(0, fresh=True)), Cause.FRESH_START),
    (said(acknowledgement(9, digest=digest_of(10))), Cause.WRONG_RESTORE),
    (said(acknowledgement(10, digest="f" * 64)), Cause.WRONG_RESTORE),
    (said(acknowledgement(10, run_id="9-z")), Cause.WRONG_RESTORE),
]


def unacknowledged(**changes: object) -> State:
    return running(acknowledged=False, **changes)


def test_the_right_acknowledgement_is_recorded_once() -> None:
    state, plan = decide(unacknowledged(), alive(1.0, acknowledgement=said(acknowledgement(10))), POLICY)
    assert [record.kind for record in plan.records] == ["run_acknowledged"]
    assert state.run is not None
    assert state.run.acknowledged
    _, plan = decide(state, alive(2.0, acknowledgement=said(acknowledgement(10))), POLICY)
    assert not plan.records


@pytest.mark.parametrize(
    ("ack", "cause"),
    [
        *WRONG,
        (Absent(), Cause.NOT_ACKNOWLEDGED),
    ],
)
def test_whatever_was_not_restored_as_verified_is_stopped_at_once(ack: object, cause: Cause) -> None:
    state, plan = decide(unacknowledged(), alive(1.0, acknowledgement=ack), POLICY)
    assert state.phase is Phase.STOPPING
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.cause is cause
    assert plan.actions == (Kill(),)
    assert [record.kind for record in plan.records] == ["run_refused", "run_stopping"]  # a cut batch keeps the first


def test_a_run_of_a_fresh_start_that_restored_something_is_stopped() -> None:
    state, plan = decide(
        unacknowledged(expectation=Expectation(fresh=True), baseline_step=-1),
        alive(1.0, acknowledgement=said(acknowledgement(10))),
        POLICY,
    )
    assert state.phase is Phase.STOPPING
    assert plan.actions == (Kill(),)


@pytest.mark.parametrize("phase", ["import", "prepare", "load", "compile", "drain"])
def test_who_has_not_stepped_yet_need_not_have_acknowledged(phase: str) -> None:
    seen = alive(1.0, beat=make_beat(1.0, phase=phase, step=None))
    state, plan = decide(unacknowledged(), seen, POLICY)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())


@pytest.mark.parametrize("cause", [Cause.FRESH_START, Cause.NOT_ACKNOWLEDGED, Cause.TARGET_UNKNOWN, Cause.NOT_EXECUTED])
def test_ends_that_would_only_repeat_themselves_hold_at_once(cause: Cause) -> None:
    state, plan = decide(weighing(cause), Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert state.phase is Phase.HOLD
    assert [record.kind for record in plan.records] == ["hold", "run_weighed"]
    assert not plan.actions


# --- stalls -------------------------------------------------------------------------------------------------
def test_a_stall_needs_two_looks_a_moment_apart() -> None:
    """Half a second at most, however long the period: it is to be called within a second of its deadline."""
    state = running()
    stale = make_beat(0.0)
    state, plan = decide(state, alive(61.0, beat=stale), POLICY)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    state, plan = decide(state, alive(61.4, beat=stale), POLICY)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    state, plan = decide(state, alive(61.5, beat=stale), POLICY)
    assert state.phase is Phase.STOPPING
    (action,) = plan.actions
    assert isinstance(action, KeepStacks)
    assert plan.records[0].kind == "run_stopping"
    state, plan = decide(state, alive(61.6, beat=stale, stacks_over=True), POLICY)
    (action,) = plan.actions
    assert isinstance(action, Terminate)
    assert action.only_if_seq == 1  # it looks once more before it acts


def test_a_beat_between_the_looks_clears_the_first() -> None:
    state, _ = decide(running(), alive(61.0, beat=make_beat(0.0)), POLICY)
    state, _ = decide(state, alive(62.0, beat=make_beat(61.9, seq=2)), POLICY)
    assert state.run is not None
    assert state.run.stale_looks == 0


@pytest.mark.parametrize("beat", [Unknown("torn"), Unknown("from run 9")])
def test_an_unknown_beat_never_stops_a_run(beat: Unknown) -> None:
    state = running()
    for now_s in range(0, 100_000, 1000):
        state, plan = decide(state, alive(float(now_s), beat=beat), POLICY)
        assert (state.phase, plan.actions, plan.records) == (Phase.RUNNING, (), ())


def test_an_unknown_beat_between_two_stale_looks_is_no_second_look() -> None:
    state, _ = decide(running(), alive(61.0, beat=make_beat(0.0)), POLICY)
    state, _ = decide(state, alive(64.0, beat=Unknown("torn")), POLICY)
    state, plan = decide(state, alive(67.0, beat=make_beat(0.0)), POLICY)
    assert (state.phase, plan.rule) == (Phase.RUNNING, "stale once")


def test_no_beat_at_all_is_a_stall_where_beats_are_promised() -> None:
    def after(level: int) -> Phase:
        state, policy = running(level=level), make_policy(level=level)
        for now_s in (61.0, 64.0):
            state, _ = decide(state, alive(now_s, beat=Absent("no beat yet")), policy)
        return state.phase

    assert after(0) is Phase.RUNNING
    assert after(1) is Phase.STOPPING
    assert after(2) is Phase.STOPPING


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_a_time_that_is_none_is_no_reason_to_stop(number: float) -> None:
    """Should such a beat ever come through: what cannot be compared is unknown, and unknown is no reason."""
    state = running()
    for now_s in (10.0, 13.0, 16.0):
        state, _ = decide(state, alive(now_s, beat=make_beat(number)), POLICY)
    assert state.phase is Phase.RUNNING


def test_a_gap_restarts_the_deadline() -> None:
    state, _ = decide(running(), alive(61.0, beat=make_beat(0.0)), POLICY)
    state, plan = decide(state, alive(4000.0, gap=True, beat=make_beat(0.0)), POLICY)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    for now_s in range(4000, 4061, 2):
        state, plan = decide(state, alive(float(now_s), beat=make_beat(0.0)), POLICY)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    for now_s in (4061.0, 4064.0):
        state, plan = decide(state, alive(now_s, beat=make_beat(0.0)), POLICY)
    assert state.phase is Phase.STOPPING


def test_each_phase_has_its_own_deadline() -> None:
    policy = make_policy(deadlines_s=dict(POLICY.deadlines_s) | {"compile": 1800.0})
    beat = make_beat(5.0, phase="compile")
    assert beat_deadline(make_run(), beat.value, policy) == (5.0, 1800.0)
    assert beat_deadline(make_run(grace_from_s=9.0), beat.value, policy) == (9.0, 1800.0)
    assert beat_deadline(make_run(launched_s=3.0), None, policy) == (3.0, 60.0)


def test_a_traced_run_is_left_alone() -> None:
    state = running()
    for now_s in (61.0, 64.0, 600.0):
        state, plan = decide(state, alive(now_s, beat=make_beat(0.0), traced=(501,)), POLICY)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_a_beat_at_the_last_look_lets_the_run_go_on() -> None:
    state = resumed(stopping(Cause.STALLED), 70.0)
    assert (state.phase, state.run and state.run.stop) == (Phase.RUNNING, None)
    state, plan = decide(state, alive(129.0, beat=make_beat(0.0)), POLICY)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())


# --- stopping -----------------------------------------------------------------------------------------------
def test_a_drain_asks_the_beating_process_and_waits_as_long_as_a_drain_may_take() -> None:
    state, plan = decide(running(), alive(10.0, request=Request.DRAIN), POLICY)
    (action,) = plan.actions
    assert isinstance(action, Terminate)
    assert action.target is not None
    assert action.target.pid == 501  # not the leader: a wrapper shell would die and lose the save
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.kill_from_s == 25.0
    assert state.wish is Wish.LEAVE
    draining = make_beat(20.0, phase="drain", seq=2)  # it says that it is at it: 120 s, counted from the request
    state, plan = decide(state, alive(21.0, beat=draining), POLICY)
    for now_s in (25.0, 60.0, 129.9):
        state, plan = decide(state, alive(now_s, beat=draining), POLICY)
        assert not plan.actions
    for seq, now_s in enumerate((129.95, 130.0, 131.0), start=3):  # and not for ever, however often it says so
        beat = make_beat(now_s, phase="drain", seq=seq)
        state, plan = decide(state, alive(now_s, beat=beat), POLICY)
    assert plan.actions == (Kill(),)


def test_term_goes_to_the_leader_where_nobody_beats() -> None:
    seen = alive(10.0, request=Request.DRAIN, beat=make_beat(9.0, alive=False))
    _, plan = decide(running(), seen, POLICY)
    assert plan.actions == (Terminate(None),)


def test_a_second_wish_stops_at_once() -> None:
    state, _ = decide(running(), alive(10.0, request=Request.DRAIN), POLICY)
    state, plan = decide(state, alive(11.0, request=Request.STOP), POLICY)
    assert plan.actions == (Kill(),)
    assert [record.kind for record in plan.records] == ["run_stopping"]
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.cause is Cause.STOPPED


def test_kill_begins_when_the_grace_is_over_and_a_hold_when_nothing_helps() -> None:
    state = stopping(Cause.STALLED)
    state, plan = decide(state, alive(14.9), POLICY)
    assert not plan.actions
    state, plan = decide(state, alive(15.0), POLICY)
    assert plan.actions == (Kill(),)
    state, plan = decide(state, alive(35.0, members=(member(state="D", command="python3"),)), POLICY)
    assert state.phase is Phase.HOLD
    assert "501 (python3)" in (state.hold or "")
    assert not plan.actions
    assert state.run is not None  # it is not forgotten: no second run beside it


def test_what_the_leader_left_behind_gets_two_seconds() -> None:
    state = running()
    for now_s, expected in ((1.0, Phase.RUNNING), (2.9, Phase.RUNNING), (3.0, Phase.STOPPING)):
        seen = alive(now_s, leader_alive=False, beat=Absent(), end=EXIT_1, members=(member(),))
        state, plan = decide(state, seen, POLICY)
        assert state.phase is expected
    # At level 0 whoever is left may be the trainer behind a wrapper: it is asked, and has the whole grace.
    assert plan.actions == (TerminateRest(),)
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.cause is Cause.EXITED  # what it died of, not that we tidied up


def test_a_gap_restarts_the_two_seconds_of_what_was_left_behind() -> None:
    left = {"leader_alive": False, "beat": Absent(), "end": EXIT_0, "members": (member(),)}
    state, _ = decide(running(), alive(1.0, **left), POLICY)
    state, plan = decide(state, alive(60.0, gap=True, **left), POLICY)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_a_wrapper_that_died_does_not_end_the_trainer_that_beats() -> None:
    state = running()
    for now_s in (1.0, 5.0, 9.0):
        state, plan = decide(state, alive(now_s, leader_alive=False, end=EXIT_0), POLICY)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_a_killed_shim_ends_the_run() -> None:
    state, plan = decide(running(), alive(1.0, shim=Shim.LOST, members=(member(),)), POLICY)
    assert (state.phase, plan.actions) == (Phase.STOPPING, (Kill(),))


@pytest.mark.parametrize(
    ("members", "unclear", "lock_free"),
    [((member(),), (), None), ((), (member(),), None), ((), (), False), ((), (), None)],
)
def test_without_its_shim_a_run_is_over_only_by_every_cross_check(
    members: tuple, unclear: tuple, lock_free: bool | None
) -> None:
    state = stopping(Cause.SHIM_KILLED, kill_from_s=0.0)
    seen = Seen(now_s=1.0, shim=Shim.LOST, members=members, unclear=unclear, run_lock_free=lock_free)
    killing, _ = decide(state, seen, POLICY)
    assert killing.phase is Phase.STOPPING
    after, plan = decide(state, Seen(now_s=1.0, shim=Shim.LOST, run_lock_free=True), POLICY)
    assert after.phase is Phase.WEIGHING
    assert after.run is None
    assert plan.actions == (Choose(),)
    after, _ = decide(killing, dataclasses.replace(seen, now_s=99.0), POLICY)
    assert after.phase is Phase.HOLD


def test_nothing_is_given_up_before_a_kill_was_tried() -> None:
    """A loop that comes late by hours, without noticing, still kills first and waits then."""
    late, plan = decide(stopping(Cause.STALLED), alive(4000.0, gap=False), POLICY)
    assert (late.phase, plan.actions) == (Phase.STOPPING, (Kill(),))
    waiting, _ = decide(late, alive(4000.0 + POLICY.kill_wait_s - 0.1, gap=False), POLICY)
    assert waiting.phase is Phase.STOPPING
    after, _ = decide(late, alive(4000.0 + POLICY.kill_wait_s, gap=False), POLICY)
    assert after.phase is Phase.HOLD


@pytest.mark.parametrize("beat", [make_beat(5.0, phase="drain"), Unknown("torn at this very moment")])
def test_a_gap_never_shortens_a_grace(beat: object) -> None:
    """A drain may take 120 s here; five seconds away must not leave it fewer than it had."""
    state = stopping(Cause.DRAINED, kill_from_s=120.0)
    after, plan = decide(state, alive(20.0, gap=True, beat=beat), POLICY)
    assert not plan.actions
    assert after.run is not None
    assert after.run.stop is not None
    assert after.run.stop.kill_from_s >= 120.0


def test_a_gap_gives_a_stop_under_way_its_grace_anew() -> None:
    _, plan = decide(stopping(Cause.STALLED), alive(4000.0, gap=False), POLICY)
    assert plan.actions == (Kill(),)  # without knowing of the gap its grace would be over
    state, _ = decide(stopping(Cause.STALLED), alive(14.0, gap=True), POLICY)
    assert state.run is not None
    assert state.run.stop is not None
    assert (state.run.stop.kill_from_s, state.run.stop.give_up_s) == (29.0, 49.0)


def test_a_gap_in_the_middle_of_killing_goes_on_killing_with_a_new_wait() -> None:
    after, plan = decide(stopping(Cause.STALLED), alive(500.0, gap=True), POLICY)
    assert (after.phase, plan.actions) == (Phase.STOPPING, (Kill(),))


@pytest.mark.parametrize(
    ("stop", "end", "cause"),
    [
        (Cause.DRAINED, EXIT_0, Cause.DRAINED),
        (Cause.DRAINED, EXIT_1, Cause.EXITED),  # it was to save and failed at it
        (Cause.DRAINED, KILLED, Cause.STOPPED),  # the grace was over
        (Cause.STALLED, KILLED, Cause.STALLED),
        (Cause.STALLED, EXIT_0, Cause.STALLED),
        (Cause.STOPPED, EXIT_1, Cause.STOPPED),
        (Cause.SHIM_KILLED, EXIT_0, Cause.SHIM_KILLED),
    ],
)
def test_why_a_stopped_run_ended(stop: Cause, end: EndSeen, cause: Cause) -> None:
    state, plan = decide(stopping(stop), Seen(now_s=1.0, shim=Shim.ENDED, end=end), POLICY)
    assert state.phase is Phase.WEIGHING
    assert state.ended is not None
    assert state.ended.cause is cause
    assert plan.records[0].data["cause"] == cause.value
    assert plan.actions == (Choose(),)


@pytest.mark.parametrize("request_", [Request.DRAIN, Request.STOP])
@pytest.mark.parametrize("state", [running(), stopping(Cause.STALLED)], ids=["running", "stopping"])
def test_a_wish_to_leave_at_the_very_moment_of_the_end_is_not_lost(state: State, request_: Request) -> None:
    seen = Seen(now_s=1.0, shim=Shim.ENDED, end=EXIT_1, request=request_)
    after, _ = decide(state, seen, POLICY)
    after, plan = decide(after, Seen(now_s=2.0, choice=chosen(10)), POLICY)
    assert after.phase is Phase.LEFT
    assert plan.actions == (Leave(5),)


# --- weighing -----------------------------------------------------------------------------------------------
def test_three_failures_without_a_new_checkpoint_hold() -> None:
    state = weighing(Cause.EXITED, failures=0)
    after, plan = decide(state, Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert (after.phase, after.failures) == (Phase.GATING, 1)  # the first retry is at once
    after, plan = decide(weighing(Cause.EXITED, failures=1), Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert (after.phase, after.failures, after.retry_at_s) == (Phase.BACKOFF, 2, 6.0)
    after, plan = decide(weighing(Cause.EXITED, failures=2), Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert (after.phase, after.failures) == (Phase.HOLD, 3)
    assert not plan.actions


def test_a_new_verified_checkpoint_clears_the_count() -> None:
    after, _ = decide(weighing(Cause.EXITED, failures=2), Seen(now_s=1.0, choice=chosen(11)), POLICY)
    assert (after.phase, after.failures) == (Phase.GATING, 0)


def test_an_older_checkpoint_than_the_run_began_with_is_no_progress() -> None:
    after, _ = decide(weighing(Cause.EXITED, failures=2), Seen(now_s=1.0, choice=chosen(9)), POLICY)
    assert after.phase is Phase.HOLD


def test_exit_0_before_the_target_is_a_failure() -> None:
    after, plan = decide(weighing(Cause.FINISHED), Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert (after.phase, after.failures) == (Phase.GATING, 1)
    assert plan.records[0].data["cause"] == "exit_too_early"


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(("step", "failures"), [(4, 1), (89, 1), (90, 0), (100, 0), (None, 0)])
def test_exit_0_below_the_configured_target_is_a_failure_where_the_step_is_known(
    level: int, step: int | None, failures: int
) -> None:
    state = weighing(Cause.FINISHED, last_step=step, words="exit 0")
    after, plan = decide(state, Seen(now_s=1.0), make_policy(level=level, target_step=100))
    assert after.failures == failures
    assert (after.phase is Phase.FINISHED) is (failures == 0)
    assert any(record.data.get("cause") == "exit_too_early" for record in plan.records) is (failures == 1)


def test_a_hold_for_an_exit_too_early_has_the_figures() -> None:
    state = weighing(Cause.FINISHED, failures=2, last_step=60, words="exit 0")
    after, _ = decide(state, Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert after.hold is not None
    assert f"the last: exit 0 at step 60 of {TARGET} (step 10 is verified)" in after.hold


def test_exit_0_with_the_target_only_claimed_and_not_verified_is_a_failure() -> None:
    state = weighing(Cause.FINISHED, last_step=TARGET, target_step=TARGET)
    after, plan = decide(state, Seen(now_s=1.0, choice=chosen(90)), make_policy(target_step=None))
    assert after.phase is not Phase.FINISHED
    assert plan.records[0].data["cause"] == "exit_too_early"


def test_exit_0_at_the_verified_target_is_finished() -> None:
    after, plan = decide(weighing(Cause.FINISHED), Seen(now_s=1.0, choice=chosen(TARGET)), POLICY)
    assert after.phase is Phase.FINISHED
    assert [record.kind for record in plan.records] == ["finished", "run_weighed"]


def test_exit_0_without_checkpoints_is_finished() -> None:
    policy = make_policy(level=0, target_step=None)
    after, _ = decide(weighing(Cause.FINISHED), Seen(now_s=1.0), policy)
    assert after.phase is Phase.FINISHED


def test_a_permanent_end_is_not_tried_again() -> None:
    state, _ = decide(
        running(), Seen(now_s=1.0, shim=Shim.ENDED, end=dataclasses.replace(EXIT_1, permanent=True)), POLICY
    )
    state, plan = decide(state, Seen(now_s=2.0, choice=chosen(10)), POLICY)
    assert state.phase is Phase.HOLD
    assert not plan.actions


def test_repeated_steps_are_counted() -> None:
    _, plan = decide(weighing(Cause.EXITED, last_step=17), Seen(now_s=1.0, choice=chosen(10)), POLICY)
    assert plan.records[0].data["repeated"] == 7


def test_a_wish_to_leave_leaves_after_weighing() -> None:
    state = weighing(Cause.DRAINED, wish=Wish.LEAVE)
    after, plan = decide(state, Seen(now_s=1.0, choice=chosen(12)), POLICY)
    assert (after.phase, plan.actions) == (Phase.LEFT, (Leave(5),))
    assert "step 12 is verified" in plan.records[0].sentence


def test_a_shim_that_cannot_start_anything_is_not_tried_for_ever() -> None:
    """Its state folder may take no file: each try ends at once, so without a bound this would spin."""
    state, launches, now_s = GATING, 0, 0.0
    for _ in range(40):
        now_s += 0.02
        seen = Seen(now_s=now_s, gates=OPEN, choice=chosen(10))
        if state.run is not None:
            seen = Seen(now_s=now_s, shim=Shim.NEVER)
        state, plan = decide(state, seen, POLICY)
        for action in plan.actions:
            if isinstance(action, Launch):
                launches += 1
                state = launched(state, make_run(number=launches, launched_s=now_s), now_s)
    assert launches <= POLICY.failure_limit
    assert state.phase in (Phase.BACKOFF, Phase.HOLD)


# --- backoff, hold, leaving ------------------------------------------------------------------------------------
def test_backoff_waits_and_a_person_may_cut_it_short() -> None:
    state = State(phase=Phase.BACKOFF, since_s=0.0, failures=2, retry_at_s=5.0)
    assert decide(state, Seen(now_s=4.9), POLICY)[0] == state
    for seen in (Seen(now_s=5.0), Seen(now_s=1.0, request=Request.RELAUNCH)):
        after, plan = decide(state, seen, POLICY)
        assert (after.phase, after.failures, plan.actions) == (Phase.GATING, 2, (Choose(),))


@pytest.mark.parametrize("phase", [Phase.GATING, Phase.BACKOFF])
@pytest.mark.parametrize("request_", [Request.DRAIN, Request.STOP])
def test_with_nothing_running_a_request_leaves_with_5(phase: Phase, request_: Request) -> None:
    after, plan = decide(State(phase=phase, since_s=0.0), Seen(now_s=1.0, request=request_), POLICY)
    assert (after.phase, plan.actions) == (Phase.LEFT, (Leave(5),))


def held(**changes: object) -> State:
    return State(phase=Phase.HOLD, since_s=0.0, hold="a reason", failures=3, **changes)  # type: ignore[arg-type]


WAITING = make_policy(leave_on_hold=False)


def test_a_hold_leaves_with_3_or_waits_as_it_was_told() -> None:
    assert decide(held(), Seen(now_s=1.0), POLICY)[1].actions == (Leave(3),)
    after, plan = decide(held(), Seen(now_s=1.0), WAITING)
    assert (after, plan.actions) == (held(), ())
    _, plan = decide(held(), Seen(now_s=1.0, request=Request.DRAIN), WAITING)
    assert plan.actions == (Leave(3),)


def test_a_hold_reached_on_the_way_out_leaves() -> None:
    """The person asked to stop before the hold came: waiting for another request would wait for ever."""
    state = weighing(Cause.EXITED, permanent=True, hold_after=True, wish=Wish.LEAVE)
    state, _ = decide(state, Seen(now_s=1.0, choice=chosen(10)), WAITING)
    assert state.phase is Phase.HOLD
    state, plan = decide(state, Seen(now_s=2.0), WAITING)
    assert (state.phase, plan.actions) == (Phase.LEFT, (Leave(3),))


def test_a_person_lifts_a_hold_and_clears_the_count() -> None:
    after, plan = decide(held(), Seen(now_s=1.0, request=Request.RELAUNCH), WAITING)
    assert (after.phase, after.failures, after.hold) == (Phase.GATING, 0, None)
    assert plan.actions == (Choose(),)


def test_an_end_that_was_never_weighed_is_not_carried_past_a_lifted_hold() -> None:
    state = weighing(Cause.EXITED, failures=1)
    state, _ = decide(state, Seen(now_s=1.0, choice_error="I/O error"), WAITING)
    assert state.phase is Phase.HOLD
    state, _ = decide(state, Seen(now_s=2.0, request=Request.RELAUNCH), WAITING)
    assert (state.phase, state.ended) == (Phase.GATING, None)


def test_no_hold_is_lifted_beside_a_living_run() -> None:
    state = held(run=make_run())
    after, plan = decide(state, alive(1.0, request=Request.RELAUNCH), WAITING)
    assert (after.phase, plan.actions) == (Phase.HOLD, ())


@pytest.mark.parametrize(
    "over",
    [Seen(now_s=1.0, shim=Shim.ENDED, end=KILLED), Seen(now_s=1.0, shim=Shim.LOST, run_lock_free=True)],
    ids=["shim ended", "shim lost and nothing left"],
)
def test_a_run_that_ends_at_last_frees_the_hold_for_a_person(over: Seen) -> None:
    state, plan = decide(held(run=make_run()), over, WAITING)
    assert (state.phase, state.run, state.hold) == (Phase.HOLD, None, "a reason")
    assert [record.kind for record in plan.records] == ["run_ended", "run_weighed"]
    state, plan = decide(state, Seen(now_s=2.0, request=Request.RELAUNCH), WAITING)
    assert state.phase is Phase.GATING


def test_left_is_terminal_and_finished_only_leaves() -> None:
    left = State(phase=Phase.LEFT, since_s=0.0)
    for request in (None, *Request):
        state, plan = decide(left, Seen(now_s=9.0, request=request, gates=OPEN, choice=chosen(10)), POLICY)
        assert (state, plan.actions, plan.records) == (left, (), ())
        finished = State(phase=Phase.FINISHED, since_s=0.0)
        state, plan = decide(finished, Seen(now_s=9.0, request=request, gates=OPEN, choice=chosen(10)), POLICY)
        assert (state.phase, plan.actions) == (Phase.LEFT, (Leave(0),))


def test_only_gating_leads_to_running_but_for_a_stop_called_off() -> None:
    before = {phase for phase, after in TRANSITIONS.items() if Phase.RUNNING in after}
    assert before == {Phase.GATING, Phase.STOPPING}
    assert set(TRANSITIONS) == set(Phase)
    assert TRANSITIONS[Phase.LEFT] == frozenset()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_no_combination_of_what_can_be_seen_breaks_the_decision(level: int) -> None:
    """Every phase with every kind of sight, a request and a gap: a plan, never an exception."""
    policy: Policy = make_policy(level=level, leave_on_hold=False)
    states = [
        GATING,
        running(level=level),
        running(level=level, acknowledged=False),
        stopping(Cause.STALLED),
        stopping(Cause.DRAINED, kill_from_s=0.0, wish=Wish.LEAVE),
        weighing(Cause.FINISHED),
        weighing(Cause.EXITED, failures=2),
        State(phase=Phase.BACKOFF, since_s=0.0, retry_at_s=5.0),
        held(),
        held(run=make_run()),
        State(phase=Phase.FINISHED, since_s=0.0),
        State(phase=Phase.LEFT, since_s=0.0),
    ]
    beats = [Absent(), Unknown("torn"), make_beat(0.0), make_beat(99.0, alive=False)]
    assert all(isinstance(beat, Known | Unknown | Absent) for beat in beats)
    for state, shim, beat, request, gap, choice in itertools.product(
        states, Shim, beats, (None, *Request), (False, True), (None, chosen(10), chosen(None))
    ):
        seen = Seen(now_s=100.0, gap=gap, shim=shim, beat=beat, request=request, choice=choice, gates=OPEN)
        after, plan = decide(state, seen, policy)
        assert after.phase is state.phase or after.phase in TRANSITIONS[state.phase]
        if any(isinstance(action, Launch) for action in plan.actions):
            assert state.phase is Phase.GATING
            assert state.run is None
        if any(isinstance(action, Kill | Terminate) for action in plan.actions):
            assert after.run is not None
            assert after.run.stop is not None
