"""The command `train`: what is done in which order, from the folder to the first step.

Responsible for the start of a run: fresh, or from a checkpoint that was proven. Refuses to fall through from a resume
that was asked for to a fresh start, to start fresh over checkpoints that exist, and to change quietly what a
checkpoint says about its own training.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from trainer import optimizer as optimizers
from trainer import presets
from trainer import state as states
from trainer.arguments import checkpoint_folder
from trainer.console import Console
from trainer.data import Dataset
from trainer.errors import CheckpointRefused, DataError, Drained, UsageError
from trainer.loop import Cadence, Training
from trainer.models import build
from trainer.prepare import load_data
from trainer.presets import Preset
from trainer.schedule import Schedule
from trainer.state import Loaded, State
from watchdog import contract
from watchdog.contract import Run

DEFAULT_SEED = 0


def make_exact(threads: int) -> None:
    """What a bit-identical resume on the CPU needs from torch."""
    torch.set_num_threads(threads)
    # The same switch as use_deterministic_algorithms(True), which also imports the compiler: 1.4 s at every start.
    torch.set_deterministic_debug_mode("error")


def _interrupts_drain(run: Run) -> None:
    """By hand, the first Ctrl-C drains and the second stops at once."""

    def on_interrupt(_signum: int, _frame: object) -> None:
        if run.draining:
            raise KeyboardInterrupt
        run.draining = True

    signal.signal(signal.SIGINT, on_interrupt)


@contextlib.contextmanager
def _holding(folder: Path, run: Run) -> Iterator[None]:
    """The run lock, when no supervisor holds it for us. Raises WrongRunError."""
    if run.supervised:
        yield
        return
    _interrupts_drain(run)
    fd = contract.lock_by_hand(folder)
    try:
        yield
    finally:
        os.close(fd)


def _check_wishes(arguments: argparse.Namespace, run: Run) -> None:
    if run.must_resume and arguments.fresh:
        raise UsageError("--fresh, but the supervisor demands a resume: leave --fresh out")
    if run.resume == contract.RESUME_FRESH and arguments.require_resume:
        raise UsageError("--require-resume, but the supervisor asks for a fresh start: leave --require-resume out")


def choose(arguments: argparse.Namespace, folder: Path, run: Run, console: Console) -> Loaded | None:
    """The checkpoint to resume from, or None for a fresh start. Raises CheckpointRefused."""
    if run.must_resume:
        if run.resume_manifest is None:
            raise CheckpointRefused("a resume is demanded, but no manifest is named; nothing was trained")
        return states.read(run.resume_manifest)
    existing = list(states.manifests(folder))
    if run.resume == contract.RESUME_FRESH or arguments.fresh:
        # A supervised run that died between saving step 0 and being seen may be started fresh again; beyond that,
        # a fresh start would be the end of somebody's training.
        trained = [path for path in existing if not run.supervised or path != states.manifest_path(folder, 0)]
        if trained:
            raise CheckpointRefused(
                f"a fresh start is asked for, but {folder} holds {trained[0].name}: move the checkpoints away, or "
                "resume from them; nothing was trained"
            )
        return None
    loaded, refused = states.newest(folder)
    for line in refused:
        console.say(f"refused   {line}")
    if loaded is None and arguments.require_resume:
        raise CheckpointRefused(f"a resume is asked for, but {folder} holds no checkpoint; nothing was trained")
    return loaded


def _begin(arguments: argparse.Namespace, preset: Preset, data: Dataset) -> State:
    return State(
        preset=preset.name,
        shape=states.shape_record(preset),
        seed=DEFAULT_SEED if arguments.seed is None else arguments.seed,
        batch=arguments.batch or preset.batch,
        context=preset.context,
        data=data.digest,
        schedule=Schedule.plan(
            peak=preset.learning_rate,
            warm_up=preset.warm_up,
            steps=arguments.steps or preset.steps,
            decay_share=preset.decay_share,
        ),
    )


def _go_on(arguments: argparse.Namespace, state: State, data: Dataset) -> State:
    """The checkpoint's own state; the command line may only move its horizon. Raises UsageError, DataError."""
    for name, wished, had in (("--seed", arguments.seed, state.seed), ("--batch", arguments.batch, state.batch)):
        if wished is not None and wished != had:
            raise UsageError(
                f"{name} is {wished}, the checkpoint was trained with {had}: leave {name} out, or use another folder"
            )
    if state.data != data.digest:
        raise DataError(
            f"the text changed: the checkpoint was trained on {state.data[:12]}, the data now is {data.digest[:12]}; "
            "give the old text back (--data), or begin in another folder"
        )
    if arguments.steps is not None:
        state.schedule = state.schedule.retarget(state.step, arguments.steps)
    return state


