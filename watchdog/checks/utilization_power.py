"""A device says that it is busy all the time, at a power at which no load runs.

Proves: every one of the last `looks` samples has utilization of `busy_percent` or more at less than
`contradiction_power_fraction` of the power limit, while no run of this job uses the device, or one whose steps are
told is late with them. Never more than a warning: utilization is the share of time in which any kernel ran, however
small.

Near misses: small kernels and an idle collective, while steps advance; a small model whose steps are not seen, or are
told by a log, which knows no evaluation; a phase without steps; encoder or decoder work; MIG, where utilization means
nothing; a device that tells no power limit (many laptops), where no figure says how little power is too little; a
living process of somebody else; under WSL, without a run of ours, a game of Windows at 96 % and 70 W. What
ghost-context or sysmem-paging tells is not told here again.
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
from watchdog.core.facts import Absent, Device, Facts, Unknown, value_of
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
        return _limitless(device)
    wanted = contradiction(device, limits)
    if wanted is None:
        return fine(NAME, device.label, said, device=device.uuid)
    if ghost(device, facts, limits) is not None or paging(device, facts, limits) is not None:
        return None
    pace = pace_of(facts, limits, device)
    if pace.steps in (Steps.ADVANCE, Steps.PHASE):
        note = "steps advance: small kernels, or paging" if pace.steps is Steps.ADVANCE else "no steps in this phase"
        return fine(NAME, device.label, f"{said}; {note}", pace.words, device=device.uuid)
    if pace.steps is Steps.UNSEEN:
        if any(isinstance(fact, Unknown) for fact in (facts.beat, facts.progress, facts.processes)):
            return None  # told by beat-stale, steps-frozen and run-stuck
        note = "steps are not seen, and small kernels look the same"
        return fine(NAME, device.label, f"{said}; {note}", pace.words, device=device.uuid)
    if pace.steps is Steps.LATE and not pace.beats:
        return fine(NAME, device.label, f"{said}; a log does not tell an evaluation", pace.words, device=device.uuid)
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


def _limitless(device: Device) -> Finding | None:
    """Said where it is shown, so that nobody takes silence for a proof."""
    busy, power = value_of(device.now.utilization_percent), value_of(device.now.power_watts)
    if not isinstance(device.power_limit_watts, Absent) or busy is None or power is None:
        return None
    note = "no power limit is told: whether that is too little cannot be said"
    return fine(NAME, device.label, f"{busy} % utilization at {power:.0f} W; {note}", device=device.uuid)
