"""Ending a run: beginning a stop, waiting, KILL, giving up; and writing down that it is proven over. Pure.

Whatever happened to a run, it leaves this file only as `Ended` (proven over) or as a hold that still names it.
"""

from __future__ import annotations

import dataclasses

from watchdog.core.acknowledging import REFUSED, refusal, wrong_at_its_end, wrong_restore
from watchdog.core.causes import Cause
from watchdog.core.facts import Known
from watchdog.core.identity import ProcessId
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen, EndSeen, Request, Seen, Shim
from watchdog.core.state import (
    Choose,
    ContinueShim,
    Ended,
    KeepStacks,
    Kill,
    Plan,
    Policy,
    Record,
    RunState,
    State,
    Stop,
    Terminate,
    TerminateRest,
)
from watchdog.core.symptoms import faking, stopped_words
from watchdog.core.transitions import HOLD_AT_ONCE, to, to_hold, wishing

# How long a TERM may wait for the stacks of the run. Whoever cannot answer is not waited for: most take a tenth of it.
STACKS_S = 1.5
# Late and alive so often within so long: then so much time is added before it is judged again. What is kept bounds the
# state; 3 at once and 12 an hour bound the records.
FLAPS, FLAPS_WITHIN_S, FLAP_QUIET_S, FLAPS_KEPT = 3, 3600.0, 300.0, 20


LEFT = "; what it left "  # behind it stands what is done about it: the words of the end may be others by then


def to_stop(
    state: State,
    seen: Seen,
    policy: Policy,
    cause: Cause,
    reason: str,
    *,
    beat: BeatSeen | None = None,
    kill_now: bool = False,
    look_again: bool = False,
    rest: bool = False,
    fakes: str = "",
) -> tuple[State, Plan]:
    run = state.run
    assert run is not None
    kill_from = seen.now_s if kill_now else seen.now_s + policy.grace_for(cause)
    if rest and run.beat_seen:
        kill_from = seen.now_s + policy.remnant_s  # the one that could save is gone
    stop = Stop(
        cause=cause,
        reason=reason,
        since_s=seen.now_s,
        kill_from_s=kill_from,
        give_up_s=kill_from + policy.kill_wait_s,
        hold_after=cause in HOLD_AT_ONCE,
        killing=kill_now,
        rest_asked=rest,
        asked_of=_beating(beat),
        faking=fakes,
        judged_s=seen.judged_s,
        told=_told(beat),
    )
    # First: a batch that is cut by a power failure must not lose this one.
    records = [refusal(run)] if cause in REFUSED else []
    records.append(
        Record(
            "run_stopping",
            f"run {run.number}: {reason}",
            {
                "run_id": run.run_id,
                "cause": cause.value,
                "reason": reason,
                "kill_now": kill_now,
                "hold_after": stop.hold_after,
                "beat_s": None if beat is None else beat.beat.monotonic_s,
                "died_wall_s": None if seen.end is None else seen.end.died_wall_s,
                "members": [[process.id.pid, process.command, process.state] for process in seen.members[:50]],
            },
        )
    )
    target = _beating(beat)
    seq = beat.beat.seq if beat is not None and look_again else None
    ask = Terminate(target, only_if_seq=seq, look_again=look_again)
    action: Kill | KeepStacks | Terminate | TerminateRest = ask
    if look_again or fakes:  # a stall: where it stands is kept first
        stop = dataclasses.replace(stop, held=ask, held_until_s=seen.now_s + STACKS_S)
        action = KeepStacks(target)
    if kill_now or rest:
        action = Kill() if kill_now else TerminateRest()
    run = dataclasses.replace(run, stop=stop)
    if state.phase is not Phase.STOPPING:
        state = to(state, Phase.STOPPING, seen)
    state = dataclasses.replace(state, run=run)
    return state, Plan(rule=f"stop: {cause.value}", records=tuple(records), actions=(action,))


def _beating(beat: BeatSeen | None) -> ProcessId | None:
    """The process that beats, and would save; None means the leader."""
    return ProcessId(beat.beat.pid, beat.beat.start_ticks) if beat is not None and beat.alive else None


