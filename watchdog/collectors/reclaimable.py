"""What of the host's memory could be given back, and through which files of the kernel.

Responsible for the figures of the job's cgroup and of those above it, for MemFree and the page cache, and for whether
this process may write to the files that reclaim. One look takes under a millisecond.
Refuses to write to any of them (actuators/reclaim.py does), and to look at a cgroup that is not above the job's.
"""

from __future__ import annotations

import os

from watchdog.collectors.cgroups import Controller, ancestors, own_controller, parse_counters, read_small
from watchdog.collectors.memory import cached, parse_meminfo, read_limits
from watchdog.collectors.roots import Roots
from watchdog.core.reclaiming import Group, How, Layout, Switch

HELPER = "/usr/local/libexec/gpuhost-watchdog-reclaim"  # deploy/reclaim/install.sh puts it there
_FILE_PAGES = ("inactive_file", "active_file")


def read_layout(roots: Roots, *, helper: str = HELPER) -> Layout:
    """Memory as it is now. `helper`: what a person installed for users who are not root. Raises OSError, ValueError."""
    with open(f"{roots.proc}/meminfo", encoding="ascii", errors="replace") as file:
        meminfo = parse_meminfo(file.read())
    for name in ("MemFree", "MemAvailable"):
        if name not in meminfo:
            raise ValueError(f"{roots.proc}/meminfo has no {name}")
    controller = own_controller(roots)
    limits = {limit.cgroup: limit for limit in read_limits(controller, roots)} if controller is not None else {}
    swaps = meminfo.get("SwapTotal", 0) > 0
    groups: list[Group] = []
    if controller is not None:
        for path in ancestors(controller.path):
            limit = limits.get(path)
            found = _group(controller, path, None if limit is None else limit.limit_bytes, roots, swaps=swaps)
            if found is not None:
                groups.append(found)
    left = [max(0, limit.limit_bytes - limit.held_bytes) for limit in limits.values()]
    helped = os.path.exists(roots.host(helper))
    return Layout(
        available_bytes=min([meminfo["MemAvailable"], *left]),
        host_available_bytes=meminfo["MemAvailable"],
        host_free_bytes=meminfo["MemFree"],
        cached_bytes=cached(meminfo),
        version=None if controller is None else controller.version,
        groups=tuple(groups),
        drop_caches=_switch(How.DROP_CACHES, roots, helped=helped),
        compact=_switch(How.COMPACT, roots, helped=helped),
        wsl="microsoft" in (read_small(f"{roots.proc}/sys/kernel/osrelease") or "").lower(),
    )


def _group(controller: Controller, path: str, limit: int | None, roots: Roots, *, swaps: bool) -> Group | None:
    """None: the group has no figures, as the root of v2."""
    folder = controller.folder(path, roots)
    stat = parse_counters(read_small(f"{folder}/memory.stat") or "")
    if controller.version == 2:
        usage = read_small(f"{folder}/memory.current")
        control, swaps = f"{folder}/{How.RECLAIM.value}", False  # swappiness=0 is asked for with each write
        kernel = stat.get("slab_reclaimable", 0)
    else:
        usage = read_small(f"{folder}/memory.usage_in_bytes")
        control = f"{folder}/{How.FORCE_EMPTY.value}"
        stat = {name: stat.get(f"total_{name}", stat.get(name, 0)) for name in _FILE_PAGES}
        kernel = int(read_small(f"{folder}/memory.kmem.usage_in_bytes") or 0)
        swaps = swaps and (read_small(f"{folder}/memory.swappiness") or "").strip() != "0"
    files = sum(stat.get(name, 0) for name in _FILE_PAGES)
    there = os.path.exists(control)
    if usage is None and not there:
        return None
    return Group(
        path=path,
        usage_bytes=int(usage) if usage is not None else files + kernel,
        limit_bytes=limit,
        file_bytes=files,
        kernel_bytes=kernel,
        control=control if there else "",
        writable=there and os.access(control, os.W_OK),
        swaps=swaps,
    )


def _switch(how: How, roots: Roots, *, helped: bool) -> Switch | None:
    path = f"{roots.proc}/sys/vm/{how.value}"
    return Switch(path=path, writable=helped or os.access(path, os.W_OK)) if os.path.exists(path) else None
