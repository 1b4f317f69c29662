"""Deleting checkpoints on a real disk: what must not be touched, and a crash after every single change of the folder.

The crash is real: a process of its own ends itself right before the n-th rename or unlink, told of it by the
interpreter's audit hook.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.checkpoints.disk import census, forge, pick, write
from watchdog import contract
from watchdog.actuators.prune import PrunableFolder
from watchdog.checkpoints.catalogue import find_candidates
from watchdog.checkpoints.quarantine import quarantine
from watchdog.clock import SystemClock
from watchdog.core.choice import Known
from watchdog.core.retention import HIDDEN, Held, Kind, Rules, Standing
from watchdog.errors import CheckpointError
from watchdog.retaining import planned

RULES = Rules(keep_last=2, keep_every=None, leftovers=False, need_bytes=0)
NAMES = ("model.pt", "optimizer.pt")
DAY_S = 86400.0


def prunable(folder: Path) -> PrunableFolder:
    return PrunableFolder(folder, SystemClock())


def held_of(folder: PrunableFolder, name: str) -> Held:
    [found] = [each for each in folder.look().held if each.name == name]
    return found


def known(folder: Path) -> tuple[Known, ...]:
    manifests = [each.manifest for each in find_candidates(folder) if each.manifest]
    return tuple(Known(step=each.step, digest=each.digest, run_id=each.run_id) for each in manifests)


def begun(claims: tuple[Known, ...]) -> frozenset[tuple[str, str]]:
    """As the ledger has it when the deletion of each was planned."""
    return frozenset((f"step-{each.step}.manifest.json", each.digest) for each in claims)


def age(path: Path, by_s: float) -> None:
    os.utime(path, (time.time() - by_s, time.time() - by_s))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 10, 20, 30, each of two files."""
    for step in (10, 20, 30):
        write(tmp_path / "checkpoints", step, names=NAMES)
    return tmp_path / "checkpoints"


def test_a_checkpoint_goes_with_its_files_and_everything_else_stays(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    before = census(folder)
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    assert place.delete(held) == held.size_bytes > 2 * 12000
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["notes.txt", *(f"step-{step}-{name}" for step in (20, 30) for name in NAMES)]
        + [f"step-{step}.manifest.json" for step in (20, 30)]
    )
    assert len(before - census(folder)) == 3


# --- a crash at any instruction -----------------------------------------------------------------------------
_CRASHING = """
import os, sys
from pathlib import Path
from watchdog.actuators.prune import PrunableFolder
from watchdog.clock import SystemClock
folder, name, left = PrunableFolder(Path(sys.argv[1]), SystemClock()), sys.argv[2], int(sys.argv[3])
[held] = [each for each in folder.look().held if each.name == name]
def hook(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir", "os.link"):
        left -= 1
        if left < 0:
            os._exit(77)
sys.addaudithook(hook)
folder.delete(held)
"""


def crash(folder: Path, name: str, after: int) -> bool:
    """True when it crashed, False when it came to its end before."""
    argv = [sys.executable, "-P", "-c", _CRASHING, str(folder), name, str(after)]
    code = subprocess.run(argv, cwd=Path(__file__).parents[2], timeout=60).returncode
    assert code in (0, 77)
    return code == 77


@pytest.mark.parametrize("again", range(2))
def test_a_crash_at_any_change_leaves_nothing_that_half_loads_and_is_finished_later(tmp_path: Path, again: int) -> None:
    """`again`: the finishing crashes as well, after so many changes more."""
    for after in range(10):
        folder = tmp_path / str(after)
        for step in (10, 20, 30):
            write(folder, step, names=NAMES)
        claims = known(folder)
        crashed = crash(folder, "step-10.manifest.json", after)
        for candidate in find_candidates(folder):  # whatever is a candidate is whole
            assert all((folder / file.name).exists() for file in candidate.manifest.files)  # type: ignore[union-attr]
        for hidden in [name for name in os.listdir(folder) if name.startswith(HIDDEN) and name.endswith(".json")]:
            crash(folder, hidden, again)
        place = prunable(folder)
        stands = Standing(known=claims, deleting=begun(claims))
        while (found := planned(place, stands, RULES, only_if_needed=False)).deletions:
            place.delete(found.deletions[0].held)
        assert sorted(os.listdir(folder)) == sorted(
            [f"step-{step}-{name}" for step in (20, 30) for name in NAMES]
            + [f"step-{step}.manifest.json" for step in (20, 30)]
        )
        if not crashed:
            assert after == 6, "manifest and two files: each renamed, each unlinked"
            return
    pytest.fail("it never came to its end")


