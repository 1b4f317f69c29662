"""A process that is not of the run computes on the device, or keeps its memory.

Proves: it lives, NVML listed it as computing in each of the last `lost_pid_looks` samples, it is not of our run, and it
has `foreign_memory_bytes` or more there, or nobody can tell how much. Or: in as many samples NVML listed nobody while
so much was in use, and it has the device's node open, as data-loader workers have that outlived their trainer (EgoVerse
PR 682: 126 of them). It takes memory and time from the run or from the next launch. It may be anybody's: nothing is
ended for it.

Near misses: graphics (desktop, browser) and small contexts; a process that is there for a sample or two; the MPS
server, which lends the device to others; in a container or on WSL a pid may be the number of somebody outside: there it
counts only with a device node open. An open node alone says nothing: not of daemons that keep every device open, not
while the run has it open as well, and not where processes of others are out of sight.
"""

from __future__ import annotations

from watchdog.checks.contradiction import looks_wanted
from watchdog.checks.figures import size
from watchdog.checks.owners import comparable, holds, judged, others, unlisted
from watchdog.core.facts import Device, DeviceHolder, DeviceProcess, DeviceSample, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "foreign-process"
NEEDS = ("devices", "processes", "beat", "wsl")
LIMITS = ("lost_pid_looks", "foreign_memory_bytes")
WORST = Severity.WARNING
REMEDIES = (Remedy.ASK_OWNER,)

_IDLE_BYTES = 512 * 1024**2  # in use with nobody there: NVIDIA's reserve, where it cannot be told apart (T4: 450 MiB)
_SHOWN = 5


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
        heirs = _heirs(device, facts, limits)
        if heirs:
            return _unlisted(device, heirs, limits)
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


def _heirs(device: Device, facts: Facts, limits: Limits) -> tuple[DeviceHolder, ...]:
    """Who has the node open while NVML names nobody for the memory in use."""
    processes = value_of(facts.processes)
    if processes is None or value_of(device.mig) or not comparable(facts):
        return ()

    def suspicious(sample: DeviceSample) -> bool:
        used = value_of(sample.memory_used_bytes)
        return (
            value_of(sample.processes) == () and used is not None and used >= limits.foreign_memory_bytes + _IDLE_BYTES
        )

    if looks_wanted(device, limits.lost_pid_looks, suspicious) is None:
        return ()
    found = tuple(each for each in unlisted(facts, processes) if holds(each, device, judged(facts)))
    return () if any(each.of_run for each in found) else found


def _unlisted(device: Device, heirs: tuple[DeviceHolder, ...], limits: Limits) -> Finding:
    used = value_of(device.now.memory_used_bytes)
    said = "" if used is None else f"{size(used)} in use, and the driver lists nobody: "
    said += f"{_holding(heirs[0])}, is not of the run" + (f", and {len(heirs) - 1} more" if heirs[1:] else "")
    missing = limits.lost_pid_looks - len(device.recent)
    if missing > 0:
        return unsure(NAME, device.label, said, missing, device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=said,
        evidence=tuple(_holding(each) for each in heirs[1:_SHOWN]),
        cause="workers that inherited the device and outlived their trainer, or somebody else who uses it",
        remedy=Remedy.ASK_OWNER,
        device=device.uuid,
    )


def _holding(holder: DeviceHolder) -> str:
    nodes = ", ".join(node for node in holder.nodes if node[-1:].isdigit()) or "a node"
    return f"pid {holder.pid} ({holder.command or 'command not readable'}) has {nodes} open"