def train(arguments: argparse.Namespace, run: Run, console: Console) -> int:
    """The whole command. Returns the exit code; raises TrainerError and whatever else went wrong."""
    make_exact(arguments.threads)
    run.drain_on_sigterm()
    preset = presets.preset(arguments.preset)
    _check_wishes(arguments, run)
    folder = checkpoint_folder(arguments, run)
    states.ensure_folder(folder)
    with _holding(folder, run):
        for name in states.clear_temporary(folder):
            console.say(f"cleared   {name}, left by an interrupted save")
        data = load_data(arguments, preset, folder, run, console)
        training = _start(arguments, preset, folder, data, run, console)
        if run.draining and training.saved_step is not None:
            raise Drained(f"asked to stop before the first step; step {training.saved_step} is saved")
        return training.train()


def _start(
    arguments: argparse.Namespace, preset: Preset, folder: Path, data: Dataset, run: Run, console: Console
) -> Training:
    """A run that may take its first step: restored and acknowledged, or fresh, acknowledged and saved."""
    run.beat("load", status=f"micro-batch halved {run.batch_halvings} times" if run.batch_halvings else None)
    loaded = choose(arguments, folder, run, console)
    if loaded is not None:
        states.require_preset(loaded, preset)
        state = _go_on(arguments, loaded.state, data)
    else:
        state = _begin(arguments, preset, data)
    torch.manual_seed(state.seed)
    random.seed(state.seed)
    np.random.seed(state.seed % 2**32)  # nothing draws from it today; what may do so later will be exact
    model = build(preset)
    optimizer = optimizers.build(model, weight_decay=preset.weight_decay)
    training = Training(
        run=run,
        console=console,
        preset=preset,
        cadence=Cadence(
            save_every=arguments.save_every or preset.save_every,
            eval_every=preset.eval_every if arguments.eval_every is None else arguments.eval_every,
            log_every=arguments.log_every,
            step_delay_s=arguments.step_delay,
            gradient_limit=arguments.gradient_limit,
        ),
        folder=folder,
        data=data,
        state=state,
        model=model,
        optimizer=optimizer,
        saved_step=None if loaded is None else state.step,
    )
    if run.batch_halvings:
        console.say(
            f"batch     {state.batch} samples a step, {training.at_once} at once: the supervisor asks for the "
            f"micro-batch halved {run.batch_halvings} times; the tokens of a step stay, the last bits of a loss do not"
        )
    if loaded is not None:
        states.restore(loaded, model, optimizer)
        if difference := states.machine_difference(loaded.payload["machine"]):
            console.say(difference)
        states.restore_rng(loaded.payload["rng"])
        run.acknowledge(step=state.step, files=[loaded.file])
        console.say(f"restored  step {state.step} of {state.schedule.target}  sha256 {loaded.file.sha256}")
        return training
    count = sum(parameter.numel() for parameter in model.parameters())
    console.say(f"fresh     {preset.name}, {count:,} parameters, seed {state.seed}, {state.schedule.target} steps")
    run.acknowledge(fresh=True, step=0)
    training.save_or_fail("the checkpoint of step 0")
    return training
