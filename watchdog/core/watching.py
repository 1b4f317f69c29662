"""Judging a living run: what it restored, whether it still beats. Pure.

Unknown is never a reason to stop it; a beat that cannot be believed is no beat that is missing.
"""

from __future__ import annotations

import dataclasses
import math

from watchdog.core.acknowledging import acknowledged, wrong_restore
from watchdog.core.causes import Cause
from watchdog.core.deadlines import SETTLED_STEPS, doubt, is_past
from watchdog.core.ending import asked_words, over, to_stop
from watchdog.core.facts import Absent, Known
from watchdog.core.seen import BeatSeen, EndSeen, Request, Seen, Shim
from watchdog.core.state import Plan, Policy, Record, RunState, State
from watchdog.core.transitions import wishing


def running(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    run = state.run
    assert run is not None
    beat = seen.beat.value if isinstance(seen.beat, Known) else None
    first_beat = beat is not None and beat.promised and not run.beat_seen
    if beat is not None:
        step = run.last_step if beat.beat.step is None else beat.beat.step
        first = beat.beat.step if run.first_step is None and beat.beat.phase == "train" else run.first_step
        run = dataclasses.replace(run, beat_seen=run.beat_seen or beat.promised, last_step=step, first_step=first)
        state = dataclasses.replace(state, run=run)
    if seen.request in (Request.DRAIN, Request.STOP):
        state = wishing(state)
    if seen.shim in (Shim.ENDED, Shim.NEVER):
        return (state, Plan(rule="hearing its end")) if seen.end_awaited else over(state, seen, beat)
    if seen.shim is Shim.LOST:
        words = "the shim was killed; what it watched over is ended and proven gone before anything else"
        return to_stop(state, seen, policy, Cause.SHIM_KILLED, words, kill_now=True)
    wrong = wrong_restore(run, seen, beat)
    if wrong is not None:
        cause, words = wrong
        return to_stop(state, seen, policy, cause, words, kill_now=True)
    if seen.request is Request.DRAIN:
        return to_stop(state, seen, policy, Cause.DRAINED, asked_words("stop", run), beat=beat)
    if seen.request is Request.STOP:
        return to_stop(state, seen, policy, Cause.STOPPED, "asked to stop without saving", kill_now=True)
    if seen.request is Request.RELAUNCH:
        return to_stop(state, seen, policy, Cause.STOPPED, asked_words("relaunch", run), beat=beat)
    said = acknowledged(state, run, seen)
    if said is not None:
        return said
    if not seen.leader_alive and seen.shim is Shim.ALIVE and not (beat is not None and beat.alive):
        if run.level == 0 and not run.beat_seen and seen.end is not None and seen.end.cause is Cause.FINISHED:
            # A launcher that put its work into the background: the run ends with the last of it.
            return state, Plan(rule="works on in the background")
        since = run.leader_gone_s if run.leader_gone_s is not None else seen.now_s
        if seen.now_s - since >= policy.remnant_s:
            end = seen.end or EndSeen(cause=Cause.UNKNOWN, words="how it ended is not known")
            words = f"{end.words}; what it left behind is ended"
            return to_stop(state, seen, policy, end.cause, words, rest=True)
        return dataclasses.replace(state, run=dataclasses.replace(run, leader_gone_s=since)), Plan(rule="remnants")
    state = dataclasses.replace(state, run=dataclasses.replace(run, leader_gone_s=None))
    state, plan = _stall(state, seen, policy, beat)
    if first_beat:
        # Remembered for a supervisor after us: from now on a beat file that is gone makes it blind, not the run late.
        record = Record("run_beats", f"run {run.number} beats", {"run_id": run.run_id})
        plan = dataclasses.replace(plan, records=(record, *plan.records))
    return state, plan


def beat_deadline(run: RunState, beat: BeatSeen | None, policy: Policy) -> tuple[float, float]:
    """(the moment since which nothing was heard, what that may last) on the monotonic clock.

    What was learned counts, and what the run asked for; infinite where it promised no more beats.
    """
    if beat is None:
        return max(run.launched_s, run.grace_from_s), policy.deadlines_s["start"]
    since = max(beat.beat.monotonic_s, run.grace_from_s)
    if not beat.promised:
        return since, math.inf
    return since, max(_allowed_s(run, beat, policy), beat.extended_until_s - since)


def _allowed_s(run: RunState, beat: BeatSeen, policy: Policy) -> float:
    phase = beat.beat.phase
    ceiling_s = policy.deadlines_s[phase]
    if phase == "train" and not is_past(run, beat.beat.step, SETTLED_STEPS):
        return ceiling_s
    return min(ceiling_s, policy.learned_s.get(phase, ceiling_s))


def until_late_s(due_s: float, *, looked_s: float, now_s: float) -> float | None:
    """How long until a silence of the run counts; 0 when that came while it was looked at, None when it was late then.

    A look takes milliseconds, on a busy host a second: what falls due meanwhile is not to wait for a whole period.
    """
    return max(0.0, due_s - now_s) if due_s >= looked_s else None


# A period may be 10 s, and a stall is to be called within a second of its deadline.
LOOK_AGAIN_S = 0.5


def _stall(state: State, seen: Seen, policy: Policy, beat: BeatSeen | None) -> tuple[State, Plan]:
    """Two stale looks, a moment apart, then a stop that looks once more before it acts."""
    run = state.run
    assert run is not None
    # A beat file that is gone again (a cleaned folder, `: > beat.json`) makes us blind, it does not make the run late.
    nothing_due = beat is None and (run.level == 0 or run.beat_seen or not isinstance(seen.beat, Absent))
    since, deadline = beat_deadline(run, beat, policy)
    silent_s = seen.now_s - since
    if nothing_due or not silent_s > deadline:  # not a number is not late either
        return dataclasses.replace(state, run=dataclasses.replace(run, stale_looks=0)), Plan()
    if run.stale_looks == 0:
        run = dataclasses.replace(run, stale_looks=1, stale_look_s=seen.now_s)
        return dataclasses.replace(state, run=run), Plan(rule="stale once")
    if seen.now_s - run.stale_look_s < min(policy.period_s, LOOK_AGAIN_S):
        return state, Plan(rule="stale once")
    phase = f"phase {beat.beat.phase}" if beat is not None else "no beat at all"
    if seen.traced:
        words = f"silent, but pid {seen.traced[0]} is under a debugger: it is left alone"
        return state, Plan(rule="traced: " + words)
    step = f" at step {beat.beat.step}" if beat is not None and beat.beat.step is not None else ""
    ceiling_s = math.inf if beat is None else policy.deadlines_s[beat.beat.phase]
    learned = deadline < ceiling_s < math.inf
    words = f"no beat for {silent_s:.0f} s, allowed are {deadline:g} s ({'learned, ' if learned else ''}{phase}{step})"
    state, plan = to_stop(state, seen, policy, Cause.STALLED, words, beat=beat, look_again=True)
    if learned and beat is not None:
        plan = dataclasses.replace(plan, records=(*plan.records, doubt(run, beat, ceiling_s)))
    return state, plan
