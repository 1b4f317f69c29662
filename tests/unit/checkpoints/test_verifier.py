"""The verifier's thread: orders, results, and that it never falls silent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.checkpoints.disk import write
from watchdog.checkpoints import verifier as module
from watchdog.checkpoints.verifier import Found, Knowledge, Verifier
from watchdog.core.choice import Known

KNOWLEDGE = Knowledge(known=(), run_ids=(), refused_runs=frozenset(), ledger_knew=False)
Wait = Callable[..., object]


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    (tmp_path / "lineage").write_text("1-a\n")
    return Verifier(tmp_path / "c", tmp_path / "lineage")


def next_found(verifier: Verifier, wait_until: Wait) -> Found:
    found = wait_until(verifier.results, "a result of the verifier")
    assert isinstance(found, list)
    (one,) = found
    assert isinstance(one, Found)
    return one


def test_a_choice_comes_with_the_number_of_its_order(tmp_path: Path, verifier: Verifier, wait_until: Wait) -> None:
    write(tmp_path / "c", 10)
    number = verifier.choose(KNOWLEDGE)
    found = next_found(verifier, wait_until)
    assert (found.order, found.error) == (number, None)
    assert found.choice is not None
    assert found.choice.chosen is not None
    assert [checkpoint.step for checkpoint in found.verified] == [10]
    assert verifier.results() == []


def test_a_folder_that_cannot_be_read_is_said_with_its_name(
    tmp_path: Path, verifier: Verifier, wait_until: Wait
) -> None:
    (tmp_path / "c").write_text("a file")
    verifier.choose(KNOWLEDGE)
    found = next_found(verifier, wait_until)
    assert found.choice is None
    assert str(tmp_path / "c") in (found.error or "")


def test_whatever_happens_inside_it_answers(
    tmp_path: Path, verifier: Verifier, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect of ours")

    monkeypatch.setattr(module, "choose", broken)
    verifier.choose(KNOWLEDGE)
    assert "a defect of ours" in (next_found(verifier, wait_until).error or "")
    monkeypatch.undo()
    verifier.choose(KNOWLEDGE)
    assert next_found(verifier, wait_until).choice is not None


def watched(verifier: Verifier, wait_until: Wait, knowledge: Knowledge = KNOWLEDGE) -> Found:
    verifier.watch(knowledge)
    return next_found(verifier, wait_until)


def test_a_watch_verifies_each_new_checkpoint_once(tmp_path: Path, verifier: Verifier, wait_until: Wait) -> None:
    assert watched(verifier, wait_until) == Found(order=1, listed=())  # no folder yet
    write(tmp_path / "c", 10)
    assert [checkpoint.step for checkpoint in watched(verifier, wait_until).verified] == [10]
    assert watched(verifier, wait_until).verified == ()
    write(tmp_path / "c", 20)
    assert [checkpoint.step for checkpoint in watched(verifier, wait_until).verified] == [20]


def test_a_watch_refuses_what_is_damaged_and_goes_on(tmp_path: Path, verifier: Verifier, wait_until: Wait) -> None:
    write(tmp_path / "c", 10)
    write(tmp_path / "c", 20)
    os.truncate(tmp_path / "c" / "step-20-model.pt", 5)
    found = watched(verifier, wait_until)
    assert [checkpoint.step for checkpoint in found.verified] == [10]
    assert [refusal.step for refusal in found.refused] == [20]
    assert watched(verifier, wait_until).refused == ()  # said once
    write(tmp_path / "c", 20)  # saved anew by the trainer
    assert [checkpoint.step for checkpoint in watched(verifier, wait_until).verified] == [20]


def test_a_watch_does_not_verify_a_changed_version_of_what_was_verified(
    tmp_path: Path, verifier: Verifier, wait_until: Wait
) -> None:
    write(tmp_path / "c", 10)
    known = Knowledge(
        known=(Known(step=10, digest="0" * 64, run_id="1-a"),),
        run_ids=("1-a",),
        refused_runs=frozenset(),
        ledger_knew=True,
    )
    found = watched(verifier, wait_until, known)
    assert found.verified == ()
    assert [refusal.step for refusal in found.refused] == [10]


def test_a_second_watch_is_not_queued_behind_the_first(tmp_path: Path, verifier: Verifier, wait_until: Wait) -> None:
    write(tmp_path / "c", 10)
    for _ in range(50):
        verifier.watch(KNOWLEDGE)
    next_found(verifier, wait_until)
    assert verifier.results() == []
    number = verifier.choose(KNOWLEDGE)
    assert number == 2


@pytest.mark.parametrize("lost", ["removed", "emptied"])
def test_without_its_lineage_the_runs_of_the_ledger_are_the_lineage(
    lost: str, tmp_path: Path, verifier: Verifier, wait_until: Wait
) -> None:
    """Else a stranger's checkpoint would be resumed from as soon as the file is gone."""
    write(tmp_path / "c", 10, run_id="1-a")
    write(tmp_path / "c", 20, run_id="7-stranger")
    if lost == "removed":
        (tmp_path / "lineage").unlink()
    else:
        (tmp_path / "lineage").write_bytes(b"")
    knows = Knowledge(known=(), run_ids=("1-a",), refused_runs=frozenset(), ledger_knew=True)
    verifier.choose(knows)
    found = next_found(verifier, wait_until)
    assert found.choice is not None
    assert found.choice.chosen is not None
    assert found.choice.chosen.step == 10
    assert [refusal.step for refusal in found.choice.refused] == [20]
    watched_now = watched(verifier, wait_until, knows)
    assert 20 not in [checkpoint.step for checkpoint in watched_now.verified]


