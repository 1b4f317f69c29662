"""The gates of a launch, told from facts. Pure. An unknown fact closes its gate: unknown is never healthy."""

from __future__ import annotations

from watchdog.core.facts import Absent, Disk, Fact, Known, Memory, Unknown
from watchdog.core.figures import gib
from watchdog.core.seen import Gate


def memory_gate(memory: Fact[Memory], need_bytes: int, *, tried: str = "", wsl: bool = False) -> Gate:
    """Host memory for the job's stated need. `tried`: what came of making room, for a gate that stays closed."""
    match memory:
        case Known(value):
            available = value.available_bytes
            sign = "≥" if available >= need_bytes else "<"
            words = f"memory {gib(available)} {sign} {gib(need_bytes)} GiB"
            if available < need_bytes:
                raise_it = "raise memory= in .wslconfig and then, in Windows, wsl --shutdown, " if wsl else ""
                words += f" (free host memory, {raise_it}or lower [memory] need)" + (f"; {tried}" if tried else "")
            return Gate(name="memory", open=available >= need_bytes, words=words, short=available < need_bytes)
        case Unknown(why) | Absent(why):
            return Gate(name="memory", open=False, words=f"memory cannot be read: {why}")


def disk_gate(disk: Fact[Disk], need_bytes: int, *, tried: str = "") -> Gate:
    """Room for state or checkpoints. `tried`: what came of pruning, for a gate that stays closed."""
    match disk:
        case Known(value):
            name = f"disk of {value.purpose}"
            if value.read_only:
                return Gate(name=name, open=False, words=f"{value.path} is mounted read-only")
            sign = "≥" if value.free_bytes >= need_bytes else "<"
            words = f"{value.purpose} disk {gib(value.free_bytes)} {sign} {gib(need_bytes)} GiB"
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
