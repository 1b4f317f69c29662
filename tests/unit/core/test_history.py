"""The ledger's events folded: the same events give the same history, in one go or piece by piece."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.world import events_of, launching
from watchdog.core.choice import Known
from watchdog.core.history import Event, History, fold
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
