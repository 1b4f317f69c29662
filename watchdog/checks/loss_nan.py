"""The loss is no number any more.

Proves: the newest loss that the run told is nan or infinite; after three steps in a row it does not come back by
itself (critical), before that it may (warning).

Near misses: with a loss scaler a single infinite loss is a skipped step; the next one is finite again, and then there
is nothing to say. Words that repeat the same step count once.
"""

from __future__ import annotations

import math

from watchdog.core.facts import Facts, Known, Progress
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "loss-nan"
NEEDS = ("progress",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.LOOK_AT_TRAINING,)
_IN_A_ROW = 3


def each_step(progress: Progress, name: str) -> tuple[tuple[int | None, float], ...]:
    """(step, value) of what points tell under this name, oldest first: the first word of each step, if they say one."""
    told: list[tuple[int | None, float]] = []
    for point in progress.points:
        value: float | None = getattr(point, name)
        if value is not None and (point.step is None or not told or told[-1][0] != point.step):
            told.append((point.step, value))
    return tuple(told)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing when no loss was told (steps-frozen tells of progress that could not be read)."""
    if not isinstance(facts.progress, Known):
        return ()
    losses = each_step(facts.progress.value, "loss")
    if not losses:
        return ()
    step, newest = losses[-1]
    where = "" if step is None else f" at step {step:,}"
    if math.isfinite(newest):
        return fine(NAME, "loss", f"{newest:.4g}{where}")
    row = next((back for back, (_, loss) in enumerate(reversed(losses)) if math.isfinite(loss)), len(losses))
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if row >= _IN_A_ROW else Severity.WARNING,
        subject="loss",
        reason=f"{newest}{where}" + (f", {row} steps in a row" if row > 1 else ""),
        evidence=(f"run {facts.progress.value.run_id}",),
        cause="the numbers ran over: the learning rate, the data, or half precision without a scaler",
        remedy=Remedy.LOOK_AT_TRAINING,
    )
