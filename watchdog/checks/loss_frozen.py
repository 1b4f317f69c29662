"""The loss has not changed by a single bit over many steps.

Proves: as many different steps as the limit says (twice as many by a log) told exactly the same loss, which real
training does not do: what is told is stale, or nothing is computed.

Near misses: logs round, so that a loss of fewer than three decimals proves nothing there; a loss of exactly 0 does,
since Hugging Face's Trainer writes it for nan. A flat loss moves in its last digits. nan and infinity are loss-nan's.
"""

from __future__ import annotations

import math

from watchdog.checks.loss_nan import each_step
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "loss-frozen"
NEEDS = ("progress",)
LIMITS = ("loss_frozen_points",)
WORST = Severity.WARNING
REMEDIES = (Remedy.LOOK_AT_TRAINING,)
_ROUGH_DECIMALS = 2


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing before there were enough steps (steps-frozen tells of progress that could not be read)."""
    if not isinstance(facts.progress, Known):
        return ()
    progress = facts.progress.value
    by_log = progress.source != "beats"
    wanted = limits.loss_frozen_points * (2 if by_log else 1)
    last = [(step, loss) for step, loss in each_step(progress, "loss") if step is not None][-wanted:]
    if len({step for step, _ in last}) < wanted:
        return ()
    values = {loss for _, loss in last}
    value = last[-1][1]
    is_rough = by_log and value != 0 and round(value, _ROUGH_DECIMALS) == value if math.isfinite(value) else True
    if len(values) > 1 or is_rough:
        return fine(NAME, "loss", f"{len(values)} different values over {wanted} steps")
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="loss",
        reason=f"{value!r} at each of the last {wanted} steps told, {last[0][0]:,} to {last[-1][0]:,}",
        evidence=(f"run {progress.run_id}, by its {progress.source}",),
        cause="an old value is told again and again, or the steps compute nothing",
        remedy=Remedy.LOOK_AT_TRAINING,
    )
