"""Choosing what to resume from, against real files that were damaged in every way a disk or a person can."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.checkpoints.disk import SIZE_BYTES, census, forge, pick, write
from watchdog import contract
from watchdog.checkpoints import catalogue
from watchdog.checkpoints.catalogue import ever_had_checkpoints, find_candidates, read_lineage, verify, why_stale
from watchdog.core.choice import Choice, Known
from watchdog.errors import CheckpointError


def model(folder: Path, step: int) -> Path:
    return folder / f"step-{step}-model.pt"


def truncate(path: Path) -> None:
    os.truncate(path, SIZE_BYTES - 1)


def flip_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def zero_a_page(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\0")


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "one bit": flip_one_bit,
    "zeroed page": zero_a_page,
    "emptied": lambda path: os.truncate(path, 0),
    "one byte more": grow,
    "missing": lambda path: path.unlink(),
    "a folder": become_a_folder,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_newest_is_refused_and_the_previous_good_one_is_chosen(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    write(tmp_path, 10)
    newest = write(tmp_path, 20)
    damage(model(tmp_path, 20))
    before = census(tmp_path)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10
    (refusal,) = choice.refused
    assert (refusal.step, refusal.manifest) == (20, str(newest))
    assert "step-20-model.pt" in refusal.why
    assert census(tmp_path) == before


def test_one_of_several_files_is_enough_to_refuse(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20, names=("model.pt", "optimizer.pt", "rng.json"))
    flip_one_bit(tmp_path / "step-20-optimizer.pt")
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10


def test_the_digest_is_that_of_the_bytes_read_back(tmp_path: Path) -> None:
    write(tmp_path, 10)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.digest == contract.digest_file(model(tmp_path, 10)).sha256
    assert (choice.chosen.target_step, choice.first_start) == (100, False)


def test_the_newest_good_one_is_chosen_by_step_and_not_by_name(tmp_path: Path) -> None:
    for step in (9, 10, 100, 11):
        write(tmp_path, step)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 100


# --- swapped after it was verified ----------------------------------------------------------------------------
def test_another_runs_checkpoint_swapped_in_after_verification_is_refused(tmp_path: Path) -> None:
    """Files and manifest agree with each other: only the ledger and the lineage can tell."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(ours, 10)
    write(ours, 20)
    choice = pick(ours)
    assert choice.chosen is not None
    known = (Known(step=20, digest=choice.chosen.digest, run_id="1-a"),)
    for foreign in ("9-z", "1-a"):  # another run's; and one that only pretends to be ours
        write(theirs, 20, run_id=foreign, salt=foreign)
        for path in theirs.iterdir():
            os.replace(path, ours / path.name)
        choice = pick(ours, known=known)
        assert choice.chosen is not None
        assert choice.chosen.step == 10, foreign
        assert choice.refused[0].step == 20


def test_swapped_files_under_an_unchanged_manifest_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20)
    os.replace(model(tmp_path, 10), model(tmp_path, 20))
    choice = pick(tmp_path, ledger_knew=True)
    assert choice.chosen is None
    assert not choice.first_start
    assert {refusal.step for refusal in choice.refused} == {10, 20}


def test_what_a_refused_run_saved_is_not_chosen(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20, run_id="2-b")
    choice = pick(tmp_path, lineage=("1-a", "2-b"), refused_runs=frozenset({"2-b"}))
    assert choice.chosen is not None
    assert choice.chosen.step == 10


# --- manifests that are none ---------------------------------------------------------------------------------
GARBAGE: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "not JSON": b"{",
    "a list": b"[]",
    "null": b"null",
    "nested": b"[" * 100_000,
    "no format": b'{"step": 20}',
    "5 MiB": b'{"x": "' + b"x" * (5 * 1024 * 1024) + b'"}',
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_manifest_that_is_garbage_is_refused_and_says_so(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, 10)
    garbage = tmp_path / f"step-20{contract.MANIFEST_SUFFIX}"
    garbage.write_bytes(content)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10
    assert garbage.read_bytes() == content
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / garbage.name).write_bytes(content)
    choice = pick(alone)
    assert (choice.chosen, choice.first_start) == (None, False), "a folder that knew a checkpoint is no first start"
    assert "manifest" in choice.why


NASTY: dict[str, dict[str, object]] = {
    "negative step": {"step": -1},
    "boolean step": {"step": True},
    "fractional step": {"step": 20.5},
    "no files": {"files": []},
    "files of text": {"files": ["model.pt"]},
    "another format": {"format": 2},
    "loss of 400 digits": {"loss": 10**400},
    "step of 400 digits": {"step": 10**400},
    "loss of text": {"loss": "low"},
}


@pytest.mark.parametrize("changes", NASTY.values(), ids=NASTY.keys())
def test_a_manifest_with_impossible_values_costs_only_itself(tmp_path: Path, changes: dict[str, object]) -> None:
    write(tmp_path, 10)
    forge(write(tmp_path, 20), **changes)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10


