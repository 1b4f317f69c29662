"""Taking the two locks of a job (Invariant 1).

Responsible for the supervisor lock (exclusive, close-on-exec, ours alone) and the run lock (taken exclusively for
the moment of a launch, then shared and handed to the shim). flock belongs to the open file description, so a lock
is given up by closing, never by LOCK_UN: that would free it for whoever inherited it, too.
Refuses paths without true flock, files that were unlinked, and waiting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import stat
from pathlib import Path

from watchdog.collectors.filesystems import filesystem_of, has_true_flock
from watchdog.collectors.processes import read_process, this_host
from watchdog.contract import open_regular
from watchdog.core.identity import ProcessId
from watchdog.errors import HeldError, LockPathError, StateError

_HOLDER_LIMIT_BYTES = 64 * 1024


def require_true_flock(folder: Path) -> None:
    """Raises LockPathError when a lock in `folder` would not be one."""
    try:
        kind = filesystem_of(folder)
    except OSError as error:
        raise StateError(f"cannot look into {folder}: {error.strerror}; check who owns it and its parents") from error
    if not has_true_flock(kind):
        raise LockPathError(
            f"{folder} is on {kind or 'an unknown file system'}, which has no flock that every process sees; "
            "put [state] folder on a native Linux file system"
        )


def make_control_folder(folder: Path) -> None:
    """Create the folder of the locks, readable for every user who may meet there. Raises StateError."""
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)  # whatever the umask says
    except OSError as error:
        mend = "check its owner, or set other folders"
        if error.errno == errno.EROFS:
            mend = "mount its disk writable, or set other folders"
        raise StateError(f"cannot make {folder}: {error.strerror}; {mend}") from error


def open_lock_file(path: Path) -> int:
    """Open a lock file without asking for more than reading: flock needs no more, and another user may own it.

    Raises StateError.
    """
    try:
        # First without O_CREAT: the kernel refuses O_CREAT on others' files in sticky folders (protected_regular).
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StateError(f"the lock {path} is no regular file; remove it, something else made it")
        return fd
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StateError(f"cannot open the lock {path}: {error.strerror}; its owner must let you read it") from error
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StateError(f"cannot make the lock {path}: {error.strerror}") from error
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o644)  # whatever the umask says: others must be able to see who holds it
    return fd


def try_lock(fd: int, operation: int) -> bool:
    """flock without waiting; False when it is held. Raises OSError for anything else."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def is_the_file(fd: int, path: Path) -> bool:
    """The descriptor is still what the path names: the file was neither unlinked nor replaced."""
    try:
        ours, there = os.fstat(fd), os.stat(path)
    except OSError:
        return False
    return ours.st_nlink > 0 and (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who says it holds the supervisor lock."""

    pid: int
    start_ticks: int
    since_wall_s: float
    command: str


def read_holder(path: Path) -> Holder | None:
    """What the lock file says of its holder; None when it says nothing that can be read."""
    try:
        with open_regular(path) as file:
            record = json.loads(file.read(_HOLDER_LIMIT_BYTES))
        return Holder(
            pid=int(record["pid"]),
            start_ticks=int(record["start_ticks"]),
            since_wall_s=float(record["since_wall_s"]),
            command=str(record["command"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class SupervisorLock:
    """The exclusive hold on a job. Kept by its descriptor; gone with the process, whatever kills it."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    @property
    def intact(self) -> bool:
        """False when the file was unlinked or replaced: somebody else may then lock another one."""
        return is_the_file(self.fd, self.path)

    def close(self) -> None:
        os.close(self.fd)


def take_supervisor_lock(
    path: Path, *, me: ProcessId, wall_s: float, command: str, when: str, options: str = ""
) -> SupervisorLock:
    """Take the job, or raise HeldError that says who has it: pid, since when, command.

    `when` is `wall_s` as a person reads it, `options` what a command needs to mean this job. Raises StateError for a
    path that cannot be used.
    """
    for _ in range(3):
        fd = open_lock_file(path)
        if not try_lock(fd, fcntl.LOCK_EX):
            os.close(fd)
            raise HeldError(describe_holder(path, options))
        if is_the_file(fd, path):
            break
        os.close(fd)  # unlinked between open and flock: take the one that is there now
    else:
        raise StateError(f"{path} is replaced faster than it can be locked; something else manages this folder")
    record = {"pid": me.pid, "start_ticks": me.start_ticks, "since_wall_s": wall_s, "since": when, "command": command}
    record["options"] = options
    with contextlib.suppress(OSError):  # where its pid counts, for who looks from elsewhere (collectors/locks.py)
        record |= dataclasses.asdict(this_host())
    try:
        # Another user's file, or a file system that was remounted read-only: the lock holds all the same.
        writer = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            os.close(fd)
            raise StateError(f"cannot write who holds {path}: {error.strerror}") from error
        return SupervisorLock(fd, path)
    try:
        content = json.dumps(record).encode().ljust(1024) + b"\n"
        with contextlib.suppress(OSError):  # a full disk: who holds it is then told by watchdog diagnose alone
            os.pwrite(writer, content, 0)
            os.ftruncate(writer, len(content))
    finally:
        os.close(writer)
    return SupervisorLock(fd, path)


def describe_holder(path: Path, options: str = "") -> str:
    """Who holds the supervisor lock, in a sentence."""
    holder = read_holder(path)
    if holder is not None:
        process = read_process(holder.pid)
        if process is not None and process.id == ProcessId(holder.pid, holder.start_ticks):
            since, theirs = _recorded(path, "since", "an unknown time"), _recorded(path, "options", options)
            who, another = "this job", ""
            if _name_in(theirs) != _name_in(options):
                who, another = f"the checkpoint folder {path.parent.parent}", f", as job {_name_in(theirs)},"
            return (
                f"{who} is already supervised{another} by pid {holder.pid} since {since}: {holder.command}\n"
                f"see it with: watchdog status{theirs}; end it with: watchdog stop{theirs}"
            )
    return (
        f"this job is already supervised: {path} is locked, by a process that cannot be seen from here "
        f"(another container?)\nfind it with: watchdog diagnose{options}"
    )


def _recorded(path: Path, field: str, otherwise: str) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_bytes())[field])
    return otherwise


def _name_in(options: str) -> str:
    """The job that these options of a command mean."""
    return options.partition("--job ")[2].split(" ")[0] or "default"


class RunLock:
    """The run lock on its way from exclusive to shared to the shim."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    def downgrade(self) -> None:
        """Exclusive to shared. Only the holder of the supervisor lock ever asks exclusively, so nobody cuts in."""
        if not try_lock(self.fd, fcntl.LOCK_SH):
            raise HeldError(f"{self.path} was taken by another process while a run was being started")

    def close(self) -> None:
        os.close(self.fd)


def take_run_lock(path: Path) -> RunLock | None:
    """The run lock, exclusively; None when any process of any run holds a share. Raises StateError."""
    fd = open_lock_file(path)
    if not try_lock(fd, fcntl.LOCK_EX):
        os.close(fd)
        return None
    if not is_the_file(fd, path):
        os.close(fd)
        raise StateError(f"the run lock {path} was unlinked or replaced; a run may hold the old one: watchdog diagnose")
    return RunLock(fd, path)
