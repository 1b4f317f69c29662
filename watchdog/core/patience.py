"""How long the loop may rest before it looks again. Pure.

Where an answer is about to come it looks often, where nothing is due once a period; a silence is noticed when it
becomes one, not up to a period later.
"""

from __future__ import annotations

import dataclasses

from watchdog.core.lateness import until_late_s
from watchdog.core.phase import Phase
from watchdog.core.state import Policy, Room, State

AT_FIRST_S, YOUNG_S = 0.005, 0.25  # between two looks at what is about to be answered, and how long that is so
_SOON_S = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What is being waited for beside the run. `due_s`, `looked_s`: see `until_late_s`."""

    hearing_its_end: bool = False
    keeping_stacks: bool = False
    unanswered: bool = False  # gates that were not looked at, or no checkpoint chosen
    starting: bool = False  # the shim has not told of its trainer yet
    due_s: float = float("inf")
    looked_s: float = 0.0


def until_next_look_s(state: State, policy: Policy, waiting: Waiting, now_s: float) -> float:
    """Seconds, if nothing wakes it before."""
    period_s = policy.period_s
    if waiting.hearing_its_end:
        return AT_FIRST_S
    if waiting.keeping_stacks:  # may take seconds, and each look reads the table of processes
        return min(period_s, _SOON_S)
    # A launch waits for each of these answers, and most come within milliseconds; large checkpoints take longer.
    young = now_s - state.since_s < YOUNG_S
    answer_s = min(period_s, AT_FIRST_S if young else _SOON_S)
    match state.phase:
        case Phase.WEIGHING:
            return answer_s
        case Phase.GATING:
            quick = waiting.unanswered or state.pruning is Room.UNDER_WAY
            return answer_s if quick else min(period_s, 1.0)
        case Phase.STOPPING:
            return min(period_s, 0.1)
        case Phase.RUNNING:
            run = state.run
            late_in_s = until_late_s(waiting.due_s, looked_s=waiting.looked_s, now_s=now_s)
            if late_in_s is not None:  # awake when it is late, not up to a period after
                period_s = min(period_s, late_in_s + 0.005)
            elif run is not None and run.stale_looks:
                period_s = min(period_s, 0.1)
            restores = run is not None and run.level == 2 and not run.acknowledged
            return min(period_s, 0.05 if restores or waiting.starting else period_s)
        case Phase.BACKOFF:
            return max(0.0, min(period_s, state.retry_at_s - now_s))
        case _:
            return period_s
