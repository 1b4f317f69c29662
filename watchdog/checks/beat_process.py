"""The process that made the last beat is gone.

Proves: the process that made the last beat is gone, by pid and start time, although its run did not say that it was
finished. The beats may look fresh for as long as their deadline, so this is seen first.

Near misses: a run that is finished ends; a pid that was given to another process is not the one that beat (the start
time tells).
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, unknown
from watchdog.core.limits import Limits

NAME = "beat-process"
NEEDS = ("beat",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.WAIT, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """Nothing when there is no beat to look at (beat-stale tells why)."""
    if not isinstance(facts.beat, Known):
        return ()
    beat = facts.beat.value
    if beat.alive is None:
        why = f"pid {beat.pid}, which beat {duration(beat.age_s)} ago, cannot be seen from here"
        why += ": another pid namespace, or /proc hides other users' processes"
        return (unknown(NAME, "beating process", why),)
    severity, remedy = Severity.OK, Remedy.NONE
    reason = f"pid {beat.pid}, which beat last, is alive"
    if not beat.alive and beat.phase == "finished":
        reason = f"pid {beat.pid}, which beat last, said that it was finished, and has ended"
    elif not beat.alive:
        severity, remedy = Severity.CRITICAL, Remedy.WAIT
        reason = f"pid {beat.pid}, which beat {duration(beat.age_s)} ago in phase {beat.phase}, is gone"
    return (
        Finding(
            check=NAME,
            severity=severity,
            subject="beating process",
            reason=reason,
            evidence=(f"run {beat.run_id}",),
            remedy=remedy,
        ),
    )
