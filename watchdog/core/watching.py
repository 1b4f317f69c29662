"""Judging a living run: what it restored, whether it still beats. Pure.

Unknown is never a reason to stop it; a beat that cannot be believed is no beat that is missing.
"""

from __future__ import annotations

import dataclasses

from watchdog.core.acknowledging import acknowledged, wrong_restore
from watchdog.core.causes import Cause
from watchdog.core.deadlines import doubt
from watchdog.core.ending import LEFT, asked_words, over, shim_goes_on, to_stop
from watchdog.core.facts import Known
from watchdog.core.lateness import LOOK_AGAIN_S, beat_deadline, is_second_look, lateness, until_late_s
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen, EndSeen, Request, Seen, Shim
from watchdog.core.state import Plan, Policy, Record, State
from watchdog.core.symptoms import faking, in_background, names_of
from watchdog.core.transitions import wishing

__all__ = ["LOOK_AGAIN_S", "beat_deadline", "running", "until_late_s"]


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
        return shim_goes_on(state, seen) or _leaderless(state, seen, policy)
    state = dataclasses.replace(state, run=dataclasses.replace(run, leader_gone_s=None))
    state, plan = _stall(state, seen, policy, beat)
    if state.phase is Phase.RUNNING:
        state, plan = _faking(state, seen, policy, beat, plan)
    if first_beat:
        # Remembered for a supervisor after us: from now on a beat file that is gone makes it blind, not the run late.
        record = Record("run_beats", f"run {run.number} beats", {"run_id": run.run_id})
        plan = dataclasses.replace(plan, records=(record, *plan.records))
    return state, plan


_TOLD_AFTER_S = 1.0  # an ordinary end takes less: what a trainer leaves for a moment is no news


def _leaderless(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    """The leader is gone, and something of the run lives on."""
    run = state.run
    assert run is not None
    since = run.leader_gone_s if run.leader_gone_s is not None else seen.now_s
    gone_s = seen.now_s - since
    state = dataclasses.replace(state, run=dataclasses.replace(run, leader_gone_s=since))
    if in_background(run, seen):
        # A launcher that put its work into the background: the run ends with the last of it that works.
        idle = seen.left is not None and seen.left.works is False and bool(seen.members) and not seen.traced
        allowed_s = max(policy.idle_left_s, policy.remnant_s)
        if idle and gone_s >= allowed_s:
            assert seen.end is not None
            words = f"{seen.end.words}{LEFT}did nothing for {allowed_s:g} s and is ended: {names_of(seen.members)}"
            return to_stop(state, seen, policy, Cause.FINISHED, words, rest=True)
        return state, Plan(rule="works on in the background" if gone_s >= _TOLD_AFTER_S else "remnants")
    if gone_s >= policy.remnant_s:
        end = seen.end or EndSeen(cause=Cause.UNKNOWN, words="how it ended is not known")
        return to_stop(state, seen, policy, end.cause, f"{end.words}{LEFT}behind is ended", rest=True)
    return state, Plan(rule="remnants")


def _stall(state: State, seen: Seen, policy: Policy, beat: BeatSeen | None) -> tuple[State, Plan]:
    """Two stale looks, a moment apart, then a stop that looks once more before it acts."""
    run = state.run
    assert run is not None
    late = lateness(run, seen, policy)
    if late is None:
        return dataclasses.replace(state, run=dataclasses.replace(run, stale_looks=0)), Plan()
    if run.stale_looks == 0:
        run = dataclasses.replace(run, stale_looks=1, stale_look_s=seen.now_s)
        return dataclasses.replace(state, run=run), Plan(rule="stale once")
    if not late.proven:
        return state, Plan(rule="stale once")
    if seen.traced:
        words = f"silent, but pid {seen.traced[0]} is under a debugger: it is left alone"
        return state, Plan(rule="traced: " + words)
    state, plan = to_stop(state, seen, policy, Cause.STALLED, late.words, beat=beat, look_again=True)
    if late.learned and beat is not None:
        plan = dataclasses.replace(plan, records=(*plan.records, doubt(run, beat, late.ceiling_s)))
    return state, plan


def _faking(state: State, seen: Seen, policy: Policy, beat: BeatSeen | None, plan: Plan) -> tuple[State, Plan]:
    """It beats, or may, and the checks prove that it does not train: the same, by two judgments and by the stop's own.

    `plan`: what is to be done where it is no fake.
    """
    run = state.run
    assert run is not None
    finding = faking(run, seen)
    if finding is None:
        return dataclasses.replace(state, run=dataclasses.replace(run, faking_look_s=None)), plan
    if run.faking_look_s is None:
        return dataclasses.replace(state, run=dataclasses.replace(run, faking_look_s=seen.judged_s)), plan
    if seen.traced or not is_second_look(run.faking_look_s, seen.judged_s, policy):
        return state, plan
    words = f"{finding.check}: {finding.reason}"
    return to_stop(state, seen, policy, Cause.STALLED, words, beat=beat, fakes=finding.check)
