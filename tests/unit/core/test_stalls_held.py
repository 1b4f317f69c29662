"""The TERM of a stall waits for the stacks of the run: not for long, not for nothing, and never past a KILL."""

from __future__ import annotations

import pytest

from tests.unit.core.world import BEATER, make_beat, make_policy, make_run, member
from watchdog.core.decide import decide, resumed
from watchdog.core.ending import FLAP_QUIET_S, FLAPS, FLAPS_KEPT, STACKS_S, flapping
from watchdog.core.phase import Phase
from watchdog.core.seen import Request, Seen, Shim
from watchdog.core.state import Action, KeepStacks, Kill, Plan, State, Terminate

POLICY = make_policy(grace_s=1.0, leave_on_hold=False)
ASK = Terminate(BEATER, only_if_seq=1, look_again=True)


def alive(now_s: float, **changes: object) -> Seen:
    values: dict[str, object] = {"shim": Shim.ALIVE, "leader_alive": True, "beat": make_beat(0.0)}
    return Seen(now_s=now_s, **({"members": (member(),)} | values | changes))  # type: ignore[arg-type]


def stalled() -> State:
    """Recorded at 61 s, and its stacks are being kept."""
    state, _ = decide(State(phase=Phase.RUNNING, since_s=0.0, run=make_run()), alive(60.4), POLICY)
    state, plan = decide(state, alive(61.0), POLICY)
    assert ([record.kind for record in plan.records], plan.actions) == (["run_stopping"], (KeepStacks(BEATER),))
    return state


def lived(state: State, *looks: Seen) -> tuple[State, list[Action]]:
    done: list[Action] = []
    for seen in looks:
        state, plan = decide(state, seen, POLICY)
        done += plan.actions
    return state, done


def test_it_is_asked_as_soon_as_they_are_kept_and_once() -> None:
    _, done = lived(stalled(), alive(61.1), alive(61.2, stacks_over=True), alive(61.3, stacks_over=True))
    assert done == [ASK]


def test_it_is_asked_in_any_case() -> None:
    state, done = lived(stalled(), alive(61.0 + STACKS_S - 0.01))
    assert done == []
    _, done = lived(state, alive(61.0 + STACKS_S))
    assert done == [ASK]


def test_after_a_gap_of_ours_it_is_judged_anew() -> None:
    """A suspend froze the run as it froze us: it gets its whole deadline before anybody is asked to end."""
    state, plan = decide(stalled(), alive(5000.0, gap=True, stacks_over=True), POLICY)
    assert [record.kind for record in plan.records] == ["run_goes_on"]
    assert plan.actions == ()
    assert state.phase is Phase.RUNNING
    deadline_s = POLICY.deadlines_s["train"]
    looks = [alive(5000.0 + 0.5 * number, stacks_over=True) for number in range(1, int(2 * deadline_s))]
    state, done = lived(state, *looks)
    assert done == []
    assert state.run is not None
    assert state.run.flaps == (), "our gap is no flap of its"
    state, done = lived(state, *(alive(5000.0 + deadline_s + 0.6 * number) for number in range(3)))
    assert done == [KeepStacks(BEATER)]


@pytest.mark.parametrize("asked", [Request.DRAIN, Request.RELAUNCH, Request.STOP])
def test_what_a_person_asks_for_in_the_turn_of_a_gap_is_done(asked: Request) -> None:
    state, plan = decide(stalled(), alive(5000.0, gap=True, request=asked), POLICY)
    assert state.phase is Phase.STOPPING
    assert plan.actions in ((Terminate(BEATER),), (Kill(),))


# --- late, and alive at the last look, again and again ----------------------------------------------------------
def flap(state: State, from_s: float) -> tuple[State, float]:
    """Silent until it is late, and a new beat at the last look: as the loop does it. When that was."""
    seq, now_s = int(from_s), from_s
    while state.phase is Phase.RUNNING:
        now_s += 0.5
        state, _ = decide(state, alive(now_s, beat=make_beat(from_s, seq=seq)), POLICY)
        assert now_s - from_s < 10_000
    return resumed(state, now_s), now_s


