"""A device says that it is busy all the time, at a power at which no load runs.

Proves: every one of the last `looks` samples has utilization of `busy_percent` or more at less than
`contradiction_power_fraction` of the power limit, and no steps are seen to advance. Never more than a warning:
utilization is the share of time in which any kernel ran, however small.

Near misses: small kernels and an idle collective, while steps advance; a phase without steps, such as an evaluation;
encoder or decoder work; MIG, where utilization means nothing; a living process of somebody else, whose steps nobody
sees; under WSL, without a run of ours, a game of Windows at 96 % and 70 W. What ghost-context or sysmem-paging tells
is not told here again.
"""

from __future__ import annotations

from watchdog.checks.contradiction import (
    Steps,
    contradiction,
    figures,
    ghost,
    pace_of,
    paging,
)
from watchdog.checks.owners import judged, may_be_windows, used_by_others
from watchdog.core.facts import Device, Facts
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "utilization-power"
NEEDS = ("devices", "progress", "beat", "processes", "clocks", "wsl")
LIMITS = ("looks", "busy_percent", "contradiction_power_fraction", "codec_percent")
WORST = Severity.WARNING
REMEDIES = (Remedy.PROBE,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device whose utilization and power are known."""
    found = (_judge(device, facts, limits) for device in judged(facts))
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, facts: Facts, limits: Limits) -> Finding | None:
    said = figures(device, limits)
    if not said:
        return None
    wanted = contradiction(device, limits)
    if wanted is None:
        return fine(NAME, device.label, said, device=device.uuid)
    if ghost(device, facts, limits) is not None or paging(device, facts, limits) is not None:
        return None
    pace = pace_of(facts, limits, device)
    if pace.steps in (Steps.ADVANCE, Steps.PHASE):
        note = "steps advance: small kernels, or paging" if pace.steps is Steps.ADVANCE else "no steps in this phase"
        return fine(NAME, device.label, f"{said}; {note}", pace.words, device=device.uuid)
    if used_by_others(device, facts, limits):
        return fine(NAME, device.label, f"{said}; a process of somebody else uses it", device=device.uuid)
    if pace.steps is Steps.NO_RUN and may_be_windows(device, facts, limits):
        return fine(NAME, device.label, f"{said}; Windows may be what uses it", device=device.uuid)
    if wanted:
        return unsure(NAME, device.label, said, wanted, device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=f"{said}: no load runs at so little power",
        evidence=(pace.words,),
        cause="a kernel that spins, a hung collective, or a CUDA context that outlived its process",
        remedy=Remedy.PROBE,
        device=device.uuid,
    )
