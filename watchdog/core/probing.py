"""Which devices may be measured now. Pure.

A probe beside a living trainer would slow it down and take its own contention for a sick device; so a device is
measured only when nobody alive computes on it. Refuses to measure.
"""

from __future__ import annotations

from watchdog.core.facts import Absent, Device, Facts, Known, Unknown
from watchdog.core.limits import Limits, names


def to_measure(facts: Facts, limits: Limits) -> tuple[Device, ...] | str:
    """The devices that may be measured, or why there is none."""
    if isinstance(facts.devices, Unknown | Absent):
        return facts.devices.why or "there is no GPU"
    why_not = beside(facts)
    if why_not is not None:
        return why_not
    free: list[Device] = []
    why = "the job uses no device that is here"
    for device in facts.devices.value:
        if device.missing or device.lost_code is not None:
            continue
        if not names(limits.devices, uuid=device.uuid, index=device.index):
            continue
        user = _user_of(device, facts)
        if user is None:
            free.append(device)
        else:
            why = f"{device.label} is in use by {user}"
    return tuple(free) or why


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


def _user_of(device: Device, facts: Facts) -> str | None:
    """Somebody alive who computes on it: by NVML's word, or with the device node open where NVML names nobody."""
    ours: set[int] = set()
    if isinstance(facts.processes, Known):
        ours = {process.pid for process in facts.processes.value.run}
    listed = device.now.processes
    if isinstance(listed, Known):
        for process in listed.value:
            if process.kind == "compute" and process.here and process.pid not in ours:
                return f"pid {process.pid} ({process.command or 'its name cannot be read'})"
    if isinstance(facts.processes, Known):
        node = f"/dev/nvidia{device.index}"
        for holder in facts.processes.value.holders:
            if node in holder.nodes and not holder.of_run and not _is_graphics(holder.pid, device):
                return f"pid {holder.pid} ({holder.command}), which has {node} open"
    return None


def _is_graphics(pid: int, device: Device) -> bool:
    listed = device.now.processes
    return isinstance(listed, Known) and any(each.pid == pid and each.kind == "graphics" for each in listed.value)
