"""What is learned from beats, what never is, and the bounds of every deadline that follows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.world import events_of, make_beat, make_policy, make_run, running
from watchdog.contract import PHASES
from watchdog.core.causes import Cause
from watchdog.core.deadlines import EXEMPT_STEPS, FLOORS_S, LEARNED, SETTLED_STEPS, Heard, Rule, hear, news
from watchdog.core.decide import beat_deadline
from watchdog.core.history import fold
from watchdog.core.seen import BeatSeen
from watchdog.core.state import Record, State, Stop

CEILINGS_S = {phase: 600.0 for phase in ("start", *PHASES)} | {"train": 120.0, "compile": 1800.0}
RULE = Rule(learn=True, factor=3.0, ceilings_s=CEILINGS_S, step_floor_s=10.0)
FIRST = 100
LATE = FIRST + SETTLED_STEPS


def at(now_s: float, *, seq: int, step: int | None = LATE, phase: str = "train", **changes: Any) -> BeatSeen:
    return make_beat(now_s, seq=seq, step=step, phase=phase, **changes).value


def told(
    *beats: BeatSeen | None,
    state: State | None = None,
    heard: Heard | None = None,
    gap: bool = False,
    held: bool = False,
) -> Heard:
    """What was heard after these looks."""
    state = running(first_step=FIRST) if state is None else state
    heard = Heard() if heard is None else heard
    for beat in beats:
        heard = hear(heard, beat, state, gap=gap, held=held)
    return heard


def test_what_lies_between_two_beats_belongs_to_the_phase_of_the_first() -> None:
    heard = told(at(0.0, seq=1), at(1.5, seq=2, phase="save"), at(41.5, seq=3), at(42.0, seq=4))
    assert heard.longest_s == {"train": 1.5, "save": 40.0}
    assert heard.times == {"train": 2, "save": 1}


def test_the_same_beat_seen_twice_ends_no_silence() -> None:
    heard = told(*(at(0.0, seq=1) for _ in range(5)), at(9.0, seq=2))
    assert heard.longest_s == {"train": 9.0}


def test_each_phase_has_its_own() -> None:
    phases = [phase for phase in LEARNED if phase != "train"]
    beats = [at(10.0 * number, seq=number, phase=phase) for number, phase in enumerate([*phases, "train"], start=1)]
    assert told(*beats).longest_s == dict.fromkeys(phases, 10.0)


@pytest.mark.parametrize("phase", ["drain", "finished"])
def test_what_ends_with_the_process_is_not_learned(phase: str) -> None:
    assert told(at(0.0, seq=1, phase=phase), at(9.0, seq=2)).longest_s == {}


@pytest.mark.parametrize("step", range(EXEMPT_STEPS))
def test_warm_up_steps_teach_nothing(step: int) -> None:
    assert told(at(0.0, seq=1, step=FIRST), at(9.0, seq=2, step=FIRST + step)).longest_s == {}


def test_the_first_step_that_was_not_seen_yet_teaches_nothing() -> None:
    assert told(at(0.0, seq=1), at(9.0, seq=2), state=running()).longest_s == {}


def test_who_tells_no_steps_teaches_nothing_about_them() -> None:
    assert told(at(0.0, seq=1, step=None), at(9.0, seq=2, step=None)).longest_s == {}


@pytest.mark.parametrize(("gap", "held"), [(True, False), (False, True)], ids=["an absence", "a debugger"])
def test_no_silence_is_measured_across_an_absence_or_a_debugger(gap: bool, held: bool) -> None:
    for look in (at(0.0, seq=1), at(5.0, seq=2)):  # before the next beat, or with it
        heard = told(look, heard=told(at(0.0, seq=1)), gap=gap, held=held)
        assert told(look, at(90.0, seq=3), at(91.0, seq=4), heard=heard).longest_s == {"train": 1.0}


@pytest.mark.parametrize(
    "between",
    [
        None,
        dataclasses.replace(at(0.0, seq=1), stopped=True),
        dataclasses.replace(at(0.0, seq=1), promised=False),
        dataclasses.replace(at(0.0, seq=1), extended_until_s=100.0),
    ],
    ids=["no beat", "stopped", "not promised", "asked for time"],
)
def test_what_is_no_habit_of_the_run_teaches_nothing(between: BeatSeen | None) -> None:
    assert told(at(0.0, seq=1), between, at(0.0, seq=1), at(90.0, seq=3)).longest_s == {}


def test_another_process_has_habits_of_its_own() -> None:
    assert told(at(0.0, seq=1), at(90.0, seq=3, pid=777)).longest_s == {}


def test_a_stall_that_ends_when_term_comes_is_not_learned() -> None:
    """The very fault: it hangs for a minute, TERM wakes it, and it beats that it saves."""
    stop = Stop(cause=Cause.STALLED, reason="no beat", since_s=60.0, kill_from_s=120.0, give_up_s=140.0)
    heard = told(at(0.0, seq=1))
    heard = told(at(61.0, seq=2, phase="drain"), heard=heard, state=running(first_step=FIRST, stop=stop))
    assert told(at(62.0, seq=3, phase="save"), heard=heard).longest_s == {}


def test_a_new_run_begins_with_no_beat_before() -> None:
    other = running(first_step=FIRST, run_id="2-b")
    assert told(at(900.0, seq=2, run_id="2-b"), heard=told(at(0.0, seq=1)), state=other).longest_s == {}


def test_a_save_between_two_looks_counts_as_a_save() -> None:
    heard = told(at(0.0, seq=1, checkpoint_step=100), at(1.0, seq=9, checkpoint_step=125))
    assert heard.longest_s == {"train": 1.0, "save": 1.0}


# --- what is recorded ---------------------------------------------------------------------------------------
def news_of(heard: Heard, longest_s: dict[str, float], doubted: dict[str, int] | None = None) -> dict[str, float]:
    records = news(heard, longest_s, doubted or {}, make_run())
    return {record.data["phase"]: record.data["longest_s"] for record in records}


def test_one_step_is_no_habit() -> None:
    seen = Heard(longest_s={"train": 1.0, "save": 5.0, "load": 7.0}, times={"train": 19, "save": 2, "load": 1})
    assert news_of(seen, {}) == {"load": 7.0}
    assert news_of(dataclasses.replace(seen, times={"train": 20, "save": 3, "load": 1}), {}) == seen.longest_s


def test_only_a_maximum_that_grew_by_a_tenth_is_news() -> None:
    seen = Heard(longest_s={"train": 1.1}, times={"train": 1})
    assert news_of(seen, {"train": 1.0}) == {}
    assert news_of(seen, {"train": 0.9}) == {"train": 1.1}
    assert news_of(seen, {"train": 7.0}) == {}


def test_records_are_bounded_however_slowly_a_maximum_grows() -> None:
    history, count, taken_s = fold([]), 0, 0.01
    while taken_s < 120.0:
        heard = Heard(longest_s={"train": taken_s}, times={"train": 99})
        records = news(heard, history.phase_times_s, history.doubted, make_run())
        history, count, taken_s = fold(events_of(records), history), count + len(records), taken_s * 1.001
    assert 50 < count < 105


def test_the_ledger_gives_back_what_was_recorded() -> None:
    heard = Heard(longest_s={"train": 0.25, "save": 4.0}, times={"train": 99, "save": 9})
    history = fold(events_of(news(heard, {}, {}, make_run())))
    assert history.phase_times_s == {"train": 0.25, "save": 4.0}
    assert history.last_sentence == ""  # no decision about the job


@pytest.mark.parametrize("longest", [float("nan"), float("inf"), -1.0, 0, True, "7", None, [1]])
def test_a_record_that_is_none_teaches_nothing(longest: object) -> None:
    data = {"run_id": "1-a", "phase": "train", "longest_s": longest}
    assert fold(events_of([Record("phase_time", "", data)])).phase_times_s == {}
    assert fold(events_of([Record("phase_time", "", data | {"phase": "lunch", "longest_s": 1.0})])).phase_times_s == {}


def launching(command: str) -> Record:
    return Record("run_launching", "", {"number": 1, "run_id": "1-a", "baseline_step": -1, "command_sha256": command})


def test_another_command_and_an_archived_job_begin_anew() -> None:
    taught = Record("phase_time", "", {"run_id": "1-a", "phase": "save", "longest_s": 4.0})
    doubted = Record("deadline_doubted", "", {"run_id": "1-a", "phase": "load", "step": None})
    before = events_of([launching("a"), taught, doubted])
    same, other, archived = (
        fold([*before, *events_of([last], seq=3)])
        for last in (launching("a"), launching("b"), Record("archived", "", {}))
    )
    assert (same.phase_times_s, same.doubted) == ({"save": 4.0}, {"load": -1})
    assert (other.phase_times_s, other.doubted) == ({}, {})
    assert (archived.phase_times_s, archived.doubted) == ({}, {})


# --- the deadlines that follow ------------------------------------------------------------------------------
TIMES = {phase: 0.2 for phase in LEARNED}


def test_short_phases_have_the_floor_and_long_ones_the_factor() -> None:
    assert RULE.learned_s(TIMES, {}) == {**FLOORS_S, "train": 10.0}
    assert RULE.learned_s(TIMES | {"evaluate": 100.0, "train": 20.0}, {})["evaluate"] == 300.0
    assert RULE.learned_s(TIMES | {"evaluate": 100.0, "train": 20.0}, {})["train"] == 60.0


def test_a_deadline_that_would_be_longer_than_the_configured_one_is_that_one() -> None:
    assert "train" not in RULE.learned_s(TIMES | {"train": 50.0}, {})


def test_what_a_person_chose_and_what_is_in_doubt_is_left_alone() -> None:
    stated = dataclasses.replace(RULE, stated=frozenset({"train", "load"}))
    assert set(stated.learned_s(TIMES, {"save": -1})) == set(LEARNED) - {"train", "load", "save"}
    assert dataclasses.replace(RULE, learn=False).learned_s(TIMES, {}) == {}
    assert dataclasses.replace(RULE, learn=False).grace_s(TIMES) == 0.0


def test_who_was_never_seen_to_save_has_the_whole_time_for_a_step() -> None:
    assert RULE.learned_s({"train": 0.2}, {}) == {}


def test_a_run_that_is_asked_to_leave_has_time_for_its_step_and_its_save() -> None:
    assert RULE.grace_s({"train": 5.0}) == 0.0
    assert RULE.grace_s({"save": 40.0}) == 120.0
    assert RULE.grace_s({"save": 40.0, "train": 5.0}) == 135.0
    assert RULE.grace_s({"save": 4000.0}) == CEILINGS_S["drain"]


@given(
    longest_s=st.dictionaries(st.sampled_from(PHASES), st.floats(0.001, 1e5)),
    doubted=st.dictionaries(st.sampled_from(PHASES), st.integers(-1, 100)),
    stated=st.frozensets(st.sampled_from(PHASES)),
    factor=st.floats(1.5, 100),
    floor_s=st.floats(1, 1e5),
    ceilings_s=st.fixed_dictionaries({phase: st.floats(1, 604800) for phase in PHASES}),
    more=st.floats(1.0, 1e4),
)
def test_no_deadline_leaves_its_bounds_and_none_shrinks_as_phases_take_longer(
    longest_s: dict[str, float],
    doubted: dict[str, int],
    stated: frozenset[str],
    factor: float,
    floor_s: float,
    ceilings_s: dict[str, float],
    more: float,
) -> None:
    rule = Rule(learn=True, factor=factor, ceilings_s=ceilings_s, step_floor_s=floor_s, stated=stated)
    found = rule.learned_s(longest_s, doubted)
    for phase, allowed_s in found.items():
        assert phase in longest_s
        assert phase not in doubted
        assert phase not in stated
        assert allowed_s < ceilings_s[phase]
        assert allowed_s >= (floor_s if phase == "train" else FLOORS_S[phase])
        assert allowed_s >= factor * longest_s[phase]
    longer = rule.learned_s({phase: taken_s * more for phase, taken_s in longest_s.items()}, doubted)
    for phase in found:
        assert longer.get(phase, ceilings_s[phase]) >= found[phase]
    assert rule.grace_s(longest_s) <= ceilings_s["drain"]


# --- in force -----------------------------------------------------------------------------------------------
TAUGHT = make_policy(learned_s={"train": 10.0, "save": 90.0, "evaluate": 20.0})  # all configured: 60 s


def allowed_s(beat: BeatSeen, **run: Any) -> float:
    return beat_deadline(make_run(first_step=FIRST, **run), beat, TAUGHT)[1]


def test_a_settled_run_is_held_to_what_was_learned() -> None:
    assert allowed_s(at(0.0, seq=9)) == 10.0
    assert allowed_s(at(0.0, seq=9, phase="evaluate")) == 20.0
    assert allowed_s(at(0.0, seq=9, phase="load")) == 60.0
    assert allowed_s(at(0.0, seq=9, phase="save")) == 60.0  # never longer than configured
    assert allowed_s(dataclasses.replace(at(0.0, seq=9), extended_until_s=300.0)) == 300.0


@pytest.mark.parametrize("step", [None, FIRST - 1, FIRST, LATE - 1])
def test_a_run_that_is_not_settled_has_the_whole_time(step: int | None) -> None:
    assert allowed_s(at(0.0, seq=9, step=step)) == 60.0
    assert beat_deadline(make_run(), at(0.0, seq=9), TAUGHT)[1] == 60.0
