"""The steps take much longer than this job's steps do.

Proves: by the last points a step takes more than the typical one divided by the fraction given (twice as long by
default), on this job's own history.

Near misses: a job without a history has nothing to compare with. While it evaluates or saves, steps stand still and
are not judged. Another batch size or sequence length makes other steps, and looks the same: hence a warning.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "throughput"
NEEDS = ("progress",)
LIMITS = ("throughput_fraction",)
WORST = Severity.WARNING
REMEDIES = (Remedy.LOOK,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing where the run is not training (steps-frozen tells of progress that could not be read)."""
    if not isinstance(facts.progress, Known):
        return ()
    progress = facts.progress.value
    if not progress.points or progress.points[-1].phase not in ("train", None):
        return ()
    typical_s, recent_s = progress.typical_step_s, progress.recent_step_s
    if typical_s is None or recent_s is None:
        return fine(NAME, "throughput", "too few steps so far to know what is typical of this job")
    reason = f"{duration(recent_s)} a step, {duration(typical_s)} is typical of this job"
    if recent_s * limits.throughput_fraction <= typical_s:
        return fine(NAME, "throughput", reason)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="throughput",
        reason=f"{reason}: below {limits.throughput_fraction * 100:g} % of its pace",
        evidence=(f"run {progress.run_id}, by its {progress.source}",),
        cause="a device that is held back or shared, slow data, or memory that is paged",
        remedy=Remedy.LOOK,
    )
