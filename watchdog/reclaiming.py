"""`watchdog reclaim`: have the kernel give page cache back, by hand, within bounds and with figures before and after.

Responsible for the goal, for leaving the page cache of a living run alone unless asked, for one reclaim at a time on
this state folder, and for the record in `reclaims.jsonl` there: the ledger of a job belongs to its supervisor.
Exit codes: 0 so much is free; 1 less came back; 2 usage; 3 a run is in the way, or this user is not permitted what is
left to do; 4 another reclaim is at work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterator
from typing import Any

from watchdog.actuators.locks import open_lock_file, require_true_flock, try_lock
from watchdog.actuators.reclaim import (
    Outcome,
    Reclaimer,
    as_root,
    layout_record,
    outcome_record,
    outcome_words,
)
from watchdog.clock import SystemClock
from watchdog.collectors.memory import memory_total
from watchdog.collectors.roots import Roots
from watchdog.core.figures import gib
from watchdog.core.reclaiming import Goal, Layout, Plan, plan
from watchdog.errors import EXIT_FAILURE, EXIT_HOLD, EXIT_OK, HeldError, SettingsError, StateError
from watchdog.joblimits import limits_of
from watchdog.ledger import Ledger
from watchdog.makingroom import RunLives
from watchdog.opening import host_or_error
from watchdog.places import folders_of, job_options
from watchdog.settings import Settings
from watchdog.units import parse_size

_MIB = 1024**2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What is told of one reclaim, or of what it would be."""

    exit_code: int
    lines: tuple[str, ...]
    record: dict[str, Any]


def target_of(settings: Settings, text: str | None) -> int:
    """Bytes: what a person wrote, else what the job needs. Raises SettingsError."""
    if text is None:
        limits = limits_of(settings, os.environ)
        return limits.memory_need(uses_gpu=limits.devices != ())
    try:
        target = parse_size(text)
    except ValueError as error:
        raise SettingsError(f"--target {text}: {error}; write it as 6GiB or 512MiB") from error
    if target == 0:
        raise SettingsError("--target 0: that much is always free; write it as 6GiB or 512MiB")
    return target


def reclaim_by_hand(
    settings: Settings, *, target: str | None, dry_run: bool, beside_run: bool, roots: Roots | None = None
) -> Report:
    """Raises SettingsError, StateError, HeldError, RecordingError."""
    clock, folders = SystemClock(), folders_of(settings)
    target_bytes = target_of(settings, target)
    roots = roots or Roots()
    _require_possible(target_bytes, target, roots)
    reclaimer = Reclaimer(roots, clock, sync=(folders.checkpoints, folders.state))
    lives = RunLives(str(folders.run_lock), clock)
    goal = Goal(target_bytes=target_bytes, free=True, run_lives=lives(), beside_run=beside_run)
    if dry_run:
        return _planned(_seen(reclaimer), goal, settings, lives.why)
    with _alone(settings):  # the figures below are of nobody else's reclaim
        layout = _seen(reclaimer)
        if not plan(layout, goal).steps:
            return _planned(layout, goal, settings, lives.why)
        return _reclaimed(settings, reclaimer, goal, layout, clock, lives)


