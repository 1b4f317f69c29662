"""The device's memory does not keep what is written to it.

Proves: `ecc_uncorrected` or more uncorrected errors since the driver was loaded (critical: what was computed may be
wrong, and a context that met one is dead), a row that could not be remapped (critical: the memory has no spare left),
or an uncorrectable row whose remapping waits for a reset (warning).

Near misses: corrected errors, and rows that were remapped, are what the memory is made to do. GeForce has no ECC, and
nothing is said of it.
"""

from __future__ import annotations

from watchdog.core.facts import Absent, Device, Facts, Known, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "ecc"
NEEDS = ("devices", "wsl")
LIMITS = ("ecc_uncorrected",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.RESET_DEVICE, Remedy.WSL_SHUTDOWN, Remedy.REPLACE)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    reset = Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.RESET_DEVICE
    found = (_judge(device, limits, reset) for device in value_of(facts.devices) or () if device.answers)
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, limits: Limits, reset: Remedy) -> Finding | None:
    uncorrected = value_of(device.ecc_uncorrected)
    rows = value_of(device.remapped_uncorrectable)
    said = _figures(device)
    severity, remedy, cause = Severity.OK, Remedy.NONE, ""
    if value_of(device.remap_failed):
        said = ("a row could not be remapped", *said)
        severity, remedy, cause = Severity.CRITICAL, Remedy.REPLACE, "the memory wears out and has no spare row left"
    elif uncorrected is not None and uncorrected >= limits.ecc_uncorrected:
        severity, remedy, cause = Severity.CRITICAL, reset, "device memory lost bits"
    elif rows and value_of(device.remap_pending):
        severity, remedy, cause = Severity.WARNING, reset, "a bad row is in use until the next reset"
    if severity is not Severity.OK:
        return Finding(
            check=NAME,
            severity=severity,
            subject=device.label,
            reason="memory errors: " + ", ".join(said),
            cause=cause,
            remedy=remedy,
            device=device.uuid,
        )
    judged = (device.ecc_uncorrected, device.remap_failed, device.remapped_uncorrectable, device.remap_pending)
    if any(isinstance(fact, Unknown) for fact in judged) or all(isinstance(fact, Absent) for fact in judged):
        return None
    return fine(NAME, device.label, "memory errors: " + (", ".join(said) or "none"), device=device.uuid)


def _figures(device: Device) -> tuple[str, ...]:
    counted = (
        (device.ecc_uncorrected, "uncorrected"),
        (device.ecc_corrected, "corrected"),
        (device.remapped_uncorrectable, "remapped as uncorrectable"),
        (device.remapped_correctable, "remapped as correctable"),
    )
    said = tuple(f"{count} {what}" for fact, what in counted if (count := value_of(fact)) is not None)
    return (*said, "a remapping waits for a reset") if value_of(device.remap_pending) else said
