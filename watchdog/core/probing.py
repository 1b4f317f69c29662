"""Which devices may be measured now. Pure.

A probe beside a living trainer would slow it down and take its own contention for a sick device; so a device is
measured only when nobody alive computes on it. Where those who compute may be out of sight (a container, `hidepid`,
WSL) it must look idle as well, and a pid that the driver names may be anybody's. Refuses to measure.
"""

from __future__ import annotations

from msgspec import Struct

from watchdog.core.devicefacts import Device, NotMeasured
from watchdog.core.facts import Absent, DeviceHolder, Facts, Known, Processes, Unknown, value_of
from watchdog.core.figures import gib
from watchdog.core.limits import Limits, names

_NODE = "/dev/nvidia"  # followed by the device's minor number
_BRIDGE = "/dev/dxg"  # on WSL the one node of all devices


def to_measure(facts: Facts, limits: Limits) -> tuple[Device, ...] | str:
    """The devices that may be measured, or why there is none."""
    if isinstance(facts.devices, Unknown | Absent):
        return facts.devices.why or "there is no GPU"
    why_not = beside(facts)
    if why_not is not None:
        return why_not
    uses = _uses(facts, limits)
    free = tuple(each.device for each in uses if each.why is None)
    taken = [f"{each.device.label} {each.why}" for each in uses if each.why is not None]
    return free or "; ".join(taken) or "the job uses no device that is here"


def refused(facts: Facts, limits: Limits) -> tuple[NotMeasured, ...]:
    """The job's devices that are not measured while others are."""
    return tuple(
        NotMeasured(device=each.device.uuid, label=each.device.label, why=f"it {each.why}", tried=False)
        for each in _uses(facts, limits)
        if each.why is not None
    )


class _Use(Struct, frozen=True):
    """`why`: what forbids to measure the device, in words that follow its name; None where nothing does."""

    device: Device
    why: str | None


def _uses(facts: Facts, limits: Limits) -> list[_Use]:
    """The job's devices that answer, and who uses each."""
    devices = value_of(facts.devices) or ()
    return [
        _Use(device, _why_not(device, facts, limits))
        for device in devices
        if not device.missing
        and device.lost_code is None
        and names(limits.devices, uuid=device.uuid, index=device.index)
    ]


def beside(facts: Facts) -> str | None:
    """Why nothing is measured now, whatever the device: a run that may be well, or one that cannot be seen."""
    return _healthy_run(facts) or _unclear(facts)


def _unclear(facts: Facts) -> str | None:
    """Why it cannot be told who computes here; what cannot be seen may be a healthy run."""
    for fact in (facts.beat, facts.processes, *facts.locks):
        if isinstance(fact, Unknown):
            return f"whether a run is alive cannot be told, so nothing is measured: {fact.why}"
    return None


def _healthy_run(facts: Facts) -> str | None:
    """A run that may be well is not disturbed; one that beats no more, or stands still, is no trainer any more."""
    if isinstance(facts.beat, Known):
        beat = facts.beat.value
        if beat.alive is not False and beat.age_s <= beat.deadline_s:  # the beat is proof, seen or unseen
            return f"run {beat.run_id} beat {beat.age_s:.0f} s ago (pid {beat.pid}): nothing is measured beside it"
        return None
    if isinstance(facts.processes, Known) and facts.processes.value.run:
        pid = facts.processes.value.run[0].pid
        return f"a run is alive (pid {pid}), and whether it is well is not known: nothing is measured beside it"
    for lock in facts.locks:
        if isinstance(lock, Known) and lock.value.purpose == "run" and lock.value.held:
            return "a run that cannot be seen from here holds the run lock: nothing is measured beside it"
    return None


# --- one device ---------------------------------------------------------------------------------------------
def _why_not(device: Device, facts: Facts, limits: Limits) -> str | None:
    """Somebody who may compute on it: by NVML's word, by an open device node, or by the device's own figures."""
    processes = value_of(facts.processes)
    same_pids = _same_pids(facts, processes)
    listed = value_of(device.now.processes)
    ours = {process.pid for process in processes.run} if processes is not None and same_pids else set()
    for process in listed or ():
        if process.kind != "compute" or process.pid in ours:
            continue
        if process.here and same_pids:
            return f"is in use by pid {process.pid} ({process.command or 'its name cannot be read'})"
        if not same_pids:  # where it is not in our /proc it may live all the same
            return f"may be in use: the driver names pid {process.pid}, and whose that is cannot be told here"
    if processes is not None:
        for holder in processes.holders:
            if not holder.of_run and (node := open_node(holder, device)) and not _elsewhere(holder, device, facts):
                return f"is in use by pid {holder.pid} ({holder.command}), which has {node} open"
    all_seen = same_pids and (listed is not None or (processes is not None and not processes.unreadable))
    return None if all_seen else _busy(device, facts, limits)


def _same_pids(facts: Facts, processes: Processes | None) -> bool:
    """The driver counts as our `/proc` does, and nobody is hidden from us (checks/owners.py asks the same)."""
    return processes is not None and processes.initial_namespace is True and isinstance(facts.wsl, Absent)


def open_node(holder: DeviceHolder, device: Device) -> str | None:
    """The node by which it may use this device; where the device does not tell its minor number, any of them.

    That number is not NVML's index (nvml.h, nvmlDeviceGetMinorNumber).
    """
    minor = value_of(device.minor)
    for node in holder.nodes:
        number = node.removeprefix(_NODE)
        if node == _BRIDGE or (number.isdecimal() and node != number and minor in (None, int(number))):
            return node
    return None


def _elsewhere(holder: DeviceHolder, device: Device, facts: Facts) -> bool:
    """A desktop; or it computes on another device, as the driver says: who computes on one opens the nodes of all."""
    of_device = value_of(device.now.processes)
    if any(each.pid == holder.pid and each.kind == "graphics" for each in of_device or ()):
        return True
    if of_device is None or not _same_pids(facts, value_of(facts.processes)):
        return False
    return any(
        each.pid == holder.pid
        for other in value_of(facts.devices) or ()
        for each in value_of(other.now.processes) or ()
        if other.uuid != device.uuid
    )


def _busy(device: Device, facts: Facts, limits: Limits) -> str | None:
    """Where not all who compute are seen, the device must look idle. A training pauses: several samples count."""
    used, total = value_of(device.now.memory_used_bytes), value_of(device.memory_total_bytes)
    shares = [sample.utilization_percent for sample in device.recent[-limits.looks :]]
    unread = next((share.why for share in shares if isinstance(share, Unknown)), None)
    beginning = "may be in use by somebody out of sight (another container, user or system)"
    if used is None or total is None or unread is not None:
        return f"{beginning}: {unread or 'how much of its memory is in use is not told'}"
    # Windows has its desktop there; elsewhere little is in use when nobody computes.
    windows = isinstance(facts.wsl, Known)
    allowed = int(limits.unowned_memory_fraction_wsl * total) if windows else limits.unowned_memory_bytes
    most = max((share.value for share in shares if isinstance(share, Known)), default=0)  # none under MIG
    if most < limits.idle_percent and used <= allowed:
        return None
    figures = f"{most} % utilization, {gib(used)} of {gib(total)} GiB in use"
    return f"{beginning}: {figures} (idle: below {limits.idle_percent} %, up to {gib(allowed)} GiB)"
