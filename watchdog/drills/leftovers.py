"""The folder of a drill, locked while its drill lives, and what the dead ones left.

Responsible for the lock that tells a living drill from a dead one (the kernel lets go of it, whatever ended the drill),
and for ending and removing what a dead one could not: its processes, immutable folders, cgroups, the folder.
Refuses a folder whose lock somebody holds, one that has no lock, one of another user, and one with a mount in it.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from watchdog import contract
from watchdog.collectors.filesystems import read_mounts
from watchdog.collectors.processes import is_alive
from watchdog.core.identity import ProcessId
from watchdog.drills.interrupts import held_off
from watchdog.drills.whose import Whose

PREFIX = "gpuhost-watchdog-drill-"
LOCK = "drill.lock"
BED = "bed"
_UNFINISHED_S = 60.0  # a folder without a lock is one that is being made, for some microseconds
_END_S = 20.0
_FLAGS = (0x80086601, 0x40086602)  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: linux/fs.h
_IMMUTABLE = 0x10  # FS_IMMUTABLE_FL


def make_folder(about: str, cleanup: contextlib.ExitStack) -> Path:
    """A new folder that is locked until `cleanup` closes; `about` tells a person whose it was. Raises OSError."""
    with held_off():
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        cleanup.callback(os.close, fd)
        # Words, pid and start time: on a file system whose flock is none these two still tell who lives.
        os.write(fd, f"{about}\n{os.getpid()} {contract.start_ticks(os.getpid())}\n".encode())
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What became of what one dead drill left; `left` empty: all of it is gone."""

    path: Path
    about: str
    ended: int
    left: str = ""

    def __str__(self) -> str:
        what = f"{self.path}, left by a drill that was killed: {self.about or 'it had not begun'}"
        done = f"{self.ended} of its processes ended" if self.ended else "none of its processes lived"
        return f"{what}; {done}, {self.left or 'folder removed'}"


def sweep_leftovers() -> Iterator[Swept]:
    """Each dead drill's remains in today's temporary folder, ended and removed."""
    for path in sorted(Path(tempfile.gettempdir()).glob(PREFIX + "*")):
        with contextlib.ExitStack() as stack:
            about = _proven_dead(path, stack)
            if about is not None:
                with held_off():
                    swept = _remove(path, about)
                yield swept


def _proven_dead(path: Path, stack: contextlib.ExitStack) -> str | None:
    """What the folder is about, with its lock in our hand until `stack` closes; None: not ours to touch."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        try:
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Killed before it had a lock, so before anything else. One that has something in it is not of our making.
            if time.time() - status.st_mtime > _UNFINISHED_S and not os.listdir(path):
                return ""
            return None
        stack.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its drill lives
        about, _, who = os.pread(fd, 500, 0).decode(errors="replace").partition("\n")
        if os.fstat(fd).st_nlink and not _lives(who):  # no link: another drill has just removed it
            return about
    return None


def _lives(who: str) -> bool:
    """The process with that number and start time; what is torn says nothing, and the lock has told already."""
    try:
        pid, ticks = map(int, who.split())
    except ValueError:
        return False
    return is_alive(ProcessId(pid, ticks))


def _remove(path: Path, about: str) -> Swept:
    whose = Whose(path / BED)
    ended, deadline_s = {member.pid for member in whose.members()}, time.monotonic() + _END_S
    while not whose.kill():
        if time.monotonic() > deadline_s:
            pids = ", ".join(str(member.pid) for member in whose.members())
            return Swept(path=path, about=about, ended=0, left=f"not removed, since pid {pids} does not end")
        time.sleep(0.05)
    left = ""
    mounts = [mount.point for mount in read_mounts("/proc") if mount.point.startswith(f"{path}/")]
    if mounts:
        left = f"not removed, since {mounts[0]} is mounted in it: umount it, then rm -r {path}"
    else:
        for state in (path / BED / "state").glob("*"):
            whose.sweep_cgroups(state)
        left = _remove_cgroup(path.name) or _remove_tree(path)
    return Swept(path=path, about=about, ended=len(ended), left=left)


def _remove_tree(path: Path) -> str:
    """Why it stays, else empty."""
    make_removable(path)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"could not be removed ({error}): see what is in it, then rm -r it"
    return ""


def _remove_cgroup(name: str) -> str:
    """The memory limit of that drill (places.MemoryLimit), empty by now or soon. Why it stays, else empty."""
    for top in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        deadline_s = time.monotonic() + 2.0
        while True:
            try:
                os.rmdir(f"{top}/{name}")
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline_s:
                    return f"not removed, since its cgroup {top}/{name} stays: {error.strerror}"
                time.sleep(0.05)
    return ""


# --- folders in which nothing can be removed ----------------------------------------------------------------------
def set_immutable(folder: Path, wanted: bool) -> None:
    """Raises OSError: not root, or a file system that has no such flag."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        flags = array.array("l", [0])
        fcntl.ioctl(fd, _FLAGS[0], flags)
        before = flags[0]
        flags[0] = before | _IMMUTABLE if wanted else before & ~_IMMUTABLE
        if flags[0] != before:
            fcntl.ioctl(fd, _FLAGS[1], flags)
    finally:
        os.close(fd)


def make_removable(folder: Path) -> None:
    """Of each folder below: immutable no more, and writable for its owner. What cannot be shows when it is removed."""
    for name, _, _ in os.walk(folder):
        path = Path(name)
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                set_immutable(path, False)
        else:
            with contextlib.suppress(OSError):
                path.chmod(path.stat().st_mode | stat.S_IRWXU)