@pytest.mark.parametrize("changed", [False, True])
def test_what_was_read_back_before_is_read_again_only_where_something_changed(
    changed: bool, tmp_path: Path, verifier: Verifier, wait_until: Wait
) -> None:
    """A launch that waits asks at each try; large checkpoints take minutes to read."""
    write(tmp_path / "c", 10)
    verifier.choose(KNOWLEDGE)
    before = next_found(verifier, wait_until).choice
    assert before is not None
    if changed:
        write(tmp_path / "c", 20)
    number = verifier.choose(KNOWLEDGE, before=before)
    found = next_found(verifier, wait_until)
    assert found.order == number
    assert found.choice is not None
    assert found.choice.chosen is not None
    assert found.choice.chosen.step == (20 if changed else 10)
    assert [checkpoint.step for checkpoint in found.verified] == ([20] if changed else [])
    assert found.listed is not None


# --- what lies there, and does no more ----------------------------------------------------------------------------
def test_each_look_lists_what_lies_there_and_remembers_where_it_lay(
    tmp_path: Path, verifier: Verifier, wait_until: Wait
) -> None:
    folder = tmp_path / "c"
    for step in (10, 20):
        write(folder, step)
    first = watched(verifier, wait_until)
    assert first.listed is not None
    ten = next(claim for claim in first.listed if claim is not None and claim.step == 10)
    twenty = next(claim for claim in first.listed if claim is not None and claim.step == 20)
    (path,) = folder.glob("*20*.manifest.json")
    path.rename(tmp_path / "aside")
    second = watched(verifier, wait_until)
    assert second.listed == (ten,)
    assert verifier.path_of(twenty) == str(path)
    (tmp_path / "aside").rename(path)
    third = watched(verifier, wait_until)
    assert [checkpoint.step for checkpoint in third.verified] == [20], "what comes back is read back again"


def test_a_choice_lists_as_well(tmp_path: Path, verifier: Verifier, wait_until: Wait) -> None:
    write(tmp_path / "c", 10)
    (tmp_path / "c" / "torn.manifest.json").write_text("{")
    verifier.choose(KNOWLEDGE)
    listed = next_found(verifier, wait_until).listed
    assert listed is not None
    assert {None if claim is None else claim.step for claim in listed} == {None, 10}
