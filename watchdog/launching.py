"""Carrying out a launch: the record of it in the ledger, the order, the shim, and what is watched from then on."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from watchdog.actuators.launch import LaunchOrder, launch, ticks_now
from watchdog.cgrouping import RunCgroups
from watchdog.clock import Clock
from watchdog.collectors.locks import Moment, read_lock
from watchdog.collectors.processes import ancestry
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch
from watchdog.core.causes import Cause
from watchdog.core.choice import Checkpoint
from watchdog.core.decide import launched
from watchdog.core.facts import Known
from watchdog.core.history import History
from watchdog.core.restore import run_state
from watchdog.core.runrecord import Expectation, RunRecord
from watchdog.core.seen import Trouble
from watchdog.core.smaller import halvings_for
from watchdog.core.state import Record, State
from watchdog.errors import HeldError, RecordingError, StaleError, StateError
from watchdog.folders import JobFolders
from watchdog.masking import mask_command
from watchdog.opening import OpenJob, run_lock_holders, run_lock_is_free
from watchdog.settings import Settings

_SHOWN_PART, _SHOWN_PARTS = 300, 100
# What a host may lack for a minute, or a disk say once. Of anything else (no such folder, no permission, a read-only
# file system) a second try would only hear the same.
PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    | {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.EINTR}
)
BUILT_IN_COMMAND = (sys.executable, "-P", "-m", "trainer", "train")


def shown_command(command: Sequence[str]) -> list[str]:
    """The command for records and people: secrets masked, and no longer than a person reads."""
    shown = [part if len(part) <= _SHOWN_PART else part[:_SHOWN_PART] + "…" for part in mask_command(command)]
    return shown if len(shown) <= _SHOWN_PARTS else [*shown[:_SHOWN_PARTS], "…"]


def command_digest(command: Sequence[str]) -> str:
    """Tells two commands apart that look the same when they are masked and cut."""
    return hashlib.sha256("\0".join(command).encode("utf-8", "surrogateescape")).hexdigest()


def command_of(settings: Settings) -> tuple[str, ...]:
    """What is executed: the configured command, or the bundled trainer."""
    return BUILT_IN_COMMAND if settings.job.built_in else settings.job.command


def passes(failure: BaseException) -> bool:
    """Whether the launch may succeed a little later with nobody's help: the run lock is held, a new choice, PASSING."""
    seen: BaseException | None = failure
    while seen is not None:
        if isinstance(seen, HeldError | RecordingError | StaleError):
            return True  # the holder may end; the ledger is on a disk that gets room; it is chosen anew
        if isinstance(seen, OSError):
            return seen.errno in PASSING
        seen = seen.__cause__
    return False


def unlinked_lock(folders: JobFolders, clock: Clock) -> Trouble | None:
    """Somebody holds a lock file of this job that was removed: whoever makes a new one would not meet it."""
    roots, moment = Roots(), None
    for path, purpose in ((folders.supervisor_lock, "supervisor"), (folders.run_lock, "run")):
        try:
            # One look at everybody's open files for both: each takes milliseconds, and a launch waits for it.
            moment = moment or Moment.of(roots)
            lock = read_lock(str(path), purpose, roots, clock, moment)
        except (OSError, ValueError) as error:
            return Trouble(words=f"the {purpose} lock cannot be looked at: {error}", passing=passes(error))
        if isinstance(lock, Known) and lock.value.unlinked:
            everybody = [holder.pid for holder in lock.value.holders]
            pids = ", ".join(str(pid) for pid in [pid for pid in everybody if pid != os.getpid()] or everybody)
            words = f"the {purpose} lock {path} was removed while pid {pids} holds it; end that process first"
            return Trouble(words=words, passing=purpose == "run")
    return None


def held_lock(folders: JobFolders, clock: Clock) -> Trouble | None:
    """Somebody holds the run lock: a trainer started by hand, a backup that locks what it reads. It may end by itself.

    Never is the file deleted for that: the next to lock a new one would not meet the holder of the old.
    """
    with contextlib.suppress(StateError, OSError):  # told by the launch itself
        if not run_lock_is_free(folders):
            who = run_lock_holders(str(folders.run_lock), clock)
            words = (
                f"{folders.run_lock} is held, by no run that could be ended ({who}); end that process, or wait for it"
            )
            return Trouble(words=words, passing=True)
    return None


def stale_choice(why_stale: Callable[[], str | None]) -> Trouble | None:
    """Somebody saved, or took away, a checkpoint after the choice was made: there is to be another one."""
    try:
        why = why_stale()
    except OSError as error:
        return Trouble(words=f"the checkpoints cannot be looked at: {error}", passing=passes(error))
    return None if why is None else Trouble(words=f"{why}; it is chosen anew", passing=True)