def test_what_is_saved_anew_after_a_crash_is_not_taken_for_the_old(folder: Path) -> None:
    """The trainer went back and saves step 10 again: its file lies there, its manifest does not yet."""
    assert crash(folder, "step-10.manifest.json", 1)
    (folder / "step-10-model.pt").unlink()
    again = folder / "step-10-model.pt"
    again.write_bytes(b"n" * (3 * 4096 + 100))
    age(again, -5)
    place = prunable(folder)
    place.delete(held_of(place, f"{HIDDEN}step-10.manifest.json"))
    assert again.read_bytes()[:1] == b"n"
    assert not (folder / "step-10-optimizer.pt").exists()


def test_a_step_that_was_saved_anew_after_a_crash_stays_whole(folder: Path) -> None:
    assert crash(folder, "step-10.manifest.json", 1)
    write(folder, 10, names=NAMES)
    place = prunable(folder)
    place.delete(held_of(place, f"{HIDDEN}step-10.manifest.json"))
    choice = pick(folder)
    assert choice.chosen is not None
    assert {each.step for each in find_candidates(folder) if not held_of(place, each.path.name).wrong} == {10, 20, 30}


def test_what_only_looks_like_remains_is_nobodys(folder: Path) -> None:
    (folder / f"{HIDDEN}mine.manifest.json").write_text("{}")
    (folder / f"{HIDDEN}step-20-model.pt").write_text("mine")
    assert not [each for each in prunable(folder).look().held if each.kind is Kind.UNFINISHED]


def test_remains_whose_bytes_are_not_what_the_manifest_names_stay(folder: Path) -> None:
    """Of that size and older than the manifest, but other bytes: somebody put another file there."""
    assert crash(folder, "step-10.manifest.json", 1)
    for name in ("step-10-model.pt", f"{HIDDEN}step-10-optimizer.pt"):
        size_bytes = 3 * 4096 + 100
        (folder / name.removeprefix(HIDDEN)).unlink()
        (folder / name).write_bytes(b"x" * size_bytes)
        age(folder / name, 1000)
    place = prunable(folder)
    place.delete(held_of(place, f"{HIDDEN}step-10.manifest.json"))
    assert (folder / "step-10-model.pt").exists()
    assert (folder / f"{HIDDEN}step-10-optimizer.pt").exists()


def test_a_hidden_manifest_that_the_ledger_does_not_know_is_left_as_it_is(folder: Path) -> None:
    """A person, or another program, may name a file so: its data lie there whole."""
    claims = known(folder)
    os.rename(folder / "step-10.manifest.json", folder / f"{HIDDEN}step-10.manifest.json")
    before = census(folder)
    found = planned(prunable(folder), Standing(known=claims), RULES, only_if_needed=False)
    assert not found.deletions
    assert "the ledger knows nothing of its deletion" in [each.why for each in found.kept]
    assert census(folder) == before


# --- what cannot be deleted ---------------------------------------------------------------------------------
_UNPRIVILEGED = """
import os, sys
from pathlib import Path
from watchdog.actuators.prune import PrunableFolder
from watchdog.clock import SystemClock
from watchdog.errors import CheckpointError
os.setgid(65534)
os.setuid(65534)
folder = PrunableFolder(Path("."), SystemClock())
[held] = [each for each in folder.look().held if each.name == sys.argv[1]]
if len(sys.argv) > 2:
    prune = sys.modules["watchdog.actuators.prune"]
    prune._stuck = lambda *_: ""  # as a file system that does not tell
try:
    folder.delete(held)
except CheckpointError as error:
    print(error)
"""


