"""A process that is not of the run computes on the device.

Proves: it lives, NVML listed it as computing in each of the last `lost_pid_looks` samples, it is not of our run, and it
has `foreign_memory_bytes` or more there, or nobody can tell how much. It takes memory and time from the run or from the
next launch. It may be anybody's: nothing is ended for it.

Near misses: graphics (desktop, browser) and small contexts; a process that is there for a sample or two; the MPS
server, which lends the device to others; in a container or on WSL a pid may be the number of somebody outside: there it
counts only with a device node open.
"""

from __future__ import annotations

from watchdog.checks.contradiction import judged, others
from watchdog.checks.figures import size
from watchdog.core.facts import Device, DeviceProcess, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "foreign-process"
NEEDS = ("devices", "processes", "beat", "wsl")
LIMITS = ("lost_pid_looks", "foreign_memory_bytes")
WORST = Severity.WARNING
REMEDIES = (Remedy.ASK_OWNER,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device whose processes are known."""
    if value_of(facts.processes) is None:
        return ()
    found = (_judge(device, facts, limits) for device in judged(facts))
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, facts: Facts, limits: Limits) -> Finding | None:
    if value_of(device.now.processes) is None:
        return None
    foreign = sorted(
        (
            each
            for each in others(device, limits, facts)
            if each.memory_bytes is None or each.memory_bytes >= limits.foreign_memory_bytes
        ),
        key=lambda each: -(each.memory_bytes or 0),
    )
    if not foreign:
        return fine(NAME, device.label, "no process of others computes on it", device=device.uuid)
    reason = f"{_words(foreign[0])}, is not of the run" + (f", and {len(foreign) - 1} more" if foreign[1:] else "")
    missing = limits.lost_pid_looks - len(device.recent)
    if missing > 0:
        return unsure(NAME, device.label, reason, missing, device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=reason,
        evidence=tuple(_words(each) for each in foreign[1:]),
        cause="somebody else uses the device",
        remedy=Remedy.ASK_OWNER,
        device=device.uuid,
    )


def _words(process: DeviceProcess) -> str:
    memory = "memory not told" if process.memory_bytes is None else size(process.memory_bytes)
    return f"pid {process.pid} ({process.command or 'command not readable'}), {memory}"
