"""Whom a stop asks, how often, and when a run without its shim is over although strangers may belong to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.world import BEATER, make_beat, make_policy, make_run, member
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.facts import Absent, Unknown
from watchdog.core.identity import Process, ProcessId
from watchdog.core.phase import Phase
from watchdog.core.seen import EndSeen, Left, Request, Seen, Shim
from watchdog.core.state import Action, Choose, ContinueShim, Kill, Plan, State, Stop, Terminate, TerminateRest

POLICY = make_policy(leave_on_hold=False, grace_s=1800.0)
EXIT_0 = EndSeen(cause=Cause.FINISHED, words="exit 0")


def alive(now_s: float, **changes: object) -> Seen:
    values: dict[str, object] = {"shim": Shim.ALIVE, "leader_alive": True, "beat": Absent(), "members": (member(),)}
    return Seen(now_s=now_s, **(values | changes))  # type: ignore[arg-type]


def lived(state: State, *looks: Seen) -> tuple[State, list[Action]]:
    done: list[Action] = []
    for seen in looks:
        state, plan = decide(state, seen, POLICY)
        done += plan.actions
    return state, done


def asked_the_leader() -> State:
    """A drain while nobody has beaten yet: TERM goes to the leader, which may be a shell around the trainer."""
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(acknowledged=False))
    state, done = lived(state, alive(1.0, request=Request.DRAIN))
    assert done == [Terminate(None)]
    return state


def drain_beat(now_s: float, seq: int = 1, **changes: object) -> object:
    return make_beat(now_s, seq=seq, phase="load", step=None, **changes)


@pytest.mark.parametrize("leader", [True, False], ids=["leader alive", "leader dead of its TERM"])
def test_who_begins_to_beat_after_the_leader_was_asked_is_asked_once(leader: bool) -> None:
    looks = [alive(2.0 + n, leader_alive=leader, beat=drain_beat(2.0 + n, n + 1)) for n in range(60)]
    state, done = lived(asked_the_leader(), *looks)
    assert done == [Terminate(BEATER)]
    assert state.phase is Phase.STOPPING


def test_it_is_asked_once_however_often_its_beats_cannot_be_read_in_between() -> None:
    beats = [drain_beat(2.0), Unknown("torn"), drain_beat(4.0, 2), Absent("gone"), drain_beat(6.0, 3)]
    looks = [alive(2.0 + n, beat=beat) for n, beat in enumerate(beats)]
    _, done = lived(asked_the_leader(), *looks)
    assert done == [Terminate(BEATER)]


def test_one_that_takes_over_the_beating_is_asked_as_well() -> None:
    """A launcher beats until its trainer does: the one that beats is the one that can save."""
    looks = [
        alive(2.0, beat=drain_beat(2.0)),
        alive(3.0, beat=drain_beat(3.0, 2, pid=777, start_ticks=9000)),
        alive(4.0, beat=drain_beat(4.0, 3, pid=777, start_ticks=9000)),
    ]
    _, done = lived(asked_the_leader(), *looks)
    assert done == [Terminate(BEATER), Terminate(ProcessId(777, 9000))]


def test_who_was_asked_first_is_not_asked_again() -> None:
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run())
    looks = [alive(2.0 + n, beat=make_beat(2.0 + n, seq=n + 2, phase="drain")) for n in range(30)]
    _, done = lived(state, alive(1.0, beat=make_beat(1.0), request=Request.DRAIN), *looks)
    assert done == [Terminate(BEATER)]


def test_a_dead_beater_is_not_asked() -> None:
    _, done = lived(asked_the_leader(), alive(2.0, beat=drain_beat(1.5, alive=False)))
    assert done == []


def test_after_the_grace_nobody_is_asked_any_more() -> None:
    _, done = lived(asked_the_leader(), alive(1801.0, beat=drain_beat(1801.0)))
    assert done == [Kill()]


# --- the shim is lost, and only suspects are left -------------------------------------------------------------------
SUSPECT = member(900, command="stranger")
LEFT = Seen(now_s=50.0, shim=Shim.LOST, unclear=(SUSPECT,), run_lock_free=True)


def held_for_a_suspect(**run: object) -> State:
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(**run))
    state, done = lived(
        state,
        Seen(now_s=1.0, shim=Shim.LOST, members=(member(),), unclear=(SUSPECT,)),
        Seen(now_s=2.0, shim=Shim.LOST, unclear=(SUSPECT,), run_lock_free=True),
        Seen(now_s=49.0, shim=Shim.LOST, unclear=(SUSPECT,), run_lock_free=True),
    )
    assert Choose() not in done
    assert state.phase is Phase.HOLD
    assert "900 (stranger) may belong to it" in (state.hold or "")
    return state


def test_a_hold_for_a_suspect_stays_until_a_person_speaks() -> None:
    state, plan = decide(held_for_a_suspect(), LEFT, POLICY)
    assert (state.phase, plan.actions, plan.records) == (Phase.HOLD, (), ())


def test_a_person_clears_the_suspects_and_the_run_is_over() -> None:
    seen = Seen(now_s=50.0, shim=Shim.LOST, unclear=(SUSPECT,), run_lock_free=True, request=Request.RELAUNCH)
    state, plan = decide(held_for_a_suspect(), seen, POLICY)
    assert [record.kind for record in plan.records] == ["lifted", "run_ended"]
    assert plan.actions == (Choose(),)
    assert (state.phase, state.hold, state.run, state.failures) == (Phase.WEIGHING, None, None, 0)


@pytest.mark.parametrize(
    "changes",
    [{"members": (member(),), "run_lock_free": None}, {"run_lock_free": False}, {"run_lock_free": None}],
    ids=["a proven member", "lock held", "lock unknown"],
)
@pytest.mark.parametrize("unclear", [(), (SUSPECT,)], ids=["no suspect", "a suspect"])
def test_a_person_clears_suspects_and_never_what_is_proven(changes: dict[str, object], unclear: tuple) -> None:
    seen = Seen(now_s=50.0, shim=Shim.LOST, unclear=unclear, request=Request.RELAUNCH, **changes)  # type: ignore[arg-type]
    state, plan = decide(held_for_a_suspect(), seen, POLICY)
    assert (state.phase, plan.actions, plan.records) == (Phase.HOLD, (), ())
    assert state.run is not None


@pytest.mark.parametrize("shim", [Shim.ALIVE, Shim.STARTING])
def test_a_person_clears_no_suspects_of_a_run_with_a_living_shim(shim: Shim) -> None:
    seen = alive(50.0, shim=shim, members=(), request=Request.RELAUNCH, run_lock_free=True)
    state, plan = decide(held_for_a_suspect(), seen, POLICY)
    assert (state.phase, plan.actions) == (Phase.HOLD, ())


def test_an_unproven_run_that_is_cleared_is_refused_all_the_same() -> None:
    seen = Seen(now_s=50.0, shim=Shim.LOST, unclear=(SUSPECT,), run_lock_free=True, request=Request.RELAUNCH)
    _, plan = decide(held_for_a_suspect(acknowledged=False), seen, POLICY)
    assert [record.kind for record in plan.records] == ["lifted", "run_refused", "run_ended"]


def test_a_cleared_run_is_over_as_soon_as_nothing_proven_is_left() -> None:
    """Lifted while no supervisor ran: the next one ends what is ours first, and asks no second time."""
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(cleared=True))
    state, done = lived(
        state, Seen(now_s=1.0, shim=Shim.LOST, members=(member(),), unclear=(SUSPECT,), run_lock_free=None)
    )
    assert (state.phase, done) == (Phase.STOPPING, [Kill()])
    state, done = lived(state, LEFT)
    assert (state.phase, state.run) == (Phase.WEIGHING, None)


# --- level 0: a launcher that put its work into the background --------------------------------------------------------
def background(now_s: float, **changes: object) -> Seen:
    return alive(now_s, leader_alive=False, end=EXIT_0, **changes)


def test_what_a_launcher_left_in_the_background_works_on_until_its_shim_ends() -> None:
    policy = make_policy(level=0, target_step=None)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=0, acknowledged=False))
    for now_s in range(0, 100_000, 500):
        state, plan = decide(state, background(float(now_s)), policy)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    state, plan = decide(state, Seen(now_s=100_001.0, shim=Shim.ENDED, end=EXIT_0), policy)
    assert state.phase is Phase.WEIGHING
    assert state.ended is not None
    assert state.ended.cause is Cause.FINISHED


IDLE = Left(works=False, words="no output, no device, 0.0 s of CPU in 60 s")


def lived_on(left: Callable[[float], Left | None], until_s: int, **changes: object) -> tuple[State, Plan, float]:
    """A launcher that ended at 0, with what it left; until something happens."""
    policy = make_policy(level=0, target_step=None)
    state, plan = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=0, acknowledged=False)), Plan()
    for now_s in range(until_s):
        members = (member(77, command="sleep"),)
        state, plan = decide(state, background(float(now_s), left=left(now_s), members=members, **changes), policy)
        if state.phase is not Phase.RUNNING:
            return state, plan, now_s
    return state, plan, until_s


def test_what_a_launcher_left_and_does_nothing_is_ended_after_a_while_and_the_run_is_finished() -> None:
    state, plan, at_s = lived_on(lambda now_s: IDLE, 200)
    assert (state.phase, at_s, plan.actions) == (Phase.STOPPING, 60, (TerminateRest(),))
    assert "exit 0; what it left did nothing for 60 s and is ended: 77 sleep" in plan.records[0].sentence
    state, _ = decide(state, Seen(now_s=61.0, shim=Shim.ENDED, end=EXIT_0), make_policy(level=0, target_step=None))
    assert state.ended is not None
    assert state.ended.cause is Cause.FINISHED
    assert state.ended.words == "exit 0; what it left did nothing for 60 s and is ended: 77 sleep"


@pytest.mark.parametrize("left", [None, Left(works=None, words="x"), Left(works=True, words="x")])
def test_what_works_or_may_work_is_never_ended(left: Left | None) -> None:
    state, _, _ = lived_on(lambda now_s: left, 2000)
    assert state.phase is Phase.RUNNING


def test_after_a_gap_what_is_left_is_watched_anew() -> None:
    policy = make_policy(level=0, target_step=None)
    state, _, _ = lived_on(lambda now_s: IDLE, 59)
    members = (member(77, command="sleep"),)
    state, _ = decide(state, background(400.0, left=IDLE, members=members, gap=True), policy)
    assert state.phase is Phase.RUNNING
    state, _ = decide(state, background(459.0, left=IDLE, members=members), policy)
    assert state.phase is Phase.RUNNING


def test_what_is_left_for_a_moment_is_no_news() -> None:
    assert lived_on(lambda now_s: None, 1)[1].rule == "remnants"
    assert lived_on(lambda now_s: None, 3)[1].rule == "works on in the background"


def test_the_words_of_an_end_with_remnants_are_not_said_twice() -> None:
    policy = make_policy(level=1)
    end = EndSeen(cause=Cause.EXITED, words="exit 1")
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=1))
    for now_s in (1.0, 5.0):
        state, _ = decide(state, alive(now_s, leader_alive=False, end=end, members=(member(),)), policy)
    assert state.phase is Phase.STOPPING
    better = EndSeen(cause=Cause.EXITED, words="exit 1: ValueError: no")
    state, _ = decide(state, Seen(now_s=6.0, shim=Shim.ENDED, end=better), policy)
    assert state.ended is not None
    assert state.ended.words == "exit 1: ValueError: no; what it left behind is ended"


# --- a shim that somebody stopped ---------------------------------------------------------------------------------
STOPPED = member(77, state="T")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_stopped_shim_is_sent_cont_once_and_then_named(level: int) -> None:
    policy = make_policy(level=level)
    state, conts = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=level)), []
    for now_s in range(60):
        state, plan = decide(state, alive(float(now_s), leader_alive=False, members=(), shim_stopped=STOPPED), policy)
        if ContinueShim() in plan.actions:
            conts.append(now_s)
            assert plan.records[0].kind == "shim_continuing"
            assert "pid 77, is stopped (state T)" in plan.records[0].sentence
        if state.phase is Phase.HOLD:
            break
    assert conts == [0]
    assert state.phase is Phase.HOLD
    assert state.hold is not None
    assert "its shim, pid 77, is stopped (state T): kill -CONT 77; this hold ends with it" in state.hold


@pytest.mark.parametrize("shim", [None, member(77, state="t")])
def test_a_shim_that_runs_or_is_debugged_is_sent_nothing(shim: Process | None) -> None:
    state, policy = State(phase=Phase.RUNNING, since_s=0.0, run=make_run()), make_policy()
    for now_s in range(60):
        state, plan = decide(state, alive(float(now_s), leader_alive=False, members=(), shim_stopped=shim), policy)
        assert ContinueShim() not in plan.actions
        if state.phase is Phase.HOLD:
            return


# --- exit 0 before the target that was stated -------------------------------------------------------------------
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({"step": 4, "target_step": 100}, Cause.EXIT_TOO_EARLY),
        ({"step": 0, "target_step": 100}, Cause.EXIT_TOO_EARLY),
        ({"step": 89, "target_step": 100}, Cause.EXIT_TOO_EARLY),
        ({"step": 90, "target_step": 100}, Cause.FINISHED),  # beats may come every ten steps
        ({"step": 99, "target_step": 100}, Cause.FINISHED),  # counted from 0
        ({"step": 100, "target_step": 100}, Cause.FINISHED),
        ({"step": None, "target_step": 100}, Cause.FINISHED),
        ({"step": 4, "target_step": None}, Cause.FINISHED),
    ],
)
def test_exit_0_below_the_target_that_its_own_beats_state(level: int, figures: dict[str, Any], cause: Cause) -> None:
    policy = make_policy(level=level, target_step=None)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=level, acknowledged=False))
    beat = make_beat(1.0, alive=False, **figures)
    state, _ = decide(state, Seen(now_s=2.0, shim=Shim.ENDED, end=EXIT_0, beat=beat), policy)
    assert state.ended is not None
    assert state.ended.cause is cause
    if cause is Cause.EXIT_TOO_EARLY:
        assert state.ended.words == f"exit 0 at step {figures['step']} of 100, the target it stated"
        state, _ = decide(state, Seen(now_s=3.0), policy)
        assert (state.phase, state.failures) == (Phase.GATING, 1)
    else:
        assert state.ended.words == "exit 0"


def test_who_was_asked_to_leave_has_not_left_too_early() -> None:
    policy = make_policy(level=1, target_step=None)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=1))
    beat = make_beat(1.0, step=4)
    state, _ = decide(state, alive(1.5, beat=beat, request=Request.DRAIN), policy)
    beat = make_beat(1.0, step=4, alive=False)
    state, _ = decide(state, Seen(now_s=2.0, shim=Shim.ENDED, end=EXIT_0, beat=beat), policy)
    assert state.ended is not None
    assert state.ended.cause is Cause.DRAINED


@pytest.mark.parametrize(
    ("level", "end", "beaten"),
    [
        (0, EndSeen(cause=Cause.EXITED, words="exit 1"), False),
        (0, EXIT_0, True),
        (1, EXIT_0, False),
        (2, EXIT_0, False),
    ],
    ids=["a failure", "one that beats", "level 1", "level 2"],
)
def test_nothing_else_that_is_left_behind_works_on(level: int, end: EndSeen, beaten: bool) -> None:
    policy = make_policy(level=level)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=level, beat_seen=beaten))
    for now_s in (1.0, 4.0):
        state, plan = decide(state, alive(now_s, leader_alive=False, end=end), policy)
    assert (state.phase, plan.actions) == (Phase.STOPPING, (TerminateRest(),))
    assert state.run is not None
    assert state.run.stop is not None
    grace_s = policy.remnant_s if beaten else policy.grace_s  # one that could save had beaten, and is gone
    assert state.run.stop.kill_from_s == 4.0 + grace_s
    state, plan = decide(state, alive(4.0 + grace_s, leader_alive=False, end=end, members=(member(),)), policy)
    assert plan.actions == (Kill(),)


def test_what_a_wrapper_left_is_asked_too_and_has_the_rest_of_the_grace() -> None:
    """`bash run.sh` dies of the TERM; the trainer behind it never beat, and can save all the same."""
    policy = make_policy(level=0)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=0))
    state, plan = decide(state, alive(1.0, request=Request.DRAIN, members=(member(),)), policy)
    assert plan.actions == (Terminate(None),)
    left = {"leader_alive": False, "members": (member(),), "end": EXIT_0}
    state, plan = decide(state, alive(1.1, **left), policy)
    assert plan.actions == (TerminateRest(),)
    state, plan = decide(state, alive(0.9 + policy.grace_s, **left), policy)
    assert plan.actions == (), "asked once, and not killed before the grace is over"
    state, plan = decide(state, alive(1.0 + policy.grace_s, **left), policy)
    assert plan.actions == (Kill(),)


def test_the_records_of_a_stop_and_of_an_end_tell_when_it_was_alive_for_the_last_time() -> None:
    """For autopsies: the last beat of one that is silent, the moment in which the other died."""
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run())
    looks = [alive(now_s, beat=make_beat(5.0)) for now_s in (900.0, 905.0)]
    state, _ = decide(state, looks[0], POLICY)
    state, plan = decide(state, looks[1], POLICY)
    [record] = plan.records
    assert (record.kind, record.data["beat_s"], record.data["died_wall_s"]) == ("run_stopping", 5.0, None)
    end = EndSeen(cause=Cause.SIGNALLED, words="died of SIGKILL", died_wall_s=1234.5)
    _, plan = decide(state, Seen(now_s=906.0, shim=Shim.ENDED, end=end), POLICY)
    assert plan.records[-1].kind == "run_ended"
    assert plan.records[-1].data["died_wall_s"] == 1234.5


SHORT = make_policy(leave_on_hold=False, grace_s=10.0)  # a save may take 60 s


def asked_to_end() -> State:
    """Killed at 20.0 if it says nothing."""
    stop = Stop(cause=Cause.STALLED, reason="late", since_s=10.0, kill_from_s=20.0, give_up_s=40.0, asked_of=BEATER)
    return State(phase=Phase.STOPPING, since_s=10.0, run=make_run(stop=stop))


def killed_at(*beats: tuple[float, object]) -> float:
    """When KILL is sent, with these beats seen from their moments on; looked at each second."""
    state = asked_to_end()
    for now_s in range(11, 200):
        beat = [seen for from_s, seen in beats if from_s <= now_s][-1]
        state, plan = decide(state, alive(float(now_s), beat=beat), SHORT)
        if Kill() in plan.actions:
            return float(now_s)
    raise AssertionError("never")


def saving(now_s: float, seq: int) -> object:
    return make_beat(now_s, seq=seq, phase="save")


def test_one_that_saves_gets_the_time_for_it() -> None:
    assert killed_at((0.0, make_beat(5.0)), (15.0, saving(15.0, 2))) == 75.0
    torn = [(float(moment_s), Unknown("torn")) for moment_s in range(16, 200)]
    assert killed_at((0.0, saving(15.0, 2)), *torn) == 75.0


def test_one_that_has_saved_and_trains_on_has_lost_that_time() -> None:
    """It ignores the request, and saves every now and then as always."""
    assert killed_at((0.0, make_beat(5.0)), (15.0, saving(15.0, 2)), (17.0, make_beat(17.0, seq=3))) == 20.0
    assert killed_at((0.0, saving(15.0, 2)), (33.0, make_beat(33.0, seq=3))) == 33.0
