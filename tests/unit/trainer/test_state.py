"""Checkpoints: what is saved comes back, what was changed is refused, and a shortage of memory is neither."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainer.errors import CheckpointRefused, is_memory_shortage
from trainer.presets import preset
from trainer.schedule import Schedule
from watchdog import contract

if TYPE_CHECKING:
    import torch

    from trainer.state import State

PRESET = preset("bitmamba-test")
RUN = contract.Run(run_id=None)


def made(step: int = 3, *, seed: int = 0) -> tuple[State, torch.nn.Module, torch.optim.Optimizer]:
    """A model after `step` steps on noise."""
    import torch

    from trainer import optimizer as optimizers
    from trainer import state as states
    from trainer.loop import loss_of
    from trainer.models import build

    torch.manual_seed(seed)
    model = build(PRESET)
    optimizer = optimizers.build(model, weight_decay=0.1)
    optimizers.set_rate(optimizer, 1e-3)
    for _ in range(step):
        optimizer.zero_grad()
        loss_of(model, torch.randint(0, PRESET.vocabulary, (2, 17))).backward()
        optimizer.step()
    state = states.State(
        preset=PRESET.name,
        shape=states.shape_record(PRESET),
        seed=seed,
        batch=4,
        context=32,
        data="d" * 64,
        schedule=Schedule.plan(peak=1e-2, warm_up=5, steps=60, decay_share=0.3).retarget(2, 70),
        step=step,
        position=4 * step,
        tokens=128 * step,
        first_loss=6.25,
        last_loss=6.0,
    )
    return state, model, optimizer


def saved(folder: Path, step: int = 3, *, seed: int = 0) -> Path:
    from trainer import state as states

    states.save(folder, *made(step, seed=seed), RUN)
    return states.manifest_path(folder, step)


def rewrite(manifest: Path, **changes: Any) -> None:
    """Change the manifest and keep it a valid one."""
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**record, **changes}))


def data_file(manifest: Path) -> Path:
    return manifest.parent / contract.Manifest.read(manifest).files[0].name


def test_everything_comes_back(tmp_path: Path) -> None:
    import random

    import numpy as np
    import torch

    from trainer import optimizer as optimizers
    from trainer import state as states
    from trainer.models import build

    state, model, optimizer = made()
    manifest = states.save(tmp_path, state, model, optimizer, RUN)
    drawn = (random.random(), float(np.random.rand()), torch.rand(1).item())
    path = states.manifest_path(tmp_path, 3)
    assert contract.Manifest.read(path) == manifest
    assert (manifest.step, manifest.target_step, manifest.tokens, manifest.loss) == (3, 70, 384, 6.0)

    loaded = states.read(path)
    assert loaded.state == state
    assert loaded.file == contract.digest_file(tmp_path / "step-00000003.pt")
    torch.manual_seed(99)
    other = build(PRESET)
    other_optimizer = optimizers.build(other, weight_decay=0.1)
    states.restore(loaded, other, other_optimizer)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    mine, theirs = optimizer.state_dict(), other_optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    for key, slots in mine["state"].items():
        for slot, tensor in slots.items():
            assert torch.equal(tensor, theirs["state"][key][slot])
    states.restore_rng(loaded.payload["rng"])
    assert (random.random(), float(np.random.rand()), torch.rand(1).item()) == drawn


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "harm",
    [
        flip,
        lambda content: content[:-100],
        lambda _content: b"",
        lambda content: bytes(len(content)),
        lambda content: content[:40960] + bytes(4096) + content[45056:],
    ],
    ids=["bit", "truncated", "empty", "zero", "page"],
)
def test_changed_bytes_are_refused(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    from trainer import state as states

    manifest = saved(tmp_path)
    path = data_file(manifest)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(CheckpointRefused, match="its manifest says"):
        states.read(manifest)


def test_bytes_that_match_a_manifest_and_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    from trainer import state as states

    manifest = saved(tmp_path)
    path = data_file(manifest)
    for content, says in ((flip(path.read_bytes())[:-50], "cannot be loaded"), (b"", "cannot be loaded")):
        path.write_bytes(content)
        rewrite(manifest, files=[dataclasses.asdict(contract.digest_file(path))])
        with pytest.raises(CheckpointRefused, match=says):
            states.read(manifest)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    import torch

    from trainer import state as states

    manifest = saved(tmp_path)
    path, proof = data_file(manifest), tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return Path(proof).__class__.touch, (proof,)  # type: ignore[return-value]

    torch.save({"format": 1, "state": Evil()}, path)
    rewrite(manifest, files=[dataclasses.asdict(contract.digest_file(path))])
    with pytest.raises(CheckpointRefused, match="cannot be loaded"):
        states.read(manifest)
    assert not proof.exists()


def test_another_step_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    from trainer import state as states

    manifest = saved(tmp_path)
    rewrite(manifest, step=4)
    with pytest.raises(CheckpointRefused, match="holds step 3, its manifest says step 4"):
        states.read(manifest)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1, "step": 3, "files": []}', '{"format": 2}'])
def test_a_broken_manifest_is_refused(tmp_path: Path, content: str) -> None:
    from trainer import state as states

    manifest = saved(tmp_path)
    manifest.write_text(content)
    with pytest.raises(CheckpointRefused):
        states.read(manifest)


def test_another_model_is_refused(tmp_path: Path) -> None:
    from trainer import state as states
    from trainer.models import build

    loaded = states.read(saved(tmp_path))
    with pytest.raises(CheckpointRefused, match="is of preset bitmamba-test"):
        states.require_preset(loaded, preset("transformer-test"))
    wider = dataclasses.replace(PRESET, shape=dataclasses.replace(PRESET.shape, layers=3))
    with pytest.raises(CheckpointRefused, match="is of preset"):
        states.require_preset(loaded, wider)
    with pytest.raises(CheckpointRefused, match="does not fit the model"):
        states.restore(loaded, build(wider), None)


def test_tensors_that_are_not_in_place_after_loading_are_noticed(tmp_path: Path) -> None:
    """A hook that re-initialises after the load, as has happened to A_log and dt_bias elsewhere."""
    import torch

    from trainer import state as states
    from trainer.models import build

    loaded = states.read(saved(tmp_path))
    model = build(PRESET)

    def again(module: torch.nn.Module, _keys: object) -> None:
        with torch.no_grad():
            module.get_parameter("layers.0.A_log").fill_(1.0)

    model.register_load_state_dict_post_hook(again)
    with pytest.raises(CheckpointRefused, match=r"layers\.0\.A_log"):
        states.restore(loaded, model, None)


def test_an_optimizer_without_its_state_is_refused(tmp_path: Path) -> None:
    from trainer import optimizer as optimizers
    from trainer import state as states

    state, model, _optimizer = made()
    states.save(tmp_path, state, model, optimizers.build(model, weight_decay=0.1), RUN)
    loaded = states.read(states.manifest_path(tmp_path, 3))
    with pytest.raises(CheckpointRefused, match="optimizer states of 0 tensors"):
        states.restore(loaded, model, optimizers.build(model, weight_decay=0.1))


def test_a_shortage_of_memory_is_raised_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from trainer import state as states

    manifest = saved(tmp_path)
    hidden = SystemError("<built-in method readinto> returned a result with an exception set")
    hidden.__cause__ = OSError(errno.ENOMEM, "Cannot allocate memory")
    shortages = [
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: Error code 12"),
        hidden,
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ]
    for shortage in shortages:

        def fail(*_args: object, error: BaseException = shortage, **_more: object) -> None:
            raise error

        monkeypatch.setattr(torch, "load", fail)
        with pytest.raises(type(shortage)) as caught:
            states.read(manifest)
        assert caught.value is shortage
    assert not is_memory_shortage(RuntimeError("PytorchStreamReader failed finding central directory"))


def test_what_is_reported_is_the_digest_of_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swapped, file and manifest together, after the supervisor looked: the report must be of the swapped bytes."""
    from trainer import state as states

    manifest = saved(tmp_path)
    seen = contract.Manifest.read(manifest)
    (tmp_path / "other").mkdir()
    other = saved(tmp_path / "other", seed=5)
    data_file(other).replace(data_file(manifest))
    other.replace(manifest)
    opened: list[str] = []
    real = states._read_once

    def counted(path: Path, name: str) -> tuple[bytes, contract.FileDigest]:
        opened.append(name)
        return real(path, name)

    monkeypatch.setattr(states, "_read_once", counted)
    loaded = states.read(manifest)
    assert loaded.file.sha256 == hashlib.sha256((tmp_path / "step-00000003.pt").read_bytes()).hexdigest()
    assert loaded.file.sha256 != seen.digest
    assert opened == ["step-00000003.pt"]  # once: what is hashed is what is loaded


