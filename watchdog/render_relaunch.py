"""A relaunch in words and as JSON: its plan, and each step as it is proven. Pure: plans in, text out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from watchdog.core.following import Told
from watchdog.core.relaunchplan import PlanStep, RelaunchPlan, StopPlan, Verified, Wish
from watchdog.core.view import StatusView
from watchdog.masking import mask_text
from watchdog.render import harmless, masked

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
_MARKS: Mapping[bool | None, str] = {True: "✓", False: "✗", None: " "}


def line_of(told: Told) -> str:
    """One step of a relaunch that is followed; the mark says that it was proven."""
    return f"{'✓' if told.proven else '·'} {told.label:<9} {harmless(mask_text(told.words))}"


def plan_lines(view: StatusView, plan: RelaunchPlan) -> list[str]:
    """`watchdog relaunch --dry-run` for people."""
    lines = [f"job         {view.job} · {view.state} · {_who(view)}"]
    for number, step in enumerate(plan.steps, start=1):
        lines.append(f"{number:<2} {step.name:<8} {_MARKS[step.holds]} {harmless(mask_text(step.words))}")
    lines += [f"would not   {harmless(mask_text(why))}" for why in plan.why_not]
    lines.append("nothing was done (dry run)")
    return lines


def stop_lines(view: StatusView, plan: StopPlan) -> list[str]:
    """`watchdog stop --dry-run` for people."""
    lines = [f"job         {view.job} · {view.state}"]
    for number, step in enumerate(plan.steps, start=1):
        lines.append(f"{number:<2} {step.name:<8} {_MARKS[step.holds]} {harmless(mask_text(step.words))}")
    if not plan.steps and not plan.why_not:
        lines.append("nothing to stop: no supervisor runs and no run is alive")
    lines += [f"would not   {harmless(mask_text(why))}" for why in plan.why_not]
    lines.append("nothing was done (dry run)")
    return lines


def stop_record(view: StatusView, plan: StopPlan, exit_code: int, *, now: bool) -> dict[str, Any]:
    """The same for machines."""
    run = view.run
    return {
        "format": FORMAT,
        "dry_run": True,
        "exit_code": exit_code,
        "job": view.job,
        "state": view.state,
        "supervisor_pid": view.supervisor_pid,
        "saves": not now,
        "would_stop": bool(plan.steps),
        "why_not": [mask_text(why) for why in plan.why_not],
        "run": None if run is None else {"number": run.number, "run_id": run.run_id, "alive": run.alive},
        "steps": [_step(step) for step in plan.steps],
    }


def _who(view: StatusView) -> str:
    if view.silence is not None:
        return harmless(mask_text(view.silence))
    if view.supervisor_pid is not None:
        return f"supervisor pid {view.supervisor_pid} would do it"
    return "no supervisor runs: the next watchdog run would do it"


def plan_record(view: StatusView, wish: Wish, plan: RelaunchPlan, exit_code: int) -> dict[str, Any]:
    """The same for machines: docs/relaunch.schema.json."""
    run = view.run
    return {
        "format": FORMAT,
        "dry_run": True,
        "exit_code": exit_code,
        "job": view.job,
        "state": view.state,
        "supervisor_pid": view.supervisor_pid,
        "would_launch": not plan.why_not,
        "why_not": [mask_text(why) for why in plan.why_not],
        "hold": None if view.hold_reason is None else mask_text(view.hold_reason),
        "run": None
        if run is None
        else {"number": run.number, "run_id": run.run_id, "alive": run.alive, "pid": run.beat_pid or run.leader_pid},
        "budget": {"failures": view.failures, "limit": view.failure_limit, "forgotten": _forgotten(view, wish)},
        "backoff_left_s": view.next_launch_s,
        "from_step": wish.step,
        "checkpoint": None if plan.checkpoint is None else _verified(plan.checkpoint),
        "after_it": [_verified(each) for each in plan.after_it],
        "gates": [{"name": gate.name, "open": gate.open, "words": gate.words} for gate in masked(view).gates],
        "steps": [_step(step) for step in plan.steps],
    }


def _forgotten(view: StatusView, wish: Wish) -> bool:
    return view.hold_reason is not None or wish.afresh


def _verified(checkpoint: Verified) -> dict[str, Any]:
    return dataclasses.asdict(checkpoint)


def _step(step: PlanStep) -> dict[str, Any]:
    return dataclasses.asdict(step) | {"words": mask_text(step.words)}
