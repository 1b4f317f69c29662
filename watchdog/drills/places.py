"""What a drill needs of the host beyond its folder: a disk of its own, a memory limit of its own.

Responsible for making them, for taking them away again, and for saying why this host cannot make them.
Refuses to touch a mount or a cgroup that is not its own: the disk is a tmpfs in a mount namespace that ends with the
process that holds it, the cgroup is an empty one with a name of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from watchdog.drills.interrupts import held_off
from watchdog.drills.leftovers import make_folder, set_immutable

_CGROUPS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))

_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")

# PR_SET_PDEATHSIG = 1 (linux/prctl.h), set by the child itself and kept by its exec: whoever holds something for a
# drill ends with it, even by a KILL that leaves no time for cleaning up.
_ENDS_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


def _ending_with_us(command: list[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _ENDS_WITH_US, str(os.getpid()), *command]


class PlaceError(Exception):
    """This host does not let us make it; the text says why."""


class Disk:
    """A small tmpfs at `path`, in a mount namespace of its own; seen from here at `seen`. Raises PlaceError.

    `cleanup` takes its `close` before anything is waited for, as with everything here.
    """

    def __init__(self, path: Path, cleanup: contextlib.ExitStack, size: str = "12m") -> None:
        if why := why_no_disk():
            raise PlaceError(why)
        self.path = path
        path.mkdir()
        script = f'mount -t tmpfs -o size={size} tmpfs "$0" && echo mounted && exec sleep 600'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(path)]
        with held_off():
            self._holder = subprocess.Popen(
                _ending_with_us(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            )
            cleanup.callback(self.close)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"mounted\n":
            self.close()
            raise PlaceError("a tmpfs cannot be mounted here")
        holder = self._holder.pid
        self.seen = Path(f"/proc/{holder}/root{path}")
        self.prefix = ["nsenter", f"--mount=/proc/{holder}/ns/mnt", "--"]

    def fill(self) -> None:
        """To the last byte: every block, and the rest of the last one."""
        with open(self.seen / "filling", "ab", buffering=0) as file:
            for size in (1024 * 1024, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def is_full(self) -> bool:
        try:
            with open(self.seen / "probe", "wb", buffering=0) as file:
                file.write(b"x")
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            with contextlib.suppress(FileNotFoundError):
                (self.seen / "probe").unlink()
        return False

    def free(self) -> None:
        (self.seen / "filling").unlink()

    def close(self) -> None:
        """The namespace ends with its holder, and the mount with it. Twice does no harm."""
        _end(self._holder)


class MemoryLimit:
    """A memory cgroup of `limit_bytes` that nobody is in. Raises PlaceError."""

    def __init__(self, limit_bytes: int, cleanup: contextlib.ExitStack, name: str) -> None:
        """`name`: of the drill's folder, by which a later drill finds what a killed one left."""
        top, limit = _cgroup_top()
        self.path = top / name
        try:
            with held_off():
                self.path.mkdir()
                cleanup.callback(self.close)
            (self.path / limit).write_text(str(limit_bytes))
        except OSError as error:
            raise PlaceError(f"no memory cgroup can be made at {self.path}: {error.strerror}") from error

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    @property
    def empty(self) -> bool:
        return not (self.path / "cgroup.procs").read_text().strip()

    def close(self) -> None:
        """Twice does no harm. Raises OSError when somebody is still in it after two seconds."""
        deadline = time.monotonic() + 2.0
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:  # the kernel takes the dead out of it a little later
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _cgroup_top() -> tuple[Path, str]:
    for top, name in _CGROUPS:
        if (top / "cgroup.procs").exists():
            return top, name
    raise PlaceError("no cgroups are mounted here")


