"""The GPU has fallen off its bus.

Proves: NVML says of the device that it is lost (15) or has an error that it does not know (999), or a device that was
enumerated before is not any more. What ran there is lost with it, and nothing new can start there.

Near misses: code 16 is told by `reset-required`. A device that the job names and that never was there is told by
`device-missing`. A reading that fails for a moment is told by `device-readings`.
"""

from __future__ import annotations

from watchdog.checks.xid_table import lines_of
from watchdog.core.devicefacts import NVML_GPU_IS_LOST, NVML_UNKNOWN
from watchdog.core.facts import Device, Facts, Known, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "gpu-lost"
NEEDS = ("devices", "driver", "kernel", "wsl")
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.REBOOT, Remedy.WSL_SHUTDOWN)

LOST = (NVML_GPU_IS_LOST, NVML_UNKNOWN)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    devices = value_of(facts.devices) or ()
    driver = value_of(facts.driver)
    lost = tuple(_lost(facts, device) for device in devices if device.missing or device.lost_code in LOST)
    if not lost and driver is not None and driver.code == NVML_GPU_IS_LOST:
        reason = f"NVML says that a GPU is lost (code {driver.code}) and not which one"
        lost = (_finding(facts, "driver", reason + (f": {driver.error}" if driver.error else "")),)
    if driver is None or not driver.answers:
        return lost
    return lost + tuple(
        fine(NAME, device.label, "it is on its bus and answers", device=device.uuid)
        for device in devices
        if not device.missing and device.lost_code is None
    )


def _lost(facts: Facts, device: Device) -> Finding:
    if device.missing:
        reason = "it was enumerated before and is not there any more"
    elif device.lost_code == NVML_GPU_IS_LOST:
        reason = f"NVML says that it is lost (code {device.lost_code})"
    else:
        reason = f"NVML answers only with code {device.lost_code}, an error that it does not know"
    return _finding(facts, device.label, reason, device)


def _finding(facts: Facts, subject: str, reason: str, device: Device | None = None) -> Finding:
    log = value_of(facts.kernel)
    # However old: the device has been gone since.
    lines = () if log is None or device is None else lines_of(log, device)
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=subject,
        reason=reason,
        evidence=tuple(line.text for line in lines[-3:]),
        cause="it fell off the bus: power, slot, heat or a fault in the card",
        remedy=Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.REBOOT,
        device=None if device is None else device.uuid,
    )
