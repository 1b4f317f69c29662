"""The loss climbs to a multiple of what it was, or the gradients explode.

Proves: the median of the last five losses is above a multiple of the median of those before, and still rising; or the
last three gradient norms are each above the limit.

Near misses: a spike that falls again; the climb of a learning rate that is warmed up anew (23 to 29 in perplexity,
a tenth in loss); a loss near zero, whose multiples mean nothing, or below it. An infinite gradient norm is how a loss
scaler finds its scale, and no explosion.
"""

from __future__ import annotations

import math

from watchdog.checks.loss_nan import each_step
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "loss-exploding"
NEEDS = ("progress",)
LIMITS = ("loss_exploding_factor", "gradient_exploding")
WORST = Severity.WARNING
REMEDIES = (Remedy.LOOK_AT_TRAINING,)
_RECENT = 5
_BEFORE = 20
_NORMS = 3
_LEAST_LOSS = 0.1  # below it a loss doubles by chance from one batch to the next


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing before there were enough points (steps-frozen tells of progress that could not be read)."""
    if not isinstance(facts.progress, Known):
        return ()
    progress = facts.progress.value
    losses = [loss for _, loss in each_step(progress, "loss") if math.isfinite(loss)]
    norms = [norm for _, norm in each_step(progress, "gradient_norm")][-_NORMS:]
    reasons = []
    figures = []
    if len(losses) >= _BEFORE + _RECENT:
        recent = losses[-_RECENT:]
        import statistics  # 2 ms that only a run with a loss should pay

        now, before = statistics.median(recent), statistics.median(losses[:-_RECENT])
        figures.append(f"median loss {now:.4g} over the last {_RECENT} steps told, {before:.4g} before")
        if now > limits.loss_exploding_factor * max(before, _LEAST_LOSS) and before > 0 and recent[-1] >= recent[0]:
            reasons.append(figures[-1])
    if norms:
        figures.append(f"gradient norm {norms[-1]:.3g}")
    if len(norms) == _NORMS and all(math.isfinite(norm) and norm > limits.gradient_exploding for norm in norms):
        told = ", ".join(f"{norm:.3g}" for norm in norms)
        reasons.append(f"gradient norms {told}, above {limits.gradient_exploding:.3g} each")
    if not reasons:
        return fine(NAME, "loss", "; ".join(figures)) if figures else ()
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="loss",
        reason="; ".join(reasons),
        evidence=(f"run {progress.run_id}, by its {progress.source}",),
        cause="the training diverges: the learning rate, the data, or the initialisation",
        remedy=Remedy.LOOK_AT_TRAINING,
    )
