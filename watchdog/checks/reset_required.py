"""The GPU needs a reset.

Proves: NVML refuses the device until it is reset (code 16), or the driver asks for a recovery action (field 230):
1 reset, 2 reboot, 3 drain peer traffic, 4 drain and reset.

Near misses: a device that does not report a recovery action (GeForce, older drivers) is not in need of one. Lost
devices are told by `gpu-lost`.
"""

from __future__ import annotations

from watchdog.core.devicefacts import NVML_RESET_REQUIRED
from watchdog.core.facts import Device, Facts, Known, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "reset-required"
NEEDS = ("devices", "driver", "wsl")
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.RESET_DEVICE, Remedy.REBOOT, Remedy.WSL_SHUTDOWN, Remedy.CHECK_DRIVER)

# Peer traffic drains when what uses the device ends, which is the first half of a reset.
_ACTIONS = {
    1: ("reset", Remedy.RESET_DEVICE),
    2: ("reboot", Remedy.REBOOT),
    3: ("drain peer traffic", Remedy.RESET_DEVICE),
    4: ("drain and reset", Remedy.RESET_DEVICE),
}


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    wsl = isinstance(facts.wsl, Known)
    driver = value_of(facts.driver)
    judged = (_judge(device, wsl=wsl) for device in value_of(facts.devices) or ())
    found = tuple(finding for finding in judged if finding is not None)
    if driver is not None and driver.answers:
        return found
    firing = tuple(finding for finding in found if finding.severity is not Severity.OK)  # what is old is not fine
    if driver is None or driver.code != NVML_RESET_REQUIRED or firing:
        return firing
    reason = f"NVML says that a GPU needs a reset (code {driver.code}) and not which one"
    reason += f": {driver.error}" if driver.error else ""
    return (_finding("driver", reason, Remedy.RESET_DEVICE, None, wsl=wsl),)


def _judge(device: Device, *, wsl: bool) -> Finding | None:
    if device.lost_code == NVML_RESET_REQUIRED:
        reason = f"NVML answers nothing before it is reset (code {device.lost_code})"
        return _finding(device.label, reason, Remedy.RESET_DEVICE, device.uuid, wsl=wsl)
    action = value_of(device.recovery_action)
    if action is None or device.lost_code is not None or device.missing:
        return None
    if action == 0:
        return fine(NAME, device.label, "no recovery action is asked for", device=device.uuid)
    if action not in _ACTIONS:
        return Finding(
            check=NAME,
            severity=Severity.WARNING,
            subject=device.label,
            reason=f"the driver asks for recovery action {action}, which is none of those known (0 to 4)",
            remedy=Remedy.CHECK_DRIVER,
            device=device.uuid,
        )
    word, remedy = _ACTIONS[action]
    reason = f"the driver asks for recovery action {action}: {word}"
    return _finding(device.label, reason, remedy, device.uuid, wsl=wsl)


def _finding(subject: str, reason: str, remedy: Remedy, device: str | None, *, wsl: bool) -> Finding:
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=subject,
        reason=reason,
        cause="a fault that the GPU cannot leave by itself",
        remedy=Remedy.WSL_SHUTDOWN if wsl else remedy,  # a guest cannot reset the card
        device=device,
    )
