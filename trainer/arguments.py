"""The command line: what may be asked, with its limits. Parses and checks; does nothing else.

Free of torch and numpy, so that a wrong option is told in a blink.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from trainer.errors import UsageError
from trainer.presets import DEFAULT, PRESETS
from watchdog import contract


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return value

    return parse


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:  # also false for nan
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _text_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default=DEFAULT, choices=PRESETS, help=f"model and recipe ({DEFAULT})")
    parser.add_argument("--data", type=Path, help="folder of text files (default: Python's standard library)")
    parser.add_argument("--cache", type=Path, help="where token shards are kept (~/.cache/gpuhost-watchdog/data)")
    parser.add_argument("--checkpoints", type=Path, help="the supervisor's, else ./checkpoints/PRESET")


def _threads_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=_whole(1), default=2, help="CPU threads; a resume is bit-identical at an equal number (2)"
    )


def _train_options(parser: argparse.ArgumentParser) -> None:
    _threads_option(parser)
    parser.add_argument("--steps", type=_whole(1), help="steps in all (the preset's; on a resume the checkpoint's)")
    parser.add_argument("--batch", type=_whole(1), help="samples a step (the preset's)")
    parser.add_argument("--seed", type=_whole(0), help="of weights and of the order of samples (0)")
    parser.add_argument("--save-every", type=_whole(1), help="steps between checkpoints (the preset's)")
    parser.add_argument("--eval-every", type=_whole(0), help="steps between evaluations; 0: only at the end")
    parser.add_argument("--log-every", type=_whole(1), default=10, help="steps between lines (10)")
    parser.add_argument("--step-delay", type=_number, default=0.0, help="seconds to rest after each step (0)")
    parser.add_argument(
        "--gradient-limit", type=_number, default=1e3, help="refuse a first step whose gradient norm is above (1000)"
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--fresh", action="store_true", help="begin at step 0; refuse a folder that has checkpoints")
    start.add_argument("--require-resume", action="store_true", help="refuse to begin at step 0")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -P -m trainer", description="Train small language models on text that every machine has."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="train the tokenizer and encode the text, into the cache")
    _text_options(prepare)
    train = commands.add_parser("train", help="train, or go on training from the newest checkpoint that holds")
    _text_options(train)
    _train_options(train)
    validate = commands.add_parser("validate", help="inspect a checkpoint and measure its validation loss")
    validate.add_argument("checkpoint", type=Path, nargs="?", help="manifest, data file or folder (the newest there)")
    _text_options(validate)
    _threads_option(validate)
    presets = commands.add_parser("presets", help="list the presets")
    for command in (validate, presets):
        command.add_argument("--json", action="store_true", help="for programs")
    return parser


def checkpoint_folder(arguments: argparse.Namespace, run: contract.Run) -> Path:
    """The folder that is the job's identity. Raises UsageError when two are named."""
    given: Path | None = arguments.checkpoints
    if run.checkpoints is not None:
        if given is not None and given.resolve() != run.checkpoints.resolve():
            raise UsageError(
                f"--checkpoints is {given}, but the supervisor says {run.checkpoints}: leave --checkpoints out"
            )
        return run.checkpoints
    if given is None:
        named = os.environ.get(contract.ENV_CHECKPOINTS)
        given = Path(named) if named else Path("checkpoints") / arguments.preset
    return given.resolve()
