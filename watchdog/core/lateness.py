"""When a living run is late: the one rule by which it is called so, judged so and stopped for it. Pure.

Responsible for what may pass without a beat, and for when that has passed for certain: two looks, a moment apart.
Refuses to call a run late for what could not be read: a beat that is gone again makes us blind.
"""

from __future__ import annotations

import dataclasses
import math

from watchdog.core.deadlines import SETTLED_STEPS, is_past
from watchdog.core.facts import Absent, Known
from watchdog.core.seen import BeatSeen, Seen
from watchdog.core.state import Policy, RunState

# A period may be 10 s, and a stall is to be called within a second of its deadline.
LOOK_AGAIN_S = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """Nothing was heard for longer than is allowed. `proven`: at two looks. `learned`: by a deadline that was learned.

    `ceiling_s`: what was configured for the phase; infinite before the first beat.
    """

    words: str
    proven: bool
    learned: bool
    ceiling_s: float


def lateness(run: RunState, seen: Seen, policy: Policy) -> Late | None:
    """None: it is in time, owes nothing, or cannot be read. `run` remembers the first of the two looks."""
    beat = seen.beat.value if isinstance(seen.beat, Known) else None
    # A beat file that is gone again (a cleaned folder, `: > beat.json`) makes us blind, it does not make the run late.
    nothing_due = beat is None and (run.level == 0 or run.beat_seen or not isinstance(seen.beat, Absent))
    since_s, deadline_s = beat_deadline(run, beat, policy)
    silent_s = seen.now_s - since_s
    if nothing_due or not silent_s > deadline_s:  # not a number is not late either
        return None
    phase = f"phase {beat.beat.phase}" if beat is not None else "no beat at all"
    step = f" at step {beat.beat.step}" if beat is not None and beat.beat.step is not None else ""
    ceiling_s = math.inf if beat is None else policy.deadlines_s[beat.beat.phase]
    learned = deadline_s < ceiling_s < math.inf
    how = "learned, " if learned else ""
    return Late(
        words=f"no beat for {silent_s:.0f} s, allowed are {deadline_s:g} s ({how}{phase}{step})",
        proven=run.stale_looks > 0 and is_second_look(run.stale_look_s, seen.now_s, policy),
        learned=learned,
        ceiling_s=ceiling_s,
    )


def is_second_look(first_s: float, now_s: float, policy: Policy) -> bool:
    """Whether a look is far enough from the first one to be another."""
    return now_s - first_s >= min(policy.period_s, LOOK_AGAIN_S)


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