class LockHolder:
    """A stopped process that is none of the job's and holds a share of a lock file."""

    _BODY = (
        "import fcntl, os, signal, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_SH); "
        "print('held', flush=True); signal.raise_signal(signal.SIGSTOP); signal.pause()"
    )

    def __init__(self, python: str, lock: Path, cleanup: contextlib.ExitStack) -> None:
        command = _ending_with_us([python, "-I", "-S", "-c", self._BODY, str(lock)])
        with held_off():
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/", start_new_session=True)
            cleanup.callback(self.close)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"held\n":
            self.close()
            raise PlaceError(f"nobody else can take a share of the lock {lock}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Our own child, not reaped: its number is its own. Twice does no harm."""
        _end(self._process)


class Stranger:
    """A process that is none of the job's, with the number of one that was, and with its words. Raises PlaceError."""

    _BODY = "import time\nwhile True: time.sleep(0.2)"
    _TRIES = 300

    def __init__(self, pid: int, words: list[str], cleanup: contextlib.ExitStack) -> None:
        command = _ending_with_us([sys.executable, "-c", self._BODY, *words])
        for _ in range(self._TRIES):
            with held_off():
                try:
                    _LAST_PID.write_text(str(pid - 1))  # the kernel gives the next one to whoever forks next
                except OSError as error:
                    raise PlaceError(f"the next number cannot be chosen: {error.strerror}") from error
                self._process = subprocess.Popen(command, cwd="/", start_new_session=True, env={})
                if self._process.pid == pid:
                    cleanup.callback(self.close)
                    return
                _end(self._process)
        raise PlaceError(f"others were quicker to take the number {pid}, {self._TRIES} times")

    def harm(self) -> list[str]:
        """What was done to it."""
        code = self._process.poll()
        return [] if code is None else [f"a stranger was ended ({code}) for having the number of a trainer"]

    def close(self) -> None:
        """Our own child, not reaped."""
        _end(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class ReadOnly:
    """A folder in which nothing can be made or removed, not even by root: mode 0555, and for root the immutable flag.

    Raises PlaceError.
    """

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self._folder = folder
        self._mode = folder.stat().st_mode
        with held_off():
            if os.geteuid() == 0:
                self._immutable(True)
            else:
                folder.chmod(0o555)
            cleanup.callback(self.close)

    def close(self) -> None:
        if os.geteuid() == 0:
            self._immutable(False)
        else:
            self._folder.chmod(self._mode & 0o7777)

    def _immutable(self, wanted: bool) -> None:
        try:
            set_immutable(self._folder, wanted)
        except OSError as error:
            raise PlaceError(f"no folder can be made immutable here: {error.strerror}") from error


# --- what this host can do ----------------------------------------------------------------------------------------
def why_no_disk() -> str:
    """Why a disk of its own cannot be made here; empty when it can."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    missing = [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    try:
        done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"a mount namespace cannot be tried: {error}"
    return "" if done.returncode == 0 else f"no mount namespace of our own: {done.stderr.strip()}"


def why_no_memory_limit() -> str:
    """Why a memory cgroup cannot be made here; empty when it can."""
    if os.geteuid() != 0:
        return "a memory cgroup needs root"
    try:
        with contextlib.ExitStack() as cleanup:
            folder = make_folder("whether a memory cgroup can be made here", cleanup)
            cleanup.callback(shutil.rmtree, folder)
            MemoryLimit(2**30, cleanup, folder.name)
    except (PlaceError, OSError) as error:
        return str(error)
    return ""


def why_no_read_only() -> str:
    """Why a folder cannot be made read-only here; empty when it can."""
    try:
        with contextlib.ExitStack() as cleanup:
            folder = make_folder("whether a folder can be made read-only here", cleanup)
            cleanup.callback(shutil.rmtree, folder)
            ReadOnly(folder, cleanup)
    except (PlaceError, OSError) as error:
        return str(error)
    return ""


def why_no_number() -> str:
    """Why the next process cannot be given a number of our choice; empty when it can."""
    try:
        with open(_LAST_PID, "r+b"):
            pass
    except OSError as error:
        return f"the next process's number cannot be chosen: {_LAST_PID}: {error.strerror}"
    return "" if os.geteuid() == 0 else "choosing the next process's number needs root"
