"""The device computes wrong results.

Proves: a matrix product of the probe differs from its reference by more than its number format explains. Whatever is
trained on the device is not to be believed.

Near misses: rounding, which the probe allows for by type and size; a slow device is compute-floor's; a product that
could not be made at all is an unknown probe.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, Probe, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "wrong-product"
NEEDS = ("probe",)
LIMITS: tuple[str, ...] = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.REPLACE,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device probed."""
    return tuple(_judge(probe) for probe in value_of(facts.probe) or () if isinstance(probe, Probe))


def _judge(probe: Probe) -> Finding:
    cpu = probe.device == "cpu"
    device = None if cpu else probe.device
    subject = probe.name if cpu else f"{probe.name} ({probe.device[:12]})"  # as Device.label
    said = f"worst error {probe.worst_error:.3g} in a {probe.dtype} product of size {probe.size}"
    if probe.correct:
        return fine(NAME, subject, said, device=device)
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=subject,
        reason=f"{said}: more than rounding explains",
        cause="memory or arithmetic units of the device fail",
        remedy=Remedy.REPLACE,
        device=device,
    )
