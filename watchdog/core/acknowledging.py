"""Judging what a run restored (Invariant 5). Pure.

The acknowledgement is judged while the run lives and, when it ended before that, at its end: nothing that an unproven
run saved is ever resumed from.
"""

from __future__ import annotations

import dataclasses

from watchdog.contract import STEPPING_PHASES
from watchdog.core.causes import Cause
from watchdog.core.facts import Absent, Known
from watchdog.core.seen import BeatSeen, EndSeen, Seen
from watchdog.core.state import Plan, Record, RunState, State

REFUSED = frozenset({Cause.WRONG_RESTORE, Cause.FRESH_START, Cause.NOT_ACKNOWLEDGED})


def wrong_restore(run: RunState, seen: Seen, beat: BeatSeen | None) -> tuple[Cause, str] | None:
    """Invariant 5: a run that should resume and did not, or restored other bytes, or would not say."""
    if run.level != 2 or run.acknowledged:
        return None
    expected = run.expectation
    if not isinstance(seen.acknowledgement, Known):
        # One that cannot be read is no reason to stop a run; without one it is not judged well at its end, either.
        silent = isinstance(seen.acknowledgement, Absent) and beat is not None
        if silent and beat is not None and beat.beat.phase in STEPPING_PHASES:
            return Cause.NOT_ACKNOWLEDGED, f"it is in phase {beat.beat.phase} and never said what it had restored"
        return None
    ack = seen.acknowledgement.value
    if ack.run_id != run.run_id:
        return Cause.WRONG_RESTORE, f"its acknowledgement is from run {ack.run_id}"
    if expected.fresh:
        return None if ack.fresh else (Cause.WRONG_RESTORE, f"it restored step {ack.step}, a fresh start was due")
    if ack.fresh:
        return Cause.FRESH_START, f"it began anew where step {expected.step} was to be resumed"
    if (ack.step, ack.digest) != (expected.step, expected.digest):
        return Cause.WRONG_RESTORE, (
            f"it restored step {ack.step} {(ack.digest or '')[:12]}…, verified was step {expected.step} "
            f"{(expected.digest or '')[:12]}…"
        )
    return None


def wrong_at_its_end(run: RunState, seen: Seen, beat: BeatSeen | None, end: EndSeen) -> tuple[Cause, str] | None:
    """As `wrong_restore`, for a run that is over: one that says it is done must have said what it had restored."""
    wrong = wrong_restore(run, seen, beat)
    if wrong is not None or run.level != 2 or run.acknowledged or isinstance(seen.acknowledgement, Known):
        return wrong
    asked_to_leave = run.stop is not None and run.stop.cause in (Cause.DRAINED, Cause.STOPPED)
    if end.cause is Cause.FINISHED and not asked_to_leave:
        return Cause.NOT_ACKNOWLEDGED, "it exited with 0 and never said what it had restored"
    return None


def refusal(run: RunState) -> Record:
    """The record after which nothing of this run is resumed from."""
    return Record("run_refused", f"nothing that run {run.number} saved is resumed from", {"run_id": run.run_id})


def acknowledged(state: State, run: RunState, seen: Seen) -> tuple[State, Plan] | None:
    """What is written down when a run has said what it restored, and it was the right thing."""
    if run.level != 2 or run.acknowledged or not isinstance(seen.acknowledgement, Known):
        return None
    ack = seen.acknowledgement.value
    words = "started fresh, as it should" if ack.fresh else f"restored step {ack.step} {(ack.digest or '')[:12]}…"
    record = Record(
        "run_acknowledged",
        f"run {run.number} {words}",
        {"run_id": run.run_id, "step": ack.step, "digest": ack.digest, "fresh": ack.fresh},
    )
    state = dataclasses.replace(state, run=dataclasses.replace(run, acknowledged=True))
    return state, Plan(rule="acknowledged", records=(record,))
