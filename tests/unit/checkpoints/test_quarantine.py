"""Moving aside: everything is still there afterwards, and nothing was written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.checkpoints.disk import census, pick, write
from watchdog import contract
from watchdog.checkpoints.quarantine import archive, quarantine


def test_a_checkpoint_is_moved_with_its_files_and_nothing_is_lost(tmp_path: Path) -> None:
    write(tmp_path, 10)
    manifest = write(tmp_path, 20, names=("model.pt", "optimizer.pt"))
    before = census(tmp_path)
    place = quarantine(manifest)
    assert place == tmp_path / "quarantine" / manifest.name
    assert census(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["quarantine", "step-10-model.pt", "step-10.manifest.json"]
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10


def test_the_same_name_twice_keeps_both(tmp_path: Path) -> None:
    first = quarantine(write(tmp_path, 20, salt="one"))
    before = census(tmp_path)
    second = quarantine(write(tmp_path, 20, salt="two"))
    assert first != second
    assert before <= census(tmp_path)
    assert len(census(tmp_path)) == 4


def test_an_unreadable_manifest_is_moved_alone(tmp_path: Path) -> None:
    manifest = write(tmp_path, 20)
    manifest.write_bytes(b"garbage")
    before = census(tmp_path)
    assert quarantine(manifest).read_bytes() == b"garbage"
    assert census(tmp_path) == before
    assert (tmp_path / "step-20-model.pt").exists()


def test_files_that_other_checkpoints_use_or_that_lie_elsewhere_are_not_torn_out(tmp_path: Path) -> None:
    """A manifest is not trusted: what it names may belong to a checkpoint that is good."""
    good = write(tmp_path, 10)
    forged = contract.Manifest.read(good)
    bad = tmp_path / "step-99.manifest.json"
    record = forged.to_record() | {"step": 99}
    contract.write_json_durably(bad, record)
    quarantine(bad)
    choice = pick(tmp_path)
    assert choice.chosen is not None, "the file of a good checkpoint was moved away with a bad one's manifest"
    assert choice.chosen.step == 10


def test_files_gone_already_do_not_matter(tmp_path: Path) -> None:
    manifest = write(tmp_path, 20)
    (tmp_path / "step-20-model.pt").unlink()
    assert quarantine(manifest).exists()
    with pytest.raises(FileNotFoundError):
        quarantine(manifest)


def test_a_file_in_the_place_of_the_quarantine_is_an_error_and_moves_nothing(tmp_path: Path) -> None:
    manifest = write(tmp_path, 20)
    (tmp_path / "quarantine").write_text("here first")
    before = census(tmp_path)
    with pytest.raises(OSError, match="quarantine"):
        quarantine(manifest)
    assert census(tmp_path) == before
    assert manifest.exists()


def test_archiving_moves_all_but_the_locks_and_twice_in_a_second_keeps_both(tmp_path: Path) -> None:
    control = tmp_path / contract.CONTROL_FOLDER
    control.mkdir()
    (control / "run.lock").touch()
    places = set()
    for salt in ("one", "two"):
        write(tmp_path, 10, salt=salt)
        (tmp_path / "quarantine").mkdir()
        (tmp_path / "quarantine" / "old").touch()
        before = census(tmp_path)
        places.add(archive(tmp_path, 1_700_000_000.0))
        assert census(tmp_path) == before
        assert sorted(os.listdir(tmp_path)) == [contract.CONTROL_FOLDER, "archive"]
        assert pick(tmp_path).first_start
    assert len(places) == 2
