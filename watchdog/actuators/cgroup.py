"""The cgroup of a run: made at its launch, killed as a whole, removed when the run is proven over.

Every step is for one directory that is proven to be the recorded one; what it is refused for costs a run nothing but
this help. Refuses to enable controllers, to remove anything that is not an empty cgroup, and to ask who is in it:
whether everybody in there is the run's is for the caller to prove first (signalling.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from watchdog.actuators.signals import Sent
from watchdog.collectors.roots import Roots
from watchdog.collectors.runcgroup import name_of, open_proven, own_folder
from watchdog.core.runrecord import RunCgroup

KILL = "cgroup.kill"
FREEZE, EVENTS = "cgroup.freeze", "cgroup.events"
_FROZEN_S = 0.1  # a frozen cgroup says so within a millisecond; one with a member in state D never does


def make(run_id: str, roots: Roots | None = None) -> RunCgroup:
    """A new, empty cgroup below our own. Raises OSError, ValueError, and LookupError with why there can be none."""
    folder = own_folder(roots or Roots())
    path = f"{folder}/{name_of(run_id)}"
    if not os.access(f"{folder}/cgroup.procs", os.W_OK):
        # Moving a process needs this file of the common ancestor, too: cgroup was not delegated to us.
        raise LookupError(f"{folder} is not delegated to this user, or is mounted read-only")
    os.mkdir(path, 0o755)
    try:
        with open(f"{path}/cgroup.type", encoding="ascii") as file:
            kind = file.read().strip()
        if kind != "domain":  # below a threaded cgroup no process may live
            raise LookupError(f"a cgroup in {folder} is of type {kind!r}")
        status = os.stat(path)
    except (OSError, LookupError):
        with contextlib.suppress(OSError):
            os.rmdir(path)
        raise
    return RunCgroup(path=path, device=status.st_dev, inode=status.st_ino)


def kill_whole(group: RunCgroup, run_id: str, *, dry_run: bool = False, roots: Roots | None = None) -> Sent | None:
    """KILL to everybody in it at once, forks under way included. None: this kernel has no `cgroup.kill` (before 5.14).

    The file is opened below the proven directory itself: no other one can come in between.
    """
    fd = open_proven(group, run_id, roots or Roots())
    if fd is None:
        return Sent.GONE
    try:
        file = os.open(KILL, os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
        try:
            if dry_run:
                return Sent.DRY
            os.write(file, b"1")
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Sent.GONE if error.errno == errno.ENODEV else Sent.REFUSED
    finally:
        os.close(fd)
    return Sent.DELIVERED


def freeze_whole(group: RunCgroup, run_id: str, roots: Roots | None = None) -> bool:
    """Let nobody in it run, and so nobody fork, until `thaw_whole`. True when the kernel says that it is so.

    False, and nothing is kept frozen, where this kernel cannot (before 5.2) or does not within 0.1 s.
    """
    if not _write_freeze(group, run_id, b"1", roots):
        return False
    until_s = time.monotonic() + _FROZEN_S
    try:
        while not _says_frozen(group):
            if time.monotonic() >= until_s:
                break
            time.sleep(0.001)
        else:
            return True
    except BaseException:
        thaw_whole(group, run_id, roots)
        raise
    thaw_whole(group, run_id, roots)
    return False


def thaw_whole(group: RunCgroup, run_id: str, roots: Roots | None = None) -> bool:
    """Undo `freeze_whole`. False when that cgroup is gone or cannot be written to."""
    return _write_freeze(group, run_id, b"0", roots)


def _write_freeze(group: RunCgroup, run_id: str, word: bytes, roots: Roots | None) -> bool:
    fd = open_proven(group, run_id, roots or Roots())
    if fd is None:
        return False
    try:
        file = os.open(FREEZE, os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.write(file, word)
        finally:
            os.close(file)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _says_frozen(group: RunCgroup) -> bool:
    try:
        with open(f"{group.path}/{EVENTS}", encoding="ascii") as file:
            return "frozen 1" in file.read().splitlines()
    except OSError:
        return False


def remove(group: RunCgroup, run_id: str, roots: Roots | None = None) -> str | None:
    """Remove it, empty as it must be; None when it is gone, else why it stays. Never recursive."""
    fd = open_proven(group, run_id, roots or Roots())
    if fd is None:
        return None
    os.close(fd)
    return _rmdir(group.path)


def sweep(run_ids: frozenset[str], roots: Roots | None = None) -> None:
    """What earlier runs left below our own cgroup, by name; what is in use stays. Raises OSError, LookupError."""
    folder = own_folder(roots or Roots())
    names = frozenset(map(name_of, run_ids))
    for name in os.listdir(folder):
        if name in names:
            _rmdir(f"{folder}/{name}")


def _rmdir(path: str) -> str | None:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return "somebody is in it" if error.errno == errno.EBUSY else str(error.strerror)
    return None
