"""The machine slept, or this supervisor was frozen, a short while ago.

Proves: the clocks leapt, or the loop missed its own schedule, within the window; every time measured across it is
wrong, so each grace begins anew.

Near misses: a sleep that is longer ago is history. A clock that was set is clock-step's. On WSL a sleep of Windows
shows as a leap of the wall clock alone.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "suspended"
NEEDS = ("clocks",)
LIMITS = ("jump_window_s",)
WORST = Severity.WARNING
REMEDIES = (Remedy.WAIT, Remedy.LOOK)
_WORDS = {"suspend": "the machine slept", "freeze": "this process was frozen"}


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """The one place where clocks that could not be read are told."""
    if isinstance(facts.clocks, Unknown):
        return unknown(NAME, "clocks", facts.clocks.why)
    if not isinstance(facts.clocks, Known):
        return ()
    clocks = facts.clocks.value
    jumps = [one for one in clocks.jumps if one.kind in _WORDS and facts.at_s - one.at_s <= limits.jump_window_s]
    if not jumps:
        watched_s = min(clocks.watched_s, limits.jump_window_s)
        asleep = f"{duration(clocks.asleep_s)} asleep since boot" if clocks.asleep_s >= 1 else "no sleep since boot"
        watched = f"no sleep in the last {duration(watched_s)}, " if watched_s >= 1 else ""
        return fine(NAME, "clocks", watched + asleep)
    told = [f"{_WORDS[one.kind]} for {duration(one.seconds)}, {duration(facts.at_s - one.at_s)} ago" for one in jumps]
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="clocks",
        reason=f"{told[-1]}; every grace begins anew",
        evidence=tuple(told[:-1]),
        cause="sleep, hibernation, a paused container or a host short of memory",
        remedy=Remedy.WAIT,
    )