def _require_possible(target_bytes: int, text: str | None, roots: Roots) -> None:
    """More than the host has never becomes free: the whole page cache would go for nothing. Raises SettingsError."""
    try:
        total = memory_total(roots)
    except (OSError, ValueError) as error:
        raise StateError(f"memory cannot be read, so nothing is reclaimed: {error}") from error
    if target_bytes > -(-total // _MIB) * _MIB:  # to the next MiB, as the command for root that is told is rounded
        asked = f"--target {text}" if text is not None else f"the job's need, {gib(target_bytes)} GiB"
        raise SettingsError(f"{asked}: this host has {gib(total)} GiB of memory in all; ask for less")


def _reclaimed(
    settings: Settings, reclaimer: Reclaimer, goal: Goal, layout: Layout, clock: SystemClock, lives: RunLives
) -> Report:
    folder = settings.state.folder
    ledger = Ledger(
        folder / "reclaims.jsonl", folder / "reclaims.ballast", clock=clock, boot_id=host_or_error().boot_id
    )
    with contextlib.closing(ledger):
        steps = [step.words for step in plan(layout, goal).steps]
        ledger.record(
            "reclaiming",
            f"by hand: {gib(goal.target_bytes)} GiB are to be free, {gib(layout.free_bytes)} are",
            **{"target_bytes": goal.target_bytes, "of": "free", "before": layout_record(layout), "steps": steps},
        )
        try:
            outcome = reclaimer.act(goal, layout, run_lives=lives)
        except (OSError, ValueError) as error:
            why = f"memory cannot be read any more: {error}"
            ledger.record("reclaimed", why, target_bytes=goal.target_bytes, met=False)
            raise StateError(why) from error
        record = outcome_record(outcome)
        ledger.record("reclaimed", outcome_words(outcome), **record)
    permitted = all(step.permitted for step in plan(outcome.after, goal).steps)
    code = EXIT_OK if outcome.met else EXIT_HOLD if outcome.refused or not permitted else EXIT_FAILURE
    return Report(exit_code=code, lines=_told(outcome), record={"dry_run": False, "exit_code": code, **record})


def _seen(reclaimer: Reclaimer) -> Layout:
    try:
        return reclaimer.look()
    except (OSError, ValueError) as error:
        raise StateError(f"memory cannot be read, so nothing is reclaimed: {error}") from error


@contextlib.contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """One reclaim at a time. Raises HeldError, StateError."""
    folder = settings.state.folder
    require_true_flock(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StateError(f"cannot make the state folder {folder}: {error.strerror}; set [state] folder") from error
    fd = open_lock_file(folder / "reclaims.lock")
    try:
        if not try_lock(fd, fcntl.LOCK_EX):
            raise HeldError(f"another watchdog reclaim is at work (it holds {folder / 'reclaims.lock'}); wait for it")
        yield
    finally:
        os.close(fd)


# --- what is told -------------------------------------------------------------------------------------------
def _planned(layout: Layout, goal: Goal, settings: Settings, why_lives: str) -> Report:
    """The plan alone: for a dry run, and where there is nothing to do."""
    found = plan(layout, goal)
    lines = [f"free      {gib(layout.free_bytes)} GiB, {gib(goal.target_bytes)} wanted · {_figures(layout)}"]
    for number, step in enumerate(found.steps, start=1):
        lines.append(f"{number}         {step.words}{'' if step.permitted else ' · NOT PERMITTED to this user'}")
    lines += [f"left out  {words}" for words in found.left_out]
    code = EXIT_OK
    if found.run_in_the_way:
        lines.append(f"refused   {why_lives}; its page cache is not dropped")
        lines.append(f"next      watchdog reclaim{job_options(settings)} --target {goal.target_bytes} --beside-run")
        code = EXIT_HOLD
    elif found.why_not:
        lines.append(f"nothing   {found.why_not}")
        code = EXIT_OK if goal.is_met(layout) else EXIT_FAILURE
    else:
        if not all(step.permitted for step in found.steps):
            lines.append(f"next      {as_root(goal.target_bytes)}")
            code = EXIT_HOLD
        lines.append("nothing was done (dry run)")
    record = {
        "dry_run": True,
        "exit_code": code,
        "target_bytes": goal.target_bytes,
        "of": "free",
        "met": goal.is_met(layout),
        "before": layout_record(layout),
        "steps": [_step_record(found, number) for number in range(len(found.steps))],
        "left_out": list(found.left_out),
        "note": why_lives if found.run_in_the_way else found.why_not,
    }
    return Report(exit_code=code, lines=tuple(lines), record=record)


def _step_record(found: Plan, number: int) -> dict[str, Any]:
    step = found.steps[number]
    return {
        "step": step.words,
        "path": step.path,
        "expected_bytes": step.expected_bytes,
        "permitted": step.permitted,
    }


def _told(outcome: Outcome) -> tuple[str, ...]:
    lines = []
    for number, done in enumerate(outcome.done, start=1):
        freed = f" · MemFree grew by {gib(done.freed_bytes)} GiB in {done.duration_s:.1f} s"
        lines.append(f"{number}         {done.step.words} · {done.words}{'' if done.failed else freed}")
    lines += [f"left out  {words}" for words in outcome.plan.left_out]
    lines += [f"stopped   {outcome.note}"] if outcome.note else []
    lines.append(f"freed     {outcome_words(outcome)}")
    wanted = outcome.goal.target_bytes
    free = outcome.after.free_bytes
    lines.append(f"free      {gib(free)} GiB, {gib(wanted)} wanted: {'enough' if outcome.met else 'NOT enough'}")
    if not outcome.met and outcome.refused:
        lines.append(f"next      {as_root(wanted)}")
    elif not outcome.met:
        lines.append("next      what is left is held by processes: end what needs memory (ps aux --sort -rss)")
    return tuple(lines)


def _figures(layout: Layout) -> str:
    words = (
        f"MemFree {gib(layout.host_free_bytes)}, available {gib(layout.available_bytes)}, "
        f"cache of the host {gib(layout.cached_bytes)} GiB"
    )
    tightest = layout.tightest
    return words if tightest is None else f"{words}, cgroup {tightest.path} leaves {gib(tightest.free_bytes or 0)} GiB"
