"""The wall clock was set by seconds while the machine ran.

Proves: within the window the wall clock leapt against the monotonic one by more than the limit, and the machine did
not sleep. Deadlines are safe (they use the monotonic clock); the times written in logs and the ledger are not in order.

Near misses: NTP slews without leaping, and a sleep is no step. A leap below the limit is a clock being kept.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "clock-step"
NEEDS = ("clocks",)
LIMITS = ("jump_window_s", "clock_step_s")
WORST = Severity.WARNING
REMEDIES = (Remedy.SET_CLOCK,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing without clocks (suspended tells of those that could not be read)."""
    if not isinstance(facts.clocks, Known):
        return ()
    steps = [
        one
        for one in facts.clocks.value.jumps
        if one.kind == "step"
        and abs(one.seconds) >= limits.clock_step_s
        and facts.at_s - one.at_s <= limits.jump_window_s
    ]
    if not steps:
        watched_s = min(facts.clocks.value.watched_s, limits.jump_window_s)
        watched = f"not set in the last {duration(watched_s)}" if watched_s >= 1 else "looked at once"
        return fine(NAME, "wall clock", watched)
    told = [
        f"set {'forward' if one.seconds > 0 else 'back'} by {duration(abs(one.seconds))}, "
        f"{duration(facts.at_s - one.at_s)} ago"
        for one in steps
    ]
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="wall clock",
        reason=told[-1],
        evidence=tuple(told[:-1]),
        cause="somebody sets the clock, or two keep it",
        remedy=Remedy.SET_CLOCK,
    )
