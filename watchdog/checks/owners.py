"""Questions about who uses a device: whose pids these are, who lives, who may own what NVML does not list?

Responsible for one answer to each. Refuses to judge, and to take a pid for a process of this host where the driver and
`/proc` may count differently.
"""

from __future__ import annotations

from collections.abc import Callable

from watchdog.core.askers import only_asks
from watchdog.core.facts import (
    Absent,
    Device,
    DeviceHolder,
    DeviceProcess,
    DeviceSample,
    Facts,
    Known,
    Processes,
    value_of,
)
from watchdog.core.limits import Limits
from watchdog.core.probing import open_node

_TABLE_LATER_S = 0.5  # a sample has the time of its question, and is read a little later


def judged(facts: Facts) -> tuple[Device, ...]:
    """The devices that answer: what a lost one said last proves nothing about now."""
    return tuple(each for each in value_of(facts.devices) or () if each.lost_code is None and not each.missing)


def comparable(facts: Facts) -> bool:
    """Whether the pids that NVML names are those of our `/proc`: not in a container, below `hidepid`, nor on WSL."""
    processes = value_of(facts.processes)
    return processes is not None and processes.initial_namespace is True and isinstance(facts.wsl, Absent)


def lost(device: Device, limits: Limits, processes: Processes) -> tuple[DeviceProcess, ...]:
    """Those that NVML names and `/proc` does not know, in each of the last `lost_pid_looks` samples (or all there are).

    A number above pid_max is none: mismatched bindings scramble the fields (gpustat#161).
    """
    return _in_each(device, limits, lambda each: not each.here and 0 < each.pid <= processes.pid_max)


def others(device: Device, limits: Limits, facts: Facts) -> tuple[DeviceProcess, ...]:
    """Living compute processes that are not of our run, in each of the last `lost_pid_looks` samples.

    Where pids cannot be compared, a number alone may be anybody's: there it must have a device node open, too.
    """
    processes = value_of(facts.processes)
    if processes is None:
        return ()
    ours = run_pids(facts)
    open_to = None if comparable(facts) else {holder.pid for holder in processes.holders}
    return _in_each(
        device,
        limits,
        lambda each: (
            each.here
            and each.kind == "compute"
            and each.pid not in ours
            and not each.command.startswith("nvidia-cuda-mps")  # lends the device to others, ours among them
            and (open_to is None or each.pid in open_to)
        ),
    )


def _in_each(device: Device, limits: Limits, wanted: Callable[[DeviceProcess], bool]) -> tuple[DeviceProcess, ...]:
    found: dict[int, DeviceProcess] | None = None
    for sample in reversed(device.recent[-limits.lost_pid_looks :]):
        listed = {each.pid: each for each in value_of(sample.processes) or () if wanted(each)}
        found = listed if found is None else {pid: found[pid] for pid in found if pid in listed}
        if not found:
            return ()
    return tuple((found or {}).values())


def lists_wanted(device: Device, limits: Limits) -> int:
    """How many more samples are needed to call anybody lost or foreign."""
    return max(0, limits.lost_pid_looks - len(device.recent))


def seen_since(facts: Facts, at_s: float) -> bool:
    """Whether the process table was read so long after that moment that whoever was there then is in it.

    Tables come seldomer than samples: a rank or a worker that has just started is in none yet, and looks foreign.
    """
    return isinstance(facts.processes, Known) and facts.processes.at_s >= at_s + _TABLE_LATER_S


def held_since(device: Device, suspicious: Callable[[DeviceSample], bool]) -> float:
    """Since when all samples are suspicious, as far back as they are kept: half a minute, three tables of processes.

    The last few alone would not do: most of the time no table is newer than they, and a finding would come and go.
    """
    at_s = device.now.at_s
    for sample in reversed(device.recent):
        if not suspicious(sample):
            break
        at_s = sample.at_s
    return at_s


def run_pids(facts: Facts) -> set[int]:
    """Every pid that is, or a moment ago was, of our run."""
    processes = value_of(facts.processes)
    pids = {facts.beat.value.pid} if isinstance(facts.beat, Known) else set()
    if processes is not None:
        pids |= {each.pid for each in processes.run} | {each.pid for each in processes.holders if each.of_run}
    return pids


def may_use(device: Device, facts: Facts, limits: Limits) -> bool:
    """Whether our run may compute there. No: NVML names it elsewhere or nowhere, and then it has no such node open."""
    processes, ours = value_of(facts.processes), run_pids(facts)
    if processes is None or not processes.run or not comparable(facts):
        return True
    for sample in device.recent[-limits.looks :]:
        listed = value_of(sample.processes)
        if listed is None or any(each.pid in ours for each in listed):
            return True
    # Whoever computes opens the nodes of all devices, so a node tells something only where NVML names the run nowhere.
    if any(each.pid in ours for other in judged(facts) for each in value_of(other.now.processes) or ()):
        return False
    return any(each.of_run and open_node(each, device) is not None for each in processes.holders)


def unlisted(facts: Facts, processes: Processes) -> tuple[DeviceHolder, ...]:
    """Who may own memory that NVML does not list: has a node open, and is listed with memory on no device.

    A process listed on another device opens every node; the numbers of nodes are not NVML's indexes.
    """
    named = {
        each.pid
        for device in value_of(facts.devices) or ()
        for each in value_of(device.now.processes) or ()
        if each.memory_bytes is not None
    }
    return tuple(holder for holder in owners(processes) if holder.pid not in named)


def owners(processes: Processes) -> tuple[DeviceHolder, ...]:
    """Who has a device node open and may own memory by it."""
    return tuple(each for each in processes.holders if not only_asks(each.command))


def used_by_others(device: Device, facts: Facts, limits: Limits) -> bool:
    """Whether living processes of others may be what is busy: without them not much of the memory is left."""
    living = others(device, limits, facts)
    if not living:
        return False
    theirs = [each.memory_bytes for each in living]
    used, total = value_of(device.now.memory_used_bytes), value_of(device.memory_total_bytes)
    if used is None or total is None:
        return True
    known = [count for count in theirs if count is not None]
    return len(known) < len(theirs) or used - sum(known) < limits.ghost_memory_fraction * total


def of_run(device: Device, facts: Facts, processes: Processes) -> int | None:
    """A process of our run on this device; by an open node alone where NVML names nobody, or not our pids."""
    ours = run_pids(facts)
    listed = [each.pid for each in value_of(device.now.processes) or ()]
    named = next((pid for pid in listed if pid in ours), None)
    if named is not None or (listed and comparable(facts)):
        return named
    return next((holder.pid for holder in processes.holders if holder.of_run), None)


def may_be_windows(device: Device, facts: Facts, limits: Limits) -> bool:
    """On WSL the programs of Windows are not listed; a computing pid that /proc does not know is no such program."""
    processes = value_of(facts.processes)
    if processes is None or not isinstance(facts.wsl, Known):
        return False
    return not any(each.kind == "compute" for each in lost(device, limits, processes))
