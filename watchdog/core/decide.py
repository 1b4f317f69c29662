"""The decision: `decide(state, seen, policy) -> (state, plan)`. Pure; the same input gives the same plan.

Invariants that live here and in the phases' own files (watching, ending, weighing):
- a launch is planned only from GATING, with no run in the state, every gate open, and a verified checkpoint or a
  first start;
- whatever happens to a run, the next launch is planned only after its end was proven (shim ended, or nothing of it
  left by every cross-check);
- unknown is never a reason to stop a run; a gap in our own schedule restarts every grace;
- a plan's records are written before its actions; what could not be recorded is not done, and the state stays.

The allowed transitions stand in transitions.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from watchdog.core.ending import lifted_by_its_end, lost_and_gone, over, postpone, resumed, stopping
from watchdog.core.facts import Known
from watchdog.core.phase import Phase
from watchdog.core.seen import Request, Seen, Shim, Trouble
from watchdog.core.smaller import whole
from watchdog.core.state import (
    Choose,
    Launch,
    Leave,
    MakeRoom,
    Plan,
    Policy,
    Prune,
    Quarantine,
    Record,
    Room,
    RunState,
    State,
    Wish,
)
from watchdog.core.transitions import EXIT_HOLD, EXIT_OK, TRANSITIONS, arrived, leave, to, to_hold, wishing
from watchdog.core.troubled import at_once, away, pauses, troubled
from watchdog.core.watching import beat_deadline, running
from watchdog.core.weighing import weighing

__all__ = ["TRANSITIONS", "beat_deadline", "decide", "launched", "resumed"]

HOPELESS_S = 10.0  # of looks, one a second or two, that all say that nothing opens a gate


def decide(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    """One turn."""
    if seen.request is Request.RELAUNCH_AFRESH and state.phase not in (Phase.FINISHED, Phase.LEFT):
        return _afresh(state, seen, policy)
    if seen.gap and state.run is not None:
        run = dataclasses.replace(state.run, grace_from_s=seen.now_s, stale_looks=0, leader_gone_s=None)
        state = dataclasses.replace(state, run=postpone(run, seen, policy))
    if seen.gap and state.phase is Phase.GATING:
        # Whoever froze us may have trained by hand meanwhile.
        state = away(dataclasses.replace(state, since_s=seen.now_s, hopeless_s=None, waited=True), seen.now_s)
    match state.phase:
        case Phase.GATING:
            return _gating(state, seen, policy)
        case Phase.RUNNING:
            return running(state, seen, policy)
        case Phase.STOPPING:
            return _asked(state, seen, policy, stopping)
        case Phase.WEIGHING:
            return _asked(state, seen, policy, weighing)
        case Phase.BACKOFF:
            return _backoff(state, seen)
        case Phase.HOLD:
            return _hold(state, seen, policy)
        case Phase.FINISHED:
            return to(state, Phase.LEFT, seen), Plan(rule="finished", actions=(Leave(EXIT_OK),))
        case Phase.LEFT:
            return state, Plan()


def _afresh(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    """`watchdog relaunch --force`: what was counted is forgotten; everything else is as of a plain one."""
    seen = dataclasses.replace(seen, request=Request.RELAUNCH)
    words = (
        f"the failures that were counted ({state.failures} of the trainer's, {state.host_failures} of the host's) are "
        "forgotten: a person begins a new budget"
    )
    records = [Record("budget_reset", words, {"failures": state.failures, "host_failures": state.host_failures})]
    if state.batch_halvings:
        records.append(Record(*whole(state.batch_halvings)))
    fresh = dataclasses.replace(state, failures=0, host_failures=0, fault=None, batch_halvings=0)
    state, plan = decide(fresh, seen, policy)
    return state, dataclasses.replace(plan, records=(*records, *plan.records))


def _asked(
    state: State, seen: Seen, policy: Policy, then: Callable[[State, Seen, Policy], tuple[State, Plan]]
) -> tuple[State, Plan]:
    """A relaunch that is asked for while a run is ended or weighed: it follows anyway, then without a wait.

    Where a person had the job stopped nothing follows; the socket has said so (listening.py), this is for who was
    quicker than the view that it goes by.
    """
    if seen.request is not Request.RELAUNCH:
        return then(state, seen, policy)
    if state.wish is Wish.RUN:
        return then(dataclasses.replace(state, relaunch_asked=True), seen, policy)
    state, plan = then(state, dataclasses.replace(seen, request=None), policy)
    words = "a request to relaunch was dropped: the job is being stopped, as a person asked before; then: watchdog run"
    return state, dataclasses.replace(plan, records=(*plan.records, Record("request_dropped", words)))


def _gating(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    if seen.request in (Request.DRAIN, Request.STOP):
        return leave(state, seen, "nothing was running")
    if seen.trouble is not None:
        state, plan = troubled(state, seen, policy)
        return at_once(state, seen.now_s) if seen.request is Request.RELAUNCH else state, plan
    if seen.request is Request.RELAUNCH:
        state = at_once(state, seen.now_s)
    closed = [gate for gate in seen.gates if not gate.open]
    if closed or pauses(state, seen.now_s):
        state = dataclasses.replace(state, waited=True)
    actions: tuple[Quarantine, ...] = ()
    checkpoint = None
    if policy.level == 2:
        if seen.choice is None:
            if seen.choice_error is None:
                return state, Plan(rule="choosing")
            words = f"the checkpoints cannot be read: {seen.choice_error}"
            if state.troubled is None:
                return to_hold(state, seen, policy, words)
            if pauses(state, seen.now_s):
                return state, Plan(rule="pausing after a launch that came to nothing")
            # What was in the way of the launch may be in the way of reading, and may pass as well.
            return troubled(state, dataclasses.replace(seen, trouble=Trouble(words=words, passing=True)), policy)
        checkpoint = seen.choice.chosen
        if seen.choice.refused:
            actions = (Quarantine(seen.choice.refused),)
        if checkpoint is None and not seen.choice.first_start:
            state, plan = to_hold(state, seen, policy, seen.choice.why)
            return state, dataclasses.replace(plan, actions=(*actions, *plan.actions))
        target = policy.target_step or (checkpoint.target_step if checkpoint else None)
        if policy.target_step is not None and checkpoint is not None and checkpoint.step >= policy.target_step:
            record = Record("finished", f"step {checkpoint.step} of {target} is verified", {"step": checkpoint.step})
            return to(state, Phase.FINISHED, seen), Plan(rule="target reached", records=(record,))
    if state.room is Room.UNDER_WAY:
        if not seen.room_made:
            return state, Plan(rule="making room")  # also with open gates: no cache is dropped under a run
        # What it was worth shows in facts that are read from now on: the wait begins anew.
        return dataclasses.replace(state, room=Room.TRIED, since_s=seen.now_s), Plan(rule="room was made")
    if state.pruning is Room.UNDER_WAY:
        if not seen.pruned:
            return state, Plan(rule="pruning")  # also with open gates: a launch waits for the deletion under way
        return dataclasses.replace(state, pruning=Room.TRIED, since_s=seen.now_s), Plan(rule="was pruned")
    if hopeless := [gate.words for gate in closed if gate.hopeless]:
        since_s = seen.now_s if state.hopeless_s is None else state.hopeless_s
        if seen.now_s - since_s >= HOPELESS_S:  # to wait longer would be to wait for nothing
            return to_hold(state, seen, policy, "; ".join(hopeless))
        state = dataclasses.replace(state, hopeless_s=since_s)
    elif state.hopeless_s is not None:
        state = dataclasses.replace(state, hopeless_s=None)
    # Nothing is deleted for a launch that something else prevents.
    curable = all(gate.short or gate.full for gate in closed)
    if policy.prunes and state.pruning is Room.UNTRIED and curable and any(gate.full for gate in closed):
        return dataclasses.replace(state, pruning=Room.UNDER_WAY), Plan(rule="prune", actions=(Prune(),))
    if policy.reclaims and closed and state.room is Room.UNTRIED and all(gate.short for gate in closed):
        return dataclasses.replace(state, room=Room.UNDER_WAY), Plan(rule="make room", actions=(MakeRoom(),))
    if closed or not seen.gates:
        words = "; ".join(gate.words for gate in closed) or "the gates have not been looked at"
        if seen.now_s - state.since_s >= policy.gate_wait_s:
            return to_hold(state, seen, policy, f"a gate stayed closed for {policy.gate_wait_s:g} s: {words}")
        return state, Plan(rule="gate closed")
    if pauses(state, seen.now_s):
        return state, Plan(rule="pausing after a launch that came to nothing")
    if state.waited and policy.level == 2:  # whoever trained by hand meanwhile may have saved
        return dataclasses.replace(state, waited=False), Plan(rule="choosing anew", actions=(Choose(sparing=True),))
    return state, Plan(rule="launch", actions=(*actions, Launch(checkpoint)))


def launched(state: State, run: RunState, now_s: float) -> State:
    """The state after the executor has launched what `_gating` planned."""
    assert state.phase is Phase.GATING
    assert state.run is None
    return dataclasses.replace(arrived(state), phase=Phase.RUNNING, since_s=now_s, run=run)


def _backoff(state: State, seen: Seen) -> tuple[State, Plan]:
    if seen.request in (Request.DRAIN, Request.STOP):
        return leave(state, seen, "nothing was running")
    if seen.request is Request.RELAUNCH:
        left_s = max(0.0, state.retry_at_s - seen.now_s)
        record = Record("wait_cut", f"{left_s:.1f} s before the next run are cut short by a person", {"left_s": left_s})
        return to(state, Phase.GATING, seen), Plan(rule="backoff is cut", records=(record,), actions=(Choose(),))
    if seen.now_s >= state.retry_at_s:
        return to(state, Phase.GATING, seen), Plan(rule="backoff is over", actions=(Choose(),))
    return state, Plan(rule="backoff")


def _hold(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    run = state.run
    if seen.request in (Request.DRAIN, Request.STOP):
        state = wishing(state)  # also should the hold lift itself in this very turn
    cleared = None if run is None else dataclasses.replace(run, cleared=True)
    if cleared is not None and seen.request is Request.RELAUNCH and lost_and_gone(cleared, seen):
        # Only suspects were left, and a person who has looked at them asks to go on.
        lifted = Record("lifted", "a person says that nothing of the run is left, and lifts the hold")
        free = dataclasses.replace(state, hold=None, until_gone=None, failures=0, host_failures=0, fault=None)
        state, plan = over(free, seen, None)
        return state, dataclasses.replace(plan, records=(lifted, *plan.records))
    if run is not None and (seen.shim in (Shim.ENDED, Shim.NEVER) or lost_and_gone(run, seen)):
        if seen.end_awaited:  # bounded by who reads, and the words of an end are not to be guessed at
            return state, Plan(rule="hearing its end")
        after, plan = over(state, seen, seen.beat.value if isinstance(seen.beat, Known) else None)
        if state.until_gone is not None:
            free = dataclasses.replace(after, hold=None, until_gone=None)
            records = (*plan.records, lifted_by_its_end(state, seen))
            return free, dataclasses.replace(plan, rule="lifted by its end", records=records)
        assert after.ended is not None
        cause = after.ended.cause.value
        data = {"run_id": after.ended.run_id, "cause": cause, "failures": state.failures}
        data |= {"host_failures": state.host_failures, "fault": state.fault}
        weighed = Record("run_weighed", "it ended at last; the hold stays", data)
        after = dataclasses.replace(after, ended=None, phase=Phase.HOLD)
        return after, dataclasses.replace(plan, records=(*plan.records, weighed))
    goes_on = state.wish is Wish.RUN or state.ended is not None  # what ended is weighed, whoever leaves then
    if run is None and state.until_gone is not None and goes_on:
        # It ended while nobody of us was there: with the host, or between its end and the record of this.
        lifted = lifted_by_its_end(state, seen)
        after = to(state, Phase.GATING if state.ended is None else Phase.WEIGHING, seen)
        asked = state.ended is not None and (state.relaunch_asked or seen.request is Request.RELAUNCH)
        after = dataclasses.replace(after, hold=None, until_gone=None, relaunch_asked=asked)
        return after, Plan(rule="lifted by its end", records=(lifted,), actions=(Choose(),))
    if policy.leave_on_hold or state.wish is Wish.LEAVE:
        return to(state, Phase.LEFT, seen), Plan(rule="leave on hold", actions=(Leave(EXIT_HOLD),))
    if seen.request is Request.RELAUNCH and state.run is None:
        record = Record("lifted", "the hold is lifted by a person")
        free = to(state, Phase.GATING, seen)
        state = dataclasses.replace(
            free, hold=None, failures=0, host_failures=0, fault=None, ended=None, relaunch_asked=False
        )
        return state, Plan(rule="lifted", records=(record,), actions=(Choose(),))
    return state, Plan(rule="hold")
