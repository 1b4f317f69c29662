"""The command `prepare`, and the same work at the start of `train` and `validate`: text in, token shards out.

Free of torch: preparing needs none, and says so by its speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from trainer import corpus as corpora
from trainer import data as datasets
from trainer import presets
from trainer.arguments import checkpoint_folder
from trainer.console import Console
from trainer.data import Dataset
from trainer.errors import Drained
from trainer.presets import Preset
from watchdog import contract
from watchdog.contract import Run


def _beating(run: Run) -> Callable[[float, str], None]:
    def beat(fraction: float, text: str) -> None:
        run.beat("prepare", progress=fraction, status=text)
        if run.draining:
            raise Drained("asked to stop while the text was being prepared; nothing was begun")

    return beat


def load_data(arguments: argparse.Namespace, preset: Preset, folder: Path, run: Run, console: Console) -> Dataset:
    """The text as tokens; `folder` (checkpoints) is no text. Raises DataError, Drained, OSError."""
    beat = _beating(run)
    beat(0.0, "reading the text")
    corpus = corpora.find(arguments.data, exclude=folder, seen=lambda text: beat(0.0, text))
    console.say(f"data      {corpus.describe()}")
    cache = arguments.cache or datasets.default_cache()
    data = datasets.prepare(corpus, vocabulary=preset.vocabulary, cache=cache, console=console, beat=beat)
    data.require(preset.context)
    console.say(
        f"data      {len(data.train):,} tokens to train on, {len(data.validation):,} to validate, vocabulary "
        f"{data.vocabulary:,}, unigram entropy of the validation text {data.entropy:.4f} nats"
    )
    return data


def prepare(arguments: argparse.Namespace, run: Run, console: Console) -> int:
    """The whole command. Returns the exit code."""
    preset = presets.preset(arguments.preset)
    run.drain_on_sigterm()
    data = load_data(arguments, preset, checkpoint_folder(arguments, run), run, console)
    console.say(f"cache     {data.folder}")
    run.beat("finished")
    return contract.EXIT_FINISHED
