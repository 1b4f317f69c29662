"""Device memory is in use that no process owns.

Proves: in every one of the last `looks` samples more is in use than all listed processes own together, by more than
`unowned_memory_bytes` (on WSL, where no process's memory is told: than `unowned_memory_fraction_wsl` of the device),
and no other process has a device node open.

Near misses: on WSL the desktop and the games of Windows own memory there, and a run that is not listed has /dev/dxg
open; data-loader workers that inherited a device node own what NVML does not list; in a container the processes of
others are not seen at all; under MIG memory belongs to instances. What ghost-context tells is not told here again.
"""

from __future__ import annotations

from watchdog.checks.contradiction import ghost, looks_wanted
from watchdog.checks.figures import counted, size
from watchdog.checks.owners import comparable, held_since, judged, may_be_windows, seen_since, unlisted
from watchdog.core.facts import Device, DeviceSample, Facts, Known, Processes, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "memory-unowned"
NEEDS = ("devices", "processes", "progress", "beat", "clocks", "wsl")
LIMITS = ("looks", "unowned_memory_bytes", "unowned_memory_fraction_wsl")
WORST = Severity.WARNING
REMEDIES = (Remedy.RESET_DEVICE, Remedy.SMALLER, Remedy.WSL_SHUTDOWN)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device whose memory and processes are known."""
    processes = value_of(facts.processes)
    if processes is None:
        return ()
    found = (_judge(device, processes, facts, limits) for device in judged(facts))
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, processes: Processes, facts: Facts, limits: Limits) -> Finding | None:
    total, used = value_of(device.memory_total_bytes), value_of(device.now.memory_used_bytes)
    listed = value_of(device.now.processes)
    if total is None or used is None or listed is None or value_of(device.mig):
        return None
    wsl = isinstance(facts.wsl, Known)
    allowed = limits.unowned_memory_fraction_wsl * total if wsl else limits.unowned_memory_bytes

    def suspicious(sample: DeviceSample) -> bool:
        unowned = _unowned(sample, wsl)
        return unowned is not None and unowned > allowed

    now = _unowned(device.now, wsl)
    if now is None:
        return fine(NAME, device.label, f"{size(used)} in use; not told by process", device=device.uuid)
    by = f"{size(used - now)} of it by {counted(len(listed), 'listed process', 'listed processes')}"
    said = f"{size(used)} of {size(total)} in use, {by if listed else 'no process is listed'}"
    wanted = looks_wanted(device, limits.looks, suspicious)
    if wanted is None:
        return fine(NAME, device.label, said, device=device.uuid)
    doubt = _doubt(processes, facts, wsl)
    if doubt:
        return fine(NAME, device.label, f"{said}; {doubt}", device=device.uuid)
    if ghost(device, facts, limits) is not None:
        return None
    if not seen_since(facts, held_since(device, suspicious)):
        wanted = max(wanted, 1)  # whoever has opened the device since is in no table yet
    if wanted:
        return unsure(NAME, device.label, said, wanted, device=device.uuid)
    windows = may_be_windows(device, facts, limits)
    cause = "memory is held by no process that can be seen"
    if windows:  # a hint to shut down WSL would not help who plays a game
        cause = "a program of Windows owns it (a game, a browser; its Task Manager shows which), or a lost context does"
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=f"{said}: {size(now)} is nobody's" + (" in this guest" if wsl else ""),
        evidence=(f"so in {limits.looks} of {limits.looks} samples; no other process has a device node open",),
        cause=cause,
        remedy=Remedy.SMALLER if windows else Remedy.WSL_SHUTDOWN if wsl else Remedy.RESET_DEVICE,
        device=device.uuid,
    )


def _unowned(sample: DeviceSample, wsl: bool) -> int | None:
    """Bytes that nobody listed owns; None where it is not told what a process owns."""
    used, listed = value_of(sample.memory_used_bytes), value_of(sample.processes)
    if used is None or listed is None:
        return None
    if wsl:  # never told there: who lives and computes may own all of it; the desktop, and who is dead, must not
        return None if any(each.here and each.kind == "compute" for each in listed) else used
    owned = 0
    for each in listed:
        if each.memory_bytes is None:
            return None
        owned += each.memory_bytes
    return max(0, used - owned)


def _doubt(processes: Processes, facts: Facts, wsl: bool) -> str:
    if not wsl and not comparable(facts):
        return "processes of others may be out of sight: a container, or a /proc with hidepid"
    if processes.unreadable:
        return f"the open files of {processes.unreadable} processes cannot be read, one of them may own it"
    holders = unlisted(facts, processes)
    if holders:
        return f"pid {holders[0].pid} ({holders[0].command}) has a device node open and may own it"
    return ""
