"""Deleting what the policy lets go: one thing at a time, and so that a crash in the middle leaves nothing that loads.

First the manifest is renamed to `.deleting-…` and that is made durable: from then on its files are no checkpoint. Then
its files are renamed and unlinked, the manifest last, so that what was cut short can be finished. Before, each is asked
whether it can go; where the first one does not go nevertheless, all of it is put back. Everything goes by the
descriptor of the folder, no symbolic link is followed, and each file must still be the one that was looked at.
Refuses to choose (core/retention.py plans), to record (who calls does, before and after), and to touch a file that
another manifest names, that lies outside the folder or on another file system, or that it has not looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from watchdog import contract
from watchdog.checkpoints.catalogue import ARCHIVE_FOLDER, QUARANTINE_FOLDER, Candidate, find_candidates, verify
from watchdog.checks.figures import size
from watchdog.clock import Clock
from watchdog.collectors.openfiles import Scan
from watchdog.core.retention import HIDDEN, Held, Kind
from watchdog.errors import CheckpointError

# What trainer/ saves, under the name that contract.write_durably gives it until it is whole.
TORN = re.compile(r"\.step-[0-9]{8,}(-[0-9]+)?(\.pt|\.manifest\.json)\.[0-9]+\.tmp")
_MOVED = re.compile(r"(.+?)(\.[0-9]+)?")  # quarantine.py numbers what is there already
_RECORD_BYTES = 4 * 1024 * 1024
_CHEAP_BYTES = 64 * 1024 * 1024  # read back before what a crash left of it goes: a fraction of a second
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS
_UNTOUCHABLE = 0x10 | 0x20  # immutable, append-only
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True, slots=True)
class _Identity:
    """Which file, and whether it is as it was."""

    device: int
    inode: int
    mtime_ns: int
    size_bytes: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Identity:
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sight:
    """One thing as it was looked at: its manifest (or the file itself), and the files that only it names."""

    itself: _Identity
    files: dict[str, _Identity]


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far a deletion came: what has its hidden name, and whether bytes are gone for good."""

    taken: list[str] = dataclasses.field(default_factory=list)
    unlinked: bool = False
    freed_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What lies in the folder, and what is free below it."""

    held: tuple[Held, ...]
    free_bytes: int


class PrunableFolder:
    """One checkpoint folder. `look` first, `delete` what was looked at. For use from one thread at a time."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._itself: tuple[int, int] | None = None  # device and inode at the last look
        self._seen: dict[str, _Sight] = {}
        self._proven: dict[str, _Sight] = {}

    # --- looking --------------------------------------------------------------------------------------------
    def look(self) -> Looked:
        """What is there now. Raises OSError; CheckpointError for a manifest that the disk does not give."""
        self._seen = {}
        try:
            top = os.open(self._folder, _FOLDER)
        except FileNotFoundError:
            return Looked(held=(), free_bytes=0)
        try:
            status = os.fstat(top)
            self._itself = (status.st_dev, status.st_ino)
            room = os.fstatvfs(top)
            candidates = find_candidates(self._folder)
            for each in candidates:
                if each.unreadable:  # what it names cannot be told, and must not be deleted with another
                    raise CheckpointError(f"{each.path.name} cannot be read now ({each.problem}): nothing is pruned")
            names = _shared(candidates)
            openers = self._openers()
            held = [self._checkpoint(top, each, names, openers) for each in candidates]
            held += self._remains(top, candidates)
            held += self._leftovers(top, "", Kind.TORN, openers)
            held += self._leftovers(top, QUARANTINE_FOLDER, Kind.REFUSED, openers)
            self._proven = {name: sight for name, sight in self._proven.items() if name in self._seen}
        finally:
            os.close(top)
        return Looked(held=tuple(held), free_bytes=room.f_bavail * room.f_frsize)

    def prove(self, held: Held) -> Held:
        """Read one back: `proven`, or `wrong` with the difference. Raises OSError for want of memory."""
        for candidate in find_candidates(self._folder):
            if candidate.path.name == held.name:
                break
        else:
            return dataclasses.replace(held, wrong="it is gone")
        try:
            checkpoint = verify(candidate)
        except FileNotFoundError:
            return dataclasses.replace(held, wrong="it is gone")
        except CheckpointError as error:
            return dataclasses.replace(held, wrong=str(error))
        if (checkpoint.step, checkpoint.digest) != (held.step, held.digest):
            return dataclasses.replace(held, wrong="it was saved anew just now")
        self._proven[held.name] = self._seen[held.name]
        return dataclasses.replace(held, proven=True)

    def _openers(self) -> dict[str, str]:
        """By path: who has a file open, as far as we may see. A supervisor's own reading counts as well."""
        return {file.name: f"pid {file.pid}" for file in Scan()}

    def _checkpoint(self, top: int, candidate: Candidate, names: dict[str, int], openers: dict[str, str]) -> Held:
        name, manifest = candidate.path.name, candidate.manifest
        status = os.stat(name, dir_fd=top, follow_symlinks=False)
        age_s = self._clock.wall() - status.st_mtime
        if manifest is None or not stat.S_ISREG(status.st_mode):
            why = candidate.problem or "its manifest is no regular file"
            return Held(name=name, kind=Kind.CHECKPOINT, size_bytes=0, age_s=age_s, wrong=why)
        size_bytes, wrong, opener = _gives_back(status), "", openers.get(str(candidate.path), "")
        files: dict[str, _Identity] = {}
        every = {file.name: 0 for file in manifest.files}
        for file in manifest.files:
            try:
                with _parent(top, file.name) as (parent, leaf):
                    found = _regular(parent, leaf)
                if found.st_size != file.size_bytes:
                    wrong = f"{file.name} has {found.st_size} bytes, its manifest says {file.size_bytes}"
            except FileNotFoundError:
                wrong = f"{file.name} is missing"
                continue
            except CheckpointError as error:
                wrong = str(error)
                continue
            except OSError as error:
                wrong = f"{file.name}: {error.strerror}"
                continue
            opener = opener or openers.get(str(self._folder / file.name), "")
            every[file.name] = _gives_back(found)
            if names[file.name] == 1:
                files[file.name] = _Identity.of(found)
                size_bytes += _gives_back(found)
        sight = _Sight(_Identity.of(status), files)
        self._seen[name] = sight
        return Held(
            name=name,
            kind=Kind.CHECKPOINT,
            size_bytes=size_bytes,
            age_s=age_s,
            step=manifest.step,
            digest=manifest.digest,
            run_id=manifest.run_id,
            proven=not wrong and self._proven.get(name) == sight,
            wrong=wrong,
            open_by=opener,
            files=frozenset(every.items()),
        )

    def _remains(self, top: int, candidates: tuple[Candidate, ...]) -> list[Held]:
        """Manifests that we renamed and whose deletion did not come to its end."""
        found = []
        for name in sorted(os.listdir(top)):
            if not name.startswith(HIDDEN) or not name.endswith(contract.MANIFEST_SUFFIX):
                continue
            try:
                status, manifest = _regular(top, name), _read_manifest(top, name)
            except (OSError, CheckpointError):
                continue  # not one of ours
            others = _shared(candidates)
            size_bytes = _gives_back(status)
            for file in manifest.files:
                with contextlib.suppress(OSError, CheckpointError), _parent(top, file.name) as (parent, leaf):
                    for each in (leaf, HIDDEN + leaf):
                        with contextlib.suppress(FileNotFoundError):
                            there = _regular(parent, each)
                            if each != leaf or (file.name not in others and _is_of(there, status, file)):
                                size_bytes += _gives_back(there)
            self._seen[name] = _Sight(_Identity.of(status), {})
            age_s = self._clock.wall() - status.st_ctime
            kind, step, digest = Kind.UNFINISHED, manifest.step, manifest.digest
            found.append(Held(name=name, kind=kind, size_bytes=size_bytes, age_s=age_s, step=step, digest=digest))
        return found

    def _leftovers(self, top: int, below: str, kind: Kind, openers: dict[str, str]) -> list[Held]:
        """What was moved to quarantine, or temporary files beside the checkpoints; folders are nobody's leftovers."""
        found = []
        try:
            fd = os.open(below or ".", _FOLDER, dir_fd=top)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            origins = _origins(fd) if kind is Kind.REFUSED else {}
            for leaf in sorted(os.listdir(fd)):
                if kind is Kind.TORN and not TORN.fullmatch(leaf):
                    continue
                with contextlib.suppress(FileNotFoundError, CheckpointError):
                    status = _regular(fd, leaf)
                    name = f"{below}/{leaf}" if below else leaf
                    self._seen[name] = _Sight(_Identity.of(status), {})
                    age_s = self._clock.wall() - max(status.st_mtime, status.st_ctime)
                    opener, size_bytes = openers.get(str(self._folder / name), ""), _gives_back(status)
                    held = Held(name=name, kind=kind, size_bytes=size_bytes, age_s=age_s, open_by=opener)
                    found.append(dataclasses.replace(held, origin=origins.get(leaf, "")))
        finally:
            os.close(fd)
        return [_with_its_files(each, found) for each in found]

    # --- deleting -------------------------------------------------------------------------------------------
    def delete(self, held: Held) -> int:
        """One thing of the last look, and no other. Returns the bytes given back. Raises OSError, CheckpointError."""
        sight = self._seen.get(held.name)
        if sight is None:
            raise CheckpointError(f"{held.name} was not looked at")
        top = os.open(self._folder, _FOLDER)
        try:
            status = os.fstat(top)
            if (status.st_dev, status.st_ino) != self._itself:
                raise CheckpointError(f"{self._folder} is another folder than the one that was looked at")
            if held.kind is Kind.UNFINISHED:
                return self._finish(top, held.name, sight, _Progress())
            if held.kind is Kind.CHECKPOINT:
                return self._go(top, held, sight)
            with _parent(top, held.name, leftover=True) as (parent, leaf):
                if _Identity.of(found := _regular(parent, leaf)) != sight.itself:
                    raise CheckpointError(f"{held.name} is another file than the one that was looked at")
                os.unlink(leaf, dir_fd=parent)
                os.fsync(parent)
                return _gives_back(found)
        finally:
            os.close(top)

    def _go(self, top: int, held: Held, sight: _Sight) -> int:
        """A whole checkpoint: gone, or whole as before, or (once bytes of it are gone) for the next pass to finish."""
        hidden, progress = self._hide(top, held, sight), _Progress()
        try:
            return self._finish(top, hidden, sight, progress)
        except (OSError, CheckpointError) as error:
            words = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if progress.unlinked:
                raise CheckpointError(
                    f"{words}; {size(progress.freed_bytes)} of it are gone and it is no checkpoint any more: once "
                    f"that is mended the next pruning finishes it ({hidden} names what is left)"
                ) from error
            for name in progress.taken:
                with _parent(top, name) as (parent, leaf):
                    _put_back(parent, leaf)
            _put_back(top, held.name)
            os.fsync(top)
            raise CheckpointError(
                f"{words}; it was put back and is whole: let its files be deleted, or move it away yourself"
            ) from error

    def _hide(self, top: int, held: Held, sight: _Sight) -> str:
        """Rename the manifest, for good: from here on it is no checkpoint. Returns its hidden name."""
        manifest = _read_manifest(top, held.name)
        if manifest.digest != held.digest or _Identity.of(_regular(top, held.name)) != sight.itself:
            raise CheckpointError(f"{held.name} was saved anew since it was looked at; it stays")
        for name, identity in sight.files.items():
            with _parent(top, name) as (parent, leaf):
                if _Identity.of(found := _regular(parent, leaf)) != identity:
                    raise CheckpointError(f"{name} was written since it was looked at; {held.name} stays")
                if why := _stuck(parent, leaf, found):
                    raise CheckpointError(f"{name} cannot be deleted: {why}; it is whole and stays")
        if why := _stuck(top, held.name, _regular(top, held.name)):
            raise CheckpointError(f"{held.name} cannot be deleted: {why}; it is whole and stays")
        openers = self._openers()
        for name in (held.name, *sight.files):
            if opener := openers.get(str(self._folder / name)):
                raise CheckpointError(f"{opener} has {name} open; {held.name} stays")
        _take(top, held.name, sight.itself)
        os.fsync(top)
        return HIDDEN + held.name

    def _finish(self, top: int, hidden: str, sight: _Sight, progress: _Progress) -> int:
        """Delete what a hidden manifest names and nobody else does; the manifest last."""
        status, manifest = _regular(top, hidden), _read_manifest(top, hidden)
        if _Identity.of(status) != sight.itself:
            raise CheckpointError(f"{hidden} is another file than the one that was looked at")
        others = _shared(find_candidates(self._folder))
        for file in manifest.files:
            with contextlib.suppress(FileNotFoundError), _parent(top, file.name) as (parent, leaf):
                taken = False
                with contextlib.suppress(FileNotFoundError):
                    there = _regular(parent, leaf)
                    known = sight.files.get(file.name)
                    if known is None:
                        its = _is_of(there, status, file) and _holds(parent, leaf, file)
                    else:
                        its = _Identity.of(there) == known
                    if its and file.name not in others:
                        _take(parent, leaf, _Identity.of(there))
                        taken = True
                        progress.taken.append(file.name)
                with contextlib.suppress(FileNotFoundError):
                    there = _regular(parent, HIDDEN + leaf)
                    if taken or (_is_of(there, status, file) and _holds(parent, HIDDEN + leaf, file)):
                        os.unlink(HIDDEN + leaf, dir_fd=parent)
                        progress.unlinked = True
                        progress.freed_bytes += _gives_back(there)
                os.fsync(parent)
        os.unlink(hidden, dir_fd=top)
        for folder in sorted({os.path.dirname(file.name) for file in manifest.files} - {""}, reverse=True):
            with contextlib.suppress(OSError, CheckpointError), _parent(top, folder) as (parent, leaf):
                os.rmdir(leaf, dir_fd=parent)  # only an empty one: what else lies in it is not ours
        os.fsync(top)
        return progress.freed_bytes + _gives_back(status)


