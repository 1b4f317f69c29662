"""The ledger's events folded: the same events give the same history, in one go or piece by piece."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.world import acknowledged, events_of, launching, make_policy, run_record
from watchdog.core.choice import Known
from watchdog.core.history import Event, History, can_fold, fold
from watchdog.core.restore import restore
from watchdog.core.runrecord import Expectation
from watchdog.core.state import Record


def folded(*records: Record) -> History:
    return fold(events_of(records))


def verified(step: int, digest: str = "d", run_id: str | None = "1-a") -> Record:
    return Record("checkpoint_verified", "", {"step": step, "digest": digest, "run_id": run_id})


def weighed(cause: str, failures: int, repeated: int = 0) -> Record:
    return Record("run_weighed", "", {"cause": cause, "failures": failures, "repeated": repeated})


def test_nothing_is_known_of_an_empty_ledger() -> None:
    history = folded()
    assert history == History()
    assert (history.restarts, history.knew_checkpoint, history.newest) == (0, False, None)


def test_a_run_from_launch_to_weighing() -> None:
    launch = launching(1, "1-a", -1)
    history = folded(launch)
    assert history.open_run == launch.data
    end = Record("run_ended", "", {"run_id": "1-a", "error": "boom"})
    history = folded(launch, end)
    assert (history.open_run, history.unweighed, history.last_error) == (None, end.data, "boom")
    history = folded(launch, end, weighed("exited", 1, 7))
    assert (history.unweighed, history.failures, history.steps_repeated) == (None, 1, 7)
    assert history.runs_by_cause == {"exited": 1}
    history = folded(launch, end, weighed("exited", 1, 7), launching(2, "2-a", -1))
    assert (history.restarts, history.last_number, history.last_run_id) == (1, 2, "2-a")


def test_an_end_without_an_error_keeps_the_last_one() -> None:
    history = folded(Record("run_ended", "", {"error": "boom"}), Record("run_ended", "", {"error": None}))
    assert history.last_error == "boom"


def test_a_checkpoint_is_known_once_and_the_newest_is_the_highest_step() -> None:
    history = folded(verified(10), verified(20), verified(10), verified(15, "e"))
    assert [entry.step for entry in history.known] == [10, 20, 15]
    assert history.newest == Known(step=20, digest="d", run_id="1-a")


def test_lifting_clears_the_count_and_the_hold_alone() -> None:
    history = folded(weighed("exited", 3), Record("hold", "", {"reason": "three"}), Record("lifted", ""))
    assert (history.failures, history.hold) == (0, None)
    assert history.runs_by_cause == {"exited": 1}


def test_archiving_forgets_the_job_and_never_a_number() -> None:
    history = folded(
        launching(1, "1-a", -1),
        verified(10),
        Record("finished", "", {"step": 10}),
        Record("hold", "", {"reason": "r"}),
        Record("archived", ""),
    )
    assert (history.known, history.finished, history.hold, history.failures) == ((), None, None, 0)
    assert history.last_number == 1  # run ids and folders are never used twice


def test_which_devices_a_run_used_is_remembered_and_is_no_last_word() -> None:
    assert fold([]).gpus is None
    launch = Event(seq=1, wall_s=1.0, kind="run_launching", sentence="run 1", data=launching(1, "1-a", -1).data)
    nowhere = Event(seq=2, wall_s=2.0, kind="uses_gpu", sentence="nowhere", data={"uuids": []})
    on_one = Event(seq=3, wall_s=3.0, kind="uses_gpu", sentence="on one", data={"uuids": ["GPU-1"]})
    assert fold([launch, nowhere]).gpus == frozenset()
    history = fold([launch, nowhere, on_one])
    assert (history.gpus, history.last_sentence) == ({"GPU-1"}, "run 1")
    assert fold([Event(seq=4, wall_s=4.0, kind="archived", sentence="", data={})], history).gpus == {"GPU-1"}


def test_an_unknown_kind_changes_nothing_but_the_last_words() -> None:
    history = fold([Event(seq=1, wall_s=5.0, kind="something new", sentence="words")])
    assert (history.last_sentence, history.last_wall_s) == ("words", 5.0)
    assert history.open_run is None


RECORDS = st.sampled_from(
    [
        launching(1, "1-a", -1),
        launching(2, "2-a", 10),
        verified(10),
        verified(20),
        weighed("exited", 1, 3),
        weighed("finished", 0),
        Record("run_ended", "", {"run_id": "1-a", "error": None}),
        Record("run_stopping", "", {"run_id": "1-a"}),
        Record("run_goes_on", ""),
        acknowledged("1-a"),
        acknowledged("2-a"),
        Record("run_beats", "", {"run_id": "1-a"}),
        Record("uses_gpu", "", {"uuids": ["GPU-1", "GPU-2"]}),
        Record("checkpoint_refused", "", {"step": 20}),
        Record("checkpoint_refused", "", {"step": None}),
        Record("run_refused", "", {"run_id": "1-a"}),
        Record("hold", "", {"reason": "r"}),
        Record("lifted", ""),
        Record("finished", "", {"step": 20}),
        Record("archived", ""),
        Record("gap", ""),
    ]
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(records=st.lists(RECORDS, max_size=30), cut=st.integers(0, 30))
def test_folding_in_two_pieces_is_folding_at_once(records: list[Record], cut: int) -> None:
    events = events_of(records)
    assert fold(events[cut:], fold(events[:cut])) == fold(events)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(records=st.lists(RECORDS, max_size=30))
def test_a_refused_run_is_never_forgotten(records: list[Record]) -> None:
    history = fold(events_of(records))
    refused = any(record.kind == "run_refused" for record in records)
    assert ("1-a" in history.refused_runs) is refused


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_record_that_arrived_twice_counts_once_where_it_must(again: int) -> None:
    """A hanging disk may take a record after we had given it up and written it anew."""
    history = folded(*[verified(10)] * (again + 1), *[weighed("exited", 2)] * (again + 1))
    assert len(history.known) == 1
    assert history.failures == 2


# --- what is remembered of checkpoints and runs ------------------------------------------------------------------
def at(wall_s: float, record: Record) -> Event:
    return Event(seq=1, wall_s=wall_s, kind=record.kind, sentence="", data=record.data)


def test_the_age_of_the_newest_checkpoint_counts_from_its_first_verification() -> None:
    """Each relaunch verifies it again: that makes it no younger."""
    history = fold([at(1.0, verified(10)), at(2.0, verified(20)), at(9.0, verified(20)), at(10.0, verified(10))])
    assert history.newest_wall_s == 2.0
    assert fold([at(11.0, verified(20)), at(12.0, verified(15))], history).newest_wall_s == 2.0
    assert fold([at(13.0, verified(21))], history).newest_wall_s == 13.0
    assert fold([at(14.0, Record("archived", ""))], history).newest_wall_s is None


def test_a_step_that_a_later_run_saved_anew_is_known_by_its_last_version() -> None:
    """Its age and its digest belong together."""
    history = fold([at(1.0, verified(20, "old", "1-a")), at(7.0, verified(20, "new", "2-a"))])
    assert history.newest_wall_s == 7.0
    assert history.newest == Known(step=20, digest="new", run_id="2-a")


def test_a_step_that_was_refused_is_no_longer_the_newest_and_is_again_once_it_is_verified_anew() -> None:
    refused = Record("checkpoint_refused", "", {"step": 20})
    history = folded(verified(10), verified(20), refused)
    assert history.newest == Known(step=10, digest="d", run_id="1-a")
    assert history.knew_checkpoint
    assert folded(verified(10), verified(20), refused, verified(20)).newest == Known(step=20, digest="d", run_id="1-a")
    assert folded(verified(20), refused).newest is None
    assert folded(verified(20), refused).knew_checkpoint, "a fresh start in its place would be a lost job"


def test_every_run_that_was_launched_is_remembered_in_order_and_once() -> None:
    history = folded(launching(1, "1-a", -1), launching(2, "2-a", -1), Record("archived", ""), launching(1, "1-a", -1))
    assert history.run_ids == ("1-a", "2-a")


def many_checkpoints(count: int) -> list[Event]:
    return [at(float(step), verified(step, f"{step:064x}")) for step in range(count)]


def test_folding_compares_no_checkpoint_with_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    equal = Known.__eq__

    def counting(self: Known, other: object) -> bool:
        nonlocal compared
        compared += 1
        assert compared < 100_000, "each is compared with all before it"
        return equal(self, other)

    monkeypatch.setattr(Known, "__eq__", counting)
    events = many_checkpoints(20_000)
    history = fold(events)
    assert len(history.known) == 20_000
    assert len(fold(events, history).known) == 20_000  # all of them verified once more


def test_four_times_the_checkpoints_take_about_four_times_the_work() -> None:
    """Quadratic folding takes sixteen times; a shared machine may well take six."""

    def cpu_s(events: list[Event]) -> float:
        began_s = time.process_time()
        fold(events)
        return time.process_time() - began_s

    few, many = many_checkpoints(5_000), many_checkpoints(20_000)
    least_few = least_many = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):  # a busy moment makes a measurement longer, never shorter
            least_few, least_many = min(least_few, cpu_s(few)), min(least_many, cpu_s(many))
            if least_many < 6 * least_few:
                break
    finally:
        gc.enable()
    assert least_many < 10 * least_few


# --- lines that are no records ------------------------------------------------------------------------------------
# Of each kind one good line, and the names without which nobody could say what happened.
GOOD: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "run_launching": (
        {"number": 3, "run_id": "3-a", "baseline_step": 10, "resume_step": 10, "digest": "d", "command": ["x"]},
        ("number", "run_id", "baseline_step"),
    ),
    "run_acknowledged": ({"run_id": "3-a", "step": 10, "digest": "d", "fresh": False}, ("run_id",)),
    "run_beats": ({"run_id": "3-a"}, ("run_id",)),
    "uses_gpu": ({"uuids": ["GPU-3f1c"]}, ("uuids",)),
    "run_stopping": (
        {"run_id": "3-a", "cause": "drained", "reason": "asked", "hold_after": False, "kill_now": False},
        ("run_id", "cause", "reason", "hold_after"),
    ),
    "run_ended": (
        {
            "number": 3,
            "run_id": "3-a",
            "cause": "exited",
            "words": "exit 1",
            "baseline_step": 10,
            "last_step": 12,
            "target_step": None,
            "permanent": False,
            "hold_after": False,
            "error": None,
            "confidence": "certain",
            "fault": "TypeError at t.py:7 in step",
        },
        ("number", "run_id", "cause", "words", "baseline_step"),
    ),
    "run_weighed": (
        {"run_id": "3-a", "cause": "exited", "failures": 1, "host_failures": 2, "fault": None, "repeated": 2},
        ("cause", "failures"),
    ),
    "run_refused": ({"run_id": "3-a"}, ("run_id",)),
    "checkpoint_verified": ({"step": 10, "digest": "d", "run_id": "3-a"}, ("step", "digest")),
    "hold": ({"reason": "three failures"}, ("reason",)),
}
NEEDED = [(kind, name) for kind, (_, names) in GOOD.items() for name in names]
NONE_OF_A_KIND = ([], {}, ["x"], {"x": 1}, 1.5, float("nan"), float("inf"))  # neither number, nor word, nor yes or no


def event_of(kind: str, data: Mapping[str, Any]) -> Event:
    return Event(seq=1, wall_s=1.0, kind=kind, sentence="", data=data)


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_line_can_be_folded_and_so_can_one_with_only_what_is_needed(kind: str) -> None:
    data, needed = GOOD[kind]
    assert can_fold(event_of(kind, data))
    assert can_fold(event_of(kind, {name: data[name] for name in needed}))
    assert can_fold(event_of(kind, data | {"of another version": [1, 2]}))


@pytest.mark.parametrize(("kind", "name"), NEEDED)
def test_a_line_that_lacks_what_its_kind_needs_cannot_be_folded(kind: str, name: str) -> None:
    data = {key: value for key, value in GOOD[kind][0].items() if key != name}
    assert not can_fold(event_of(kind, data))
    assert not can_fold(event_of(kind, data | {name: None}))


@pytest.mark.parametrize(("kind", "name"), NEEDED)
def test_a_line_that_misstates_what_its_kind_needs_cannot_be_folded(kind: str, name: str) -> None:
    data, _ = GOOD[kind]
    right = type(data[name])
    others = [value for value in (12, "12", True, *NONE_OF_A_KIND) if type(value) is not right]
    for value in [*others, *([10**400, -(10**400)] if right is int else [])]:
        assert not can_fold(event_of(kind, data | {name: value})), value


@pytest.mark.parametrize("name", ["last_step", "target_step", "permanent", "hold_after", "error", "fault"])
@pytest.mark.parametrize("value", NONE_OF_A_KIND, ids=repr)
def test_what_an_end_need_not_say_it_must_not_misstate(name: str, value: object) -> None:
    assert not can_fold(event_of("run_ended", GOOD["run_ended"][0] | {name: value}))


def test_a_kind_that_needs_nothing_can_always_be_folded() -> None:
    for kind in ("lifted", "archived", "run_goes_on", "gap", "something new"):
        assert can_fold(event_of(kind, {}))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=3), st.lists(st.none())
)


@st.composite
def spoiled_lines(draw: st.DrawFn) -> Event:
    """A good line in which some values were exchanged and some are missing."""
    kind = draw(st.sampled_from(sorted(GOOD)))
    data = dict(GOOD[kind][0])
    for name in draw(st.lists(st.sampled_from(sorted(data)), max_size=2)):
        if draw(st.booleans()):
            data[name] = draw(VALUES)
        else:
            data.pop(name, None)
    return event_of(kind, data)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(lines=st.lists(spoiled_lines(), max_size=6))
def test_whatever_can_be_folded_is_a_history_that_a_supervisor_can_begin_with(lines: list[Event]) -> None:
    history = fold([line for line in lines if can_fold(line)])
    living = None
    if history.open_run is not None:
        living = run_record(3, str(history.open_run["run_id"]), 10, Expectation(fresh=True))
    state = restore(history, living, 100.0, make_policy(), wall_s=100.0, boot_id="boot")
    assert state.ended is None or isinstance(state.ended.number, int)


def test_the_same_bytes_saved_anew_after_a_refusal_stand_again() -> None:
    """Step 20 was damaged, refused, and saved anew bit for bit: from then on it is the newest again."""

    def event(kind: str, **data: object) -> Event:
        return Event(seq=1, wall_s=1.0, kind=kind, sentence="", data=data)

    first = [
        event("checkpoint_verified", step=10, digest="a", run_id="1-a"),
        event("checkpoint_verified", step=20, digest="b", run_id="1-a"),
        event("checkpoint_refused", step=20, manifest="m", why="damaged"),
    ]
    refused = fold(first)
    assert refused.newest is not None
    assert refused.newest.step == 10
    again = fold([event("checkpoint_verified", step=20, digest="b", run_id="1-a")], refused)
    assert again.newest is not None
    assert again.newest.step == 20


@pytest.mark.parametrize("of", ["1-a", "0-x"])
def test_who_asked_for_a_run_to_be_followed_is_owed_it_until_it_is_being_ended(of: str) -> None:
    """Else each supervisor to come asks anew: once it lifted a hold over a suspect, with nobody having asked."""
    stop = {"run_id": of, "cause": "stopped", "reason": "asked to relaunch", "hold_after": False, "kill_now": False}
    lines = [("relaunch_asked", {"run_id": "1-a"}), ("run_stopping", stop)]
    events = [Event(seq=n, wall_s=1.0, kind=kind, sentence="", data=data) for n, (kind, data) in enumerate(lines)]
    assert all(can_fold(event) for event in events)
    assert fold(events[:1]).owed == "1-a"
    assert fold(events).owed == (None if of == "1-a" else "1-a")