def deep(folder: Path, names: tuple[str, ...] = ("deep/model.pt",)) -> Path:
    """A checkpoint whose data lie in a folder below."""
    files = []
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        file = contract.write_durably(folder / name, lambda out: out.write(b"m" * 5000))
        files.append(dataclasses.replace(file, name=name))
    path = folder / "step-5.manifest.json"
    contract.write_json_durably(path, contract.Manifest(step=5, files=tuple(files), run_id="1-a").to_record())
    return path


def as_nobody(folder: Path, name: str, *more: str) -> str:
    """What deleting it says to one who is not root, started in the folder, which others may not reach by its path."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r})\nimport psutil, tenacity\n" + _UNPRIVILEGED
    argv = [sys.executable, "-P", "-c", code, name, *more]
    answer = subprocess.run(argv, cwd=folder, timeout=60, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["another's folder", "sticky"])
@pytest.mark.parametrize("asked", [True, False])
def test_files_that_cannot_be_unlinked_keep_the_checkpoint_whole(folder: Path, mode: int, asked: bool) -> None:
    """`asked` False: that they cannot is only met when the first one is to go. Then all of it is put back."""
    manifest = deep(folder)
    (folder / "deep").chmod(mode)
    os.chown(folder, 65534, 65534)
    os.chown(manifest, 65534, 65534)
    before, names = census(folder), sorted(os.listdir(folder))
    said = as_nobody(folder, manifest.name, *([] if asked else ["unasked"]))
    assert ("cannot be deleted: " in said) if asked else ("it was put back and is whole" in said), said
    assert (census(folder), sorted(os.listdir(folder))) == (before, names)


@needs_root
def test_what_was_begun_and_cannot_go_on_is_told_as_that(folder: Path) -> None:
    """The first file is gone already: nothing brings it back."""
    (folder / "own").mkdir()
    manifest = deep(folder, ("own/a.pt", "deep/b.pt"))
    for path in (folder, folder / "own", manifest):
        os.chown(path, 65534, 65534)
    said = as_nobody(folder, manifest.name, "unasked")
    assert "it is no checkpoint any more" in said
    assert "0 B" not in said
    assert not manifest.exists()
    assert (folder / "deep/b.pt").exists()
    place = prunable(folder)  # as root: that is mended
    place.delete(held_of(place, f"{HIDDEN}{manifest.name}"))
    assert not list(folder.glob(f"{HIDDEN}*"))
    assert not (folder / "deep").exists()


@needs_root
@pytest.mark.parametrize("which", ["step-10-optimizer.pt", "step-10.manifest.json"])
def test_an_immutable_file_keeps_the_checkpoint_whole(folder: Path, which: str) -> None:
    made = subprocess.run(["chattr", "+i", str(folder / which)], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no immutable files here: {made.stderr.decode()}")
    try:
        before = census(folder)
        place = prunable(folder)
        with pytest.raises(CheckpointError, match="immutable"):
            place.delete(held_of(place, "step-10.manifest.json"))
        assert census(folder) == before
        assert (folder / "step-10.manifest.json").exists()
    finally:
        subprocess.run(["chattr", "-i", str(folder / which)], check=True)


# --- two manifests of the same bytes ------------------------------------------------------------------------
def test_an_alias_of_the_newest_is_not_the_second_that_stays(folder: Path) -> None:
    (folder / "latest.manifest.json").write_bytes((folder / "step-30.manifest.json").read_bytes())
    place, stands = prunable(folder), Standing(known=known(folder))
    while (found := planned(place, stands, RULES, only_if_needed=False)).deletions:
        place.delete(found.deletions[0].held)
    assert {each.step for each in find_candidates(folder)} == {20, 30}


def test_an_alias_of_an_old_one_goes_with_it_and_its_bytes_come_back(folder: Path) -> None:
    (folder / "first.manifest.json").write_bytes((folder / "step-10.manifest.json").read_bytes())
    place, stands = prunable(folder), Standing(known=known(folder))
    freed = 0
    while (found := planned(place, stands, RULES, only_if_needed=False)).deletions:
        freed += place.delete(found.deletions[0].held)
    assert {each.step for each in find_candidates(folder)} == {20, 30}
    assert not (folder / "step-10-model.pt").exists()
    assert freed > 2 * 12000


# --- what is not deleted ------------------------------------------------------------------------------------
def changed_manifest(folder: Path) -> None:
    forge(folder / "step-10.manifest.json", tokens=5)


def changed_file(folder: Path) -> None:
    (folder / "step-10-model.pt").write_bytes(b"n" * (3 * 4096 + 100))


def replaced_file(folder: Path) -> None:
    other = folder / "other"
    other.write_bytes((folder / "step-10-model.pt").read_bytes())
    os.replace(other, folder / "step-10-model.pt")


def replaced_folder(folder: Path) -> None:
    os.rename(folder, folder.with_name("moved"))
    write(folder, 10, names=NAMES)


def linked_folder(folder: Path) -> None:
    os.rename(folder, folder.with_name("moved"))
    folder.symlink_to("moved")


@pytest.mark.parametrize(
    "between",
    [changed_manifest, changed_file, replaced_file, replaced_folder, linked_folder],
    ids=lambda it: it.__name__,
)
def test_what_changed_since_it_was_looked_at_stays(folder: Path, between: Callable[[Path], None]) -> None:
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    between(folder)
    before = census(folder.parent)
    with pytest.raises((CheckpointError, OSError)):
        place.delete(held)
    assert census(folder.parent) == before
    assert (folder / "step-10.manifest.json").exists()


def test_what_was_not_looked_at_stays(folder: Path) -> None:
    held = held_of(prunable(folder), "step-10.manifest.json")
    with pytest.raises(CheckpointError, match="was not looked at"):
        prunable(folder).delete(held)


def test_what_somebody_has_open_stays(folder: Path) -> None:
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    with open(folder / "step-10-optimizer.pt", "rb"):
        assert held_of(prunable(folder), "step-10.manifest.json").open_by == f"pid {os.getpid()}"
        with pytest.raises(CheckpointError, match=f"pid {os.getpid()} has step-10-optimizer.pt open"):
            place.delete(held)
    assert place.delete(held)


def test_a_file_that_another_manifest_names_stays(folder: Path) -> None:
    forge(
        folder / "step-10.manifest.json",
        files=[json.loads((folder / f"step-{step}.manifest.json").read_text())["files"][0] for step in (10, 20)],
    )
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    assert place.delete(held) == held.size_bytes < 25_000, "what stays is not given back"
    assert (folder / "step-20-model.pt").exists()
    assert not (folder / "step-10-model.pt").exists()
    assert pick(folder).chosen is not None


@pytest.mark.parametrize(
    "name",
    [
        *("../outside.pt", "/outside.pt", "link/outside.pt", ".gpuhost-watchdog/run.lock", "quarantine/a.pt"),
        *("archive/a.pt", "step-30.manifest.json", "link.pt", "a//b", "missing.pt"),
    ],
)
def test_nothing_outside_is_reached_by_any_name(folder: Path, name: str) -> None:
    outside = folder.parent / "out"
    for path in (outside, folder / ".gpuhost-watchdog", folder / "quarantine", folder / "archive"):
        path.mkdir(exist_ok=True)
    for path in (folder.parent / "outside.pt", outside / "outside.pt", folder / ".gpuhost-watchdog/run.lock"):
        path.write_bytes(b"x")
    (folder / "quarantine/a.pt").write_bytes(b"x")
    (folder / "archive/a.pt").write_bytes(b"x")
    (folder / "link").symlink_to(outside)
    (folder / "link.pt").symlink_to(outside / "outside.pt")
    record = json.loads((folder / "step-10.manifest.json").read_text())
    record["files"].append({**record["files"][0], "name": name, "size_bytes": 1})
    (folder / "step-10.manifest.json").write_text(json.dumps(record))
    before = census(folder.parent)
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    assert held.wrong
    found = planned(place, Standing(known=known(folder)), RULES, only_if_needed=False)
    assert not found.deletions
    assert census(folder.parent) == before


def test_a_checkpoint_in_a_folder_of_its_own_goes_with_the_emptied_folder(folder: Path) -> None:
    for step in (1, 2):
        (folder / f"deep-{step}/part").mkdir(parents=True)
        file = contract.write_durably(folder / f"deep-{step}/part/model.pt", lambda out: out.write(b"m" * 5000))
        file = dataclasses.replace(file, name=f"deep-{step}/part/model.pt")
        contract.write_json_durably(
            folder / f"deep-{step}.manifest.json", contract.Manifest(step=step, files=(file,), run_id="1-a").to_record()
        )
    (folder / "deep-2/config.json").write_text("mine")
    place = prunable(folder)
    for step in (1, 2):
        place.delete(held_of(place, f"deep-{step}.manifest.json"))
    assert not (folder / "deep-1/part").exists()
    assert (folder / "deep-2/config.json").exists()
    assert not (folder / "deep-2/part").exists()


def test_bytes_that_another_name_holds_are_not_given_back(folder: Path) -> None:
    os.link(folder / "step-10-model.pt", folder.parent / "snapshot.pt")
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    freed = place.delete(held)
    assert freed == held.size_bytes < 2 * 12000
    assert (folder.parent / "snapshot.pt").exists()


def test_a_manifest_that_the_disk_does_not_give_stops_everything(folder: Path) -> None:
    (folder / "step-5.manifest.json").mkdir()  # reading it fails: what it would name is not known
    with pytest.raises(CheckpointError, match="nothing is pruned"):
        prunable(folder).look()


def share(folder: Path) -> None:
    """Steps 10 and 30 both name shared.pt besides files of their own."""
    (folder / "shared.pt").write_bytes(os.urandom(5000))
    for step in (10, 30):
        path = folder / f"step-{step}.manifest.json"
        manifest = contract.Manifest.read(path)
        files = (*manifest.files, contract.digest_file(folder / "shared.pt"))
        contract.write_json_durably(path, dataclasses.replace(manifest, files=files).to_record())


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on, and until monkeypatch is undone, the disk does not give the manifest of that name."""

    def begin(name: str) -> None:
        real = contract.Manifest.read

        def read(path: Path) -> contract.Manifest:
            if path.name == name:
                raise OSError(5, "Input/output error")
            return real(path)

        monkeypatch.setattr(contract.Manifest, "read", read)

    return begin