def launch_run(
    settings: Settings,
    job: OpenJob,
    history: History,
    checkpoint: Checkpoint | None,
    state: State,
    clock: Clock,
    record: Callable[[list[Record]], None],
    listen: Callable[[str], None],
    cgroups: RunCgroups,
    gates: Sequence[str] = (),
    device_memory: Mapping[str, Any] | None = None,
    why_stale: Callable[[], str | None] = lambda: None,
) -> tuple[RunWatch, State] | Trouble:
    """Launch what was decided. Nothing is started that could not be recorded; then the trouble is returned.

    `listen` is called with the run id right before anything is started, so that its first word is heard. `gates`: the
    words of those that were found open. `device_memory`: what is in use before it, see core/gpumemory.py. `why_stale`:
    why the choice does not stand any more; asked first, and again under the run lock.
    """
    unlinked = unlinked_lock(job.folders, clock)
    if unlinked is not None:
        return unlinked
    held = held_lock(job.folders, clock)
    if held is not None:  # before a number is given to a run that cannot begin
        return held
    stale = stale_choice(why_stale)
    if stale is not None:
        return stale
    try:
        ancestors = ancestry()
    except OSError as error:
        return Trouble(words=f"the own ancestors cannot be read: {error}", passing=passes(error))
    number = history.last_number + 1
    run_id = f"{number}-{secrets.token_hex(4)}"
    baseline = -1 if checkpoint is None else checkpoint.step
    order = RunRecord(
        run_id=run_id,
        number=number,
        job=settings.job.name,
        boot_id=job.host.boot_id,
        pid_namespace=job.host.pid_namespace,
        started_ticks=ticks_now(),
        started_wall_s=clock.wall(),
        folder=str(job.folders.run(run_id).path),
        level=settings.job.level,
        baseline_step=baseline,
        expectation=Expectation(
            fresh=checkpoint is None,
            step=None if checkpoint is None else checkpoint.step,
            digest=None if checkpoint is None else checkpoint.digest,
        ),
        ancestors=ancestors,
    )
    command = command_of(settings)
    digest = command_digest(command)
    halvings = halvings_for(
        history.batch_halvings, limit=settings.job.shrink_batch, same_command=digest == history.command
    )
    state = dataclasses.replace(state, batch_halvings=halvings)
    origin = "nothing: a first start" if checkpoint is None else f"step {checkpoint.step} {checkpoint.digest[:12]}…"
    if settings.job.level < 2:
        origin = "its beginning (no checkpoints are demanded of it)"
    data: dict[str, Any] = {
        "number": number,
        "run_id": run_id,
        "resume_step": None if checkpoint is None else checkpoint.step,
        "digest": None if checkpoint is None else checkpoint.digest,
        "baseline_step": baseline,
        "command": shown_command(command),
        "built_in": settings.job.built_in,
        "directory": str(settings.job.directory),
        "config": None if settings.config_file is None else str(settings.config_file),
        "command_sha256": digest,
        "batch_halvings": halvings,
        "gates": list(gates),
    }
    if device_memory:
        data["device_memory"] = dict(device_memory)
    try:
        record([Record("run_launching", f"run {number} starts from {origin}", data)])
    except RecordingError as error:
        return Trouble(words=str(error), passing=True)
    listen(run_id)
    order = dataclasses.replace(order, cgroup=cgroups.make(run_id))
    try:
        child = launch(
            LaunchOrder(
                record=order,
                command=command,
                directory=settings.job.directory,
                environment=settings.job.environment,
                manifest=None if checkpoint is None else Path(checkpoint.manifest),
                beat_deadline_s=settings.deadlines.train_s,
                batch_halvings=halvings,
            ),
            job.folders,
            why_stale,
        )
    except (HeldError, StaleError, StateError, OSError) as failure:
        cgroups.remove(order)
        why = str(failure)
        if isinstance(failure, HeldError):
            why += f" ({run_lock_holders(str(job.folders.run_lock), clock)})"
        ended = {
            "number": number,
            "run_id": run_id,
            "cause": Cause.NOT_STARTED.value,
            "words": why,
            "baseline_step": baseline,
        }
        weighed = {"run_id": run_id, "cause": Cause.NOT_STARTED.value, "failures": state.failures}
        weighed |= {"host_failures": state.host_failures, "fault": state.fault}
        try:
            record(
                [
                    Record("run_ended", f"run {number} was not started: {why}", ended),
                    Record("run_weighed", f"run {number} counts as not started", weighed),
                ]
            )
        except RecordingError as second:
            return Trouble(words=f"{why}; {second}", passing=passes(failure))
        return Trouble(words=why, passing=passes(failure))
    watch = RunWatch(order, child)
    return watch, launched(state, run_state(order, clock.monotonic()), clock.monotonic())
