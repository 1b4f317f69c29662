"""A lock as the kernel sees it, without touching it: who holds a flock on a file.

Responsible for reading `/proc/locks` and the fdinfo of open descriptors. Refuses to open the lock file, let alone to
try the lock: a probe that succeeds for a moment can make somebody else's launch fail (Invariant 1).

Absence is proof only where nobody is hidden: in the initial PID namespace, or where whoever locked last says that it
lives in ours. `/proc/locks` leaves out the locks of everybody outside our namespace, and so does the rest of `/proc`.

Two sources, since each has a gap:
- `/proc/locks` lists every flock of this PID namespace, but the process it names may be dead (an inherited
  descriptor keeps the lock), and inside a container such a lock is not listed at all;
- the `lock:` lines of `/proc/PID/fdinfo/N` say that this descriptor holds the lock, whoever took it, but only for
  processes we may look into.
A process that merely has the file open is no holder: it has no `lock:` line.

Device numbers: `/proc/locks` prints the file system's own device, stat another one on btrfs and overlay. Both are
accepted (mountinfo has the first), together with the inode. Only where the numbers may differ is a descriptor asked
by stat what file it is.

Known limits: without root, other users' processes cannot be looked into (a lock that only they can hold makes the
fact unknown, not free); a trainer that was started by hand in another PID namespace says nothing of itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from watchdog.clock import Clock
from watchdog.collectors.filesystems import FileSystem, locate
from watchdog.collectors.openfiles import OpenFile, Scan, read_fdinfo
from watchdog.collectors.processes import INITIAL_PID_NAMESPACE, read_process, this_host
from watchdog.collectors.roots import Roots
from watchdog.contract import RUN_RECORD, ContractError, read_json
from watchdog.core.facts import Fact, Known, Lock, LockHolder, Unknown

ASK = "ask on the host"
# "1: FLOCK  ADVISORY  WRITE 4004 fe:00:2146445 0 EOF"; a waiter has "->" after its number and holds nothing.
_LINE = re.compile(r"\d+: (?P<waits>-> )?FLOCK +\S+ +(?P<mode>READ|WRITE) +(?P<pid>-?\d+) +(?P<where>\S+) ")
_COMMAND_LIMIT = 200
_SUPERVISOR_LOCK = "supervisor.lock"


class KernelLock(Struct, frozen=True, kw_only=True):
    """One granted flock. `pid` took it, and may be dead or 0 (another namespace)."""

    pid: int
    exclusive: bool
    device: tuple[int, int]
    inode: int


def parse_locks(text: str) -> tuple[KernelLock, ...]:
    """The granted flocks of `/proc/locks`, or of the `lock:` lines of an fdinfo; other kinds of locks are left out."""
    found = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None or match["waits"]:
            continue
        major, minor, inode = match["where"].split(":")
        found.append(
            KernelLock(
                pid=int(match["pid"]),
                exclusive=match["mode"] == "WRITE",
                device=(int(major, 16), int(minor, 16)),
                inode=int(inode),
            )
        )
    return tuple(found)


def command_of(pid: int, proc: str = "/proc") -> str:
    """The masked command line, `[comm]` where there is none to read, "" when the process is gone."""
    process = read_process(pid, proc)
    if process is None:
        return ""
    argv: list[str] = []
    # In state D the process may hold the very lock that reading its command line waits for.
    if process.living and process.state != "D":
        try:
            with open(f"{proc}/{pid}/cmdline", "rb") as file:
                argv = file.read(64 * 1024).decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            argv = []
    from watchdog.masking import mask_command  # its expressions cost 2 ms, which a free lock need not pay

    text = " ".join(mask_command(argv)).strip() if any(argv) else f"[{process.command}]"
    return text if len(text) <= _COMMAND_LIMIT else text[: _COMMAND_LIMIT - 1] + "…"


def started_wall_s(pid: int, proc: str = "/proc") -> float | None:
    """When a process started, seconds since the epoch, from the kernel's boot time; None when that cannot be told."""
    try:
        process = read_process(pid, proc)
        with open(f"{proc}/stat", encoding="ascii", errors="replace") as file:
            boot = next((line.split()[1] for line in file if line.startswith("btime ")), None)
    except OSError:
        return None
    if process is None or boot is None:
        return None
    return int(boot) + process.id.start_ticks / os.sysconf("SC_CLK_TCK")


