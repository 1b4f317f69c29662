"""A device that the job names is not there.

Proves: a name in [job] devices (UUID, its beginning, or an index) fits no device that NVML enumerates.

Near misses: a device that was there and is gone is told by `gpu-lost`, and so is one that was lost before anybody
looked and tells no UUID: it may be the one that is named. While NVML does not answer, nothing is known to be missing. A
job that names no device takes what there is.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits, lacking

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
    missing = lacking(wanted, devices)
    nameless = sum(device.nameless for device in devices)
    if 0 < len(missing) <= nameless and not any(name.isdigit() for name in missing):
        return ()
    there = tuple(f"{device.index}: {device.label}" for device in devices if not device.missing)
    if not missing:
        said = f"the job names {', '.join(wanted)}: there" if wanted else f"the job names none, {len(there)} there"
        return fine(NAME, "devices", said)
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="devices",
        reason=f"{len(missing)} of {len(wanted)} devices that the job names fit none of the {len(there)} here: "
        + ", ".join(missing),
        evidence=there,
        cause="a misspelt or changed name, or a device that was not given to this container",
        remedy=Remedy.CHECK_DEVICES,
    )
