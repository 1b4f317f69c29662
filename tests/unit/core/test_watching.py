"""A beat that is gone, one that was never promised, and what a last look must find before it stops a silent run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.core.world import BEATER, FAKED, make_beat, make_policy, make_run
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.ending import FLAPS, flapping
from watchdog.core.facts import Absent, Fact, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen, Request, Seen, Shim
from watchdog.core.state import KeepStacks, Plan, State, Terminate
from watchdog.core.watching import until_late_s


def alive(now_s: float, beat: Fact[BeatSeen], **changes: object) -> Seen:
    return Seen(now_s=now_s, shim=Shim.ALIVE, leader_alive=True, beat=beat, **changes)  # type: ignore[arg-type]


def run_of(level: int, **changes: object) -> State:
    return State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=level, **changes))


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("stale_before", [False, True], ids=["in time", "stale once"])
@pytest.mark.parametrize("gap", [False, True], ids=["", "after a gap"])
def test_a_beat_file_that_is_gone_again_never_stops_a_run(level: int, stale_before: bool, gap: bool) -> None:
    """A cleaned folder, `: > beat.json`: we are blind then, and the run is not late."""
    policy, start_s = make_policy(level=level), 0.0
    state, _ = decide(run_of(level), alive(1.0, make_beat(1.0)), policy)
    if stale_before:
        state, plan = decide(state, alive(70.0, make_beat(1.0)), policy)
        assert plan.rule == "stale once"
        start_s = 70.0
    for number in range(400):
        seen = alive(start_s + 2.5 * number, Absent("no beat yet"), gap=gap and number == 3)
        state, plan = decide(state, seen, policy)
        assert (state.phase, plan.actions, plan.records) == (Phase.RUNNING, (), ())


def test_a_beat_that_comes_back_is_judged_again() -> None:
    policy = make_policy()
    state, _ = decide(run_of(2), alive(1.0, make_beat(1.0)), policy)
    state, _ = decide(state, alive(500.0, Absent("gone")), policy)
    for now_s in (501.0, 504.0):
        state, plan = decide(state, alive(now_s, make_beat(1.0)), policy)
    assert state.phase is Phase.STOPPING
    assert plan.actions == (KeepStacks(BEATER),)
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.held == Terminate(BEATER, only_if_seq=1, look_again=True)


def test_a_beat_that_is_gone_between_two_stale_looks_is_no_second_look() -> None:
    policy = make_policy()
    state, _ = decide(run_of(2), alive(70.0, make_beat(1.0)), policy)
    state, _ = decide(state, alive(75.0, Absent("gone")), policy)
    state, plan = decide(state, alive(80.0, make_beat(1.0)), policy)
    assert (state.phase, plan.rule) == (Phase.RUNNING, "stale once")


@pytest.mark.parametrize("level", [1, 2])
def test_where_nothing_ever_beat_the_last_look_must_find_nothing_again(level: int) -> None:
    policy = make_policy(level=level)
    state = run_of(level, acknowledged=False)
    plan = Plan()
    for now_s in (61.0, 64.0):
        state, plan = decide(state, alive(now_s, Absent("no beat yet")), policy)
    assert state.phase is Phase.STOPPING
    assert plan.actions == (KeepStacks(None),)
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.held == Terminate(None, only_if_seq=None, look_again=True)


def test_a_request_looks_at_nothing_again() -> None:
    _, plan = decide(run_of(2), alive(1.0, make_beat(1.0), request=Request.DRAIN), make_policy())
    assert plan.actions == (Terminate(BEATER, look_again=False),)


@pytest.mark.parametrize(
    ("due_s", "expected"),
    [
        pytest.param(10.5, 0.4, id="in time"),
        pytest.param(10.05, 0.0, id="fell due while it was looked at"),
        pytest.param(10.0, 0.0, id="at that very moment"),
        pytest.param(9.9, None, id="late already: two looks, a moment apart"),
        pytest.param(math.inf, math.inf, id="promised nothing"),
    ],
)
def test_a_silence_that_falls_due_during_a_look_does_not_wait_for_a_period(
    due_s: float, expected: float | None
) -> None:
    assert until_late_s(due_s, looked_s=10.0, now_s=10.1) == pytest.approx(expected)


# --- who promised nothing -----------------------------------------------------------------------------------------
def unpromised(now_s: float, **changes: object) -> Known[BeatSeen]:
    """READY or a status, and no WATCHDOG=1 so far."""
    seen = make_beat(now_s, phase="train").value
    return Known(dataclasses.replace(seen, promised=False, **changes), now_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [1, 2])
def test_who_never_promised_to_beat_is_never_late(level: int) -> None:
    policy, state = make_policy(level=level), run_of(level)
    for now_s in range(0, 100_000, 1000):
        state, plan = decide(state, alive(float(now_s), unpromised(0.0)), policy)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_from_its_first_beat_on_it_has_promised() -> None:
    policy = make_policy(level=1)
    state, _ = decide(run_of(1), alive(1.0, unpromised(0.0)), policy)
    for now_s in (1000.0, 1003.0):
        state, _ = decide(state, alive(now_s, make_beat(2.0, seq=2)), policy)
    assert state.phase is Phase.STOPPING


# --- who beats and does not train ---------------------------------------------------------------------------------
def fakes(now_s: float, *, judged_s: float | None = None, **changes: Any) -> Seen:
    judged_s = now_s if judged_s is None else judged_s
    findings: tuple[Finding, ...] = changes.pop("findings", (FAKED,))
    return alive(now_s, make_beat(now_s, seq=int(now_s * 10)), findings=findings, judged_s=judged_s, **changes)


def after(*turns: Seen, level: int = 2) -> tuple[State, Plan]:
    state, plan = run_of(level), Plan()
    for seen in turns:
        state, plan = decide(state, seen, make_policy(level=level))
    return state, plan


@pytest.mark.parametrize("level", [0, 1, 2])
def test_who_fakes_being_alive_is_stopped_by_two_judgments(level: int) -> None:
    state, plan = after(fakes(10.0), level=level)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    state, plan = after(fakes(10.0), fakes(10.5, judged_s=10.0), fakes(10.9, judged_s=10.0), level=level)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ()), "one judgment, seen at three turns"
    state, plan = after(fakes(10.0), fakes(11.0), level=level)
    assert (state.phase, plan.actions) == (Phase.STOPPING, (KeepStacks(BEATER),))
    assert state.run is not None
    assert state.run.stop is not None
    assert (state.run.stop.cause, state.run.stop.faking) == (Cause.STALLED, "steps-frozen")
    assert state.run.stop.held == Terminate(BEATER), "it beats on, so that its beat is no reason to let it go on"
    assert plan.records[-1].data["cause"] == "stalled"
    assert "steps-frozen: at step 420 for 15 min" in plan.records[-1].sentence


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(fakes(10.5, findings=()), id="in order once"),
        pytest.param(fakes(10.5, gap=True), id="a gap of ours"),
        pytest.param(fakes(10.5, findings=(replace(FAKED, severity=Severity.WARNING),)), id="only a warning"),
        pytest.param(fakes(10.5, findings=(replace(FAKED, remedy=Remedy.LOOK),)), id="of a device that is not its own"),
        pytest.param(fakes(10.5, findings=(replace(FAKED, check="xid"),)), id="another check"),
    ],
)
def test_two_judgments_are_two_in_a_row(between: Seen) -> None:
    state, plan = after(fakes(10.0), between, fakes(11.0))
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    assert after(fakes(10.0), between, fakes(11.0), fakes(12.0))[0].phase is Phase.STOPPING


def test_who_is_under_a_debugger_is_left_alone() -> None:
    state, plan = after(*(fakes(10.0 + number, traced=(501,)) for number in range(20)))
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_what_was_said_of_another_run_stops_nobody() -> None:
    """It was launched at 0."""
    state, _ = after(*(fakes(10.0 + number, judged_s=-1.0 + 0.1 * number) for number in range(8)))
    assert state.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("last", "goes_on"),
    [
        pytest.param(fakes(12.0, stacks_over=True), False, id="it stands"),
        pytest.param(fakes(12.0, stacks_over=True, findings=()), True, id="it steps again"),
        pytest.param(fakes(12.0, stacks_over=True, gap=True), True, id="we were away"),
        pytest.param(fakes(13.0, judged_s=11.0), True, id="nobody has judged anew"),
    ],
)
def test_the_last_look_before_a_fake_is_asked_to_end(last: Seen, goes_on: bool) -> None:
    state, plan = after(fakes(10.0), fakes(11.0), fakes(11.2, judged_s=11.0, stacks_over=True), last)
    if goes_on:
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())
        assert [record.kind for record in plan.records] == ["run_goes_on"]
        assert state.run is not None
        assert (state.run.stop, state.run.faking_look_s) == (None, None)
    else:
        assert (state.phase, plan.actions) == (Phase.STOPPING, (Terminate(BEATER),))


@pytest.mark.parametrize(
    ("changes", "goes_on"),
    [
        pytest.param({}, False, id="the same word"),
        pytest.param({"step": 6}, True, id="a step"),
        pytest.param({"tokens": 4096}, True, id="a micro-batch"),
        pytest.param({"phase": "evaluate"}, True, id="it evaluates now"),
    ],
)
def test_a_word_that_is_newer_than_the_judgment_counts(changes: dict[str, Any], goes_on: bool) -> None:
    """Judged at 11.9, a step at 12.0, stacks over at 12.4."""
    last = alive(12.4, make_beat(12.0, seq=999, **changes), findings=(FAKED,), judged_s=11.9, stacks_over=True)
    state, plan = after(fakes(10.0), fakes(11.0), last)
    assert plan.actions == (() if goes_on else (Terminate(BEATER),))
    assert (state.phase is Phase.RUNNING) is goes_on


def test_a_beat_that_cannot_be_read_at_the_last_look_ends_nobody() -> None:
    last = alive(12.4, Unknown("torn"), findings=(FAKED,), judged_s=12.0, stacks_over=True)
    state, plan = after(fakes(10.0), fakes(11.0), last)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_a_debugger_that_comes_while_the_stacks_are_kept_saves_it() -> None:
    held = fakes(12.0, stacks_over=True, traced=(501,))
    state, plan = after(fakes(10.0), fakes(11.0), held)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
    assert "pid 501 is under a debugger" in plan.records[0].sentence
    for number in range(20):
        state, plan = decide(state, fakes(13.0 + number, traced=(501,)), make_policy())
        assert (state.phase, plan.actions, plan.records) == (Phase.RUNNING, (), ()), "and it is told once"


def test_a_debugger_saves_a_silent_run_at_the_last_look() -> None:
    silent = make_beat(0.0)
    state, _ = after(alive(61.0, silent), alive(62.0, silent))
    assert state.phase is Phase.STOPPING
    state, plan = decide(state, alive(62.5, silent, traced=(501,), stacks_over=True), make_policy())
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def test_a_fake_that_flaps_is_not_told_to_raise_a_deadline() -> None:
    state, now_s = run_of(2), 10.0
    for _ in range(FLAPS):
        assert flapping(state) is None
        for later_s in (0.0, 1.0):
            state, _ = decide(state, fakes(now_s + later_s), make_policy())
        state, _ = decide(state, fakes(now_s + 2.0, findings=(), stacks_over=True), make_policy())
        assert state.phase is Phase.RUNNING
        now_s += 10.0
    told = flapping(state)
    assert told is not None
    assert "nearly ended by steps-frozen" in told.sentence
    assert "[deadlines]" not in told.sentence


def test_what_a_person_asks_for_ends_a_fake_whatever_it_does_then() -> None:
    drained = fakes(11.1, request=Request.DRAIN, judged_s=11.0)
    state, _ = after(fakes(10.0), fakes(11.0), drained, fakes(13.0, findings=(), stacks_over=True))
    assert state.phase is Phase.STOPPING
    assert state.run is not None
    assert state.run.stop is not None
    assert (state.run.stop.cause, state.run.stop.faking) == (Cause.DRAINED, "")
