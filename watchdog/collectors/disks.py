"""Disks: room, inodes, and whether the file system under a path can be written to and locked on.

Responsible for one path at a time: the file system from mountinfo, figures from statvfs, and the looks before, so that
a rate of filling can be seen. A path that does not exist yet is judged by its nearest existing parent.
Refuses to touch a file system that may hang (9p, DrvFs, NFS, FUSE, anything unknown) from this process: a thread in
state D would keep even our own exit from completing, so a disposable child asks there.
"""

from __future__ import annotations

import os
import re
import sys

from msgspec import Struct

from watchdog.clock import Clock
from watchdog.collectors.child import DisposableChild
from watchdog.collectors.filesystems import FileSystem, Mount, is_drvfs, locate, read_mounts
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Disk, Fact, Known, Unknown

# Goes up to the nearest existing parent by itself: looking is what may hang. Its first lines are `child.end_after`,
# written out because a child that imports nothing of ours is up in 10 ms.
_CHILD = """
import os, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
path = sys.argv[1]
while True:
    try:
        s = os.statvfs(path)
        break
    except FileNotFoundError:
        if path == os.path.dirname(path):
            raise
        path = os.path.dirname(path)
print(s.f_frsize, s.f_blocks, s.f_bavail, s.f_files, s.f_favail)
"""

_MOST_LOOKS = 120
_FIRST_GAP_S, _LAST_GAP_S = 1.0, 128.0  # 120 looks 128 s apart: four hours
_SHARE_OF_C = re.compile(r"drvfsa?C\d*", re.ASCII)


class Room(Struct, frozen=True, kw_only=True):
    """statvfs(3) in bytes and inodes. `free_bytes` is f_bavail, also for root: the reserve is not ours to plan with."""

    free_bytes: int
    total_bytes: int
    free_inodes: int | None


def parse_room(text: str) -> Room:
    """`f_frsize f_blocks f_bavail f_files f_favail`, as the child prints them. Raises ValueError."""
    block, blocks, free, files, free_files = (int(word) for word in text.split())
    return room(block, blocks, free, files, free_files)


def room(block: int, blocks: int, free: int, files: int, free_files: int) -> Room:
    """A file system that counts no inodes (btrfs, 9p) says 0 of 0: that is None, not full."""
    return Room(free_bytes=block * free, total_bytes=block * blocks, free_inodes=free_files if files else None)


def windows_drive(roots: Roots) -> str | None:
    """Where Windows' drive C: is mounted, None where it is not (no WSL, or automount is off). Raises OSError.

    It holds the virtual disk unless that was moved. Of what mountinfo says alone: nothing below `/mnt` is touched.
    """
    drives = [mount for mount in read_mounts(roots.proc) if is_drvfs(mount)]
    named = [mount.point for mount in drives if _is_c(mount)]
    # Newer WSL binds every drive from one share, without its letter: then the usual name of the mount point decides.
    usual = [mount.point for mount in drives if mount.point.endswith("/c")]
    return next((point for point in usual if point in named), next(iter(named or usual), None))


def _is_c(mount: Mount) -> bool:
    if mount.kind == "9p":  # aname=drvfs;path=C:\;uid=1000; a folder of C: is on C: too
        words = (word for option in mount.super_options for word in option.split(";"))
        return any(word.lower().startswith("path=c:") for word in words)
    if mount.kind == "virtiofs":
        return _SHARE_OF_C.fullmatch(mount.source) is not None
    return mount.source.lower().startswith("c:")


def devices_behind(system: FileSystem, roots: Roots) -> tuple[str, ...]:
    """The block devices that must work: under this file system, and under the root, where every program lies.

    Partitions, their disks and what they are mapped to. () where the kernel does not tell one of the two: btrfs and
    zfs span devices without naming them, network and overlay file systems have none, a loop device is a file somewhere.
    """
    try:
        root = locate("/", roots.proc)
    except (OSError, ValueError):  # a chroot
        return ()
    below = _block(f"{roots.sys}/dev/block/{system.device[0]}:{system.device[1]}")
    below_root = _block(f"{roots.sys}/dev/block/{root.device[0]}:{root.device[1]}")
    loops = any(name.startswith(("loop", "nbd")) for name in below | below_root)
    return () if loops or not below or not below_root else tuple(sorted(below | below_root))


