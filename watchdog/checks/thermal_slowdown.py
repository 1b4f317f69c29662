"""Heat slows the device down.

Proves: in `looks` consecutive samples the driver named heat (hardware or software thermal slowdown), or hardware
slowdown without a power brake, as a reason for lower clocks.

Near misses: a software power cap is the normal state of a busy device (69 % of 288 nodes show it), and idle, sync
boost and application clocks are settings. A slowdown of a moment is the fan catching up. A power brake is told by
`power-brake`.
"""

from __future__ import annotations

from watchdog.core.devicefacts import (
    REASON_HW_POWER_BRAKE,
    REASON_HW_SLOWDOWN,
    REASON_HW_THERMAL_SLOWDOWN,
    REASON_SW_THERMAL_SLOWDOWN,
)
from watchdog.core.facts import Device, DeviceSample, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "thermal-slowdown"
NEEDS = ("devices",)
LIMITS = ("looks",)
WORST = Severity.WARNING
REMEDIES = (Remedy.COOL,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    return tuple(
        _judge(device, limits)
        for device in value_of(facts.devices) or ()
        if device.answers and value_of(device.now.clocks_event_reasons) is not None
    )


def _judge(device: Device, limits: Limits) -> Finding:
    window = device.recent[-limits.looks :]
    slowed = [sample for sample in window if _slowdown(sample)]
    figures = _figures(device)
    if not slowed:
        return fine(NAME, device.label, ", ".join(("no slowdown by heat", *figures)), device=device.uuid)
    kinds = " and ".join(sorted({_slowdown(sample) for sample in slowed}))
    reason = ", ".join((*figures, f"{kinds} in {len(slowed)} of {len(window)} samples"))
    if len(slowed) < len(window):
        return fine(NAME, device.label, reason, device=device.uuid)
    if len(window) < limits.looks:
        return unsure(NAME, device.label, reason, limits.looks - len(window), device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=reason,
        cause="the device is too hot and protects itself"
        if "thermal" in kinds
        else "the hardware cut the clocks: heat or its power supply",
        remedy=Remedy.COOL,
        device=device.uuid,
    )


def _slowdown(sample: DeviceSample) -> str:
    """What slowed it, in words; "" for nothing of ours."""
    bits = value_of(sample.clocks_event_reasons) or 0
    if bits & REASON_HW_THERMAL_SLOWDOWN:
        return "hardware thermal slowdown"
    if bits & REASON_SW_THERMAL_SLOWDOWN:
        return "software thermal slowdown"
    if bits & REASON_HW_SLOWDOWN and not bits & REASON_HW_POWER_BRAKE:
        return "hardware slowdown"
    return ""


def _figures(device: Device) -> tuple[str, ...]:
    celsius, clock = value_of(device.now.temperature_celsius), value_of(device.now.sm_clock_mhz)
    most = value_of(device.sm_clock_max_mhz)
    said = () if celsius is None else (f"{celsius} °C",)
    if clock is None:
        return said
    return (*said, f"{clock} MHz" if most is None else f"{clock} of {most} MHz")