def _told(beat: BeatSeen | None) -> tuple[str, int | None, int | None] | None:
    return None if beat is None else (beat.beat.phase, beat.beat.step, beat.beat.tokens)


def resumed(state: State, now_s: float, *, flap: bool = True) -> State:
    """The state when the last look before a stop found a new beat: nothing was done, the run goes on.

    One that is late and goes on again and again (`flap`) is given more time from the third one within an hour on: each
    costs records and the stacks of the run, and it has shown three times that it lives.
    """
    run = state.run
    assert state.phase is Phase.STOPPING
    assert run is not None
    flaps = tuple(each for each in run.flaps if now_s - each < FLAPS_WITHIN_S)
    flaps = (*flaps, now_s)[-FLAPS_KEPT:] if flap else flaps
    by = "" if run.stop is None else run.stop.faking
    run = dataclasses.replace(run, stop=None, stale_looks=0, faking_look_s=None, grace_from_s=now_s, flaps=flaps)
    run = dataclasses.replace(run, flapped_by=by)
    if flap and len(flaps) >= FLAPS:
        run = dataclasses.replace(run, grace_from_s=now_s + FLAP_QUIET_S)
    return dataclasses.replace(state, phase=Phase.RUNNING, since_s=now_s, run=run)


def flapping(state: State) -> Record | None:
    """What a person should hear when a run begins to flap; None before, and after that was told."""
    run = state.run
    if run is None or len(run.flaps) != FLAPS:
        return None
    was, mend = "was late", "its deadline is too short for it: raise it in [deadlines]"
    if run.flapped_by:
        was = f"was nearly ended by {run.flapped_by}"
        mend = f'look what it does then (stacks are kept), or: [checks] off = ["{run.flapped_by}"]'
    words = (
        f"run {run.number} {was} and went on at the last look {FLAPS} times within an hour: from now on it is given "
        f"{FLAP_QUIET_S / 60:g} min more each time; {mend}"
    )
    return Record("run_flaps", words, {"run_id": run.run_id, "flaps": FLAPS})


def postpone(run: RunState, seen: Seen, policy: Policy) -> RunState:
    """After a gap of ours a stop under way gets its waits anew, too: the run was frozen as we were."""
    if run.stop is None:
        return run
    killing, grace_s = seen.now_s >= run.stop.kill_from_s, policy.grace_for(run.stop.cause)
    kill_from = run.stop.kill_from_s if killing else max(run.stop.kill_from_s, seen.now_s + grace_s)
    give_up = max(kill_from, seen.now_s) + policy.kill_wait_s
    return dataclasses.replace(run, stop=dataclasses.replace(run.stop, kill_from_s=kill_from, give_up_s=give_up))


def asked_words(what: str, run: RunState) -> str:
    """Why a run ends that a person asked to end."""
    return f"asked to {what}: it saves and exits" if run.level == 2 else f"asked to {what}"


