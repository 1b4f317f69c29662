"""A process that is not of the run computes on the device, or keeps its memory.

Proves: it lives, NVML listed it as computing in each of the last `lost_pid_looks` samples, it is not of our run, and it
has `foreign_memory_bytes` or more there, or nobody can tell how much. Or: in as many samples NVML listed nobody while
so much was in use, and it has the device's node open, as data-loader workers have that outlived their trainer (EgoVerse
PR 682: 126 of them). It takes memory and time from the run or from the next launch. It may be anybody's: nothing is
ended for it.

Near misses: graphics (desktop, browser) and small contexts; a process that is there for a sample or two; a rank or
worker of the run that started after the process table was read; the MPS server, which lends the device to others; in a
container or on WSL a pid may be the number of somebody outside: there it counts only with a device node open. An open
node alone says nothing: not of daemons that keep every device open, not while the run has it open as well, and not
where processes of others are out of sight.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.checks.contradiction import looks_wanted
from watchdog.checks.figures import size
from watchdog.checks.owners import comparable, held_since, judged, lists_wanted, others, seen_since, unlisted
from watchdog.core.facts import Device, DeviceHolder, DeviceProcess, DeviceSample, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits
from watchdog.core.probing import open_node

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
            return _unlisted(device, heirs, facts, limits)
        return fine(NAME, device.label, "no process of others computes on it", device=device.uuid)
    proven = [each for each in foreign if seen_since(facts, _first_listed_s(device, each.pid))]
    missing = lists_wanted(device, limits) or (0 if proven else 1)
    foreign = foreign if missing else proven
    reason = f"{_words(foreign[0])}{_more(foreign)} not of the run"
    if missing:
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


def _first_listed_s(device: Device, pid: int) -> float:
    """When the driver began to list it, as far back as samples are kept."""
    return held_since(device, lambda sample: any(each.pid == pid for each in value_of(sample.processes) or ()))


def _ownerless(sample: DeviceSample, limits: Limits) -> bool:
    """Nobody is listed, and memory is in use: who owns it was there, and had a node open."""
    used = value_of(sample.memory_used_bytes)
    return value_of(sample.processes) == () and used is not None and used >= limits.foreign_memory_bytes + _IDLE_BYTES


def _more(foreign: Sequence[DeviceProcess]) -> str:
    return f", and {len(foreign) - 1} more are" if foreign[1:] else ", is"


def _words(process: DeviceProcess) -> str:
    memory = "memory not told" if process.memory_bytes is None else size(process.memory_bytes)
    return f"pid {process.pid} ({process.command or 'command not readable'}), {memory}"


def _heirs(device: Device, facts: Facts, limits: Limits) -> tuple[DeviceHolder, ...]:
    """Who has the node open while NVML names nobody for the memory in use."""
    processes = value_of(facts.processes)
    if processes is None or value_of(device.mig) or not comparable(facts):
        return ()
    if looks_wanted(device, limits.lost_pid_looks, lambda sample: _ownerless(sample, limits)) is None:
        return ()
    found = tuple(each for each in unlisted(facts, processes) if open_node(each, device) is not None)
    return () if any(each.of_run for each in found) else found


def _unlisted(device: Device, heirs: tuple[DeviceHolder, ...], facts: Facts, limits: Limits) -> Finding:
    used = value_of(device.now.memory_used_bytes)
    said = "" if used is None else f"{size(used)} in use, and the driver lists nobody: "
    said += f"{_holding(heirs[0])} and is not of the run" + (f"; {len(heirs) - 1} more like it" if heirs[1:] else "")
    since_s = held_since(device, lambda sample: _ownerless(sample, limits))
    missing = lists_wanted(device, limits) or (0 if seen_since(facts, since_s) else 1)
    if missing:
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
