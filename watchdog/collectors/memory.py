"""Host memory: what a job could really get.

Responsible for MemAvailable and for the tightest limit among the cgroups this process lives in (v2, v1, hybrid).
The memory controller is found by `/proc/self/cgroup` and mountinfo, never by a path that is assumed.
Refuses to judge, and to guess: a file that exists and cannot be read makes the whole fact unknown.

Known limit: where no cgroup file system is mounted (some containers), a limit cannot be seen and none is reported.
"""

from __future__ import annotations

import dataclasses
import errno
import posixpath
from collections.abc import Iterator

from watchdog.clock import Clock
from watchdog.collectors.filesystems import Mount, read_mounts
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Fact, Known, Memory

_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)  # no such limit here, or the group went away while we looked
_NO_LIMIT_V1 = 2**60  # v1 writes "no limit" as the largest page-aligned number, 9223372036854771712


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """One cgroup's limit and what could still be had below it, bytes."""

    cgroup: str
    limit_bytes: int
    available_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Controller:
    """Where the memory controller is: `point` is its mount, `path` this process's group below it."""

    version: int
    point: str
    path: str


def parse_meminfo(text: str) -> dict[str, int]:
    """`/proc/meminfo` as bytes by name. Lines without a number are left out."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return values


def parse_cgroups(text: str) -> tuple[tuple[int, frozenset[str], str], ...]:
    """`/proc/self/cgroup` as (hierarchy, controllers, path); hierarchy 0 with no controllers is v2 (cgroups(7))."""
    groups = []
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator or not hierarchy.isdigit():
            raise ValueError(f"a line of /proc/self/cgroup cannot be read: {line[:200]!r}")
        groups.append((int(hierarchy), frozenset(filter(None, controllers.split(","))), path))
    return tuple(groups)


def parse_stat(text: str) -> dict[str, int]:
    """`memory.stat`: one name and one number a line."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def find_controller(
    cgroups: tuple[tuple[int, frozenset[str], str], ...], mounts: tuple[Mount, ...]
) -> Controller | None:
    """The memory controller's mount and our group in it; None where there is no such controller, or no mount of it.

    In a hybrid layout the v1 hierarchy has the controller and the v2 mount beside it has not: a v1 line with
    `memory` therefore decides.
    """
    version, own = 0, ""
    for hierarchy, controllers, path in cgroups:
        if "memory" in controllers:
            version, own = 1, path
            break
        if hierarchy == 0 and not controllers:
            version, own = 2, path
    for mount in mounts:
        is_v1 = version == 1 and mount.kind == "cgroup" and "memory" in mount.super_options
        if is_v1 or (version == 2 and mount.kind == "cgroup2"):
            return Controller(version=version, point=mount.point, path=_below(own, mount.root))
    return None


def _below(path: str, root: str) -> str:
    """Our group's path below the mount. A container's mount may show a part only: `root` is then what it shows.

    A path outside of what is mounted (`/../x`, or another part) leaves the mount's own group as the only one to see.
    """
    if root != "/":
        if path != root and not path.startswith(root + "/"):
            return "/"
        path = path[len(root) :] or "/"
    return "/" if "/.." in path else path


def ancestors(path: str) -> Iterator[str]:
    """`/a/b` gives `/a/b`, `/a`, `/`."""
    while True:
        yield path
        if path in ("/", ""):
            return
        path = posixpath.dirname(path)


def _read(path: str) -> str | None:
    """The text, or None when there is no such file. Raises OSError for anything else."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def _limit_v2(folder: str) -> tuple[int, int, dict[str, int]] | None:
    # memory.high counts like a limit: beyond it the kernel slows a job down until it hardly moves.
    texts = [_read(f"{folder}/{name}") for name in ("memory.max", "memory.high")]
    limits = [int(text) for text in texts if text and text.strip().isdigit()]
    usage = _read(f"{folder}/memory.current")
    if not limits or usage is None:
        return None
    return min(limits), int(usage), parse_stat(_read(f"{folder}/memory.stat") or "")


def _limit_v1(folder: str) -> tuple[int, int, dict[str, int]] | None:
    limit, usage = _read(f"{folder}/memory.limit_in_bytes"), _read(f"{folder}/memory.usage_in_bytes")
    if limit is None or usage is None or int(limit) >= _NO_LIMIT_V1:
        return None
    stat = parse_stat(_read(f"{folder}/memory.stat") or "")
    # usage_in_bytes counts the children too; in memory.stat only the total_ lines do.
    return int(limit), int(usage), {key: stat.get(f"total_{key}", stat.get(key, 0)) for key in _FILE_PAGES}


_FILE_PAGES = ("inactive_file", "active_file")


def read_limits(controller: Controller, roots: Roots) -> tuple[Limit, ...]:
    """Every ancestor's limit, from our own group upwards. Raises OSError, ValueError."""
    found = []
    for path in ancestors(controller.path):
        folder = roots.host(controller.point) + path.rstrip("/")
        figures = _limit_v2(folder) if controller.version == 2 else _limit_v1(folder)
        if figures is not None:
            limit, usage, stat = figures
            # File pages are given back when asked for: limit - usage alone reads 0 in a group full of cache.
            held = usage - sum(stat.get(name, 0) for name in _FILE_PAGES)
            found.append(Limit(cgroup=path, limit_bytes=limit, available_bytes=max(0, limit - max(0, held))))
    return tuple(found)


def read_memory(roots: Roots, clock: Clock) -> Fact[Memory]:
    """MemTotal, MemAvailable and the tightest cgroup limit, bytes. Raises OSError, ValueError."""
    with open(f"{roots.proc}/meminfo", encoding="ascii", errors="replace") as file:
        meminfo = parse_meminfo(file.read())
    if "MemTotal" not in meminfo or "MemAvailable" not in meminfo:
        raise ValueError(f"{roots.proc}/meminfo has no MemTotal or no MemAvailable")
    limits: tuple[Limit, ...] = ()
    groups = _read(f"{roots.proc}/self/cgroup")  # absent in a kernel without cgroups
    if groups is not None:
        controller = find_controller(parse_cgroups(groups), read_mounts(roots.proc))
        limits = read_limits(controller, roots) if controller is not None else ()
    tightest = min(limits, key=lambda limit: limit.available_bytes, default=None)
    host = meminfo["MemAvailable"]
    return Known(
        Memory(
            total_bytes=meminfo["MemTotal"],
            available_bytes=host if tightest is None else min(host, tightest.available_bytes),
            host_available_bytes=host,
            limit_bytes=None if tightest is None else tightest.limit_bytes,
            limit_cgroup=None if tightest is None else tightest.cgroup,
        ),
        clock.monotonic(),
    )