NAMES = [
    "../outside.pt",
    "/etc/passwd",
    "a/../../outside.pt",
    "",
    ".",
    "..",
    "nul\0byte",
    "\ud800",
    "x" * 300,
    "folder/" * 2000 + "x",
]


@pytest.mark.parametrize("name", NAMES, ids=[repr(name)[:20] for name in NAMES])
def test_a_manifest_that_names_what_is_no_file_of_the_folder_costs_only_itself(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoints"
    (tmp_path / "outside.pt").write_bytes(b"secret")
    write(folder, 10)
    outside = contract.digest_file(tmp_path / "outside.pt")
    forge(write(folder, 20), files=[{"name": name, "size_bytes": outside.size_bytes, "sha256": outside.sha256}])
    choice = pick(folder)
    assert choice.chosen is not None
    assert choice.chosen.step == 10


def test_an_unreadable_newest_manifest_is_named_although_an_older_one_is_chosen(tmp_path: Path) -> None:
    """Else ten steps are repeated and nobody is told why."""
    write(tmp_path, 10)
    newest = write(tmp_path, 20)
    newest.write_bytes(b"garbage")
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10
    assert [refusal.manifest for refusal in choice.refused] == [str(newest)]


@pytest.mark.parametrize("target", ["outside", "inside", "itself"])
def test_a_symbolic_link_is_no_checkpoint(tmp_path: Path, target: str) -> None:
    """A link can be pointed elsewhere between our reading and the trainer's."""
    folder = tmp_path / "checkpoints"
    write(folder, 10)
    write(folder, 20)
    link = model(folder, 20)
    real = (tmp_path if target == "outside" else folder) / "real.pt"
    os.replace(link, real)
    link.symlink_to(link if target == "itself" else real)
    choice = pick(folder)
    assert choice.chosen is not None
    assert choice.chosen.step == 10


def test_a_symlinked_folder_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "checkpoints", tmp_path / "outside"
    write(folder, 10)
    write(outside, 20)
    (folder / "away").symlink_to(outside)
    digest = contract.digest_file(model(outside, 20))
    manifest = contract.Manifest(
        step=20,
        run_id="1-a",
        files=(contract.FileDigest(name="away/step-20-model.pt", size_bytes=digest.size_bytes, sha256=digest.sha256),),
    )
    contract.write_json_durably(folder / "step-20.manifest.json", manifest.to_record())
    choice = pick(folder)
    assert choice.chosen is not None
    assert choice.chosen.step == 10
    assert "leads out" in choice.refused[0].why


def picked_in_time(folder: Path, deadline_s: float = 2.0) -> Choice | None:
    """None when it does not come back: what hangs must not take the verifier with it."""
    found: list[Choice] = []
    thread = threading.Thread(target=lambda: found.append(pick(folder)), daemon=True)
    thread.start()
    thread.join(deadline_s)
    return found[0] if found else None


@pytest.mark.parametrize("victim", ["step-20-model.pt", "step-20.manifest.json"])
def test_a_named_pipe_in_the_place_of_a_file_does_not_hang_the_verifier(tmp_path: Path, victim: str) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20)
    (tmp_path / victim).unlink()
    os.mkfifo(tmp_path / victim)
    try:
        choice = picked_in_time(tmp_path)
        assert choice is not None, "the verifier hangs"
        assert choice.chosen is not None
        assert choice.chosen.step == 10
    finally:
        # Whoever hangs in open() gets an end of file.
        os.close(os.open(tmp_path / victim, os.O_RDWR | os.O_NONBLOCK))


# --- while the trainer works ---------------------------------------------------------------------------------
def test_files_that_vanish_meanwhile_are_passed_over_without_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's own retention deletes an old checkpoint between our listing and our reading."""
    write(tmp_path, 10)
    newest = write(tmp_path, 20)
    found = find_candidates(tmp_path)
    newest.unlink()
    model(tmp_path, 20).unlink()
    monkeypatch.setattr(catalogue, "find_candidates", lambda _: found)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert (choice.chosen.step, choice.refused) == (10, ())


def test_a_temporary_file_of_a_save_under_way_is_no_checkpoint(tmp_path: Path) -> None:
    manifest = write(tmp_path, 10)
    (tmp_path / f".step-20.manifest.json.77{contract.MANIFEST_SUFFIX}").write_bytes(manifest.read_bytes())
    (tmp_path / ".step-20-model.pt.77.tmp").write_bytes(b"half")
    assert [candidate.step for candidate in find_candidates(tmp_path)] == [10]


def test_a_read_that_lies_once_does_not_condemn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 10)
    real = catalogue._read_back
    lies = iter([(SIZE_BYTES, "0" * 64)])
    monkeypatch.setattr(catalogue, "_read_back", lambda path: next(lies, None) or real(path))
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10