def _block(link: str) -> set[str]:
    """The device behind a link of sysfs, its disk if it is a partition, and what both are made of."""
    try:
        folder = os.path.realpath(link, strict=True)
        folders = [folder, os.path.dirname(folder)] if os.path.exists(f"{folder}/partition") else [folder]
        found = {os.path.basename(each) for each in folders}
        for each in folders:
            for slave in os.listdir(f"{each}/slaves") if os.path.isdir(f"{each}/slaves") else ():
                found |= _block(f"{each}/slaves/{slave}")
    except OSError:
        return set()
    return found


class _Looks:
    """Free bytes over time: a look kept each second, and half as often each time that they become too many.

    So the looks stay evenly apart while their window grows from two minutes to four hours.
    """

    def __init__(self) -> None:
        self._device: tuple[int, int] | None = None
        self.forget()

    def forget(self) -> None:
        self._kept: list[tuple[float, int]] = []
        self._gap_s = _FIRST_GAP_S

    def before(self, at_s: float, free_bytes: int, device: tuple[int, int]) -> tuple[tuple[float, int], ...]:
        """The looks before this one, which is kept in its turn. Another file system begins anew."""
        if device != self._device:
            self.forget()
            self._device = device
        earlier = tuple(self._kept)
        if not earlier or at_s - earlier[-1][0] >= self._gap_s:
            if len(self._kept) >= _MOST_LOOKS and self._gap_s < _LAST_GAP_S:
                self._kept, self._gap_s = self._kept[::2], self._gap_s * 2
            self._kept = [*self._kept, (at_s, free_bytes)][-_MOST_LOOKS:]
        return earlier


class DiskReader:
    """Reads one (path, purpose) again and again; keeps its looks, and the child that did not come back."""

    def __init__(self, path: str, purpose: str, roots: Roots, clock: Clock) -> None:
        self._path = path
        self._purpose = purpose
        self._roots = roots
        self._clock = clock
        self._child = DisposableChild(f"the file system of {path} ({purpose})", clock)
        self._looks = _Looks()

    def forget(self) -> None:
        """After a gap in the schedule, or when room was made on purpose: what was before says nothing of the rate."""
        self._looks.forget()

    def read(self, deadline_s: float = 5.0) -> Fact[Disk]:
        """The disk as it is now; `deadline_s` bounds the child. Raises OSError, ValueError."""
        system = locate(self._path, self._roots.proc)
        found = self._ask_here(system) if system.safe else self._ask_child(system, deadline_s)
        if isinstance(found, Unknown):
            return found
        now_s = self._clock.monotonic()
        return Known(
            Disk(
                path=self._path,
                purpose=self._purpose,
                filesystem=system.kind,
                free_bytes=found.free_bytes,
                total_bytes=found.total_bytes,
                free_inodes=found.free_inodes,
                read_only=system.read_only,
                true_flock=system.true_flock,
                drvfs=system.drvfs,
                devices=devices_behind(system, self._roots),
                earlier=self._looks.before(now_s, found.free_bytes, system.device),
            ),
            now_s,
        )

    def _ask_here(self, system: FileSystem) -> Room:
        figures = os.statvfs(system.existing)
        return room(figures.f_frsize, figures.f_blocks, figures.f_bavail, figures.f_files, figures.f_favail)

    def _ask_child(self, system: FileSystem, deadline_s: float) -> Room | Unknown:
        argv = [sys.executable, "-I", "-S", "-c", _CHILD, system.existing, repr(deadline_s)]
        answer = self._child.ask(argv, deadline_s)
        if isinstance(answer, Unknown):
            return Unknown(f"{answer.why} (on {system.kind}, mounted at {system.point})")
        return parse_room(answer)