def test_one_that_flaps_writes_its_records_a_bounded_number_of_times() -> None:
    state, now_s = State(phase=Phase.RUNNING, since_s=0.0, run=make_run()), 0.0
    at: list[float] = []
    told = 0
    while now_s < 4 * 3600.0:
        state, now_s = flap(state, now_s)
        at.append(now_s)
        told += flapping(state) is not None
    assert told == 1
    assert at[FLAPS - 1] < 200.0, "the first three as ever"
    gaps = [after - before for before, after in zip(at[FLAPS - 1 :], at[FLAPS:], strict=False)]
    assert min(gaps) > FLAP_QUIET_S
    assert len(at) <= FLAPS + 4 * 12
    assert state.run is not None
    assert len(state.run.flaps) <= FLAPS_KEPT


def test_one_that_flapped_and_then_hangs_is_still_ended() -> None:
    state, now_s = State(phase=Phase.RUNNING, since_s=0.0, run=make_run()), 0.0
    for _ in range(FLAPS):
        state, now_s = flap(state, now_s)
    wait_s = FLAP_QUIET_S + POLICY.deadlines_s["train"]
    silent = make_beat(now_s)
    state, done = lived(state, *(alive(now_s + each, beat=silent) for each in (wait_s - 1.0, wait_s - 0.4)))
    assert done == []
    state, done = lived(state, *(alive(now_s + wait_s + each, beat=silent) for each in (0.1, 0.7)))
    assert done == [KeepStacks(BEATER)]


def test_flaps_of_more_than_an_hour_ago_are_forgotten() -> None:
    state, now_s = State(phase=Phase.RUNNING, since_s=0.0, run=make_run()), 0.0
    for _ in range(FLAPS + 2):
        state, now_s = flap(state, now_s + 1900.0)
        assert state.run is not None
        assert state.run.grace_from_s == now_s
        assert flapping(state) is None


def test_the_grace_begins_with_the_term() -> None:
    """One second of grace and more than one of stacks: KILL must not come before the TERM, nor with it."""
    state, done = lived(stalled(), alive(62.3), alive(62.5))
    assert done == [ASK]
    state, done = lived(state, alive(63.4, stacks_over=True))
    assert done == []
    assert lived(state, alive(63.5, stacks_over=True))[1] == [Kill()]


@pytest.mark.parametrize("beat", [make_beat(61.05, seq=2), make_beat(61.05, seq=1, pid=777, start_ticks=9000)])
def test_a_beat_meanwhile_is_for_the_last_look_and_asks_nobody_else(beat: object) -> None:
    """A first beat, or one of another process, would have been asked by itself, without the look."""
    state, done = lived(stalled(), alive(61.1, beat=beat), alive(61.2, beat=beat, stacks_over=True))
    assert done == [ASK]
    back = resumed(state, 61.2)
    assert back.run is not None
    assert (back.phase, back.run.stop) == (Phase.RUNNING, None)


def test_a_person_who_cannot_wait_need_not() -> None:
    state, done = lived(stalled(), alive(61.1, request=Request.STOP))
    assert done == [Kill()]
    _, done = lived(state, alive(61.2, stacks_over=True), alive(70.0, stacks_over=True))
    assert set(done) == {Kill()}


def test_one_that_ends_meanwhile_is_over() -> None:
    state, plan = decide(stalled(), alive(61.1, shim=Shim.ENDED, leader_alive=False, members=()), POLICY)
    assert state.phase is Phase.WEIGHING
    assert plan.records[-1].data["cause"] == "stalled"


def test_no_other_stop_waits() -> None:
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run())
    plan: Plan = decide(state, alive(1.0, request=Request.DRAIN), POLICY)[1]
    assert plan.actions == (Terminate(BEATER),)


@pytest.mark.parametrize("asked", [Request.DRAIN, Request.RELAUNCH])
def test_what_a_person_asks_for_meanwhile_does_not_depend_on_the_last_look(asked: Request) -> None:
    """That one may find a new beat and let the run go on, which would have forgotten the request."""
    state, plan = decide(stalled(), alive(61.1, request=asked), POLICY)
    assert [record.kind for record in plan.records] == ["run_stopping"]
    assert plan.actions == (Terminate(BEATER),)
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.held is None
    assert lived(state, alive(61.2, stacks_over=True), alive(61.9))[1] == []


def test_stop_at_once_waits_for_no_stacks_however_short_the_grace() -> None:
    state, done = lived(stalled(), alive(62.3, request=Request.STOP))
    assert done == [Kill()]
    assert state.run is not None
