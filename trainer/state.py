"""A checkpoint: everything that decides the rest of a run, in one file, with a manifest published last.

Responsible for what is saved, for proving what was loaded, and for finding the newest checkpoint that can be proven
when nobody names one. Refuses to trust a manifest: the digest that is acknowledged is that of the bytes the tensors
were made of. Refuses pickles (`weights_only`), and to call a shortage of memory a bad checkpoint.

`step-00000200.pt` holds the state after 200 finished steps, `step-00000200.manifest.json` makes it a checkpoint.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn

from trainer.errors import CheckpointRefused, TrainerError, is_memory_shortage
from trainer.presets import Preset
from trainer.schedule import Schedule
from watchdog import contract
from watchdog.contract import FileDigest, Manifest, Run

FORMAT = 1
_TEMPORARY = ".step-*.tmp"
_NAME = re.compile(r"step-(\d{8,})\.manifest\.json")
_PREFIXES = ("_orig_mod.", "module.")  # torch.compile and DDP put these before every name
# The disk's fault, not ours: the old checkpoint stays and the next interval tries again.
DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


@dataclasses.dataclass(kw_only=True, slots=True)
class State:
    """Where a run is. `position` counts samples since step 0, `tokens` those trained on; losses in nats."""

    preset: str
    shape: dict[str, Any]
    seed: int
    batch: int
    context: int
    data: str
    schedule: Schedule
    step: int = 0
    position: int = 0
    tokens: int = 0
    first_loss: float | None = None
    last_loss: float | None = None

    def to_record(self) -> dict[str, Any]:
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**record, "schedule": self.schedule.to_record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> State:
        """Raises CheckpointRefused."""
        try:
            state = cls(**{**record, "schedule": Schedule.from_record(record["schedule"])})
            whole = (state.step, state.position, state.tokens, state.seed, state.batch, state.context)
        except (KeyError, TypeError) as error:
            raise CheckpointRefused(f"the checkpoint's state is unusable: {error}") from error
        if any(not isinstance(number, int) or number < 0 for number in whole):
            raise CheckpointRefused(f"the checkpoint's state has counts {whole}, which should be whole numbers")
        return state


def shape_record(preset: Preset) -> dict[str, Any]:
    """The numbers of the model, to be compared on loading."""
    return {"family": type(preset.shape).__name__, **dataclasses.asdict(preset.shape)}


def machine() -> dict[str, Any]:
    """What else a bit-identical resume depends on."""
    return {
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def machine_difference(then: Mapping[str, Any]) -> str | None:
    """One line on what differs from `machine()`, or None."""
    differs = [f"{key} {then.get(key)} then, {value} now" for key, value in machine().items() if then.get(key) != value]
    if not differs:
        return None
    return f"resume    not bit-identical to an undisturbed run: {'; '.join(differs)}"


# --- random numbers -----------------------------------------------------------------------------------------
def _rng() -> dict[str, Any]:
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(place), int(has_gauss), gauss),
        "torch": torch.get_rng_state(),
    }


def restore_rng(rng: Mapping[str, Any]) -> None:
    """Last of all, after model, optimizer and data are built. Raises CheckpointRefused."""
    try:
        random.setstate(rng["python"])
        kind, keys, place, has_gauss, gauss = rng["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
        torch.set_rng_state(rng["torch"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointRefused(f"the checkpoint's random states are unusable: {error}") from error


# --- saving -------------------------------------------------------------------------------------------------
class _Deferring:
    """Keeps torch's zip writer from seeing an error, which it would turn into another one, and raises it after."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                return self._file.write(data)
            except BaseException as error:  # raised again by whoever called torch.save
                self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """The file is flushed by its owner."""


def plain_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as an uncompiled single process has them, so that any way of running loads any other's checkpoint."""
    plain = {}
    for name, tensor in tensors.items():
        stripped = name
        while stripped.startswith(_PREFIXES):
            stripped = stripped.split(".", 1)[1]
        plain[stripped] = tensor
    return plain


def manifest_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}{contract.MANIFEST_SUFFIX}"


def _free_name(folder: Path, step: int) -> str:
    """A name for the data file that no manifest of that step names: the old pair stays whole until the new one is."""
    number, name = 1, f"step-{step:08d}.pt"
    while manifest_path(folder, step).exists() and (folder / name).exists():
        number += 1
        name = f"step-{step:08d}-{number}.pt"
    return name


def save(folder: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run) -> Manifest:
    """Write the checkpoint of `state.step` and publish its manifest. Raises OSError; the folder is then as it was."""
    payload = {
        "format": FORMAT,
        "state": state.to_record(),
        "model": plain_names(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "rng": _rng(),
        "machine": machine(),
    }

    def write(file: IO[bytes]) -> None:
        deferring = _Deferring(file)
        torch.save(payload, deferring)
        if deferring.error is not None:
            raise deferring.error

    target = manifest_path(folder, state.step)
    before: tuple[FileDigest, ...] = ()
    with suppress(OSError, contract.ContractError):
        before = Manifest.read(target).files
    path = folder / _free_name(folder, state.step)
    written = contract.write_durably(path, write)
    manifest = Manifest(
        step=state.step,
        files=(written,),
        target_step=state.schedule.target,
        tokens=state.tokens,
        run_id=run.run_id,
        loss=state.last_loss,
        created_s=time.time(),
    )
    try:
        run.publish(target, manifest)
    except BaseException:
        with suppress(OSError):
            path.unlink()  # without a manifest it is no checkpoint, only a full disk
        raise
    for old in before:  # data that a manifest of the same step named until now
        if old.name != path.name and _belongs_to(old.name, state.step):
            with suppress(OSError):
                (folder / old.name).unlink()
    return manifest


def _belongs_to(name: str, step: int) -> bool:
    return re.fullmatch(rf"step-{step:08d}(-\d+)?\.pt", name) is not None


def clear_temporary(folder: Path) -> list[str]:
    """Remove what an interrupted save of ours left behind, and nothing else. Returns the names."""
    removed = []
    for path in sorted(folder.glob(_TEMPORARY)):
        if path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError):
                path.unlink()
                removed.append(path.name)
    return removed


