"""Every device that the job names is there.

Proves: a name in [job] devices (UUID, its beginning, or an index) fits no device that NVML enumerates.

Near misses: a device that was there and is gone is told by `gpu-lost`. While NVML does not answer, nothing is known
to be missing. A job that names no device takes what there is.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits, names

NAME = "device-missing"
NEEDS = ("devices", "driver")
LIMITS = ("devices",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.CHECK_DEVICES,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    devices = value_of(facts.devices)
    driver = value_of(facts.driver)
    if devices is None or driver is None or not driver.answers:
        return ()
    wanted = limits.devices or ()
    lacking = [
        name for name in wanted if not any(names((name,), uuid=device.uuid, index=device.index) for device in devices)
    ]
    there = tuple(f"{device.index}: {device.label}" for device in devices if not device.missing)
    if not lacking:
        said = f"the job names {', '.join(wanted)}: there" if wanted else f"the job names none, {len(there)} there"
        return fine(NAME, "devices", said)
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="devices",
        reason=f"{len(lacking)} of {len(wanted)} devices that the job names fit none of the {len(there)} here: "
        + ", ".join(lacking),
        evidence=there,
        cause="a misspelt or changed name, or a device that was not given to this container",
        remedy=Remedy.CHECK_DEVICES,
    )
