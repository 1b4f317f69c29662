"""The cgroup of a run, a v2 directory of its own below that of its supervisor: where it goes, and who is in it.

Responsible for finding this process's own v2 cgroup, in pure v2 and in hybrid layouts, and for reading a recorded
cgroup only while it is proven to be the recorded one: the name carries the run id, the directory has the inode of
its making (the kernel gives none out twice within a boot), and it lies on a cgroup2 file system.
Refuses to make, to kill and to remove (actuators/cgroup.py), and to believe that whoever is in it is the run's.
"""

from __future__ import annotations

import contextlib
import errno
import os

from watchdog.collectors.cgroups import parse_cgroups, read_small
from watchdog.collectors.filesystems import Mount, read_mounts
from watchdog.collectors.roots import Roots
from watchdog.core.runrecord import RunCgroup

PREFIX = "gpuhost-watchdog-"
_MOST_FOLDERS = 1000  # a run may make cgroups below its own; more than these are not looked through


def name_of(run_id: str) -> str:
    """The directory's name: carries the run id, so that it is nobody else's."""
    return PREFIX + run_id


def own_folder(roots: Roots) -> str:
    """This process's v2 cgroup, as a folder. Raises OSError, ValueError, and LookupError with why there is none."""
    groups = read_small(f"{roots.proc}/self/cgroup")
    own = [path for number, names, path in parse_cgroups(groups or "") if number == 0 and not names]
    if not own:
        raise LookupError("this host has no cgroup v2")
    mounts = [mount for mount in read_mounts(roots.proc) if mount.kind == "cgroup2"]
    if not mounts:
        raise LookupError("cgroup v2 is not mounted")
    for mount in mounts:
        below = _below(own[0], mount)
        if below is None:
            continue
        folder = roots.host(mount.point) + below.rstrip("/")
        with contextlib.suppress(OSError):  # another mount may lie over this one
            if str(os.getpid()) in _read(f"{folder}/cgroup.procs").split():
                return folder
    raise LookupError(f"the own cgroup {own[0]} cannot be reached through {mounts[0].point}")


def _below(path: str, mount: Mount) -> str | None:
    """A cgroup's path below a mount that may show a part only; None where it is outside."""
    root = "" if mount.root == "/" else mount.root
    if "/.." in path or not (path + "/").startswith(root + "/"):
        return None
    return path[len(root) :] or "/"


def open_proven(group: RunCgroup, run_id: str, roots: Roots) -> int | None:
    """A descriptor of the recorded directory, for the caller to close; None when it is not proven to be that one."""
    if os.path.basename(group.path) != name_of(run_id):
        return None
    fd = -1
    try:
        fd = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(fd)
        device = (os.major(status.st_dev), os.minor(status.st_dev))
        same = (status.st_dev, status.st_ino) == (group.device, group.inode)
        if same and any(mount.kind == "cgroup2" and mount.device == device for mount in read_mounts(roots.proc)):
            proven, fd = fd, -1
            return proven
    except (OSError, ValueError):
        return None
    finally:
        if fd >= 0:
            os.close(fd)
    return None


def pids_in(group: RunCgroup, run_id: str, roots: Roots | None = None) -> frozenset[int] | None:
    """Everybody in it and below it, zombies not; 0 stands for who is of another pid namespace.

    None where that cannot be seen whole, or where the directory is not proven to be the recorded one.
    """
    fd = open_proven(group, run_id, roots or Roots())
    if fd is None:
        return None
    try:
        return _pids_below(f"/proc/self/fd/{fd}")
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def is_there(group: RunCgroup, run_id: str, roots: Roots | None = None) -> bool:
    """Whether the recorded directory, proven to be it, still exists."""
    fd = open_proven(group, run_id, roots or Roots())
    if fd is None:
        return False
    os.close(fd)
    return True


def pids_by_name(run_id: str, roots: Roots | None = None) -> frozenset[int]:
    """Who is in the cgroup of a run whose record is lost, where it lies below our own; nobody where there is none."""
    try:
        path = f"{own_folder(roots or Roots())}/{name_of(run_id)}"
        status = os.stat(path)
    except (OSError, ValueError, LookupError):
        return frozenset()
    return pids_in(RunCgroup(path=path, device=status.st_dev, inode=status.st_ino), run_id, roots) or frozenset()


def _pids_below(top: str) -> frozenset[int] | None:
    found: set[int] = set()
    for number, (folder, _, _) in enumerate(os.walk(top, onerror=_unless_gone)):
        if number == _MOST_FOLDERS:
            return None
        try:
            found.update(map(int, _read(f"{folder}/cgroup.procs").split()))
        except OSError as error:
            # Removed while we looked; or a threaded one, whose processes the directory above it lists (cgroups(7)).
            gone = error.errno in (errno.ENOENT, errno.ENODEV) and number > 0
            if not gone and error.errno != errno.EOPNOTSUPP:
                raise
    return frozenset(found)


def _unless_gone(error: OSError) -> None:
    """A directory that cannot be listed may hold anybody; one that was removed holds nobody."""
    if error.errno not in (errno.ENOENT, errno.ENODEV):
        raise error


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