def test_while_a_manifest_cannot_be_read_no_file_goes_that_it_may_name(
    folder: Path, sick: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read at the look, and is not at the deletion: EIO, ENOMEM, EMFILE."""
    share(folder)
    place = prunable(folder)
    held = held_of(place, "step-10.manifest.json")
    before = census(folder)
    sick("step-30.manifest.json")
    with pytest.raises(CheckpointError, match=r"cannot be read now.*put back and is whole$"):
        place.delete(held)
    assert census(folder) == before
    assert (folder / "step-10.manifest.json").exists()
    monkeypatch.undo()
    assert place.delete(held_of(place, "step-10.manifest.json"))
    assert (folder / "shared.pt").exists()


def test_what_is_left_of_a_deletion_or_of_a_move_waits_for_such_a_manifest_too(
    folder: Path, sick: Callable[[str], None]
) -> None:
    share(folder)
    moved = write(folder, 40, names=NAMES)
    cut_short(moved, 1)
    assert crash(folder, "step-10.manifest.json", 1)
    place = prunable(folder)
    hidden, stranded = held_of(place, f"{HIDDEN}step-10.manifest.json"), held_of(place, "step-40-model.pt")
    place.look()
    before = census(folder)
    sick("step-30.manifest.json")
    for held in (hidden, stranded):
        with pytest.raises(CheckpointError, match="cannot be read now"):
            place.delete(held)
    assert census(folder) == before


def test_nothing_is_moved_to_quarantine_while_a_manifest_cannot_be_read(
    folder: Path, sick: Callable[[str], None]
) -> None:
    """What both name would lie there, and go a day later."""
    share(folder)
    before = census(folder)
    sick("step-30.manifest.json")
    with pytest.raises(OSError, match=r"step-30\.manifest\.json cannot be read now"):
        quarantine(folder / "step-10.manifest.json")
    assert census(folder) == before


def test_one_that_cannot_be_read_itself_is_still_moved(folder: Path, sick: Callable[[str], None]) -> None:
    sick("step-30.manifest.json")
    assert quarantine(folder / "step-30.manifest.json").exists()


# --- what must stay is looked at again ----------------------------------------------------------------------
def unlink_all(folder: Path) -> None:
    for path in list(folder.iterdir()):
        if path.name.startswith(("step-20", "step-30")):
            path.unlink()


def unlink_one_file(folder: Path) -> None:
    (folder / "step-30-optimizer.pt").unlink()


def unlink_what_is_shared(folder: Path) -> None:
    (folder / "shared.pt").unlink()


def save_anew(folder: Path) -> None:
    write(folder, 20, names=NAMES)


@pytest.mark.parametrize(
    "between", [unlink_all, unlink_one_file, unlink_what_is_shared, save_anew], ids=lambda it: it.__name__
)
@pytest.mark.parametrize("told", [True, False], ids=["told what stays", "all that were read back"])
def test_the_last_one_stays_when_others_took_away_what_must_stay(
    folder: Path, between: Callable[[Path], None], told: bool
) -> None:
    """Between the look, which may be half an hour old, and the deletion: the trainer's own retention, or a person."""
    share(folder)
    place, stands = prunable(folder), Standing(known=known(folder))
    found = planned(place, stands, RULES, only_if_needed=False)
    assert [each.held.step for each in found.deletions] == [10]
    assert found.stays == ("step-30.manifest.json", "step-20.manifest.json")
    between(folder)
    before = census(folder)
    with pytest.raises(CheckpointError, match=r"which must stay; nothing is deleted$"):
        place.delete(found.deletions[0].held, found.stays if told else None)
    assert census(folder) == before
    assert (folder / "step-10.manifest.json").exists()


def test_what_went_while_it_was_asked_who_has_it_open_is_seen_and_all_is_put_back(folder: Path) -> None:
    """That question takes its time: it is looked again when the manifest has its hidden name."""

    class Meanwhile(PrunableFolder):
        asked = 0

        def _openers(self) -> dict[str, str]:
            self.asked += 1
            if self.asked > 1:
                unlink_all(folder)
            return super()._openers()

    place = Meanwhile(folder, SystemClock())
    found = planned(place, Standing(known=known(folder)), RULES, only_if_needed=False)
    with pytest.raises(CheckpointError, match=r"nothing is deleted; it was put back and is whole$"):
        place.delete(found.deletions[0].held, found.stays)
    assert sorted(os.listdir(folder)) == ["step-10-model.pt", "step-10-optimizer.pt", "step-10.manifest.json"]


def test_what_was_left_of_a_deletion_stays_when_it_is_all_that_is_left(folder: Path) -> None:
    write(folder, 40, names=NAMES)
    claims = known(folder)
    assert crash(folder, "step-10.manifest.json", 1)
    place, stands = prunable(folder), Standing(known=claims, deleting=begun(claims))
    found = planned(place, stands, RULES, only_if_needed=False)
    assert found.deletions[0].held.kind is Kind.UNFINISHED
    for path in folder.glob("step-40*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="which must stay"):
        place.delete(found.deletions[0].held, found.stays)
    assert (folder / "step-10-model.pt").exists()


# --- what must be proven first ------------------------------------------------------------------------------
def test_the_newest_that_rotted_does_not_count_as_one_that_stays(folder: Path) -> None:
    """Same size, other bytes: only reading back tells. Then 10 is one of the two that hold."""
    with open(folder / "step-30-model.pt", "r+b") as file:
        file.write(b"rot")
    found = planned(prunable(folder), Standing(known=known(folder)), RULES, only_if_needed=False)
    assert not found.deletions
    kept = {each.held.step: each.why for each in found.kept}
    assert "its manifest says" in kept[30]
    assert kept[20] == "the newest verified"


def test_what_stays_is_read_back_once_and_again_when_it_was_written(folder: Path) -> None:
    write(folder, 40)
    place, stands = prunable(folder), Standing(known=known(folder))
    place.delete(planned(place, stands, RULES, only_if_needed=False).deletions[0].held)
    assert [each.proven for each in place.look().held if each.step >= 30] == [True, True]
    with open(folder / "step-40-model.pt", "r+b") as file:
        file.write(b"rot")
    assert [each.proven for each in place.look().held if each.step >= 30] == [False, True]
    assert not planned(place, stands, RULES, only_if_needed=False).deletions


def test_one_that_the_ledger_does_not_know_is_not_ours_to_delete(folder: Path) -> None:
    claims = tuple(each for each in known(folder) if each.step != 10)
    assert not planned(prunable(folder), Standing(known=claims), RULES, only_if_needed=False).deletions


# --- leftovers ----------------------------------------------------------------------------------------------
def test_refused_ones_and_torn_saves_go_a_day_later_and_nothing_that_looks_like_them(folder: Path) -> None:
    moved = quarantine(write(folder, 40))
    for name in ("mine.pt", "mine.manifest.json"):
        (folder / "quarantine" / name).write_bytes(b"mine")
    foreign = folder / ".notes.4711.tmp"
    foreign.write_bytes(b"mine")
    torn, named = folder / ".step-00000050.pt.4711.tmp", folder / "step.tmp"
    torn.write_bytes(b"half")
    named.write_bytes(b"mine")
    (folder / "quarantine/link").symlink_to(folder / "step-30-model.pt")
    (folder / "quarantine/kept").mkdir()
    rules = dataclasses.replace(RULES, leftovers=True, keep_last=3)
    stands = Standing(known=known(folder), moved=frozenset({moved.name}))
    assert not planned(prunable(folder), stands, rules, only_if_needed=False).deletions

    class Tomorrow(SystemClock):
        def wall(self) -> float:
            return super().wall() + DAY_S + 60

    place = PrunableFolder(folder, Tomorrow())
    with open(folder / "quarantine/step-40-model.pt", "rb"):
        assert [each.held.name for each in planned(place, stands, rules, only_if_needed=False).deletions] == [torn.name]
    while (found := planned(place, stands, rules, only_if_needed=False)).deletions:
        place.delete(found.deletions[0].held)
    assert sorted(os.listdir(folder / "quarantine")) == ["kept", "link", "mine.manifest.json", "mine.pt"]
    assert foreign.exists()
    assert not torn.exists()
    assert named.exists()
    assert len(find_candidates(folder)) == 3


_CUT_SHORT = """
import os, sys
from pathlib import Path
from watchdog.checkpoints.quarantine import quarantine
left = int(sys.argv[2])
def hook(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if left < 0:
            os._exit(77)
sys.addaudithook(hook)
quarantine(Path(sys.argv[1]))
"""


def cut_short(manifest: Path, after: int) -> None:
    """A move to quarantine/ that a crash ends after so many renames."""
    argv = [sys.executable, "-P", "-c", _CUT_SHORT, str(manifest), str(after)]
    assert subprocess.run(argv, cwd=Path(__file__).parents[2], timeout=60).returncode == 77


class InTwoDays(SystemClock):
    def wall(self) -> float:
        return super().wall() + 2 * DAY_S


def gone_after(place: PrunableFolder, stands: Standing) -> set[str]:
    gone = set()
    rules = dataclasses.replace(RULES, leftovers=True, keep_last=3)
    while (found := planned(place, stands, rules, only_if_needed=False)).deletions:
        gone.add(found.deletions[0].held.name)
        place.delete(found.deletions[0].held)
    return gone


@pytest.mark.parametrize("after", [1, 2], ids=["both files are left", "one file is left"])
def test_what_a_move_that_was_cut_short_left_goes_and_nothing_that_was_written_since(folder: Path, after: int) -> None:
    manifest = write(folder, 40, names=NAMES)
    begun_s = time.time() + 0.05  # file times step with the kernel's tick
    cut_short(manifest, after)
    stranded = {f"step-40-{name}" for name in NAMES[after - 1 :]}
    moved = {f"quarantine/{manifest.name}", *(f"quarantine/step-40-{name}" for name in NAMES[: after - 1])}
    assert stranded <= set(os.listdir(folder))
    place, claims = PrunableFolder(folder, InTwoDays()), known(folder)
    assert gone_after(place, Standing(known=claims)) == set(), "the ledger knows of no move"
    assert gone_after(place, Standing(known=claims, moving=frozenset({(manifest.name, begun_s - 60.0)}))) == set()
    assert gone_after(prunable(folder), Standing(known=claims, moving=frozenset({(manifest.name, begun_s)}))) == set()
    stands = Standing(known=claims, moving=frozenset({(manifest.name, begun_s)}))
    with open(folder / "step-40-optimizer.pt", "rb"):
        left = gone_after(place, stands)
    assert left == (stranded | moved) - {"step-40-optimizer.pt", f"quarantine/{manifest.name}"}, "its proof goes last"
    assert gone_after(place, stands) == {"step-40-optimizer.pt", f"quarantine/{manifest.name}"}
    assert os.listdir(folder / "quarantine") == []
    assert len(find_candidates(folder)) == 3


def test_a_step_that_is_saved_anew_after_a_move_that_was_cut_short_stays_whole(folder: Path) -> None:
    manifest = write(folder, 40, names=NAMES)
    begun_s = time.time()
    cut_short(manifest, 1)
    time.sleep(0.02)  # the grain of file times
    data = folder / "step-40-model.pt"
    data.write_bytes(b"of a save that goes on")  # its manifest comes later
    stands = Standing(known=known(folder), moving=frozenset({(manifest.name, begun_s)}))
    place = PrunableFolder(folder, InTwoDays())
    looked = held_of(place, "step-40-optimizer.pt")
    write(folder, 40, names=NAMES[1:])
    with pytest.raises(CheckpointError, match=r"another file|is named by a checkpoint"):
        place.delete(looked)
    assert data.name not in gone_after(place, stands)
    assert data.read_bytes() == b"of a save that goes on"
    assert (folder / "step-40-optimizer.pt").exists()
    assert any(each.path.name == manifest.name for each in find_candidates(folder))


def test_what_a_person_laid_into_quarantine_is_not_a_move_that_was_cut_short(folder: Path) -> None:
    """Such a move was begun days ago; the files came there today, whatever the ledger says of that name."""
    names = ("step-10.manifest.json", *(f"step-10-{name}" for name in NAMES))
    (folder / "quarantine").mkdir()
    for name in names:
        age(folder / name, 10 * DAY_S)
        os.rename(folder / name, folder / "quarantine" / name)
    for begun_days, gone in ((5.0, set()), (0.0, {f"quarantine/{name}" for name in names})):
        moving = frozenset({(names[0], time.time() - begun_days * DAY_S)})
        place = PrunableFolder(folder, InTwoDays())
        assert gone_after(place, Standing(known=known(folder), moving=moving)) == gone


def test_a_manifest_behind_a_link_is_none_of_ours(folder: Path) -> None:
    outside = folder.parent / "elsewhere.json"
    os.rename(folder / "step-10.manifest.json", outside)
    (folder / "step-10.manifest.json").symlink_to(outside)
    place = prunable(folder)
    assert held_of(place, "step-10.manifest.json").wrong == "its manifest is no regular file"
    assert not planned(place, Standing(known=known(folder)), RULES, only_if_needed=False).deletions
    with pytest.raises(CheckpointError, match="was not looked at"):
        place.delete(held_of(place, "step-10.manifest.json"))
