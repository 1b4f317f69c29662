"""The run's last beat is older than its phase allows.

Proves: no step was finished and no phase was entered for longer than this phase was ever allowed to take: over the
deadline a warning, over twice the deadline critical.

Near misses: who asked for time (EXTEND_TIMEOUT_USEC) has it; who only said that it is ready promised no beat and is
never late. One look is no proof. A machine that slept or a container that was frozen shows an old beat for a moment
(the supervisor looks twice and restarts its grace); a long evaluation has a deadline of its own. A beat after the
last step is as old as the run is finished.
"""

from __future__ import annotations

import math

from watchdog.checks.figures import duration
from watchdog.core.facts import Absent, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "beat-stale"
NEEDS = ("beat",)
LIMITS = ()  # the phase's own deadline comes with the beat
WORST = Severity.CRITICAL
REMEDIES = (Remedy.WAIT, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> Finding:
    """The one place where a beat that is absent or could not be read is told."""
    if isinstance(facts.beat, Absent):
        reason = facts.beat.why or "no run of this job is alive"
        return fine(NAME, "beat", reason)
    if isinstance(facts.beat, Unknown):
        return unknown(NAME, "beat", facts.beat.why)
    beat = facts.beat.value
    severity = Severity.OK
    if beat.phase != "finished":
        if beat.age_s > 2 * beat.deadline_s:
            severity = Severity.CRITICAL
        elif beat.age_s > beat.deadline_s:
            severity = Severity.WARNING
    where = "" if beat.step is None else f", at step {beat.step:,}"
    if beat.target_step is not None and beat.step is not None:
        where += f" of {beat.target_step:,}"
    allowed = "it promised no more beats"
    if math.isfinite(beat.deadline_s):
        allowed = f"this phase is allowed {duration(beat.deadline_s)}"
    if beat.phase == "finished":
        allowed = "the run said that it was finished"
    return Finding(
        check=NAME,
        severity=severity,
        subject="beat",
        reason=f"last beat {duration(beat.age_s)} ago in phase {beat.phase}{where}; {allowed}",
        evidence=(f"run {beat.run_id}, pid {beat.pid}",),
        remedy=Remedy.NONE if severity is Severity.OK else Remedy.WAIT,
    )
