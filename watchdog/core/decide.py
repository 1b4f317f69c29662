"""The decision: `decide(state, seen, policy) -> (state, plan)`. Pure; the same input gives the same plan.

Invariants that live here:
- a launch is planned only from GATING, with no run in the state, every gate open, and a verified checkpoint or a
  first start;
- whatever happens to a run, the next launch is planned only after its end was proven (shim ended, or nothing of it
  left by every cross-check);
- unknown is never a reason to stop a run; a gap in our own schedule restarts every grace;
- a plan's records are written before its actions; what could not be recorded is not done, and the state stays.

Allowed transitions: TRANSITIONS. Each handler below is one phase.
"""

from __future__ import annotations

import dataclasses

from watchdog.contract import STEPPING_PHASES
from watchdog.core.budgets import backoff_s, failures_after
from watchdog.core.causes import Cause
from watchdog.core.facts import Absent, Known
from watchdog.core.identity import ProcessId
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen, EndSeen, Request, Seen, Shim
from watchdog.core.state import (
    Choose,
    Ended,
    Kill,
    Launch,
    Leave,
    Plan,
    Policy,
    Quarantine,
    Record,
    RunState,
    State,
    Stop,
    Terminate,
    Wish,
)

EXIT_OK, EXIT_HOLD, EXIT_STOPPED = 0, 3, 5  # as in errors.py, which the core must not know

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.GATING: frozenset({Phase.RUNNING, Phase.HOLD, Phase.LEFT, Phase.FINISHED}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.WEIGHING}),
    Phase.STOPPING: frozenset({Phase.WEIGHING, Phase.HOLD, Phase.RUNNING}),
    Phase.WEIGHING: frozenset({Phase.GATING, Phase.BACKOFF, Phase.HOLD, Phase.FINISHED, Phase.LEFT}),
    Phase.BACKOFF: frozenset({Phase.GATING, Phase.LEFT}),
    Phase.HOLD: frozenset({Phase.GATING, Phase.WEIGHING, Phase.LEFT}),
    Phase.FINISHED: frozenset({Phase.LEFT}),
    Phase.LEFT: frozenset(),
}
# Ends after which another try would only do the same damage again.
_HOLD_AT_ONCE = frozenset({Cause.FRESH_START, Cause.NOT_ACKNOWLEDGED, Cause.TARGET_UNKNOWN, Cause.NOT_EXECUTED})


