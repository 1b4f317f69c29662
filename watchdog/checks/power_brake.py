"""The power supply slows the device down.

Proves: in `looks` consecutive samples the driver named the hardware power brake, which the power supply or the system
pulls, as a reason for lower clocks.

Near misses: a software power cap is the device keeping to its own limit and no fault. A brake of a moment is a spike.
"""

from __future__ import annotations

from watchdog.core.devicefacts import REASON_HW_POWER_BRAKE
from watchdog.core.facts import Device, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "power-brake"
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
    braked = sum(bool((value_of(sample.clocks_event_reasons) or 0) & REASON_HW_POWER_BRAKE) for sample in window)
    reason = f"power brake in {braked} of {len(window)} samples{_figures(device)}"
    if braked < len(window):
        return fine(NAME, device.label, reason, device=device.uuid)
    if len(window) < limits.looks:
        return unsure(NAME, device.label, reason, limits.looks - len(window), device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=reason,
        cause="the power supply is overloaded, too hot or badly connected",
        remedy=Remedy.COOL,
        device=device.uuid,
    )


def _figures(device: Device) -> str:
    watts, limit = value_of(device.now.power_watts), value_of(device.power_limit_watts)
    if watts is None:
        return ""
    return f", {watts:.0f} W" if limit is None else f", {watts:.0f} of {limit:.0f} W"
