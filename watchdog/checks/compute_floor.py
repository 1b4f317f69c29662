"""The device multiplies matrices more slowly than any that is in order.

Proves: the median of the probe is below `compute_floor_tflops` (critical; for a GPU), or below
`compute_baseline_fraction` of what this very device did before in the same form (warning), from three results on.

Near misses: a probe beside something else that computes shows less, so none runs beside a healthy trainer, nor, where
others are out of sight, on a device that is used by `idle_percent` or more; a CPU has no floor, only its baseline; no
probe yet is nothing to judge. Where ghost-context is critical about the device, that is
the fault and shows this figure, and the catalogue leaves this finding out.
"""

from __future__ import annotations

from watchdog.core.facts import Absent, Facts, Known, NotMeasured, Probe, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "compute-floor"
NEEDS = ("probe", "devices", "wsl")
LIMITS = ("compute_floor_tflops", "compute_baseline_fraction", "idle_percent")
WORST = Severity.CRITICAL
REMEDIES = (Remedy.RESET_DEVICE, Remedy.WSL_SHUTDOWN, Remedy.COOL, Remedy.PROBE)

_BASELINE_LEAST = 3  # results; the median of fewer is one result


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device probed; the one place where a probe that failed is told."""
    if isinstance(facts.probe, Unknown):
        return (unknown(NAME, "probe", facts.probe.why, Remedy.PROBE),)
    devices = value_of(facts.devices)
    if isinstance(facts.probe, Absent) and facts.probe.why and devices:
        return (fine(NAME, "probe", facts.probe.why),)  # a GPU that nobody measured is no GPU that passed
    return tuple(
        _judge(each, facts, limits) if isinstance(each, Probe) else _not_measured(each)
        for each in value_of(facts.probe) or ()
    )


def _not_measured(device: NotMeasured) -> Finding:
    if device.tried:
        return unknown(NAME, device.label, device.why, Remedy.PROBE, device=device.device)
    return fine(NAME, device.label, f"not measured: {device.why}", device=device.device)


def _judge(probe: Probe, facts: Facts, limits: Limits) -> Finding:
    cpu = probe.device == "cpu"
    device = None if cpu else probe.device
    subject = probe.name if cpu else f"{probe.name} ({probe.device[:12]})"  # as Device.label
    base = probe.baseline_tflops if probe.baseline_count >= _BASELINE_LEAST else None
    own = "" if base is None else f"this device's own baseline {base:.2f}"
    floor = "" if cpu else f"floor {limits.compute_floor_tflops:.1f}"
    beside = ", ".join(part for part in (floor, own) if part)
    reason = f"{probe.tflops:.2f} TFLOP/s" + (f" ({beside})" if beside else "")
    evidence = (f"{probe.dtype}, {probe.size} x {probe.size}, a product takes {probe.seconds * 1000:.1f} ms",)
    # "not >=": a result that is no number is not fine either.
    if not cpu and not probe.tflops >= limits.compute_floor_tflops:
        return Finding(
            check=NAME,
            severity=Severity.CRITICAL,
            subject=subject,
            reason=reason,
            evidence=evidence,
            cause="the device is held by something, or broken",
            remedy=Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.RESET_DEVICE,
            device=device,
        )
    if base is not None and not probe.tflops >= limits.compute_baseline_fraction * base:
        return Finding(
            check=NAME,
            severity=Severity.WARNING,
            subject=subject,
            reason=reason,
            evidence=evidence,
            cause="other load on the CPUs" if cpu else "heat, power supply, or other load on the device",
            remedy=Remedy.PROBE if cpu else Remedy.COOL,
            device=device,
        )
    return fine(NAME, subject, reason, device=device)