class Moment(NamedTuple):
    """What the kernel says of everybody's locks and open files. `missing`: why there is no list of locks."""

    scan: Scan
    listed: tuple[KernelLock, ...]
    missing: str

    @classmethod
    def of(cls, roots: Roots) -> Moment:
        """One look. The list is read anew for nobody: it costs 5 ms and more on some kernels."""
        scan = Scan(roots.proc, keep=True)
        try:
            with open(f"{roots.proc}/locks", encoding="ascii", errors="replace") as file:
                return cls(scan, parse_locks(file.read()), "")
        except OSError as error:
            return cls(scan, (), f"{error.filename}: {error.strerror}")


def read_locks(targets: Sequence[tuple[str, str]], roots: Roots, clock: Clock) -> Fact[tuple[Fact[Lock], ...]]:
    """Several (path, purpose) at one moment, with one look at everybody's open files."""
    moment = Moment.of(roots)
    found: list[Fact[Lock]] = []
    for path, purpose in targets:
        try:
            found.append(read_lock(path, purpose, roots, clock, moment))
        except (OSError, ValueError) as error:
            found.append(Unknown(f"{purpose} lock {path}: {error}"))
    return Known(tuple(found), clock.monotonic())


def read_lock(path: str, purpose: str, roots: Roots, clock: Clock, moment: Moment | None = None) -> Fact[Lock]:
    """Whether the flock on `path` is held, how, and by whom. A path that does not exist is a free lock.

    `moment`: a look that is shared with others. Raises OSError, ValueError.
    """
    system = locate(path, roots.proc)
    if not system.true_flock:
        return Unknown(
            f"{purpose} lock {path} is on {system.kind}, which has no true flock: nothing can be said of its holder"
        )
    try:
        status = os.stat(system.path) if system.safe and system.existing == system.path else None
    except FileNotFoundError:
        status = None
    moment = Moment.of(roots) if moment is None else moment
    found, takers = _at(moment, system, status, roots.proc)
    if takers and not found.pids:
        # Its holder ended, or handed it on, between the list and the scan: only what stands at a second look is so.
        moment = Moment.of(roots)
        found, takers = _at(moment, system, status, roots.proc)
    scan, listing_missing = moment.scan, moment.missing
    held = bool(takers or found.pids)
    if not held and listing_missing:
        return Unknown(f"{purpose} lock {path}: no holder seen, and {listing_missing}")
    if not held and status is not None and (hidden := _out_of_sight(system.path, purpose, roots.proc)):
        return Unknown(f"{purpose} lock {path}: no holder seen, but {hidden}")
    if held and not found.pids and scan.unreadable:
        return Unknown(
            f"{purpose} lock {path} is held (taken by pid {takers[0].pid}, which is gone or not to be seen); "
            f"processes of other users that cannot be looked into: {scan.unreadable}; one of them may hold it"
        )
    lock = Lock(
        path=path,
        purpose=purpose,
        held=held,
        exclusive=found.exclusive or any(lock.exclusive for lock in takers),
        holders=tuple(
            LockHolder(pid=pid, command=command_of(pid, roots.proc), since_wall_s=started_wall_s(pid, roots.proc))
            for pid in sorted(set(found.pids))
        ),
        unlinked=found.unlinked,
    )
    return Known(lock, clock.monotonic())


