"""Weighing a run that is over: what it counts as, what it spends, and what comes next. Pure."""

from __future__ import annotations

import dataclasses

from watchdog.core.advice import AMPLE, to_do
from watchdog.core.budgets import backoff_s, failures_after
from watchdog.core.causes import REPEATS_ITSELF, Cause, Spends
from watchdog.core.ending import well_below
from watchdog.core.phase import Phase
from watchdog.core.seen import Request, Seen
from watchdog.core.smaller import advice, halvings_after, shrunk
from watchdog.core.state import Ended, Plan, Policy, Quarantine, Record, State, Wish
from watchdog.core.transitions import HOLD_AT_ONCE, leave, to, to_hold, wishing


def weighing(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    ended = state.ended
    assert ended is not None
    if seen.request in (Request.DRAIN, Request.STOP):
        state = wishing(state)
    chosen = None
    if policy.level == 2:
        if seen.choice is None:
            if seen.choice_error is not None:
                return to_hold(state, seen, policy, f"the checkpoints cannot be read: {seen.choice_error}")
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
            ended = dataclasses.replace(ended, words=f"{ended.words} {_at(ended.last_step, step, target)}")
    stated, last = policy.target_step, ended.last_step
    if cause is Cause.FINISHED and policy.level < 2 and stated and last is not None and well_below(last, stated):
        cause = Cause.EXIT_TOO_EARLY
        ended = dataclasses.replace(ended, words=f"{ended.words} at step {last} of {stated}, [job] target_step")
    if cause is Cause.DRAINED and policy.level == 2 and target is not None and step >= target:
        cause = Cause.FINISHED  # it was asked to leave when there was nothing left to do
    progressed = policy.level == 2 and step > ended.baseline_step
    of_host = cause.spends is Spends.HOST
    trainers = failures_after(state.failures, is_failure=cause.spends is Spends.TRAINER, progressed=progressed)
    hosts = failures_after(state.host_failures, is_failure=of_host, progressed=progressed)
    failures = hosts if of_host else trainers
    repeated = max(0, ended.last_step - step) if chosen is not None and ended.last_step is not None else 0
    words = f"run {ended.number} counts as {cause.value.replace('_', ' ')}"
    if cause.is_failure:
        words += (
            f" ({cause.cure.value}); {failures} in a row of the {cause.spends.value}'s without a new checkpoint, "
            f"{policy.failure_limit} are the limit"
        )
    bounds = {"base_s": policy.backoff_s, "limit_s": policy.backoff_limit_s}
    waits = cause.is_failure and not state.relaunch_asked
    wait_s = backoff_s(failures, **bounds, luck=seen.luck) if waits else 0.0
    fault = _fault(cause, ended)
    data = {
        "run_id": ended.run_id,
        "cause": cause.value,
        "spends": cause.spends.value,
        "cure": cause.cure.value,
        "failures": trainers,
        "host_failures": hosts,
        "fault": fault,
        "repeated": repeated,
        "step": step,
        "wait_s": wait_s,
        "luck": seen.luck,
        "batch_halvings": (halvings := halvings_after(cause, state.batch_halvings, limit=policy.shrink_batch)),
    }
    records = [Record("run_weighed", words, data)]
    if halvings > state.batch_halvings:
        told = ended.error or ended.words
        sizes = (state.batch_halvings, halvings)
        records.insert(0, Record(*shrunk(ended.number, ended.run_id, told, *sizes, limit=policy.shrink_batch)))
    what_to_do = advice(cause, state.batch_halvings, limit=policy.shrink_batch) or to_do(cause, ended.words)
    actions: list[Quarantine] = []
    if seen.choice is not None and seen.choice.refused:
        actions.append(Quarantine(seen.choice.refused))
    deterministic = fault is not None and fault == state.fault and not progressed
    state = dataclasses.replace(state, failures=trainers, host_failures=hosts, fault=fault, ended=None)
    state = dataclasses.replace(state, batch_halvings=halvings, relaunch_asked=False)

    def done(next_state: State, plan: Plan) -> tuple[State, Plan]:
        return next_state, dataclasses.replace(
            # The consequence first: a batch that is cut by a power failure is weighed again rather than forgotten.
            plan,
            records=(*plan.records, *records),
            actions=(*actions, *plan.actions),
        )

    if cause is Cause.FINISHED:
        at = f"step {step} of {target}" if policy.level == 2 else "exit 0"
        record = Record("finished", f"the job is finished: {at}", {"step": max(step, 0), "target_step": target})
        return done(to(state, Phase.FINISHED, seen), Plan(rule="finished", records=(record,)))
    if ended.hold_after or cause in HOLD_AT_ONCE:
        return done(*to_hold(state, seen, policy, _hold_words(cause, ended) + to_do(cause)))
    if deterministic:
        return done(*to_hold(state, seen, policy, f"twice the same: {fault}; {ended.words}{to_do(cause)}"))
    # Before leaving as well: a budget that is spent is spent for the next supervisor, too.
    if cause.is_failure and failures >= policy.failure_limit:
        return done(
            *to_hold(
                state,
                seen,
                policy,
                f"{failures} runs in a row ended without a new checkpoint{_by(cause, ended)}; "
                f"the last: {ended.words}{what_to_do}",
            )
        )
    if state.wish is Wish.LEAVE:
        return done(*leave(state, seen, _left_with(policy, step)))
    if wait_s > 0:
        state = dataclasses.replace(to(state, Phase.BACKOFF, seen), retry_at_s=seen.now_s + wait_s)
        return done(state, Plan(rule="backoff"))
    # What was just verified is launched from: nothing of the job lives that could have changed it.
    return done(to(state, Phase.GATING, seen), Plan(rule="try again at once"))


def _by(cause: Cause, ended: Ended) -> str:
    """Whose fault; nothing where the figures speak against whose it counts as."""
    return "" if cause is Cause.HOST_MEMORY and AMPLE in ended.words else f", by a fault of the {cause.spends.value}"


def _at(last: int | None, verified: int, target: int) -> str:
    saved = f"step {verified} is verified" if verified >= 0 else "no checkpoint is verified"
    if last is None and verified < 0:
        return f"before step {target} ({saved})"
    return f"at step {verified if last is None else last} of {target} ({saved})"


def _fault(cause: Cause, ended: Ended) -> str | None:
    """What must not be seen twice in a row: the same error, at the same place in the code, at the same step."""
    if cause not in REPEATS_ITSELF or ended.fault is None:
        return None
    return ended.fault if ended.last_step is None else f"{ended.fault}, step {ended.last_step}"


def _left_with(policy: Policy, step: int) -> str:
    if policy.level < 2:
        return "no checkpoints are demanded of it"
    return f"step {step} is verified" if step >= 0 else "no checkpoint is verified"


def _hold_words(cause: Cause, ended: Ended) -> str:
    match cause:
        case Cause.TARGET_UNKNOWN:
            return f"run {ended.number} exited with 0 and never said its target step"
        case _:
            return f"run {ended.number}: {ended.words}"
