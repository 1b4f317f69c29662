"""The command `validate`: is this checkpoint whole, is it finite, and what is its validation loss?

Responsible for saying so in figures that can be compared to the last digit. Refuses to write anything.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from trainer import presets
from trainer import state as states
from trainer.arguments import checkpoint_folder
from trainer.console import Console
from trainer.errors import CheckpointRefused, DataError, Diverged, UsageError
from trainer.job import make_exact
from trainer.loop import validation_loss
from trainer.models import build
from trainer.prepare import load_data
from trainer.state import Loaded
from watchdog import contract
from watchdog.contract import Run


def find(path: Path) -> Loaded:
    """The checkpoint at `path`: a manifest, the data file beside one, or a folder (the newest there that holds)."""
    if path.is_dir():
        loaded, _refused = states.newest(path)
        if loaded is None:
            raise CheckpointRefused(f"{path} holds no checkpoint (step-*{contract.MANIFEST_SUFFIX})")
        return loaded
    if path.name.endswith(contract.MANIFEST_SUFFIX):
        return states.read(path)
    for manifest in states.manifests(path.parent):
        try:
            named = contract.Manifest.read(manifest).files
        except contract.ContractError:
            continue
        if any(file.name == path.name for file in named):
            return states.read(manifest)
    raise CheckpointRefused(f"no manifest beside {path} names it: it is no checkpoint")


def not_finite(tensors: dict[str, torch.Tensor]) -> list[tuple[str, int, int]]:
    """(name, NaN, Inf) of each tensor that has any."""
    found = []
    for name, tensor in tensors.items():
        nans, infs = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        if nans or infs:
            found.append((name, nans, infs))
    return found


def validate(arguments: argparse.Namespace, run: Run, console: Console) -> int:
    """The whole command. Raises CheckpointRefused, Diverged (NaN or Inf in a tensor), DataError."""
    make_exact(arguments.threads)
    folder = checkpoint_folder(arguments, run)
    loaded = find(arguments.checkpoint or folder)
    state = loaded.state
    if state.preset not in presets.PRESETS:
        raise UsageError(f"{loaded.file.name} is of preset {state.preset!r}, which this version does not know")
    preset = presets.preset(state.preset)
    states.require_preset(loaded, preset)
    model = build(preset)
    states.restore(loaded, model, None)
    tensors = loaded.payload["model"]
    bad = not_finite(tensors)
    data = load_data(arguments, preset, folder, run, console)
    if state.data != data.digest:
        raise DataError(
            f"{loaded.file.name} was trained on the text {state.data[:12]}, this is {data.digest[:12]}: its validation "
            "loss here would compare with nothing (--data)"
        )
    loss = math.nan if bad else validation_loss(model, data, preset, run)
    record = {
        "event": "validate",
        "file": loaded.file.name,
        "sha256": loaded.file.sha256,
        "digest_ok": True,  # `states.read` has refused anything else
        "preset": state.preset,
        "step": state.step,
        "target_step": state.schedule.target,
        "tensors": len(tensors),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "nan": sum(nans for _name, nans, _infs in bad),
        "inf": sum(infs for _name, _nans, infs in bad),
        "validation_loss": contract.encode_number(loss),
        "unigram_entropy": data.entropy,
        "ratio": contract.encode_number(loss / data.entropy),
    }
    if not arguments.json:
        file = loaded.file
        console.say(f"file      {file.name}, {file.size_bytes / 1e6:.1f} MB, sha256 {file.sha256} ok")
        console.say(f"model     {state.preset}, step {state.step} of {state.schedule.target}")
        console.say(
            f"tensors   {record['tensors']}, {record['parameters']:,} parameters, "
            f"{record['nan']} NaN, {record['inf']} Inf"
        )
        console.say(f"loss      {loss!r} nats on the validation text, {loss / data.entropy:.4f} of unigram entropy")
    console.say_json(record)
    if bad:
        name, nans, infs = bad[0]
        raise Diverged(f"{len(bad)} tensors are not finite, the first is {name} with {nans} NaN and {infs} Inf")
    return contract.EXIT_FINISHED
