"""Does anybody of the run work, by what cannot be faked: the power of its devices, and the CPU time of its processes?

Responsible for one answer of three. Refuses to judge, to listen to anything that the run says of itself, and to take
for idle what could not be seen: what is not known may be work.
"""

from __future__ import annotations

import dataclasses
import enum

from watchdog.checks.contradiction import contradictory
from watchdog.checks.figures import duration
from watchdog.checks.owners import comparable, run_pids
from watchdog.core.facts import Absent, CpuLook, Device, DeviceSample, Facts, Known, Processes, value_of
from watchdog.core.limits import Limits

CPU_FRACTION = 0.05  # of one core; a thread that beats each second takes a thousandth
_CPU_MOST_S, _CPU_LEAST_S = 600.0, 30.0  # tables of processes are kept for a quarter of an hour
_FRESH_S = 25.0  # tables come each ten seconds
_SAMPLE_FRESH_S = 60.0


class Work(enum.Enum):
    DEVICE = "device"  # a device of the run is at work
    CPU = "cpu"  # no device is, and its processes compute
    NOBODY = "nobody"
    UNSEEN = "unseen"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    work: Work
    words: str


def worker(facts: Facts, limits: Limits, since_s: float) -> Worker:
    """Who worked for the run since then, or for the last ten minutes of it."""
    processes, beat = value_of(facts.processes), value_of(facts.beat)
    if processes is None or not processes.run:
        return _unseen("the processes of the run are not seen")
    devices = by_devices(facts, limits)
    if devices is not None and devices.work is Work.DEVICE:
        return devices
    if beat is None or beat.alive is not True:
        return _unseen("who beats is not seen among the processes of the run")
    if processes.initial_namespace is None:
        return _unseen("other users' processes are hidden from us")
    waits = next((each for each in processes.run if each.stuck_s > 0), None)
    if waits is not None:
        return _unseen(f"pid {waits.pid} waits in the kernel (state D)")
    spent = _spent(processes, facts.at_s, since_s)
    if spent is None:
        return _unseen("its CPU time was not watched for long enough")
    used_s, over_s = spent
    words = f"its processes used {used_s:.1f} s of CPU in {duration(over_s)}"
    if used_s >= CPU_FRACTION * over_s:
        return Worker(work=Work.CPU, words=words)
    return devices or Worker(work=Work.NOBODY, words=f"no device works for it, {words}")


def _unseen(words: str) -> Worker:
    return Worker(work=Work.UNSEEN, words=f"whether it works is not known: {words}")


def by_devices(facts: Facts, limits: Limits) -> Worker | None:
    """DEVICE, or UNSEEN; None: none of them works for the run."""
    if isinstance(facts.devices, Absent):
        return None
    if not isinstance(facts.devices, Known):
        return _unseen("the devices cannot be read")
    unseen = None
    for device in _maybe_ours(facts, facts.devices.value):
        if any(_works(sample, device, limits) for sample in device.recent):
            power, busy = value_of(device.now.power_watts), value_of(device.now.utilization_percent)
            said = ", ".join(f"{value:.0f} {unit}" for value, unit in ((busy, "%"), (power, "W")) if value is not None)
            return Worker(work=Work.DEVICE, words=f"{device.label} works: {said}")
        if not _is_seen(device, facts.at_s, limits):
            unseen = unseen or _unseen(f"{device.label} does not tell enough")
    return unseen


def _maybe_ours(facts: Facts, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Those on which NVML names the run. Named nowhere, it may work by processes that are not seen to be its own."""
    ours = run_pids(facts)
    named = tuple(
        device
        for device in devices
        if any(each.pid in ours for sample in device.recent for each in value_of(sample.processes) or ())
    )
    return named if named and comparable(facts) else devices


def _works(sample: DeviceSample, device: Device, limits: Limits) -> bool:
    """Busy, and not for so little power that nothing can run; or hot work that the utilization does not show."""
    busy, power, most = (
        value_of(sample.utilization_percent), value_of(sample.power_watts), value_of(device.power_limit_watts)
    )  # fmt: skip
    if busy is not None and busy > limits.idle_percent and not contradictory(sample, device, limits):
        return True
    return power is not None and most is not None and power >= limits.contradiction_power_fraction * most


def _is_seen(device: Device, at_s: float, limits: Limits) -> bool:
    """Utilization means nothing under MIG."""
    if not device.answers or value_of(device.mig) or at_s - device.now.at_s > _SAMPLE_FRESH_S:
        return False
    window = device.recent[-limits.looks :]
    return len(window) >= limits.looks and all(isinstance(each.utilization_percent, Known) for each in window)


def _spent(processes: Processes, at_s: float, since_s: float) -> tuple[float, float] | None:
    """(CPU seconds, over so many seconds); None where the looks do not span the time, or are old."""
    from_s = min(max(since_s, at_s - _CPU_MOST_S), at_s - _CPU_LEAST_S)
    first: CpuLook | None = None
    for look in processes.cpu:
        if first is None or look.at_s <= from_s:
            first = look
    if first is None or first.at_s > from_s + _FRESH_S or processes.cpu[-1].at_s < at_s - _FRESH_S:
        return None
    last = processes.cpu[-1]
    over_s = last.at_s - first.at_s
    return (last.seconds - first.seconds, over_s) if over_s >= _CPU_LEAST_S / 2 else None
