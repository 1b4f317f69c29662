"""How a run begins: fresh or from a proven checkpoint, said to the supervisor, and never one for the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.capture import CaptureFixture

from watchdog import contract

Call = Callable[..., int]
SHORT = ["--steps", "12", "--save-every", "4", "--log-every", "4"]


def step_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*.pt"))


def summary(folder: Path) -> dict[str, float]:
    return json.loads((folder / "summary.json").read_text())


def test_a_fresh_run_from_beginning_to_end(
    call: Call, arguments: list[str], supervised, capfd: CaptureFixture[str]
) -> None:
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    assert supervised.ack() == contract.Acknowledgement(
        run_id=supervised.run_id, pid=supervised.ack().pid, fresh=True, step=0
    )
    assert step_files(supervised.checkpoints) == [f"step-{step:08d}.pt" for step in (0, 4, 8, 12)]
    beat = supervised.beat()
    assert (beat.phase, beat.step, beat.target_step, beat.checkpoint_step) == ("finished", 12, 12, 12)
    assert beat.tokens == 12 * 4 * 32
    assert beat.learning_rate is not None
    assert beat.gradient_norm is not None
    for step in (0, 4, 8, 12):
        manifest = contract.Manifest.read(supervised.checkpoints / f"step-{step:08d}.manifest.json")
        assert manifest.step == step
        assert manifest.target_step == 12
        assert manifest.run_id == supervised.run_id
        assert manifest.files == (contract.digest_file(supervised.checkpoints / f"step-{step:08d}.pt"),)
    said = summary(supervised.checkpoints)
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == said
    assert said["ratio"] == said["validation_loss"] / said["unigram_entropy"]
    assert said["last_loss"] < said["first_loss"]
    assert not supervised.failure_file.exists()


def test_beats_tell_each_phase_in_order_and_step_0_is_saved_before_the_first_step(
    call: Call, arguments: list[str], supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int | None]] = []
    real = contract.Run.beat

    def watch(run: contract.Run, phase: str, **fields: object) -> None:
        real(run, phase, **fields)
        step = supervised.beat().step
        if not seen or seen[-1] != (phase, step):
            seen.append((phase, step))
        if phase == "first_step":
            assert (supervised.checkpoints / "step-00000000.manifest.json").exists()
            assert supervised.ack().fresh

    monkeypatch.setattr(contract.Run, "beat", watch)
    more = ["--steps", "2", "--save-every", "1", "--eval-every", "1"]
    assert call([*arguments, *more], supervised.environment(resume="fresh")) == 0
    assert seen == [
        ("import", None),
        ("prepare", None),
        ("load", None),
        ("save", None),
        ("first_step", 0),
        ("train", 1),
        ("evaluate", 1),
        ("train", 1),
        ("save", 1),
        ("train", 1),
        ("train", 2),
        ("save", 2),
        ("evaluate", 2),
        ("train", 2),
        ("finished", 2),
    ]


def test_two_resumes_inside_one_epoch_change_no_digit(
    call: Call, arguments: list[str], supervised, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    undisturbed = tmp_path / "undisturbed"
    assert call([*arguments, *SHORT, "--checkpoints", str(undisturbed)]) == 0
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    for resumed_from in (4, 8):
        for path in supervised.checkpoints.glob("step-*"):
            if int(path.name[5:13]) > resumed_from:
                path.unlink()
        manifest = supervised.checkpoints / f"step-{resumed_from:08d}.manifest.json"
        assert call([*arguments, *SHORT], supervised.environment(resume="require", manifest=manifest)) == 0
        ack = supervised.ack()
        assert (ack.fresh, ack.step) == (False, resumed_from)
        assert ack.digest == contract.digest_file(supervised.checkpoints / f"step-{resumed_from:08d}.pt").sha256
        assert f"restored  step {resumed_from} of 12  sha256 {ack.digest}" in capfd.readouterr().out
        assert summary(supervised.checkpoints) == summary(undisturbed)


def test_a_finished_run_says_so_again_and_takes_no_step(call: Call, arguments: list[str], supervised) -> None:
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    before = summary(supervised.checkpoints)
    files = {path: path.stat().st_mtime_ns for path in supervised.checkpoints.glob("step-*")}
    manifest = supervised.checkpoints / "step-00000012.manifest.json"
    assert call([*arguments, *SHORT], supervised.environment(resume="require", manifest=manifest)) == 0
    assert summary(supervised.checkpoints) == before
    assert {path: path.stat().st_mtime_ns for path in supervised.checkpoints.glob("step-*")} == files
    assert supervised.beat().phase == "finished"


def refused(supervised, code: int, expected: int, *says: str) -> None:
    """Nothing trained, nothing acknowledged, a failure record with the reason."""
    assert code == expected
    record = json.loads(supervised.failure_file.read_text())
    for part in says:
        assert part in record["chain"][0]["message"]
    assert not supervised.ack_file.exists()
    assert supervised.beat().phase in ("import", "prepare", "load")


@pytest.fixture
def trained(call: Call, arguments: list[str], supervised) -> Path:
    """A folder with steps 0 and 1, by an earlier run. Returns the manifest of step 1."""
    assert call([*arguments, "--steps", "1"], supervised.environment(resume="fresh")) == 0
    supervised.ack_file.unlink()
    return supervised.checkpoints / "step-00000001.manifest.json"


def test_a_flipped_bit_ends_with_66_and_no_training(
    call: Call, arguments: list[str], supervised, trained: Path
) -> None:
    path = supervised.checkpoints / "step-00000001.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code = call(arguments, supervised.environment(resume="require", manifest=trained))
    refused(supervised, code, contract.EXIT_CHECKPOINT_REFUSED, "sha256", "nothing was trained")
    assert not (supervised.checkpoints / "step-00000010.pt").exists()


def test_a_demanded_resume_never_becomes_a_fresh_start(call: Call, arguments: list[str], supervised) -> None:
    missing = supervised.checkpoints / "step-00000001.manifest.json"
    code = call(arguments, supervised.environment(resume="require", manifest=missing))
    refused(supervised, code, 66, "does not exist")
    supervised.failure_file.unlink()
    refused(supervised, call(arguments, supervised.environment(resume="require")), 66, "no manifest is named")
    assert step_files(supervised.checkpoints) == []


def test_a_fresh_start_over_trained_checkpoints_is_refused(
    call: Call, arguments: list[str], supervised, trained: Path
) -> None:
    refused(
        supervised, call(arguments, supervised.environment(resume="fresh")), 66, "holds step-00000001.manifest.json"
    )


def test_a_fresh_start_over_step_0_alone_is_allowed(
    call: Call, arguments: list[str], supervised, trained: Path
) -> None:
    for path in supervised.checkpoints.glob("step-00000001*"):
        path.unlink()
    assert call([*arguments, "--steps", "1"], supervised.environment(resume="fresh")) == 0
    assert supervised.ack().fresh


def test_another_preset_is_refused(call: Call, arguments: list[str], supervised, trained: Path) -> None:
    other = ["transformer-test" if value == "bitmamba-test" else value for value in arguments]
    code = call(other, supervised.environment(resume="require", manifest=trained))
    refused(supervised, code, 66, "is of preset bitmamba-test")


def test_changed_text_ends_with_65(
    call: Call, arguments: list[str], supervised, trained: Path, tmp_path: Path, text: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in text.iterdir():
        (other / path.name).write_text(path.read_text() + "one line more\n")
    changed = [str(other) if value == str(text) else value for value in arguments]
    code = call(changed, supervised.environment(resume="require", manifest=trained))
    refused(supervised, code, contract.EXIT_DATA, "the text changed")


@pytest.mark.parametrize("content", [None, b"\0\1\2\3"], ids=["empty", "binary"])
def test_unusable_text_ends_with_65(
    call: Call, arguments: list[str], supervised, tmp_path: Path, text: Path, content: bytes | None
) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    if content is not None:
        (folder / "a.bin").write_bytes(content)
    bad = [str(folder) if value == str(text) else value for value in arguments]
    refused(supervised, call(bad, supervised.environment(resume="fresh")), contract.EXIT_DATA, "data folder")


@pytest.mark.parametrize(
    ("more", "says"), [(["--seed", "5"], "--seed is 5"), (["--batch", "5"], "--batch is 5"), (["--fresh"], "--fresh")]
)
def test_the_command_line_cannot_change_a_checkpoint_quietly(
    call: Call, arguments: list[str], supervised, trained: Path, more: list[str], says: str
) -> None:
    code = call([*arguments, *more], supervised.environment(resume="require", manifest=trained))
    refused(supervised, code, 2, says)


def test_a_second_checkpoint_folder_is_a_usage_error(
    call: Call, arguments: list[str], supervised, tmp_path: Path
) -> None:
    more = ["--checkpoints", str(tmp_path / "elsewhere")]
    refused(supervised, call([*arguments, *more], supervised.environment(resume="fresh")), 2, "leave --checkpoints out")


def test_by_hand_it_resumes_from_the_newest_that_holds(
    call: Call, arguments: list[str], tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    folder = tmp_path / "by-hand"
    by_hand = [*arguments, *SHORT, "--checkpoints", str(folder)]
    assert call([*by_hand, "--require-resume"]) == 66
    assert call(by_hand) == 0
    first = summary(folder)
    assert "fresh " in capfd.readouterr().out
    (folder / "step-00000012.pt").write_bytes(b"torn")
    assert call([*by_hand, "--require-resume"]) == 0
    said = capfd.readouterr().out
    assert "refused   " in said
    assert "restored  step 8 of 12" in said
    assert summary(folder) == first
    assert call([*by_hand, "--fresh"]) == 66
    for path in folder.glob("step-*.pt"):
        path.write_bytes(b"torn")
    assert call(by_hand) == 66
    assert "none of 4 checkpoints" in capfd.readouterr().err


def test_by_hand_it_takes_the_run_lock(
    call: Call, arguments: list[str], tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    folder = tmp_path / "by-hand"
    fd = contract.lock_by_hand(folder)
    import os

    try:
        assert call([*arguments, "--checkpoints", str(folder)]) == contract.EXIT_WRONG_RUN
    finally:
        os.close(fd)
    assert "is held" in capfd.readouterr().err
    assert step_files(folder) == []


def test_the_horizon_may_be_moved_before_the_decay(call: Call, arguments: list[str], tmp_path: Path) -> None:
    by_hand = [*arguments, "--checkpoints", str(tmp_path / "by-hand"), "--save-every", "4"]
    assert call([*by_hand, "--steps", "12"]) == 0
    for path in (tmp_path / "by-hand").glob("step-*"):
        if int(path.name[5:13]) > 4:
            path.unlink()
    assert call([*by_hand, "--steps", "16"]) == 0
    assert summary(tmp_path / "by-hand")["steps"] == 16
    assert call([*by_hand, "--steps", "20"]) == 2


def test_left_over_temporary_files_are_cleared_at_the_start(call: Call, arguments: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "by-hand"
    folder.mkdir()
    (folder / ".step-00000099.pt.1.tmp").write_bytes(b"x")
    (folder / "mine.txt").write_bytes(b"x")
    assert call([*arguments, "--checkpoints", str(folder), "--steps", "1"]) == 0
    assert not list(folder.glob(".step-*"))
    assert (folder / "mine.txt").exists()


@pytest.mark.parametrize(
    "wrong", [["--steps", "0"], ["--steps", "many"], ["--step-delay", "nan"], ["--preset", "huge"], ["--threads", "-1"]]
)
def test_a_wrong_option_is_told_with_its_name(
    call: Call, arguments: list[str], wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        call([*arguments, *wrong])
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_run_that_is_over_is_not_joined(call: Call, arguments: list[str], supervised, tmp_path: Path) -> None:
    lock, record = tmp_path / "run.lock", tmp_path / "run.json"
    lock.touch()
    record.write_text(json.dumps({"run_id": "another run"}))
    environment = supervised.environment(resume="fresh")
    environment |= {contract.ENV_RUN_LOCK: str(lock), contract.ENV_RUN_RECORD: str(record)}
    assert call(arguments, environment) == contract.EXIT_WRONG_RUN
    assert not supervised.beat_file.exists()
