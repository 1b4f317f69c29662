"""A device that the job names is not there.

Proves: a name in [job] devices (UUID, its beginning, or an index) fits no device that NVML enumerates (critical). Or:
CUDA_VISIBLE_DEVICES has an entry that no device can have, and CUDA takes none from there on; or the beginning of a
UUID fits several devices (warning).

Near misses: an empty value, -1 or Slurm's NoDevFiles hide devices on purpose; a device that was there and is gone is
told by `gpu-lost`, and so is one that was lost before anybody looked and tells no UUID: it may be the one that is
named. While NVML does not answer, nothing is known to be missing, but the value is told: it hides the devices from the
job, and from whoever supervises it. A job that names no device takes what there is.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.checks.figures import counted
from watchdog.core.facts import Device, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits, fitting_several, is_index, lacking

NAME = "device-missing"
NEEDS = ("devices", "driver")
LIMITS = ("devices", "devices_doubt")
WORST = Severity.CRITICAL
REMEDIES = (Remedy.CHECK_DEVICES,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    devices = value_of(facts.devices)
    driver = value_of(facts.driver)
    seen = driver is not None and driver.answers
    there = tuple(f"{device.index}: {device.label}" for device in devices or () if seen and not device.missing)
    doubt = _doubt(limits, there)
    found = _missing(devices, limits, there) if seen and devices is not None else None
    return tuple(each for each in (doubt, found) if each is not None and (doubt is None or each.severity > Severity.OK))


def _doubt(limits: Limits, there: tuple[str, ...]) -> Finding | None:
    if not limits.devices_doubt:
        return None
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="devices",
        reason=limits.devices_doubt,
        evidence=there,
        cause="a misspelt value: CUDA takes indexes and UUIDs (GPU-..., MIG-...), and stops at anything else",
        remedy=Remedy.CHECK_DEVICES,
    )


def _ambiguous(several: Mapping[str, int], there: tuple[str, ...]) -> Finding:
    told = ", ".join(f"{name} fits {count} devices" for name, count in several.items())
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="devices",
        reason=f"{told}, so which is meant cannot be told: all are taken for the job's, and CUDA takes no such entry",
        evidence=there,
        cause="the beginning of a UUID has to be long enough for one device",
        remedy=Remedy.CHECK_DEVICES,
    )


def _missing(devices: tuple[Device, ...], limits: Limits, there: tuple[str, ...]) -> Finding | None:
    wanted = limits.devices or ()
    missing = lacking(wanted, devices)
    nameless = sum(device.nameless for device in devices)
    if 0 < len(missing) <= nameless and not any(is_index(name) for name in missing):
        return None
    if not missing:
        several = {name: len(fitting_several(name, devices)) for name in wanted}
        if any(several.values()):
            return _ambiguous({name: count for name, count in several.items() if count}, there)
        said = f"the job names none, {counted(len(there), 'is', 'are')} here"
        if wanted:
            said = f"the job names {', '.join(wanted)}: there"
        elif limits.devices_named:
            said = f"the job names a MIG instance, which may be of any device: {counted(len(there), 'is', 'are')} here"
        return fine(NAME, "devices", said)
    which = "the device that the job names is"
    if len(wanted) > 1:
        which = f"{len(missing)} of {len(wanted)} devices that the job names {'is' if len(missing) == 1 else 'are'}"
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="devices",
        reason=f"{which} not here: {', '.join(missing)}",
        evidence=there,
        cause="a misspelt or changed name, or a device that was not given to this container",
        remedy=Remedy.CHECK_DEVICES,
    )