# --- loading ------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What was read: `file` is the digest of the very bytes that `payload` was made of."""

    manifest: Manifest
    file: FileDigest
    state: State
    payload: Mapping[str, Any]


def _read_once(path: Path, name: str) -> tuple[bytes, FileDigest]:
    with open(path, "rb", buffering=0) as file:
        content = file.readall()
    return content, FileDigest(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def read(path: Path) -> Loaded:
    """Read the checkpoint whose manifest is `path`. Raises CheckpointRefused, or the shortage of memory as itself."""
    try:
        manifest = Manifest.read(path)
    except FileNotFoundError as error:
        raise CheckpointRefused(f"manifest {path} does not exist; nothing was trained") from error
    except contract.ContractError as error:
        raise CheckpointRefused(f"{error}; nothing was trained") from error
    if len(manifest.files) != 1:
        raise CheckpointRefused(f"{path} names {len(manifest.files)} files, a checkpoint of this trainer is one")
    named = manifest.files[0]
    try:
        content, found = _read_once(path.parent / named.name, named.name)
    except FileNotFoundError as error:
        raise CheckpointRefused(f"{path.parent / named.name} does not exist, but {path.name} names it") from error
    if found != named:
        raise CheckpointRefused(
            f"{path.parent / named.name} has {found.size_bytes} bytes, sha256 {found.sha256}; its manifest says "
            f"{named.size_bytes} bytes, sha256 {named.sha256}; nothing was trained"
        )
    try:
        payload = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        if is_memory_shortage(error):
            raise
        raise CheckpointRefused(f"{path.parent / named.name} cannot be loaded: {error}") from error
    parts = ("state", "model", "optimizer", "rng", "machine")
    if not isinstance(payload, dict) or payload.get("format") != FORMAT or any(part not in payload for part in parts):
        raise CheckpointRefused(f"{path.parent / named.name} is no checkpoint of this trainer (format {FORMAT})")
    state = State.from_record(payload["state"])
    if state.step != manifest.step:
        raise CheckpointRefused(f"{named.name} holds step {state.step}, its manifest says step {manifest.step}")
    return Loaded(manifest=manifest, file=found, state=state, payload=payload)


def require_preset(loaded: Loaded, preset: Preset) -> None:
    """Raises CheckpointRefused when the checkpoint is another model's."""
    state = loaded.state
    if state.preset != preset.name or state.shape != shape_record(preset):
        raise CheckpointRefused(
            f"{loaded.file.name} is of preset {state.preset} {state.shape}, this run is {preset.name} "
            f"{shape_record(preset)}; nothing was trained"
        )


def restore(loaded: Loaded, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Put the tensors in place and prove that they are there. Raises CheckpointRefused."""
    tensors = loaded.payload["model"]
    try:
        model.load_state_dict(tensors, strict=True)
        if optimizer is not None:
            optimizer.load_state_dict(loaded.payload["optimizer"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        if is_memory_shortage(error):
            raise
        raise CheckpointRefused(f"{loaded.file.name} does not fit the model: {error}") from error
    # Something may re-initialise A_log or dt_bias on the way in (it has happened elsewhere): look.
    for name, tensor in model.state_dict().items():
        if tensor.dtype != tensors[name].dtype or not torch.equal(tensor.nan_to_num(), tensors[name].nan_to_num()):
            raise CheckpointRefused(f"tensor {name} is not what {loaded.file.name} holds, after loading it")
    if optimizer is not None and loaded.state.step > 0:
        parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        if len(optimizer.state) != parameters:
            raise CheckpointRefused(
                f"{loaded.file.name} holds optimizer states of {len(optimizer.state)} tensors, not of {parameters}"
            )


def manifests(folder: Path) -> Iterator[Path]:
    """Manifests in the folder, the highest step first."""
    named = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    for _step, path in sorted(named, reverse=True):
        yield path


def newest(folder: Path) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that can be proven, and a line for each newer one that could not.

    Raises CheckpointRefused when there are checkpoints and none of them holds: starting over is a person's choice.
    """
    refused: list[str] = []
    for path in manifests(folder):
        try:
            return read(path), refused
        except CheckpointRefused as error:
            refused.append(str(error))
    if refused:
        raise CheckpointRefused(f"none of {len(refused)} checkpoints in {folder} holds; the newest: {refused[0]}")
    return None, refused


def ensure_folder(folder: Path) -> None:
    """Make the checkpoint folder. Raises TrainerError with the reason."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainerError(f"checkpoint folder {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise TrainerError(f"checkpoint folder {folder} cannot be written")
