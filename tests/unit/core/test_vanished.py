"""A verified checkpoint that is gone is told once, with what still lies there; what replaced it is not missed."""

from __future__ import annotations

import pytest

from tests.unit.core.world import digest_of, events_of
from watchdog.core.choice import Known
from watchdog.core.history import Event, History, can_fold, fold
from watchdog.core.state import Record
from watchdog.core.vanished import vanished


def verified(step: int, version: int = 0) -> Record:
    data = {"step": step, "digest": digest_of(step, version), "run_id": "1-a"}
    return Record("checkpoint_verified", f"step {step}", data)


def refused(step: int) -> Record:
    return Record("checkpoint_refused", "", {"step": step, "manifest": f"/c/{step}"})


def known(step: int, version: int = 0) -> Known:
    return Known(step=step, digest=digest_of(step, version), run_id="1-a")


def past(*records: Record) -> History:
    return fold(events_of(records))


THREE = (verified(10), verified(20), verified(30))


def test_the_newest_that_is_gone_is_told_and_the_one_below_is_the_newest_from_then_on() -> None:
    record = vanished(past(*THREE), [known(10), known(20)], "/c/step-30.manifest.json")
    assert record is not None
    assert record.kind == "checkpoint_vanished"
    assert record.data["manifest"] == "/c/step-30.manifest.json"
    assert "step 30" in record.sentence
    assert "step 20" in record.sentence
    after = past(*THREE, record)
    assert after.newest == known(20)
    assert after.knew_checkpoint
    assert vanished(after, [known(10), known(20)]) is None, "told once"
    assert vanished(after, [known(10)], "/c/step-20.manifest.json") is not None


def test_all_gone_is_told_once_and_a_checkpoint_was_still_known() -> None:
    """Never fresh: what the ledger knew it goes on knowing."""
    record = vanished(past(*THREE), [])
    assert record is not None
    assert record.data["still"] is None
    after = past(*THREE, record)
    assert (after.newest, after.knew_checkpoint) == (None, True)
    assert vanished(after, []) is None


def test_one_that_comes_back_is_the_newest_again() -> None:
    record = vanished(past(*THREE), [known(10)])
    assert record is not None
    assert past(*THREE, record, verified(30)).newest == known(30)


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param([known(30)], id="it is there"),
        pytest.param([known(30, 1)], id="saved anew"),
        pytest.param([known(40)], id="a later one replaced it, whatever that is worth"),
        pytest.param([known(10), None], id="a manifest that cannot be read may be it"),
    ],
)
def test_near_misses(listed: list[Known | None]) -> None:
    assert vanished(past(*THREE), listed) is None


def test_what_was_refused_is_not_missed_nor_what_retention_took_before() -> None:
    history = past(*THREE, refused(30))
    assert vanished(history, []) is None, "step 20 may have been gone for long"
    assert vanished(history, [], "/c/step-20.manifest.json") is not None, "it was seen in the look before"


def test_what_a_left_branch_saved_beyond_it_stands_for_nothing() -> None:
    back = {"step": 20, "digest": digest_of(20), "run_id": "1-a", "by": "a", "why": "b"}
    launched = Record("run_launching", "", {"number": 1, "run_id": "1-a", "baseline_step": 10})
    history = past(launched, *THREE, Record("branched", "", back))
    assert history.newest == known(20)
    assert vanished(history, [known(20), known(30)]) is None
    assert vanished(history, [known(10), known(30)]) is not None


def test_nothing_was_known() -> None:
    assert vanished(History(), []) is None


@pytest.mark.parametrize("still", [[1], ["x", "y", None], [True], []], ids=repr)
def test_a_record_that_is_torn_leaves_no_newest_and_does_not_fall_over(still: list[object]) -> None:
    data = {"step": 30, "digest": digest_of(30), "still": still}
    assert past(*THREE, Record("checkpoint_vanished", "", data)).newest is None
    assert not can_fold(Event(seq=1, wall_s=1.0, kind="checkpoint_vanished", sentence="", data={"step": "30"}))
