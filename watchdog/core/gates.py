"""The gates of a launch, told from facts. Pure. An unknown fact closes its gate: unknown is never healthy."""

from __future__ import annotations

from watchdog.core.facts import Absent, Disk, Fact, Known, Memory, Unknown
from watchdog.core.figures import compared, sized
from watchdog.core.memoryneed import Learned
from watchdog.core.seen import Gate


def memory_gate(
    memory: Fact[Memory], need_bytes: int, *, learned: Learned | None = None, tried: str = "", wsl: bool = False
) -> Gate:
    """Host memory for the job's need. `learned`: it is one that followed from its last run, and not the stated one.

    `tried`: what came of making room, for a gate that stays closed.
    """
    match memory:
        case Known(value):
            available = value.available_bytes
            if learned is not None:
                return _learned_gate(value, learned, tried=tried, wsl=wsl)
            words = f"memory {compared(available, need_bytes)}"
            if available < need_bytes:
                raise_it = "raise memory= in .wslconfig and then, in Windows, wsl --shutdown, " if wsl else ""
                words += f" (free host memory, {raise_it}or lower [memory] need)" + (f"; {tried}" if tried else "")
            return Gate(name="memory", open=available >= need_bytes, words=words, short=available < need_bytes)
        case Unknown(why) | Absent(why):
            return Gate(name="memory", open=False, words=f"memory cannot be read: {why}")


def _learned_gate(memory: Memory, learned: Learned, *, tried: str, wsl: bool) -> Gate:
    available = memory.available_bytes
    raise_it = "raise memory= in .wslconfig and then, in Windows, wsl --shutdown, " if wsl else ""
    most, of_whom = memory.total_bytes, "this host has"
    tightest = min(memory.limits, key=lambda limit: limit.limit_bytes, default=None)
    if tightest is not None and tightest.limit_bytes < most:
        most, of_whom = tightest.limit_bytes, f"the limit of cgroup {tightest.cgroup} is"
        raise_it = "raise that limit, "
    need_bytes = learned.need_within(most)
    if available >= need_bytes:
        words = f"memory {compared(available, need_bytes)} ({learned.words})"
        return Gate(name="memory", open=True, words=words)
    if need_bytes > most:
        words = (
            f"memory: the job needs {sized(need_bytes)} ({learned.words}), and {of_whom} "
            f"{sized(most)} in all: {raise_it}{'or ' if raise_it else ''}make the job smaller, then watchdog relaunch"
        )
        return Gate(name="memory", open=False, words=words, hopeless=True)
    raise_it = "" if not wsl else raise_it
    words = f"memory {compared(available, need_bytes)} ({learned.words}; free host memory, {raise_it}"
    words += "or make the job smaller and watchdog relaunch --force)" + (f"; {tried}" if tried else "")
    return Gate(name="memory", open=False, words=words, short=True)


def disk_gate(disk: Fact[Disk], need_bytes: int, *, tried: str = "") -> Gate:
    """Room for state or checkpoints. `tried`: what came of pruning, for a gate that stays closed."""
    match disk:
        case Known(value):
            name = f"disk of {value.purpose}"
            if value.read_only:
                return Gate(name=name, open=False, words=f"{value.path} is mounted read-only")
            words = f"{value.purpose} disk {compared(value.free_bytes, need_bytes)}"
            if value.free_bytes < need_bytes:
                words += f" ({value.path}: free disk space, or lower [disk] need)" + (f"; {tried}" if tried else "")
            full = value.free_bytes < need_bytes
            return Gate(name=name, open=not full, words=words, full=full)
        case Unknown(why) | Absent(why):
            return Gate(name="disk", open=False, words=f"disk cannot be read: {why}")


def lock_gate(*, intact: bool, path: str) -> Gate:
    """Our own supervisor lock is still the file that others would lock."""
    words = "no run alive" if intact else f"the lock {path} was unlinked or replaced while we held it; start anew"
    return Gate(name="lock", open=intact, words=words)
