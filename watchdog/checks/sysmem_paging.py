"""Windows moves device memory to host memory, and steps crawl.

Proves: on WSL, in every one of the last `looks` samples utilization contradicts power and at least
`paging_memory_fraction` of the memory is in use, while steps advance. A relaunch changes nothing about it.

Near misses: the same figures without WSL are small kernels on a full card; the same figures without steps are a ghost
or a hang; a card that is merely full runs at full power.
"""

from __future__ import annotations

from watchdog.checks.contradiction import figures, fills, pace_of, paging
from watchdog.checks.figures import duration, size
from watchdog.checks.owners import judged
from watchdog.core.facts import Device, Facts, Known, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "sysmem-paging"
NEEDS = ("devices", "progress", "wsl", "beat", "processes", "clocks")
LIMITS = ("looks", "busy_percent", "contradiction_power_fraction", "codec_percent", "paging_memory_fraction")
WORST = Severity.WARNING
REMEDIES = (Remedy.SMALLER,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device of a WSL guest in which steps are told."""
    if not isinstance(facts.wsl, Known) or not isinstance(facts.progress, Known):
        return ()
    found = (_judge(device, facts, limits) for device in judged(facts))
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, facts: Facts, limits: Limits) -> Finding | None:
    said = figures(device, limits)
    used, total = value_of(device.now.memory_used_bytes), value_of(device.memory_total_bytes)
    if not said or used is None or total is None:
        return None
    said += f"; memory {size(used)} of {size(total)}"
    wanted = paging(device, facts, limits)
    if wanted is None:
        if fills(device.now, device, limits.paging_memory_fraction):
            said += ", nearly full"
        return fine(NAME, device.label, said, device=device.uuid)
    if wanted:
        return unsure(NAME, device.label, said, wanted, device=device.uuid)
    progress = value_of(facts.progress)
    recent, typical = (None, None) if progress is None else (progress.recent_step_s, progress.typical_step_s)
    speed = "" if recent is None else f"a step takes {duration(recent)}"
    speed += "" if recent is None or typical is None else f", usually {duration(typical)}"
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=f"{said}; steps advance",
        evidence=tuple(line for line in (speed, pace_of(facts, limits).words) if line),
        cause="Windows pages device memory to host memory (WDDM)",
        remedy=Remedy.SMALLER,
        device=device.uuid,
    )
