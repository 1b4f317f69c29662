"""Host memory: what a job could really get.

Responsible for MemAvailable, page cache and swap of the host, and for every limit among the cgroups this process
lives in (v2, v1, hybrid). One look takes 0.2 ms.
Refuses to judge, and to guess: a file that exists and cannot be read makes the whole fact unknown.

Known limit: where no cgroup file system is mounted (some containers), a limit cannot be seen and none is reported.
"""

from __future__ import annotations

from watchdog.clock import Clock
from watchdog.collectors.cgroups import Controller, ancestors, own_controller, parse_counters, read_small
from watchdog.collectors.roots import Roots
from watchdog.core.facts import CgroupLimit, Fact, Known, Memory

_NO_LIMIT_V1 = 2**60  # v1 writes "no limit" as the largest page-aligned number, 9223372036854771712
_FILE_PAGES = ("inactive_file", "active_file")


def parse_meminfo(text: str) -> dict[str, int]:
    """`/proc/meminfo` as bytes by name. Lines without a number are left out."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return values


def memory_total(roots: Roots) -> int:
    """MemTotal of the host, bytes. Raises OSError, ValueError."""
    with open(f"{roots.proc}/meminfo", encoding="ascii", errors="replace") as file:
        meminfo = parse_meminfo(file.read())
    if "MemTotal" not in meminfo:
        raise ValueError(f"{roots.proc}/meminfo has no MemTotal")
    return meminfo["MemTotal"]


def cached(meminfo: dict[str, int]) -> int:
    """What the host keeps because nobody asked for the room yet: Buffers + Cached + SReclaimable - Shmem, bytes.

    Shmem (tmpfs, shared memory) is counted in Cached but has no file to go back to; the kernel's own file caches
    (SReclaimable) are not in Cached but go the same way. Dirty pages are in it, and have to be written first.
    """
    kept = sum(meminfo.get(name, 0) for name in ("Buffers", "Cached", "SReclaimable"))
    return max(0, kept - meminfo.get("Shmem", 0))


def _limit_v2(folder: str) -> tuple[int, int, dict[str, int]] | None:
    # memory.high counts like a limit: beyond it the kernel slows a job down until it hardly moves.
    texts = [read_small(f"{folder}/{name}") for name in ("memory.max", "memory.high")]
    limits = [int(text) for text in texts if text and text.strip().isdigit()]
    usage = read_small(f"{folder}/memory.current") if limits else None
    if usage is None:
        return None
    return min(limits), int(usage), parse_counters(read_small(f"{folder}/memory.stat") or "")


def _limit_v1(folder: str) -> tuple[int, int, dict[str, int]] | None:
    limit = read_small(f"{folder}/memory.limit_in_bytes")
    if limit is None or int(limit) >= _NO_LIMIT_V1:
        return None
    usage = read_small(f"{folder}/memory.usage_in_bytes")
    if usage is None:
        return None
    stat = parse_counters(read_small(f"{folder}/memory.stat") or "")
    # usage_in_bytes counts the children too; in memory.stat only the total_ lines do.
    return int(limit), int(usage), {key: stat.get(f"total_{key}", stat.get(key, 0)) for key in _FILE_PAGES}


def read_limits(controller: Controller, roots: Roots) -> tuple[CgroupLimit, ...]:
    """Every ancestor's limit, from our own group upwards. Raises OSError, ValueError."""
    found = []
    for path in ancestors(controller.path):
        folder = controller.folder(path, roots)
        figures = _limit_v2(folder) if controller.version == 2 else _limit_v1(folder)
        if figures is not None:
            limit, usage, stat = figures
            # File pages are given back when asked for: limit - usage alone reads 0 in a group full of cache.
            held = max(0, usage - sum(stat.get(name, 0) for name in _FILE_PAGES))
            found.append(CgroupLimit(cgroup=path, limit_bytes=limit, held_bytes=held))
    return tuple(found)


def _left(limit: CgroupLimit) -> int:
    return max(0, limit.limit_bytes - limit.held_bytes)


def read_memory(roots: Roots, clock: Clock) -> Fact[Memory]:
    """Memory of the host and of the cgroups we are in, bytes. Raises OSError, ValueError."""
    with open(f"{roots.proc}/meminfo", encoding="ascii", errors="replace") as file:
        meminfo = parse_meminfo(file.read())
    if "MemTotal" not in meminfo or "MemAvailable" not in meminfo:
        raise ValueError(f"{roots.proc}/meminfo has no MemTotal or no MemAvailable")
    controller = own_controller(roots)
    limits = read_limits(controller, roots) if controller is not None else ()
    tightest = min(limits, key=_left, default=None)
    host = meminfo["MemAvailable"]
    return Known(
        Memory(
            total_bytes=meminfo["MemTotal"],
            available_bytes=host if tightest is None else min(host, _left(tightest)),
            host_available_bytes=host,
            limit_bytes=None if tightest is None else tightest.limit_bytes,
            limit_cgroup=None if tightest is None else tightest.cgroup,
            limits=limits,
            cached_bytes=cached(meminfo),
            swap_total_bytes=meminfo.get("SwapTotal", 0),
            swap_free_bytes=meminfo.get("SwapFree", 0),
        ),
        clock.monotonic(),
    )
