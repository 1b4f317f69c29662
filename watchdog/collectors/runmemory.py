"""The host memory that a living run holds: what only its end would give back, so without page cache.

Responsible for one figure in bytes: `anon` and `shmem` of the run's own cgroup where a memory controller counts there
(what is shared is counted once, and nobody is missed), else RssAnon and RssShmem of its processes.
Refuses to count what processes share once for each of them: workers that were forked from a trainer of 10 GiB show 10
each, and a need made of that would be more than any host has. Where several processes are large, the kernel's own
proportional figure is asked for; it walks their page tables (measured: up to 60 ms a GiB), so only when the rough sum
has grown, and not beyond 32 GiB. Where it is not told, the largest process alone counts: too little rather than too
much.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from watchdog.clock import Clock
from watchdog.collectors.cgroups import parse_counters, read_small
from watchdog.collectors.memory import parse_meminfo
from watchdog.collectors.processes import parse_stat
from watchdog.collectors.roots import Roots
from watchdog.collectors.runcgroup import open_proven
from watchdog.core.facts import Fact, Known
from watchdog.core.identity import ProcessId
from watchdog.core.runrecord import RunCgroup

_LARGE_BYTES = 64 * 1024**2
_GROWN = 1.05
_WALKED_BYTES = 32 * 1024**3


class RunMemory(Struct, frozen=True, kw_only=True):
    """`held_bytes` by the run. `rough_bytes`: the plain sum over its processes, 0 where a cgroup told it."""

    held_bytes: int
    rough_bytes: int = 0


def read_run_memory(
    members: Sequence[ProcessId],
    group: RunCgroup | None,
    run_id: str,
    roots: Roots,
    clock: Clock,
    last: RunMemory | None = None,
) -> Fact[RunMemory]:
    """`last`: what was read before, which stands for several large processes until they have grown. Raises OSError."""
    held_bytes = None if group is None else _of_cgroup(group, run_id, roots)
    if held_bytes:
        return Known(RunMemory(held_bytes=held_bytes), clock.monotonic())
    single = {member.pid: _resident(member, roots) for member in members}
    rough = sum(single.values())
    large = [pid for pid, held in single.items() if held >= _LARGE_BYTES]
    if len(large) < 2:
        return Known(RunMemory(held_bytes=rough, rough_bytes=rough), clock.monotonic())
    if last is not None and rough <= last.rough_bytes * _GROWN:
        return Known(RunMemory(held_bytes=last.held_bytes, rough_bytes=last.rough_bytes), clock.monotonic())
    shares = [_share(pid, roots) for pid in large] if rough <= _WALKED_BYTES else [None]
    told = [share for share in shares if share is not None]
    held = sum(told) if len(told) == len(shares) else max(single.values())
    small = rough - sum(single[pid] for pid in large)
    return Known(RunMemory(held_bytes=min(rough, held + small), rough_bytes=rough), clock.monotonic())


def _of_cgroup(group: RunCgroup, run_id: str, roots: Roots) -> int | None:
    """None where no memory controller counts there, or the directory is not proven to be the run's."""
    fd = open_proven(group, run_id, roots)
    if fd is None:
        return None
    try:
        text = read_small(f"/proc/self/fd/{fd}/memory.stat")
    finally:
        os.close(fd)
    if text is None:
        return None
    counters = parse_counters(text)
    return counters.get("anon", 0) + counters.get("shmem", 0)


def _resident(member: ProcessId, roots: Roots) -> int:
    """Of the very process: its number may be another's by now. 0 when it is gone, or a zombie."""
    folder = f"{roots.proc}/{member.pid}"
    try:
        with open(f"{folder}/stat", "rb") as file:
            if parse_stat(file.read()).id != member:
                return 0
        with open(f"{folder}/status", encoding="utf-8", errors="replace") as file:
            status = parse_meminfo(file.read())
    except OSError:
        return 0
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def _share(pid: int, roots: Roots) -> int | None:
    """What falls to it, pages that are shared divided among those who share; None where the kernel does not tell us."""
    try:
        with open(f"{roots.proc}/{pid}/smaps_rollup", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    figures = parse_meminfo(text)
    return figures["Pss_Anon"] + figures.get("Pss_Shmem", 0) if "Pss_Anon" in figures else None