def stopping(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    run = state.run
    assert run is not None
    assert run.stop is not None
    stop = run.stop
    beat = seen.beat.value if isinstance(seen.beat, Known) else None
    if beat is not None:
        run = dataclasses.replace(
            run, beat_seen=True, last_step=run.last_step if beat.beat.step is None else beat.beat.step
        )
        state = dataclasses.replace(state, run=run)
    if seen.request in (Request.DRAIN, Request.STOP):
        state = wishing(state)
    if seen.shim in (Shim.ENDED, Shim.NEVER) or lost_and_gone(run, seen):
        return (state, Plan(rule="hearing its end")) if seen.end_awaited else over(state, seen, beat)
    wrong = wrong_restore(run, seen, beat)
    if wrong is not None and stop.cause not in REFUSED:
        return to_stop(state, seen, policy, *wrong, kill_now=True)
    if seen.request is Request.STOP and (stop.held is not None or seen.now_s < stop.kill_from_s):
        stop = dataclasses.replace(stop, kill_from_s=seen.now_s, give_up_s=seen.now_s + policy.kill_wait_s)
        words = "asked to stop without saving"
        stop = dataclasses.replace(stop, cause=Cause.STOPPED, reason=words, killing=True, held=None)
        run = dataclasses.replace(run, stop=stop)
        record = Record(
            "run_stopping",
            f"run {run.number}: asked to stop at once",
            {
                "run_id": run.run_id,
                "cause": Cause.STOPPED.value,
                "reason": "asked to stop without saving",
                "kill_now": True,
                "hold_after": stop.hold_after,
            },
        )
        return dataclasses.replace(state, run=run), Plan(rule="stop at once", records=(record,), actions=(Kill(),))
    if stop.held is not None:
        # Its last look may find a new beat and let the run go on: what a person asked for must not depend on that.
        if seen.request is Request.DRAIN:
            return to_stop(state, seen, policy, Cause.DRAINED, asked_words("stop", run), beat=beat)
        if seen.request is Request.RELAUNCH:
            return to_stop(state, seen, policy, Cause.STOPPED, asked_words("relaunch", run), beat=beat)
        if seen.gap:
            # Facts afresh, and every grace anew: it may have been frozen as we were, and nothing was done to it yet.
            words = "we were away before it was asked to end: nothing was done, and its silence is judged anew"
            return resumed(state, seen.now_s, flap=False), Plan(
                rule="goes on after a gap", records=(Record("run_goes_on", words),)
            )
        if seen.traced and stop.cause is Cause.STALLED:
            words = f"pid {seen.traced[0]} is under a debugger: it is left alone, nothing was done"
            return resumed(state, seen.now_s, flap=False), Plan(
                rule="goes on: traced", records=(Record("run_goes_on", words),)
            )
        unjudged = bool(stop.faking) and seen.judged_s <= stop.judged_s
        if (unjudged or not seen.stacks_over) and seen.now_s < stop.held_until_s:
            return state, Plan(rule="keeping its stacks")
        moved = _told(beat) != stop.told  # a judgment may be older than the newest beat, and no beat is no word
        if stop.faking and (unjudged or moved or faking(run, seen, (stop.faking,)) is None):
            words = f"at the last look before the stop {stop.faking} did not stand any more: nothing was done"
            return resumed(state, seen.now_s), Plan(rule="goes on", records=(Record("run_goes_on", words),))
        kill_from = seen.now_s + policy.grace_for(stop.cause)  # the grace begins with the TERM
        sent = dataclasses.replace(stop, held=None, kill_from_s=kill_from, give_up_s=kill_from + policy.kill_wait_s)
        run = dataclasses.replace(run, stop=sent)
        return dataclasses.replace(state, run=run), Plan(rule="stacks are kept", actions=(stop.held,))
    if not seen.leader_alive and (continued := shim_goes_on(state, seen)) is not None:
        return continued
    beater = _beating(beat)
    if (
        seen.shim is Shim.ALIVE
        and seen.now_s < stop.kill_from_s
        and (not stop.asked or beater not in (None, stop.asked_of))
    ):
        # Begun by a supervisor that died (whether its TERM was sent is not known, and a second one is harmless), or the
        # one that can save began to beat only after the leader was asked: a wrapper may have died of that TERM.
        run = dataclasses.replace(run, stop=dataclasses.replace(stop, asked=True, asked_of=beater))
        return dataclasses.replace(state, run=run), Plan(rule="ask again", actions=(Terminate(beater),))
    if beat is not None and not stop.killing:
        stop = dataclasses.replace(stop, saving_until_s=_saving_until_s(stop, beat, policy))
        run = dataclasses.replace(run, stop=stop)
        state = dataclasses.replace(state, run=run)
    if seen.now_s < (stop.kill_from_s if stop.killing else max(stop.kill_from_s, stop.saving_until_s)):
        if seen.leader_alive or beater is not None or seen.shim is not Shim.ALIVE:
            return state, Plan(rule="grace")
        if not stop.rest_asked:
            if run.beat_seen:
                # Whoever could save is gone: what is left is not worth the rest of the grace.
                kill_from = min(stop.kill_from_s, seen.now_s + policy.remnant_s)
                stop = dataclasses.replace(stop, kill_from_s=kill_from, saving_until_s=0.0)
            run = dataclasses.replace(run, stop=dataclasses.replace(stop, rest_asked=True))
            return dataclasses.replace(state, run=run), Plan(rule="ask the rest", actions=(TerminateRest(),))
        return state, Plan(rule="grace")
    if not stop.killing:
        # The wait for the end begins with the first KILL, however late that comes.
        stop = dataclasses.replace(stop, killing=True, give_up_s=seen.now_s + policy.kill_wait_s)
        return dataclasses.replace(state, run=dataclasses.replace(run, stop=stop)), Plan(rule="kill", actions=(Kill(),))
    if seen.now_s < stop.give_up_s:
        return state, Plan(rule="kill", actions=(Kill(),))
    words = f"{_why_it_lives(run, seen)}; this hold ends with it"
    return to_hold(state, seen, policy, words, until_gone=run.run_id)


def shim_goes_on(state: State, seen: Seen) -> tuple[State, Plan] | None:
    """Somebody stopped the shim, so no end of the run is heard: it is ours, and is sent CONT, once.

    None where it runs, was sent that before, or is under a debugger (state t): that is a person's to undo.
    """
    run, shim = state.run, seen.shim_stopped
    if run is None or shim is None or shim.state != "T" or run.shim_continued:
        return None
    words = f"run {run.number}: its shim, pid {shim.id.pid}, is stopped (state T) and hears no end: CONT is next"
    record = Record("shim_continuing", words, {"run_id": run.run_id, "pid": shim.id.pid})
    state = dataclasses.replace(state, run=dataclasses.replace(run, shim_continued=True))
    return state, Plan(rule="its shim is stopped", records=(record,), actions=(ContinueShim(),))


def _saving_until_s(stop: Stop, beat: BeatSeen, policy: Policy) -> float:
    """A run that says it is saving gets that phase's time, counted from its word; the drain's deadline is the limit.

    One that has saved and goes on with something else has lost it: whoever ignores the request saves every now and
    then as well.
    """
    if not beat.alive:
        return stop.saving_until_s  # what is left of it is judged by itself
    if beat.beat.phase not in ("save", "drain"):
        return 0.0
    word = beat.beat.monotonic_s + policy.deadlines_s[beat.beat.phase]
    return min(word, stop.since_s + max(policy.deadlines_s["drain"], policy.grace_s))


def lost_and_gone(run: RunState, seen: Seen) -> bool:
    """The shim was killed, and every cross-check, or a person, says that nothing of its run is left."""
    clear = run.cleared or not seen.unclear
    return seen.shim is Shim.LOST and not seen.members and clear and seen.run_lock_free is True


def lifted_by_its_end(state: State, seen: Seen) -> Record:
    """A hold that was for a run that would not end has lost its reason; what was counted before stays counted."""
    lost = seen.shim is Shim.LOST
    held_s = max(0.0, seen.now_s - state.since_s)
    data = {"by": "end", "run_id": state.until_gone, "reason": state.hold, "held_s": held_s}
    data["proof"] = "its end is recorded" if state.run is None else _proof(lost)
    words = f"run {state.until_gone} is gone ({data['proof']}), and the hold was for nothing else: it lifts itself"
    return Record("lifted", words, data)


def _proof(lost: bool) -> str:
    return "nothing carries its marks, its lock is free" if lost else "shim ended"


def _why_it_lives(run: RunState, seen: Seen) -> str:
    """What a person needs to know about a run that does not end."""
    start = f"run {run.number} does not end ({run.stop.reason if run.stop else 'stopped'})"
    if seen.traced:
        return f"{start}: pid {seen.traced[0]} is under a debugger and is left alone; detach it"
    stuck = [process for process in seen.members if process.state == "D"]
    if stuck:
        names = ", ".join(f"{process.id.pid} ({process.command})" for process in stuck[:5])
        return f"{start}: pid {names} waits in the kernel and cannot be killed; reboot, or wsl --shutdown"
    if seen.members:
        names = ", ".join(f"{process.id.pid} ({process.command}, {process.state})" for process in seen.members[:5])
        return f"{start}: still there: {names}"
    if seen.unclear:
        names = ", ".join(f"{process.id.pid} ({process.command})" for process in seen.unclear[:5])
        return f"{start}: its shim was killed, and {names} may belong to it; end it if it does, then: watchdog relaunch"
    if seen.run_lock_free is False:
        return (
            f"{start}: its shim was killed, and the run lock is held ({seen.lock_holders}); end that process if it is "
            "of this run, or wait for it, then: watchdog relaunch"
        )
    return f"{start}: {stopped_words(seen) or 'its shim has not ended'}"


def well_below(step: int, target_step: int) -> bool:
    """Whether a run that ended with 0 at this step left early, where no checkpoint proves it.

    A loop may count from 0 and beats may come only every so many steps: a finished job that is called unfinished would
    be trained anew from its beginning, so a tenth of the way has to be missing.
    """
    return step < target_step - max(1, target_step // 10)


def early_words(run: RunState, beat: BeatSeen | None) -> str | None:
    """`at step 4 of 100, the target it stated`: of a run whose own last beat says that it left before its target.

    Level 2 is weighed with its checkpoints.
    """
    if run.level == 2 or beat is None or beat.beat.step is None or beat.beat.target_step is None:
        return None
    if not well_below(beat.beat.step, beat.beat.target_step):
        return None
    return f"at step {beat.beat.step} of {beat.beat.target_step}, the target it stated"


def over(state: State, seen: Seen, beat: BeatSeen | None) -> tuple[State, Plan]:
    """The run is proven over: write down how, then weigh it."""
    run = state.run
    assert run is not None
    end = seen.end or EndSeen(cause=Cause.UNKNOWN, words="how it ended is not known")
    cause, words, hold_after = end.cause, end.words, end.permanent
    if run.stop is not None:
        clean = end.cause is Cause.FINISHED
        # A run that was asked to save and failed at it has failed; one that we killed ended for our reason.
        if run.stop.cause is not Cause.DRAINED or clean or end.cause is Cause.SIGNALLED:
            cause = run.stop.cause
        if run.stop.cause is Cause.DRAINED and end.cause is Cause.SIGNALLED:
            cause = Cause.STOPPED  # it did not save: the grace was over
        words = f"{run.stop.reason}; {end.words.replace(', which was not ours', '')}"
        _, left, done = run.stop.reason.partition(LEFT)
        if left:  # the end of its leader was the reason, and its words may be better ones by now
            words = f"{end.words}{left}{done}"
        hold_after = hold_after or run.stop.hold_after
    if seen.shim is Shim.NEVER:
        cause, words = Cause.SHIM_FAILED, "was not started: the shim could not write its records"
    wrong = wrong_at_its_end(run, seen, beat, end)
    if wrong is not None:
        cause, words = wrong
        hold_after = hold_after or cause in HOLD_AT_ONCE
    early = early_words(run, beat) if cause is Cause.FINISHED else None
    if early is not None:
        cause, words = Cause.EXIT_TOO_EARLY, words.replace("exit 0", f"exit 0 {early}", 1)
    told = run.stop is not None and run.stop.cause in REFUSED  # then it was refused when the stop began
    unproven = run.level == 2 and not run.acknowledged and not isinstance(seen.acknowledgement, Known)
    step = run.last_step
    ended = Ended(
        number=run.number,
        run_id=run.run_id,
        cause=cause,
        words=words,
        baseline_step=run.baseline_step,
        last_step=step,
        target_step=beat.beat.target_step if beat is not None else None,
        permanent=end.permanent,
        hold_after=hold_after,
        error=end.error,
        confidence=end.confidence if cause is end.cause else "certain",
        fault=end.fault,
    )
    at = f" at step {step}" if step is not None and early is None else ""
    proof = _proof(seen.shim is Shim.LOST)
    record = Record(
        "run_ended",
        f"run {run.number} {words}{at}; {proof}: nothing of it lives",
        {**end.left, **dataclasses.asdict(ended), "cause": cause.value, "died_wall_s": end.died_wall_s},
    )
    state = dataclasses.replace(to(state, Phase.WEIGHING, seen), run=None, ended=ended)
    records = (refusal(run), record) if (unproven or wrong is not None) and not told else (record,)
    return state, Plan(rule=f"ended: {cause.value}", records=records, actions=(Choose(),))
