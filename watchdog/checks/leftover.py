"""Does what a leader left behind work on? By its output, its devices and its CPU time, since the leader's end.

Responsible for one answer of three. Refuses to end anybody, and to call idle what could not be seen, what is stopped or
debugged, and what holds a device: that may be waiting for somebody.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.checks.owners import run_pids
from watchdog.checks.working import CPU_FRACTION, Work, by_devices
from watchdog.core.facts import Absent, CpuLook, Facts, Known, Processes, value_of
from watchdog.core.limits import Limits
from watchdog.core.seen import Left

_REAPED_S = 1.0  # the shim is given the leader's CPU time when it has waited for it: a look before that counts it anew
_FRESH_S, _LEAST_S = 25.0, 15.0  # tables come each ten seconds


def left_over(
    facts: Facts, limits: Limits, *, since_s: float, now_s: float, window_s: float, grew_s: float | None, log_read: bool
) -> Left:
    """`since_s`: when the leader ended; `grew_s`: when its output was last seen to grow since then.

    `log_read`: whether growth of the output could be seen now.
    """
    from_s = max(since_s, now_s - window_s)
    if grew_s is not None and grew_s >= from_s:
        return Left(works=True, words=f"its output grew {duration(now_s - grew_s)} ago")
    processes = value_of(facts.processes)
    if processes is None or not processes.run:
        return _unknown("its processes are not seen")
    if processes.initial_namespace is None:
        return _unknown("other users' processes are hidden from us")
    if (held := next((each for each in processes.run if each.state in "DTt"), None)) is not None:
        return _unknown(f"pid {held.pid} {held.command} is in state {held.state}")
    spent = _spent(processes, from_s, now_s)
    if spent is not None and spent[0] >= CPU_FRACTION * spent[1]:
        return Left(works=True, words=_cpu(spent))
    device = _at_devices(facts, limits, processes)
    if device is not None:
        return device
    if not log_read:
        return _unknown("its output cannot be read")
    if spent is None:
        return _unknown("its CPU time was not watched for long enough")
    return Left(works=False, words=f"no output, no device, {_cpu(spent)}")


def _unknown(words: str) -> Left:
    return Left(works=None, words=f"whether it works is not known: {words}")


def _cpu(spent: tuple[float, float]) -> str:
    return f"{spent[0]:.1f} s of CPU in {duration(spent[1])}"


def _at_devices(facts: Facts, limits: Limits, processes: Processes) -> Left | None:
    """None: nobody of the run has a device."""
    if isinstance(facts.devices, Absent):
        return None
    ours = run_pids(facts)
    holder = next((each.pid for each in processes.holders if each.of_run), None)
    if holder is None and isinstance(facts.devices, Known):
        listed = (each.pid for device in facts.devices.value for each in value_of(device.now.processes) or ())
        holder = next((pid for pid in listed if pid in ours), None)
    if holder is None:
        return None
    worker = by_devices(facts, limits)
    if worker is not None and worker.work is Work.DEVICE:
        return Left(works=True, words=worker.words)
    return _unknown(f"pid {holder} has a device open")


def _spent(processes: Processes, from_s: float, now_s: float) -> tuple[float, float] | None:
    """(CPU seconds, over so many seconds); None where the looks do not span the time, or are old."""
    first: CpuLook | None = next((look for look in processes.cpu if look.at_s >= from_s + _REAPED_S), None)
    if first is None:
        return None
    last = processes.cpu[-1]
    over_s = last.at_s - first.at_s
    if over_s < _LEAST_S or first.at_s > from_s + _FRESH_S or last.at_s < now_s - _FRESH_S:
        return None
    return last.seconds - first.seconds, over_s