# --- by descriptor ------------------------------------------------------------------------------------------
def _shared(candidates: tuple[Candidate, ...]) -> dict[str, int]:
    """How many manifests name each file."""
    names: dict[str, int] = {}
    for each in candidates:
        for name in {file.name for file in each.manifest.files} if each.manifest else ():
            names[name] = names.get(name, 0) + 1
    return names


@contextlib.contextmanager
def _parent(top: int, name: str, *, leftover: bool = False) -> Iterator[tuple[int, str]]:
    """The folder of a file below `top`, and the file's name in it. Raises CheckpointError for what leads elsewhere."""
    parts = name.split("/")
    ours = name.startswith((f"{QUARANTINE_FOLDER}/", f"{ARCHIVE_FOLDER}/")) or parts[0].startswith(".")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name or (ours and not leftover):
        raise CheckpointError(f"{name} is no file of a checkpoint in this folder")
    if parts[-1].endswith(contract.MANIFEST_SUFFIX) and not leftover:
        raise CheckpointError(f"{name} is a manifest, not a file of a checkpoint")
    fd = os.dup(top)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, _FOLDER, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise CheckpointError(f"{name} leads through {part}, which is no folder") from error
                raise
            os.close(fd)
            fd = below
        if os.fstat(fd).st_dev != os.fstat(top).st_dev:
            raise CheckpointError(f"{name} lies on another file system")
        yield fd, parts[-1]
    finally:
        os.close(fd)