def test_names_are_those_of_a_plain_model() -> None:
    import torch

    from trainer.state import plain_names

    value = torch.zeros(1)
    names = {"module._orig_mod.layers.0.D": value, "_orig_mod.module.norm.weight": value, "head": value}
    assert list(plain_names(names)) == ["layers.0.D", "norm.weight", "head"]


def test_a_disk_that_fills_in_the_middle_raises_as_itself_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import state as states

    manifest = saved(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = contract.write_durably

    def small_disk(path: Path, write: Callable[[Any], object]) -> contract.FileDigest:
        class Full:
            def __init__(self, file: Any) -> None:
                self.file, self.left = file, 100_000

            def write(self, data: Any) -> int:
                self.left -= memoryview(data).nbytes
                if self.left < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return int(self.file.write(data))

        return real(path, lambda file: write(Full(file)))

    monkeypatch.setattr(contract, "write_durably", small_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        states.save(tmp_path, *made(4), RUN)
    assert caught.value.errno == errno.ENOSPC
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert states.read(manifest).state.step == 3


def test_data_without_a_manifest_does_not_stay_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import state as states

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = contract.Run(run_id=None)
    monkeypatch.setattr(run, "publish", refuse)
    with pytest.raises(OSError, match="No space left"):
        states.save(tmp_path, *made(), run)
    assert list(tmp_path.iterdir()) == []


def test_saving_a_step_again_never_leaves_a_manifest_with_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay reaches a step that is saved already: until the new manifest is there, the old pair must hold."""
    from trainer import state as states

    manifest = saved(tmp_path)
    old = contract.Manifest.read(manifest)
    run = contract.Run(run_id=None)
    real = run.publish

    def look_first(path: Path, new: contract.Manifest) -> None:
        assert states.read(manifest).file == old.files[0]
        assert new.files[0].name != old.files[0].name
        real(path, new)

    monkeypatch.setattr(run, "publish", look_first)
    states.save(tmp_path, *made(seed=7), run)
    assert states.read(manifest).state.seed == 7
    assert len(list(tmp_path.glob("*.pt"))) == 1


def test_only_temporary_files_of_our_own_pattern_are_cleared(tmp_path: Path) -> None:
    from trainer import state as states

    manifest = saved(tmp_path)
    ours = [".step-00000004.pt.123.tmp", ".step-00000004.manifest.json.123.tmp"]
    others = ["step-00000004.pt.tmp", ".other.tmp", "notes.txt", ".step-00000005.pt"]
    for name in ours + others:
        (tmp_path / name).write_bytes(b"x")
    assert states.clear_temporary(tmp_path) == sorted(ours)
    assert {path.name for path in tmp_path.iterdir()} == {*others, manifest.name, "step-00000003.pt"}


def test_the_newest_that_holds_is_found(tmp_path: Path) -> None:
    from trainer import state as states

    assert states.newest(tmp_path) == (None, [])
    saved(tmp_path, 1)
    newer = saved(tmp_path, 2)
    data_file(newer).write_bytes(flip(data_file(newer).read_bytes()))
    loaded, refused = states.newest(tmp_path)
    assert loaded is not None
    assert loaded.state.step == 1
    assert len(refused) == 1
    data_file(states.manifest_path(tmp_path, 1)).unlink()
    with pytest.raises(CheckpointRefused, match="none of 2 checkpoints"):
        states.newest(tmp_path)


def test_another_machine_is_named(tmp_path: Path) -> None:
    from trainer import state as states

    now = states.machine()
    assert states.machine_difference(now) is None
    line = states.machine_difference({**now, "threads": 64, "cpu": "none"})
    assert line is not None
    assert f"threads 64 then, {now['threads']} now" in line
    assert "cpu none then" in line
    assert "torch" not in line
