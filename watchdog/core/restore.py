"""The state a supervisor begins with: from the ledger's history, with or without a run that is still alive. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from watchdog.core.budgets import wait_left_s
from watchdog.core.causes import Cause
from watchdog.core.history import History
from watchdog.core.phase import Phase
from watchdog.core.runrecord import RunRecord
from watchdog.core.state import (
    Ended,
    Policy,
    RunState,
    State,
    Stop,
)


def _cause(value: object) -> Cause:
    """A cause as it was written; a word that is none (another version, a flipped bit) is unknown."""
    try:
        return Cause(value)
    except ValueError:
        return Cause.UNKNOWN


def ended_from(data: Mapping[str, Any]) -> Ended:
    """An end that was recorded and not weighed. Raises KeyError, ValueError for what is none."""
    return Ended(
        number=int(data["number"]),
        run_id=str(data["run_id"]),
        cause=_cause(data.get("cause")),
        words=str(data["words"]),
        baseline_step=int(data["baseline_step"]),
        last_step=data.get("last_step"),
        target_step=data.get("target_step"),
        permanent=bool(data.get("permanent", False)),
        hold_after=bool(data.get("hold_after", False)),
        error=data.get("error"),
        confidence=data.get("confidence"),
        fault=data.get("fault"),
    )


def run_state(record: RunRecord, now_s: float, *, acknowledged: bool = False) -> RunState:
    """A run as the decisions begin with it; after an adoption its grace begins anew."""
    return RunState(
        number=record.number,
        run_id=record.run_id,
        level=record.level,
        expectation=record.expectation,
        baseline_step=record.baseline_step,
        launched_s=now_s,
        grace_from_s=now_s,
        acknowledged=acknowledged,
    )


def stop_from(data: Mapping[str, Any], now_s: float, policy: Policy) -> Stop:
    """A stop that was begun before we died: its waits begin anew. Raises KeyError, ValueError."""
    cause = _cause(data.get("cause"))
    kill_from_s = now_s if data.get("kill_now") else now_s + policy.grace_for(cause)
    return Stop(
        cause=cause,
        reason=str(data["reason"]),
        since_s=now_s,
        kill_from_s=kill_from_s,
        give_up_s=kill_from_s + policy.kill_wait_s,
        hold_after=bool(data["hold_after"]),
        asked=False,
    )


def restore(
    history: History, living: RunRecord | None, now_s: float, policy: Policy, *, wall_s: float, boot_id: str
) -> State:
    """Where to go on. `living`: the record of a run that may be alive and is adopted.

    A backoff that had begun goes on for what is left of it: dying is no way around it.
    """
    run = None
    if living is not None:
        run = run_state(living, now_s, acknowledged=history.acknowledged == living.run_id)
        heard = run.acknowledged or history.beats == living.run_id
        run = dataclasses.replace(run, beat_seen=heard, cleared=history.cleared == living.run_id)
    state = State(
        phase=Phase.GATING,
        since_s=now_s,
        failures=history.failures,
        host_failures=history.host_failures,
        fault=history.fault,
        batch_halvings=history.batch_halvings,
        run=run,
    )
    stopping = history.stopping
    if history.hold is not None:
        state = dataclasses.replace(state, phase=Phase.HOLD, hold=history.hold, until_gone=history.until_gone)
        if run is not None and stopping is not None and stopping.get("run_id") == run.run_id:
            run = dataclasses.replace(run, stop=stop_from(stopping, now_s, policy))  # for what its end counts as
            return dataclasses.replace(state, run=run)
        if run is None and history.until_gone is not None and history.unweighed is not None:
            return dataclasses.replace(state, ended=ended_from(history.unweighed))
        return state
    if run is not None:
        stalled = stopping is not None and stopping.get("cause") == Cause.STALLED.value and not stopping.get("sent")
        # A stall on which nothing was done yet is judged anew: the run may beat again, and the look before the stop was
        # the dead supervisor's. One that was asked to end may end by itself, and that is no success.
        if stopping is not None and stopping.get("run_id") == run.run_id and not stalled:
            run = dataclasses.replace(run, stop=stop_from(stopping, now_s, policy))
            return dataclasses.replace(state, phase=Phase.STOPPING, run=run)
        return dataclasses.replace(state, phase=Phase.RUNNING)
    if history.finished is not None:
        return dataclasses.replace(state, phase=Phase.FINISHED)
    if history.unweighed is not None:
        return dataclasses.replace(state, phase=Phase.WEIGHING, ended=ended_from(history.unweighed))
    if history.wait is not None:
        limit_s = policy.backoff_limit_s
        left_s = wait_left_s(history.wait, now_s=now_s, wall_s=wall_s, boot_id=boot_id, limit_s=limit_s)
        if left_s > 0:
            return dataclasses.replace(state, phase=Phase.BACKOFF, retry_at_s=now_s + left_s)
    return state
