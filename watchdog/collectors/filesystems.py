"""Which file system a path lies on, and whether a flock on it is a true one.

Responsible for reading mountinfo, for following a path as far as that is safe, and for the one list of file systems
whose flock can be relied on. The code that takes locks asks here before it creates a lock file.
Refuses to touch a file system that may hang: a lookup on a dead 9p, DrvFs or NFS mount never returns, so symbolic
links are followed one component at a time and the walk stops at such a mount.
"""

from __future__ import annotations

import os
import re
import stat

from msgspec import Struct

# Native and local: flock is kept by this kernel, seen by every process on it, and freed with the last descriptor.
# What is not here is not trusted. 9p (DrvFs too), NFS and CIFS turn flock into something else or ignore it; FUSE and
# virtiofs depend on the server's options; vfat, exfat and ntfs3 keep no stable inode to hang a lock on.
TRUE_FLOCK = frozenset(
    {
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "nilfs2",
        "overlay",
        "ramfs",
        "reiserfs",
        "rootfs",
        "tmpfs",
        "xfs",
        "zfs",
    }
)
# Local or the kernel's own: no place for a lock, but a lookup there comes back (`/dev` is on the way to `/dev/shm`).
SAFE_TO_LOOK_UP = TRUE_FLOCK | {
    "cgroup",
    "cgroup2",
    "devtmpfs",
    "erofs",
    "exfat",
    "iso9660",
    "ntfs3",
    "proc",
    "squashfs",
    "sysfs",
    "vfat",
}
_MOST_LINKS = 40  # as the kernel's own limit (path_resolution(7))
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(Struct, frozen=True, kw_only=True):
    """One line of mountinfo (proc_pid_mountinfo(5)). `device` is the file system's own (major, minor)."""

    device: tuple[int, int]
    root: str
    point: str
    options: frozenset[str]
    kind: str
    source: str
    super_options: frozenset[str]


class FileSystem(Struct, frozen=True, kw_only=True):
    """What a path lies on.

    `path` is the real path, as far as it could be followed safely; `existing` its nearest existing parent, or itself;
    where the walk stopped at something that may hang (`safe` is false), both are the path itself, unseen.
    `device` is what `/proc/locks` prints; on btrfs and overlay it is not the `st_dev` that stat gives.
    """

    kind: str
    point: str
    read_only: bool
    true_flock: bool
    safe: bool
    device: tuple[int, int]
    path: str
    existing: str
    drvfs: bool = False


def decode(field: str) -> str:
    """Undo mountinfo's octal escapes: space \\040, tab \\011, newline \\012, backslash \\134."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """All mounts, in the kernel's order. Lines that are not mounts raise ValueError: nothing is guessed."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            raise ValueError(f"a line of mountinfo cannot be read: {line[:200]!r}")
        major, _, minor = fields[2].partition(":")
        mounts.append(
            Mount(
                device=(int(major), int(minor)),
                root=decode(fields[3]),
                point=decode(fields[4]),
                options=frozenset(fields[5].split(",")),
                kind=tail[0],
                source=decode(tail[1]),
                super_options=frozenset(tail[2].split(",")),
            )
        )
    return tuple(mounts)


def read_mounts(proc: str = "/proc") -> tuple[Mount, ...]:
    """The mounts this process sees. Raises OSError, ValueError."""
    # Paths are bytes to the kernel: surrogateescape brings any of them through unharmed.
    with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount:
    """The mount with the longest point that is `path` or above it; of two on the same point the later one, on top.

    Raises ValueError when there is none, as in a chroot whose root is no mount. Known limit: a mount laid over the
    *parent* of an older mount hides that one, which mountinfo's points alone do not tell.
    """
    best: Mount | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise ValueError(f"no mount in mountinfo holds {path}: its file system is unknown")
    return best


def is_drvfs(mount: Mount) -> bool:
    """Whether it is a Windows drive: DrvFs over 9p, over virtiofs (`virtiofs=true` in .wslconfig), or WSL 1's own.

    Other 9p mounts have another `aname`; virtiofs has no options to tell by, but WSL names its devices `drvfs...`.
    """
    if mount.kind == "9p":
        return any(option.split(";")[0] == "aname=drvfs" for option in mount.super_options)
    return mount.kind == "drvfs" or (mount.kind == "virtiofs" and mount.source.startswith("drvfs"))


def has_true_flock(kind: str) -> bool:
    """Whether a flock on this kind of file system is seen by every process here. What is unknown is not true."""
    return kind in TRUE_FLOCK


def _may_hang(mount: Mount) -> bool:
    # The root may be virtiofs or 9p in a small virtual machine: were it dead, nothing would be left to save.
    return mount.point != "/" and mount.kind not in SAFE_TO_LOOK_UP


class _Walk(Struct, frozen=True):
    """How far a path could be followed. `mount` holds its end, or is where the walk had to stop."""

    path: str
    existing: str
    mount: Mount
    safe: bool


def _follow(path: str, mounts: tuple[Mount, ...]) -> _Walk:
    """Follow symbolic links and `..` as the kernel would, but stop before what may hang. Raises OSError."""
    parts = [part for part in path.split("/") if part]
    parts.reverse()
    reached = existing = "/"
    links, missing = 0, False
    while parts:
        part = parts.pop()
        if part == ".":
            continue
        if part == "..":
            reached = os.path.dirname(reached)
            continue
        candidate = os.path.join(reached, part)
        mount = mount_of(candidate, mounts)
        if _may_hang(mount):
            unseen = os.path.normpath(os.path.join(candidate, *reversed(parts)))
            return _Walk(unseen, unseen, mount, safe=False)
        if not missing:
            try:
                mode = os.lstat(candidate).st_mode
            except (FileNotFoundError, NotADirectoryError):
                missing = True
            else:
                if stat.S_ISLNK(mode):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(f"{path} goes through more than {_MOST_LINKS} symbolic links")
                    target = os.readlink(candidate)
                    reached = "/" if target.startswith("/") else reached
                    parts.extend(reversed([piece for piece in target.split("/") if piece]))
                    continue
                existing = candidate
        reached = candidate
    return _Walk(reached, existing, mount_of(reached, mounts), safe=True)


def locate(path: str | os.PathLike[str], proc: str = "/proc") -> FileSystem:
    """The file system that `path` lies on, or would lie on if it were created.

    Safe on a dead network mount: nothing on it is touched. Raises OSError; ValueError when mountinfo does not tell.
    """
    absolute = os.path.join(os.getcwd(), os.fspath(path))
    walk = _follow(absolute, read_mounts(proc))
    mount = walk.mount
    return FileSystem(
        kind=mount.kind,
        point=mount.point,
        read_only="ro" in mount.options or "ro" in mount.super_options,
        true_flock=has_true_flock(mount.kind),
        safe=walk.safe,
        device=mount.device,
        path=walk.path,
        existing=walk.existing,
        drvfs=is_drvfs(mount),
    )


def filesystem_of(path: str | os.PathLike[str], proc: str = "/proc") -> str:
    """The kind of file system under `path`, as mountinfo names it; "" where mountinfo does not tell. Raises OSError."""
    try:
        return locate(path, proc).kind
    except ValueError:
        return ""