def _out_of_sight(path: str, purpose: str, proc: str) -> str:
    """Why somebody whom we do not see may hold the lock on this file; "" where nobody can be hidden.

    Whoever takes a lock writes beside it or into it where it lives: a supervisor into its lock file, and into the run
    record before each run. Of an earlier boot nobody holds anything.
    """
    try:
        here = this_host(proc)
    except OSError as error:
        return f"in which PID namespace we are is not to be told ({error.filename}: {error.strerror})"
    if here.pid_namespace == INITIAL_PID_NAMESPACE:
        return ""
    supervisor = os.path.join(os.path.dirname(path), _SUPERVISOR_LOCK)
    records = [path] if purpose == "supervisor" else [os.path.join(os.path.dirname(path), RUN_RECORD), supervisor]
    for record in records:
        try:
            last = read_json(Path(record), f"{purpose} lock's record")
            boot_id, namespace = last["boot_id"], last["pid_namespace"]
        except (OSError, ContractError, KeyError):
            continue
        if boot_id != here.boot_id or namespace == here.pid_namespace:
            return ""
        return f"who locked it last lives in another PID namespace ({namespace}, we are in {here.pid_namespace}); {ASK}"
    return f"it cannot be told from this PID namespace ({here.pid_namespace}), which hides those outside; {ASK}"


def _at(
    moment: Moment, system: FileSystem, status: os.stat_result | None, proc: str
) -> tuple[_Found, tuple[KernelLock, ...]]:
    """Who holds it at this moment, and who took it."""
    found = _holders(moment.scan, system, status, proc)
    takers = tuple(lock for lock in moment.listed if status is not None and _is_it(lock, system, status))
    if not found.pids:
        found.pids.extend(lock.pid for lock in takers if _may_hold(lock.pid, proc))
    return found, takers


class _Found(Struct):
    pids: list[int] = field(default_factory=list)
    exclusive: bool = False
    unlinked: bool = False


def _holders(scan: Scan, system: FileSystem, status: os.stat_result | None, proc: str) -> _Found:
    """The processes with a descriptor that carries the lock, the file of today or one unlinked from this path."""
    found = _Found()
    base = os.path.basename(system.path)
    for file in scan:
        # Only the last component: another mount namespace, or a bind mount, may know the folder by another name.
        if os.path.basename(file.name) != base:
            continue
        locks = parse_locks(read_fdinfo(file, proc) or "")
        if not locks:
            continue
        was_here = file.deleted and file.name == system.path and any(lock.device == system.device for lock in locks)
        is_todays = not file.deleted and status is not None and _is_todays(file, locks, system, status, proc)
        if is_todays or was_here:
            found.pids.append(file.pid)
            found.exclusive |= any(lock.exclusive for lock in locks)
            found.unlinked |= was_here
    return found


def _is_todays(
    file: OpenFile, locks: tuple[KernelLock, ...], system: FileSystem, status: os.stat_result, proc: str
) -> bool:
    if any(_is_it(lock, system, status) for lock in locks):
        return True
    if (os.major(status.st_dev), os.minor(status.st_dev)) == system.device:
        return False
    try:
        seen = os.stat(f"{proc}/{file.pid}/fd/{file.fd}")
    except OSError:
        return False
    return (seen.st_dev, seen.st_ino) == (status.st_dev, status.st_ino)


def _is_it(lock: KernelLock, system: FileSystem, status: os.stat_result) -> bool:
    devices = (system.device, (os.major(status.st_dev), os.minor(status.st_dev)))
    return lock.inode == status.st_ino and lock.device in devices


def _may_hold(pid: int, proc: str) -> bool:
    """The process that took the lock lives and its files are hidden from us: it is the best answer there is.

    One whose files we can read, and which does not have this one, has handed the lock on or was given the number.
    """
    try:
        os.listdir(f"{proc}/{pid}/fd")
    except PermissionError:
        process = read_process(pid, proc)
        return process is not None and process.living
    except OSError:
        return False
    return False
