"""Where this process's memory cgroup is, in v1, v2 and hybrid layouts, and the small reads below it.

Responsible for `/proc/self/cgroup` and mountinfo together: the memory controller's mount, our group in it, its
ancestors. Refuses to assume a path, to judge, and to read figures for anybody (memory.py, oom.py).

Known limit: where no cgroup file system is mounted (some containers) there is no controller to be found.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator

from msgspec import Struct

from watchdog.collectors.filesystems import Mount, read_mounts
from watchdog.collectors.roots import Roots

_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)  # no such file here, or the group went away while we looked


class Controller(Struct, frozen=True, kw_only=True):
    """Where the memory controller is: `point` is its mount, `path` this process's group below it."""

    version: int
    point: str
    path: str

    def folder(self, group: str, roots: Roots) -> str:
        """The folder of `group`, a path below the mount."""
        return roots.host(self.point) + group.rstrip("/")


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


def parse_counters(text: str) -> dict[str, int]:
    """`memory.stat`, `memory.events`, `/proc/vmstat` and their like: one name and one number a line."""
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


def own_controller(roots: Roots) -> Controller | None:
    """The memory controller of this process, None where there is none to be seen. Raises OSError, ValueError."""
    groups = read_small(f"{roots.proc}/self/cgroup")  # absent in a kernel without cgroups
    return None if groups is None else find_controller(parse_cgroups(groups), read_mounts(roots.proc))


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


def read_small(path: str) -> str | None:
    """The text, or None when there is no such file. Raises OSError for anything else."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
