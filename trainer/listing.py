"""The command `presets`: what there is, and how large it is, counted on the model itself."""

from __future__ import annotations

import argparse
import dataclasses

import torch

from trainer.console import Console
from trainer.models import build
from trainer.presets import DEFAULT, PRESETS
from watchdog import contract
from watchdog.contract import Run


def presets(arguments: argparse.Namespace, _run: Run, console: Console) -> int:
    """The whole command. Returns the exit code."""
    rows = []
    for preset in PRESETS.values():
        with torch.device("meta"):  # counts without storage
            sizes = [parameter.numel() for parameter in build(preset).parameters()]
        rows.append((preset, len(sizes), sum(sizes)))
    if arguments.json:
        records = [
            {**dataclasses.asdict(preset), "tensors": tensors, "parameters": count, "default": preset.name == DEFAULT}
            for preset, tensors, count in rows
        ]
        console.say_json({"event": "presets", "presets": records})
        return contract.EXIT_FINISHED
    form = "{:<18}{:>7}{:>7}{:>7}{:>9}{:>12}{:>9}{:>8}{:>12}"
    names = ("preset", "layers", "width", "vocab", "context", "parameters", "tensors", "steps", "tokens")
    console.say(form.format(*names))
    for preset, tensors, parameters in rows:
        shape = preset.shape
        tokens = preset.steps * preset.batch * preset.context
        numbers = (preset.context, parameters, tensors, preset.steps, tokens)
        line = form.format(
            preset.name, shape.layers, shape.width, f"{preset.vocabulary:,}", *(f"{number:,}" for number in numbers)
        )
        console.say(line + ("   (default)" if preset.name == DEFAULT else ""))
    return contract.EXIT_FINISHED
