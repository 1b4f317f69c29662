"""The supervisor's phases and the only ways between them; holding and leaving, which several rules share. Pure."""

from __future__ import annotations

import dataclasses

from watchdog.core.causes import Cause
from watchdog.core.phase import Phase
from watchdog.core.seen import Seen
from watchdog.core.state import Leave, Plan, Policy, Record, Room, State, Wish

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
HOLD_AT_ONCE = frozenset({Cause.FRESH_START, Cause.NOT_ACKNOWLEDGED, Cause.TARGET_UNKNOWN, Cause.NOT_EXECUTED})


def to(state: State, phase: Phase, seen: Seen) -> State:
    assert phase in TRANSITIONS[state.phase], (state.phase, phase)
    return dataclasses.replace(arrived(state), phase=phase, since_s=seen.now_s)


def arrived(state: State) -> State:
    """What belongs to one stay at the gates begins anew."""
    return dataclasses.replace(
        state, room=Room.UNTRIED, pruning=Room.UNTRIED, troubled=None, waited=False, hopeless_s=None
    )


def wishing(state: State) -> State:
    return dataclasses.replace(state, wish=Wish.LEAVE)


def to_hold(
    state: State, seen: Seen, policy: Policy, reason: str, *, until_gone: str | None = None
) -> tuple[State, Plan]:
    """`until_gone`: the run that does not end, where that alone is the reason; the hold lifts itself with its end."""
    data = {"reason": reason} | ({} if until_gone is None else {"until_gone": until_gone})
    record = Record("hold", f"HOLD: {reason}", data)
    state = dataclasses.replace(to(state, Phase.HOLD, seen), hold=reason, until_gone=until_gone)
    return state, Plan(rule="hold", records=(record,))


def leave(state: State, seen: Seen, words: str) -> tuple[State, Plan]:
    record = Record("supervisor_leaving", f"stopped on request, the job is not finished: {words}")
    return to(state, Phase.LEFT, seen), Plan(rule="leave", records=(record,), actions=(Leave(EXIT_STOPPED),))
