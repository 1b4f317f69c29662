"""The device works with fewer PCIe lanes, or slower ones, than it has.

Proves: in `looks` consecutive samples under load (`pcie_load_percent` busy or more, performance state 2 or faster
where that is known) the link was narrower or slower than this device can have in this slot.

Near misses: an idle GeForce falls to generation 1 to save power, so nothing is judged without load. What the slot
cannot give is no fault: the most is that of device and slot together.
"""

from __future__ import annotations

from watchdog.core.facts import Device, DeviceSample, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "pcie"
NEEDS = ("devices",)
LIMITS = ("pcie_load_percent", "looks")
WORST = Severity.WARNING
REMEDIES = (Remedy.RESEAT,)

FAST_STATE = 2  # compute runs in P2 on GeForce, in P0 on the rest


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    found = (_judge(device, limits) for device in value_of(facts.devices) or () if device.answers)
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, limits: Limits) -> Finding | None:
    now = device.now
    generation, width = value_of(now.pcie_generation), value_of(now.pcie_width)
    generation_max, width_max = value_of(device.pcie_generation_max), value_of(device.pcie_width_max)
    if generation is None or width is None or generation_max is None or width_max is None:
        return None
    link = f"gen {generation} x{width} of gen {generation_max} x{width_max}"
    busy = value_of(now.utilization_percent)
    if not _loaded(now, limits):
        if (generation, width) != (generation_max, width_max):
            link += ", judged under load only"
        return fine(NAME, device.label, link, device=device.uuid)
    window = device.recent[-limits.looks :]
    slow = sum(_loaded(sample, limits) and _below(sample, generation_max, width_max) for sample in window)
    reason = f"{link} at {busy} % busy"
    if slow:
        reason += f", in {slow} of {len(window)} samples"
    if slow < len(window):
        return fine(NAME, device.label, reason, device=device.uuid)
    if len(window) < limits.looks:
        return unsure(NAME, device.label, reason, limits.looks - len(window), device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=reason,
        cause="the card is badly seated, its riser is poor, or the slot shares its lanes",
        remedy=Remedy.RESEAT,
        device=device.uuid,
    )


def _loaded(sample: DeviceSample, limits: Limits) -> bool:
    busy, state = value_of(sample.utilization_percent), value_of(sample.performance_state)
    return busy is not None and busy >= limits.pcie_load_percent and (state is None or state <= FAST_STATE)


def _below(sample: DeviceSample, generation_max: int, width_max: int) -> bool:
    generation, width = value_of(sample.pcie_generation), value_of(sample.pcie_width)
    return (generation is not None and generation < generation_max) or (width is not None and width < width_max)