def decide(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    """One turn."""
    if seen.gap and state.run is not None:
        run = dataclasses.replace(state.run, grace_from_s=seen.now_s, stale_looks=0)
        state = dataclasses.replace(state, run=_postpone(run, seen, policy))
    match state.phase:
        case Phase.GATING:
            return _gating(state, seen, policy)
        case Phase.RUNNING:
            return _running(state, seen, policy)
        case Phase.STOPPING:
            return _stopping(state, seen, policy)
        case Phase.WEIGHING:
            return _weighing(state, seen, policy)
        case Phase.BACKOFF:
            return _backoff(state, seen)
        case Phase.HOLD:
            return _hold(state, seen, policy)
        case Phase.FINISHED:
            return _to(state, Phase.LEFT, seen), Plan(rule="finished", actions=(Leave(EXIT_OK),))
        case Phase.LEFT:
            return state, Plan()


def _to(state: State, phase: Phase, seen: Seen) -> State:
    assert phase in TRANSITIONS[state.phase], (state.phase, phase)
    return dataclasses.replace(state, phase=phase, since_s=seen.now_s)


def _postpone(run: RunState, seen: Seen, policy: Policy) -> RunState:
    """After a gap of ours a stop under way gets its waits anew, too: the run was frozen as we were."""
    if run.stop is None:
        return run
    killing = seen.now_s >= run.stop.kill_from_s
    kill_from = run.stop.kill_from_s if killing else seen.now_s + policy.grace_s
    give_up = max(kill_from, seen.now_s) + policy.kill_wait_s
    return dataclasses.replace(run, stop=dataclasses.replace(run.stop, kill_from_s=kill_from, give_up_s=give_up))


# --- GATING -------------------------------------------------------------------------------------------------
def _gating(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    if seen.request in (Request.DRAIN, Request.STOP):
        return _leave(state, seen, "nothing was running")
    if seen.trouble is not None:
        return _to_hold(state, seen, policy, f"run could not be started: {seen.trouble.words}")
    actions: tuple[Quarantine, ...] = ()
    checkpoint = None
    if policy.level == 2:
        if seen.choice is None:
            if seen.choice_error is not None:
                return _to_hold(state, seen, policy, f"the checkpoints cannot be read: {seen.choice_error}")
            return state, Plan(rule="choosing")
        checkpoint = seen.choice.chosen
        if seen.choice.refused:
            actions = (Quarantine(seen.choice.refused),)
        if checkpoint is None and not seen.choice.first_start:
            state, plan = _to_hold(state, seen, policy, seen.choice.why)
            return state, dataclasses.replace(plan, actions=(*actions, *plan.actions))
        target = policy.target_step or (checkpoint.target_step if checkpoint else None)
        if policy.target_step is not None and checkpoint is not None and checkpoint.step >= policy.target_step:
            record = Record("finished", f"step {checkpoint.step} of {target} is verified", {"step": checkpoint.step})
            return _to(state, Phase.FINISHED, seen), Plan(rule="target reached", records=(record,))
    closed = [gate for gate in seen.gates if not gate.open]
    if closed or not seen.gates:
        words = "; ".join(gate.words for gate in closed) or "the gates have not been looked at"
        if seen.now_s - state.since_s >= policy.gate_wait_s:
            return _to_hold(state, seen, policy, f"a gate stayed closed for {policy.gate_wait_s:g} s: {words}")
        return state, Plan(rule="gate closed")
    return state, Plan(rule="launch", actions=(*actions, Launch(checkpoint)))


def launched(state: State, run: RunState, now_s: float) -> State:
    """The state after the executor has launched what `_gating` planned."""
    assert state.phase is Phase.GATING
    assert state.run is None
    return dataclasses.replace(state, phase=Phase.RUNNING, since_s=now_s, run=run)


# --- RUNNING ------------------------------------------------------------------------------------------------
def _running(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    run = state.run
    assert run is not None
    beat = seen.beat.value if isinstance(seen.beat, Known) else None
    if beat is not None and beat.beat.step is not None:
        run = dataclasses.replace(run, last_step=beat.beat.step)
        state = dataclasses.replace(state, run=run)
    if seen.shim in (Shim.ENDED, Shim.NEVER):
        return _over(state, seen, beat)
    if seen.shim is Shim.LOST:
        words = "the shim was killed; what it watched over is ended and proven gone before anything else"
        return _to_stop(state, seen, policy, Cause.SHIM_KILLED, words, kill_now=True)
    wrong = _wrong_restore(run, seen, beat)
    if wrong is not None:
        cause, words = wrong
        return _to_stop(state, seen, policy, cause, words, kill_now=True)
    if seen.request is Request.DRAIN:
        return _to_stop(_wishing(state), seen, policy, Cause.DRAINED, "asked to stop: it saves and exits", beat=beat)
    if seen.request is Request.STOP:
        return _to_stop(_wishing(state), seen, policy, Cause.STOPPED, "asked to stop without saving", kill_now=True)
    if seen.request is Request.RELAUNCH:
        return _to_stop(state, seen, policy, Cause.STOPPED, "asked to relaunch: it saves and exits", beat=beat)
    acknowledged = _acknowledged(state, run, seen)
    if acknowledged is not None:
        return acknowledged
    if not seen.leader_alive and seen.shim is Shim.ALIVE and not (beat is not None and beat.alive):
        since = run.leader_gone_s if run.leader_gone_s is not None else seen.now_s
        if seen.now_s - since >= policy.remnant_s:
            end = seen.end or EndSeen(cause=Cause.UNKNOWN, words="how it ended is not known")
            words = f"{end.words}; what it left behind is ended"
            return _to_stop(state, seen, policy, end.cause, words, kill_now=True)
        return dataclasses.replace(state, run=dataclasses.replace(run, leader_gone_s=since)), Plan(rule="remnants")
    return _stall(dataclasses.replace(state, run=dataclasses.replace(run, leader_gone_s=None)), seen, policy, beat)


def _wishing(state: State) -> State:
    return dataclasses.replace(state, wish=Wish.LEAVE)


def _wrong_restore(run: RunState, seen: Seen, beat: BeatSeen | None) -> tuple[Cause, str] | None:
    """Invariant 5: a run that should resume and did not, or restored other bytes, or would not say."""
    if run.level != 2 or run.acknowledged:
        return None
    ack, expected = seen.acknowledgement, run.expectation
    if ack is None:
        if beat is not None and beat.beat.phase in STEPPING_PHASES:
            return Cause.NOT_ACKNOWLEDGED, f"it is in phase {beat.beat.phase} and never said what it had restored"
        return None
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


def _acknowledged(state: State, run: RunState, seen: Seen) -> tuple[State, Plan] | None:
    if run.level != 2 or run.acknowledged or seen.acknowledgement is None:
        return None
    ack = seen.acknowledgement
    words = "started fresh, as it should" if ack.fresh else f"restored step {ack.step} {(ack.digest or '')[:12]}…"
    record = Record(
        "run_acknowledged",
        f"run {run.number} {words}",
        {"run_id": run.run_id, "step": ack.step, "digest": ack.digest, "fresh": ack.fresh},
    )
    state = dataclasses.replace(state, run=dataclasses.replace(run, acknowledged=True))
    return state, Plan(rule="acknowledged", records=(record,))


def beat_deadline(run: RunState, beat: BeatSeen | None, policy: Policy) -> tuple[float, float]:
    """(the moment since which nothing was heard, what that may last) on the monotonic clock."""
    if beat is None:
        return max(run.launched_s, run.grace_from_s), policy.deadlines_s["start"]
    return max(beat.beat.monotonic_s, run.grace_from_s), policy.deadlines_s[beat.beat.phase]


def _stall(state: State, seen: Seen, policy: Policy, beat: BeatSeen | None) -> tuple[State, Plan]:
    """Two stale looks, a period apart, then a stop that looks once more before it acts."""
    run = state.run
    assert run is not None
    nothing_due = beat is None and (run.level == 0 or not isinstance(seen.beat, Absent))
    since, deadline = beat_deadline(run, beat, policy)
    silent_s = seen.now_s - since
    if nothing_due or silent_s <= deadline:
        return dataclasses.replace(state, run=dataclasses.replace(run, stale_looks=0)), Plan()
    if run.stale_looks == 0:
        run = dataclasses.replace(run, stale_looks=1, stale_look_s=seen.now_s)
        return dataclasses.replace(state, run=run), Plan(rule="stale once")
    if seen.now_s - run.stale_look_s < policy.period_s:
        return state, Plan(rule="stale once")
    phase = f"phase {beat.beat.phase}" if beat is not None else "no beat at all"
    if seen.traced:
        words = f"silent, but pid {seen.traced[0]} is under a debugger: it is left alone"
        return state, Plan(rule="traced: " + words)
    step = f" at step {beat.beat.step}" if beat is not None and beat.beat.step is not None else ""
    words = f"no beat for {silent_s:.0f} s, allowed are {deadline:g} s ({phase}{step})"
    return _to_stop(state, seen, policy, Cause.STALLED, words, beat=beat, look_again=True)


# --- STOPPING -----------------------------------------------------------------------------------------------
def _to_stop(
    state: State,
    seen: Seen,
    policy: Policy,
    cause: Cause,
    reason: str,
    *,
    beat: BeatSeen | None = None,
    kill_now: bool = False,
    look_again: bool = False,
) -> tuple[State, Plan]:
    run = state.run
    assert run is not None
    grace_s = policy.grace_s
    if cause in (Cause.DRAINED, Cause.STOPPED) and not kill_now:
        grace_s = max(grace_s, policy.deadlines_s["drain"])
    kill_from = seen.now_s if kill_now else seen.now_s + grace_s
    stop = Stop(
        cause=cause,
        reason=reason,
        kill_from_s=kill_from,
        give_up_s=kill_from + policy.kill_wait_s,
        hold_after=cause in _HOLD_AT_ONCE,
    )
    records = [
        Record(
            "run_stopping",
            f"run {run.number}: {reason}",
            {
                "run_id": run.run_id,
                "cause": cause.value,
                "reason": reason,
                "kill_now": kill_now,
                "hold_after": stop.hold_after,
                "members": [[process.id.pid, process.command, process.state] for process in seen.members[:50]],
            },
        )
    ]
    if cause in (Cause.WRONG_RESTORE, Cause.FRESH_START, Cause.NOT_ACKNOWLEDGED):
        records.append(
            Record("run_refused", f"nothing that run {run.number} saved is resumed from", {"run_id": run.run_id})
        )
    target = ProcessId(beat.beat.pid, beat.beat.start_ticks) if beat is not None and beat.alive else None
    seq = beat.beat.seq if beat is not None and look_again else None
    action = Kill() if kill_now else Terminate(target, only_if_seq=seq)
    run = dataclasses.replace(run, stop=stop)
    state = dataclasses.replace(_to(state, Phase.STOPPING, seen), run=run)
    return state, Plan(rule=f"stop: {cause.value}", records=tuple(records), actions=(action,))


def resumed(state: State, now_s: float) -> State:
    """The state when the last look before a stop found a new beat: nothing was done, the run goes on."""
    run = state.run
    assert state.phase is Phase.STOPPING
    assert run is not None
    run = dataclasses.replace(run, stop=None, stale_looks=0, grace_from_s=now_s)
    return dataclasses.replace(state, phase=Phase.RUNNING, since_s=now_s, run=run)


def _stopping(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    run = state.run
    assert run is not None
    assert run.stop is not None
    stop = run.stop
    beat = seen.beat.value if isinstance(seen.beat, Known) else None
    if beat is not None and beat.beat.step is not None:
        run = dataclasses.replace(run, last_step=beat.beat.step)
        state = dataclasses.replace(state, run=run)
    if seen.shim in (Shim.ENDED, Shim.NEVER):
        return _over(state, seen, beat)
    if _lost_and_gone(seen):
        return _over(state, seen, beat)
    if seen.request in (Request.DRAIN, Request.STOP):
        state = _wishing(state)
    if seen.request is Request.STOP and seen.now_s < stop.kill_from_s:
        stop = dataclasses.replace(stop, kill_from_s=seen.now_s, give_up_s=seen.now_s + policy.kill_wait_s)
        stop = dataclasses.replace(stop, cause=Cause.STOPPED, reason="asked to stop without saving")
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
    if seen.now_s < stop.kill_from_s:
        beating = beat is not None and beat.alive
        if not seen.leader_alive and not beating and seen.shim is Shim.ALIVE:
            # Whoever could save is gone: what is left is not worth the rest of the grace.
            since = run.leader_gone_s if run.leader_gone_s is not None else seen.now_s
            kill_from = min(stop.kill_from_s, since + policy.remnant_s)
            stop = dataclasses.replace(stop, kill_from_s=kill_from, give_up_s=kill_from + policy.kill_wait_s)
            run = dataclasses.replace(run, leader_gone_s=since, stop=stop)
            return dataclasses.replace(state, run=run), Plan(rule="remnants")
        return state, Plan(rule="grace")
    if seen.now_s < stop.give_up_s:
        return state, Plan(rule="kill", actions=(Kill(),))
    return _to_hold(state, seen, policy, _why_it_lives(run, seen))


def _lost_and_gone(seen: Seen) -> bool:
    """The shim was killed, and every cross-check says that nothing of its run is left."""
    return seen.shim is Shim.LOST and not seen.members and not seen.unclear and seen.run_lock_free is True


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
        return f"{start}: its shim was killed, and {names} may belong to it; end it if it does"
    if seen.run_lock_free is False:
        return f"{start}: a process that cannot be seen from here holds the run lock; watchdog diagnose"
    return f"{start}: its shim has not ended"


def _over(state: State, seen: Seen, beat: BeatSeen | None) -> tuple[State, Plan]:
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
        hold_after = hold_after or run.stop.hold_after
    if seen.shim is Shim.NEVER:
        cause, words = Cause.NOT_STARTED, "the shim could not start it"
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
    )
    at = f" at step {step}" if step is not None else ""
    proof = "shim ended" if seen.shim is not Shim.LOST else "nothing carries its marks, its lock is free"
    record = Record(
        "run_ended",
        f"run {run.number} {words}{at}; {proof}: nothing of it lives",
        dataclasses.asdict(ended) | {"cause": cause.value},
    )
    state = dataclasses.replace(_to(state, Phase.WEIGHING, seen), run=None, ended=ended)
    return state, Plan(rule=f"ended: {cause.value}", records=(record,), actions=(Choose(),))


# --- WEIGHING -----------------------------------------------------------------------------------------------
def _weighing(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    ended = state.ended
    assert ended is not None
    if seen.request in (Request.DRAIN, Request.STOP):
        state = _wishing(state)
    chosen = None
    if policy.level == 2:
        if seen.choice is None:
            if seen.choice_error is not None:
                return _to_hold(state, seen, policy, f"the checkpoints cannot be read: {seen.choice_error}")
            return state, Plan(rule="choosing")
        chosen = seen.choice.chosen
    step = chosen.step if chosen is not None else -1
    cause = ended.cause
    target = policy.target_step or (chosen.target_step if chosen else None) or ended.target_step
    if cause is Cause.FINISHED and policy.level == 2:
        if target is None:
            cause = Cause.TARGET_UNKNOWN
        elif step < target:
            cause = Cause.EXIT_TOO_EARLY
    progressed = policy.level == 2 and step > ended.baseline_step
    failures = failures_after(state.failures, is_failure=cause.is_failure, progressed=progressed)
    repeated = max(0, ended.last_step - step) if chosen is not None and ended.last_step is not None else 0
    words = f"run {ended.number} counts as {cause.value.replace('_', ' ')}"
    if cause.is_failure:
        words += f"; {failures} in a row without a new checkpoint, {policy.failure_limit} are the limit"
    data = {"run_id": ended.run_id, "cause": cause.value, "failures": failures, "repeated": repeated, "step": step}
    records = [Record("run_weighed", words, data)]
    actions: list[Quarantine] = []
    if seen.choice is not None and seen.choice.refused:
        actions.append(Quarantine(seen.choice.refused))
    state = dataclasses.replace(state, failures=failures, ended=None)

    def done(next_state: State, plan: Plan) -> tuple[State, Plan]:
        return next_state, dataclasses.replace(
            plan, records=(*records, *plan.records), actions=(*actions, *plan.actions)
        )

    if cause is Cause.FINISHED:
        at = f"step {step} of {target}" if policy.level == 2 else "exit 0"
        record = Record("finished", f"the job is finished: {at}", {"step": max(step, 0), "target_step": target})
        return done(_to(state, Phase.FINISHED, seen), Plan(rule="finished", records=(record,)))
    if ended.hold_after or cause in _HOLD_AT_ONCE:
        return done(*_to_hold(state, seen, policy, _hold_words(cause, ended)))
    if state.wish is Wish.LEAVE:
        return done(*_leave(state, seen, f"step {step} is verified" if chosen else "no checkpoint is verified"))
    if cause.is_failure and failures >= policy.failure_limit:
        return done(
            *_to_hold(
                state, seen, policy, f"{failures} runs in a row ended without a new checkpoint; the last: {ended.words}"
            )
        )
    wait_s = backoff_s(failures, base_s=policy.backoff_s, limit_s=policy.backoff_limit_s) if cause.is_failure else 0.0
    if wait_s > 0:
        state = dataclasses.replace(_to(state, Phase.BACKOFF, seen), retry_at_s=seen.now_s + wait_s)
        return done(state, Plan(rule="backoff"))
    # What was just verified is launched from: nothing of the job lives that could have changed it.
    return done(_to(state, Phase.GATING, seen), Plan(rule="try again at once"))


def _hold_words(cause: Cause, ended: Ended) -> str:
    match cause:
        case Cause.TARGET_UNKNOWN:
            return f"run {ended.number} exited with 0 and never said its target step; set [job] target_step"
        case _:
            return f"run {ended.number}: {ended.words}"


# --- BACKOFF, HOLD, leaving ---------------------------------------------------------------------------------
def _backoff(state: State, seen: Seen) -> tuple[State, Plan]:
    if seen.request in (Request.DRAIN, Request.STOP):
        return _leave(state, seen, "nothing was running")
    if seen.now_s >= state.retry_at_s or seen.request is Request.RELAUNCH:
        return _to(state, Phase.GATING, seen), Plan(rule="backoff is over", actions=(Choose(),))
    return state, Plan(rule="backoff")


def _to_hold(state: State, seen: Seen, policy: Policy, reason: str) -> tuple[State, Plan]:
    record = Record("hold", f"HOLD: {reason}", {"reason": reason})
    state = dataclasses.replace(_to(state, Phase.HOLD, seen), hold=reason)
    return state, Plan(rule="hold", records=(record,))


def _hold(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    if state.run is not None and (seen.shim in (Shim.ENDED, Shim.NEVER) or _lost_and_gone(seen)):
        after, plan = _over(state, seen, seen.beat.value if isinstance(seen.beat, Known) else None)
        assert after.ended is not None
        cause = after.ended.cause.value
        data = {"run_id": after.ended.run_id, "cause": cause, "failures": state.failures}
        weighed = Record("run_weighed", "it ended at last; the hold stays", data)
        after = dataclasses.replace(after, ended=None, phase=Phase.HOLD)
        return after, dataclasses.replace(plan, records=(*plan.records, weighed))
    if seen.request in (Request.DRAIN, Request.STOP) or policy.leave_on_hold:
        return _to(state, Phase.LEFT, seen), Plan(rule="leave on hold", actions=(Leave(EXIT_HOLD),))
    if seen.request is Request.RELAUNCH and state.run is None:
        record = Record("lifted", "the hold is lifted by a person")
        state = dataclasses.replace(_to(state, Phase.GATING, seen), hold=None, failures=0)
        return state, Plan(rule="lifted", records=(record,), actions=(Choose(),))
    return state, Plan(rule="hold")


def _leave(state: State, seen: Seen, words: str) -> tuple[State, Plan]:
    record = Record("supervisor_leaving", f"stopped on request, the job is not finished: {words}")
    return _to(state, Phase.LEFT, seen), Plan(rule="leave", records=(record,), actions=(Leave(EXIT_STOPPED),))