def _regular(parent: int, leaf: str) -> os.stat_result:
    """Raises FileNotFoundError, CheckpointError for anything but a regular file."""
    status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{leaf} is no regular file")
    return status


def _read_manifest(top: int, name: str) -> contract.Manifest:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=top)
    with os.fdopen(fd, "rb") as file:
        content = file.read(_RECORD_BYTES)
    try:
        return contract.Manifest.from_record(json.loads(content))
    except (ValueError, AttributeError, contract.ContractError) as error:
        raise CheckpointError(f"{name} is no manifest: {error}") from error


def _take(parent: int, leaf: str, identity: _Identity) -> None:
    """Rename a file to its hidden name; put back what came in its place in this very moment."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(HIDDEN + leaf, dir_fd=parent, follow_symlinks=False)
        raise CheckpointError(f"{HIDDEN}{leaf} is in the way; {leaf} stays")
    os.rename(leaf, HIDDEN + leaf, src_dir_fd=parent, dst_dir_fd=parent)
    if _Identity.of(os.stat(HIDDEN + leaf, dir_fd=parent, follow_symlinks=False)) != identity:
        _put_back(parent, leaf)
        raise CheckpointError(f"{leaf} was saved anew in this moment; it stays")


def _put_back(parent: int, leaf: str) -> None:
    """A link and not a rename: a third one that lies there by now is not written over. Raises OSError."""
    try:
        os.link(HIDDEN + leaf, leaf, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.rename(HIDDEN + leaf, leaf, src_dir_fd=parent, dst_dir_fd=parent)
    else:
        os.unlink(HIDDEN + leaf, dir_fd=parent)


def _stuck(parent: int, leaf: str, status: os.stat_result) -> str:
    """Why a file cannot be unlinked by us, as far as that can be asked; "" where nothing is in the way."""
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=parent, effective_ids=True):
        return f"uid {os.geteuid()} may not write in the folder that it lies in (chown or chmod that folder)"
    folder = os.fstat(parent)
    me = os.geteuid()
    if folder.st_mode & stat.S_ISVTX and me not in (0, status.st_uid, folder.st_uid):
        return f"it belongs to uid {status.st_uid}, and its folder lets only the owner delete (chown it, or chmod -t)"
    if _is_untouchable(parent, "."):
        return "the folder that it lies in is immutable or append-only (chattr -i -a)"
    return "it is immutable or append-only (chattr -i -a)" if _is_untouchable(parent, leaf) else ""


def _is_untouchable(parent: int, leaf: str) -> bool:
    """False as well where the file system does not tell."""
    with contextlib.suppress(OSError):
        fd = os.open(leaf, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            flags = fcntl.ioctl(fd, _GETFLAGS, bytes(8))
        finally:
            os.close(fd)
        return bool(int.from_bytes(flags[:4], sys.byteorder) & _UNTOUCHABLE)
    return False


def _holds(parent: int, leaf: str, named: contract.FileDigest) -> bool:
    """Whether its bytes are those that the manifest names; a large one is taken at its size."""
    if named.size_bytes > _CHEAP_BYTES:
        return True
    fd = os.open(leaf, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with os.fdopen(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == named.sha256


def _with_its_files(held: Held, found: list[Held]) -> Held:
    """A refused manifest is as young as its youngest file, and open while one of them is: it goes after them."""
    if not held.origin or held.origin != held.name.rpartition("/")[2]:
        return held
    its = [each for each in found if each.origin == held.origin]
    opener = next((each.open_by for each in its if each.open_by), "")
    return dataclasses.replace(held, age_s=min(each.age_s for each in its), open_by=opener)


def _origins(folder: int) -> dict[str, str]:
    """By name in quarantine/: the manifest there that names it, itself included."""
    origins: dict[str, str] = {}
    names = os.listdir(folder)
    for manifest in names:
        if f"{contract.MANIFEST_SUFFIX}" not in manifest:
            continue
        origins[manifest] = manifest
        try:
            files = {file.name for file in _read_manifest(folder, manifest).files}
        except (OSError, CheckpointError):
            continue  # a refused one may be anything: what it names is not known
        for name in names:
            if name in files or ((match := _MOVED.fullmatch(name)) and match[1] in files):
                origins.setdefault(name, manifest)
    return origins


def _is_of(file: os.stat_result, manifest: os.stat_result, named: contract.FileDigest) -> bool:
    """Of the checkpoint whose manifest was hidden, not of one that is being saved under the same name: a manifest is
    written after its files."""
    return file.st_size == named.size_bytes and file.st_mtime_ns <= manifest.st_mtime_ns


def _gives_back(status: os.stat_result) -> int:
    """Bytes that the disk has again; none for a file that has another name somewhere."""
    return status.st_blocks * 512 if status.st_nlink == 1 else 0