def test_a_file_that_cannot_be_read_at_all_refuses_its_checkpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20)
    real = os.read

    def failing(fd: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("step-20-model.pt"):
            raise OSError(5, "Input/output error")
        return real(fd, size)

    monkeypatch.setattr(os, "read", failing)
    choice = pick(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10
    assert "Input/output error" in choice.refused[0].why


def test_memory_that_is_short_is_no_reason_to_take_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of the checkpoint, and the older one could not be read either: no choice at all."""
    write(tmp_path, 10)
    write(tmp_path, 20)
    real = os.read

    def failing(fd: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("step-20-model.pt"):
            raise OSError(12, "Cannot allocate memory")
        return real(fd, size)

    monkeypatch.setattr(os, "read", failing)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        pick(tmp_path)


# --- first start ---------------------------------------------------------------------------------------------
def test_only_where_nobody_ever_knew_a_checkpoint_is_a_first_start(tmp_path: Path) -> None:
    assert pick(tmp_path / "not there yet").first_start
    assert pick(tmp_path).first_start
    assert not pick(tmp_path, ledger_knew=True).first_start
    (tmp_path / "quarantine").mkdir()
    assert pick(tmp_path).first_start
    (tmp_path / "quarantine" / "step-3.manifest.json").touch()
    assert not pick(tmp_path).first_start


def test_all_damaged_is_neither_a_choice_nor_a_first_start(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path, step)
        flip_one_bit(model(tmp_path, step))
    choice = pick(tmp_path)
    assert (choice.chosen, choice.first_start) == (None, False)
    assert "step 20" in choice.why


def test_an_unreadable_folder_is_an_error_and_no_first_start(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    path.write_text("a file in the place of the folder")
    with pytest.raises(OSError, match="Not a directory"):
        pick(path)
    assert ever_had_checkpoints(tmp_path / "missing") is False


def test_lineage_is_read_line_by_line_with_torn_ones_harmless(tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    assert read_lineage(path) is None
    path.write_bytes(b"\n1-a\n\n2-b\n3-\n\n3-c\n\xff\xfe\n")
    lineage = read_lineage(path)
    assert lineage is not None
    assert [run_id for run_id in lineage if run_id in ("1-a", "2-b", "3-c")] == ["1-a", "2-b", "3-c"]  # oldest first
    assert "" not in lineage


def test_verifying_an_unreadable_manifest_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "x.manifest.json").write_text(json.dumps({"format": 1, "step": 3}))
    (candidate,) = find_candidates(tmp_path)
    with pytest.raises(CheckpointError, match="files"):
        verify(candidate)


# --- a choice that does not stand any more -------------------------------------------------------------------------
def test_a_choice_stands_while_nothing_changes(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path, step)
    assert why_stale(tmp_path, pick(tmp_path)) is None
    assert why_stale(tmp_path / "not there yet", pick(tmp_path / "not there yet")) is None


def test_what_was_refused_may_be_moved_aside_and_old_ones_may_go(tmp_path: Path) -> None:
    """As we do it ourselves between the choice and the launch."""
    for step in (10, 20, 30):
        write(tmp_path, step)
    flip_one_bit(model(tmp_path, 30))
    choice = pick(tmp_path)
    assert choice.chosen is not None
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "step-30.manifest.json").rename(tmp_path / "quarantine" / "step-30.manifest.json")
    (tmp_path / "step-10.manifest.json").unlink()
    assert (choice.chosen.step, why_stale(tmp_path, choice)) == (20, None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda folder: write(folder, 30), "step-30.manifest.json was saved since"),
        (lambda folder: write(folder, 5), "step-5.manifest.json was saved since"),
        (lambda folder: write(folder, 20, salt="again"), "step-20.manifest.json was saved since"),
        (lambda folder: write(folder, 10, salt="again"), "step-10.manifest.json was saved since"),
        (lambda folder: (folder / "step-20.manifest.json").unlink(), "step-20.manifest.json was changed or removed"),
        (lambda folder: model(folder, 20).unlink(), "step-20-model.pt was changed or removed"),
        (lambda folder: grow(model(folder, 20)), "step-20-model.pt was changed or removed"),
        (lambda folder: flip_one_bit(model(folder, 20)), "step-20-model.pt was changed or removed"),
        (lambda folder: (folder / "torn.manifest.json").write_text("{"), "torn.manifest.json was saved since"),
        (lambda folder: folder.rename(folder.with_suffix(".away")), "step-20.manifest.json was changed or removed"),
    ],
)
def test_whatever_was_saved_or_taken_away_since_shows(
    change: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    for step in (10, 20):
        write(folder, step)
    choice = pick(folder)
    change(folder)
    assert named in (why_stale(folder, choice) or "")


@pytest.mark.parametrize("where", ["", "quarantine"])
def test_nobody_begins_anew_where_a_checkpoint_came_since(where: str, tmp_path: Path) -> None:
    choice = pick(tmp_path)
    assert choice.first_start
    write(tmp_path / where, 0)
    assert "had no checkpoint and has had one since" in (why_stale(tmp_path, choice) or "")


def test_a_folder_that_cannot_be_looked_at_is_no_choice_that_stands(tmp_path: Path) -> None:
    write(tmp_path / "c", 10)
    choice = pick(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / "away")
    (tmp_path / "c").write_text("a file")
    with pytest.raises(OSError, match="Not a directory"):
        why_stale(tmp_path / "c", choice)
