"""What ends a training and what does not: divergence, a full disk, a wish to stop."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureFixture

from watchdog import contract

Call = Callable[..., int]
SHORT = ["--steps", "12", "--save-every", "4"]


def failure(supervised) -> str:
    return json.loads(supervised.failure_file.read_text())["chain"][0]["message"]


def test_a_first_gradient_above_the_limit_ends_with_67_and_names_a_tensor(
    call: Call, arguments: list[str], supervised
) -> None:
    code = call([*arguments, "--gradient-limit", "0.01"], supervised.environment(resume="fresh"))
    assert code == contract.EXIT_DIVERGED
    assert "the gradient norm of step 1, the first of this run, is" in failure(supervised)
    assert "in tensor " in failure(supervised)
    assert supervised.beat().step == 0
    assert [path.name for path in supervised.checkpoints.glob("*.pt")] == ["step-00000000.pt"]


def poison(call: Call, arguments: list[str], supervised, tensor: str, value: float) -> Path:
    """A checkpoint of step 4 with one element replaced, and a manifest that agrees with its bytes."""
    import torch

    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    supervised.ack_file.unlink()
    path = supervised.checkpoints / "step-00000004.pt"
    payload = torch.load(path, weights_only=True)
    payload["model"][tensor].view(-1)[0] = value
    torch.save(payload, path)
    manifest = supervised.checkpoints / "step-00000004.manifest.json"
    record = json.loads(manifest.read_text())
    found = contract.digest_file(path)
    record["files"] = [{"name": found.name, "size_bytes": found.size_bytes, "sha256": found.sha256}]
    manifest.write_text(json.dumps(record))
    return manifest


def test_a_loss_that_is_not_finite_ends_with_67_and_is_beaten(call: Call, arguments: list[str], supervised) -> None:
    manifest = poison(call, arguments, supervised, "norm.weight", math.nan)
    code = call([*arguments, *SHORT], supervised.environment(resume="require", manifest=manifest))
    assert code == contract.EXIT_DIVERGED
    assert "the loss of step 5 is nan" in failure(supervised)
    beat = supervised.beat()
    assert beat.loss is not None
    assert math.isnan(beat.loss)
    assert beat.step == 4


def test_validate_finds_what_is_not_finite(
    call: Call, arguments: list[str], supervised, capfd: CaptureFixture[str]
) -> None:
    manifest = poison(call, arguments, supervised, "layers.1.D", math.inf)
    capfd.readouterr()
    assert call(["validate", str(manifest), *arguments[3:], "--json"]) == contract.EXIT_DIVERGED
    said = capfd.readouterr()
    assert json.loads(said.out.splitlines()[-1])["inf"] == 1
    assert "layers.1.D" in said.err.splitlines()[-1]


def test_validate_reproduces_the_loss_of_the_summary(
    call: Call, arguments: list[str], supervised, capfd: CaptureFixture[str]
) -> None:
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    summary = json.loads((supervised.checkpoints / "summary.json").read_text())
    for target in (
        supervised.checkpoints,
        supervised.checkpoints / "step-00000012.pt",
        supervised.checkpoints / "step-00000012.manifest.json",
    ):
        capfd.readouterr()
        assert call(["validate", str(target), *arguments[3:]]) == 0
        out = capfd.readouterr().out
        record = json.loads(out.splitlines()[-1])
        assert record["validation_loss"] == summary["validation_loss"]
        assert (record["step"], record["nan"], record["inf"], record["tensors"]) == (12, 0, 0, 21)
        assert repr(summary["validation_loss"]) in out
    (supervised.checkpoints / "step-00000012.pt").write_bytes(b"torn")
    assert call(["validate", str(supervised.checkpoints / "step-00000012.manifest.json"), *arguments[3:]]) == 66
    assert call(["validate", str(supervised.root / "nothing"), *arguments[3:]]) == 66


def failing_saves(monkeypatch: pytest.MonkeyPatch, steps: set[int], number: int) -> None:
    """The disk refuses the data files of these steps."""
    real = contract.write_durably

    def write(path: Path, writer: Callable[[Any], object]) -> contract.FileDigest:
        if path.suffix == ".pt" and int(path.name[5:13]) in steps:
            raise OSError(number, "refused by the test")
        return real(path, writer)

    monkeypatch.setattr(contract, "write_durably", write)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_costs_a_checkpoint_and_not_the_training(
    call: Call,
    arguments: list[str],
    supervised,
    monkeypatch: pytest.MonkeyPatch,
    capfd: CaptureFixture[str],
    number: int,
) -> None:
    failing_saves(monkeypatch, {8}, number)
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    assert "step 8 could not be saved" in capfd.readouterr().out
    assert sorted(path.name for path in supervised.checkpoints.glob("*.pt")) == [
        f"step-{step:08d}.pt" for step in (0, 4, 12)
    ]
    assert supervised.beat().checkpoint_step == 12


@pytest.mark.parametrize(("step", "says"), [(0, "the checkpoint of step 0"), (12, "the last checkpoint")])
def test_without_the_first_or_the_last_checkpoint_it_ends_with_1(
    call: Call, arguments: list[str], supervised, monkeypatch: pytest.MonkeyPatch, step: int, says: str
) -> None:
    failing_saves(monkeypatch, {step}, errno.ENOSPC)
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 1
    assert says in failure(supervised)
    assert supervised.beat().phase != "finished"


def test_another_error_of_a_save_is_raised_as_itself(
    call: Call, arguments: list[str], supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_saves(monkeypatch, {4}, errno.EACCES)
    with pytest.raises(PermissionError):
        call([*arguments, *SHORT], supervised.environment(resume="fresh"))
    assert supervised.failure_file.exists()


@pytest.mark.parametrize("phase", ["prepare", "load"])
def test_a_wish_to_stop_before_the_first_step_ends_in_order(
    call: Call, arguments: list[str], supervised, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    real = contract.Run.beat

    def beat(run: contract.Run, name: str, **fields: object) -> None:
        real(run, name, **fields)
        if name == phase:
            run.draining = True

    monkeypatch.setattr(contract.Run, "beat", beat)
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 0
    assert supervised.beat().phase == "drain"
    assert len(list(supervised.checkpoints.glob("*.pt"))) == (1 if phase == "load" else 0)


def test_a_full_disk_when_asked_to_stop_ends_with_1(
    call: Call, arguments: list[str], supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_saves(monkeypatch, {5}, errno.ENOSPC)
    real = contract.Run.beat

    def beat(run: contract.Run, name: str, **fields: object) -> None:
        real(run, name, **fields)
        if fields.get("step") == 5:
            run.draining = True

    monkeypatch.setattr(contract.Run, "beat", beat)
    assert call([*arguments, *SHORT], supervised.environment(resume="fresh")) == 1
    assert "the checkpoint on leaving (step 5)" in failure(supervised)


def test_presets_are_counted_on_the_model(call: Call, capfd: CaptureFixture[str]) -> None:
    from trainer.models import build
    from trainer.presets import PRESETS

    assert call(["presets", "--json"]) == 0
    listed = {record["name"]: record for record in json.loads(capfd.readouterr().out)["presets"]}
    assert set(listed) == set(PRESETS)
    for name in ("bitmamba-test", "transformer-test"):
        assert listed[name]["parameters"] == sum(p.numel() for p in build(PRESETS[name]).parameters())
    assert call(["presets"]) == 0
    assert "(default)" in capfd.readouterr().out


def test_prepare_alone_fills_the_cache(
    call: Call, arguments: list[str], tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    options = [*arguments[1:3], *arguments[5:-1], str(tmp_path / "cache")]
    assert call(["prepare", *options]) == 0
    assert "encode    100%" in capfd.readouterr().out
    assert call(["prepare", *options]) == 0
    assert "encode" not in capfd.readouterr().out
