"""Readings of a device could not be had, or cannot be true.

Proves: the newest sample has readings whose call failed (unknown), or figures that no such device can have (warning).
The one place where devices that could not be read are told.

Near misses: a reading that this device or driver does not have (ECC on GeForce, process memory on WSL) is absent, and
only counted. While NVML itself does not answer, the `driver` checks tell it, and nothing is said here. Lost devices
are told by `gpu-lost` and `reset-required`.
"""

from __future__ import annotations

from typing import Any

from watchdog.checks import gpu_lost
from watchdog.checks.figures import size
from watchdog.core.devicefacts import NVML_RESET_REQUIRED
from watchdog.core.facts import Absent, Device, Fact, Facts, Known, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "device-readings"
NEEDS = ("devices", "driver")
LIMITS = ()
WORST = Severity.WARNING
REMEDIES = (Remedy.CHECK_DRIVER,)

_UNITS = ("_bytes", "_percent", "_celsius", "_mhz", "_watts")


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    driver = value_of(facts.driver)
    if driver is not None and not driver.answers:
        return ()
    if isinstance(facts.devices, Unknown):
        return (unknown(NAME, "devices", facts.devices.why, Remedy.CHECK_DRIVER),)
    return tuple(finding for device in value_of(facts.devices) or () for finding in _judge(device))


def _judge(device: Device) -> tuple[Finding, ...]:
    if device.missing or device.lost_code in (*gpu_lost.LOST, NVML_RESET_REQUIRED):
        return ()
    if device.lost_code is not None:
        why = f"NVML answers with code {device.lost_code} for this device"
        return (unknown(NAME, device.label, why, Remedy.CHECK_DRIVER, device=device.uuid),)
    readings = _readings(device)
    failed: dict[str, list[str]] = {}
    for name, fact in readings.items():
        # What is told as impossible need not be told again as unknown.
        if isinstance(fact, Unknown) and not any(fact.why in said or said in fact.why for said in device.implausible):
            failed.setdefault(fact.why, []).append(name)
    found = []
    if device.implausible:
        found.append(
            Finding(
                check=NAME,
                severity=Severity.WARNING,
                subject=device.label,
                reason="readings that cannot be true: " + "; ".join(device.implausible),
                cause="driver and NVML bindings do not fit together "
                "(versions 535.43 to 535.86 scrambled the fields of processes)",
                remedy=Remedy.CHECK_DRIVER,
                device=device.uuid,
            )
        )
    if failed:
        count = sum(len(each) for each in failed.values())
        why = "; ".join(f"{', '.join(each)} ({why})" for why, each in failed.items())
        reason = f"{count} of {len(readings)} readings could not be had: {why}"
        found.append(unknown(NAME, device.label, reason, Remedy.CHECK_DRIVER, device=device.uuid))
    return tuple(found) or (_fine(device, readings),)


def _readings(device: Device) -> dict[str, Fact[Any]]:
    found: dict[str, Fact[Any]] = {}
    for whole in (device, device.now):
        for name in whole.__struct_fields__:
            value: Fact[Any] = getattr(whole, name)
            if isinstance(value, Known | Unknown | Absent):
                found[_words(name)] = value
    return found | {f"counter {name}": counter for name, counter in device.clocks_event_counters_us.items()}


def _words(field: str) -> str:
    for unit in _UNITS:
        field = field.removesuffix(unit)
    return field.replace("_", " ")


def _fine(device: Device, readings: dict[str, Fact[Any]]) -> Finding:
    now = device.now
    total, limit = value_of(device.memory_total_bytes), value_of(device.power_limit_watts)
    used, watts = value_of(now.memory_used_bytes), value_of(now.power_watts)
    utilization, celsius = value_of(now.utilization_percent), value_of(now.temperature_celsius)
    said = []
    if used is not None:
        said.append(size(used) + ("" if total is None else f" of {size(total)}"))
    if watts is not None:
        said.append((f"{watts:.0f}" if limit is None else f"{watts:.0f} of {limit:.0f}") + " W")
    if utilization is not None:
        said.append(f"{utilization} % busy")
    if celsius is not None:
        said.append(f"{celsius} °C")
    lacking = sum(isinstance(fact, Absent) for fact in readings.values())
    said.append(f"{lacking} of {len(readings)} readings do not exist here" if lacking else "all readings are there")
    return fine(NAME, device.label, ", ".join(said), device=device.uuid)
