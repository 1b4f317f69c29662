"""What lies in a checkpoint folder and could be pruned: each thing as it was seen, to be recognized when it goes.

Responsible for the checkpoints, for what crashes and refusals left behind, for who has what open, and for reading back
what must stay. Everything goes by the descriptor of the folder and no symbolic link is followed; a name that leads
elsewhere is refused.
Refuses to change anything (actuators/prune.py deletes) and to choose (core/retention.py plans).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from watchdog import contract
from watchdog.checkpoints.catalogue import ARCHIVE_FOLDER, QUARANTINE_FOLDER, Candidate, find_candidates, verify
from watchdog.clock import Clock
from watchdog.collectors.openfiles import Scan
from watchdog.core.retention import HIDDEN, Held, Kind
from watchdog.errors import CheckpointError

# What trainer/ saves, under the name that contract.write_durably gives it until it is whole.
TORN = re.compile(r"\.step-[0-9]{8,}(-[0-9]+)?(\.pt|\.manifest\.json)\.[0-9]+\.tmp")
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOVED = re.compile(r"(.+?)(\.[0-9]+)?")  # quarantine.py numbers what is there already
_RECORD_BYTES = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Which file, and whether it is as it was."""

    device: int
    inode: int
    mtime_ns: int
    size_bytes: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """One thing as it was looked at: its manifest (or the file itself), the files that only it names, the others."""

    itself: Identity
    files: dict[str, Identity]
    shared: dict[str, Identity] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What lies in the folder, and what is free below it."""

    held: tuple[Held, ...]
    free_bytes: int


class SeenFolder:
    """One checkpoint folder, as the last look found it. For use from one thread at a time."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._itself: tuple[int, int] | None = None  # device and inode at the last look
        self._seen: dict[str, Sight] = {}
        self._proven: dict[str, Sight] = {}

    def look(self) -> Looked:
        """What is there now. Raises OSError; CheckpointError for a manifest that the disk does not give."""
        self._seen = {}
        try:
            top = os.open(self._folder, FOLDER_FLAGS)
        except FileNotFoundError:
            return Looked(held=(), free_bytes=0)
        try:
            status = os.fstat(top)
            self._itself = (status.st_dev, status.st_ino)
            room = os.fstatvfs(top)
            candidates = self._candidates()
            names = manifests_naming(candidates)
            openers = self._openers()
            held = [self._checkpoint(top, each, names, openers) for each in candidates]
            held += self._remains(top, candidates)
            held += self._leftovers(top, "", Kind.TORN, openers)
            held += self._refused(top, names, openers)
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

    def _candidates(self) -> tuple[Candidate, ...]:
        """Raises CheckpointError while one is unreadable: what it names cannot be told, and must not be deleted."""
        candidates = find_candidates(self._folder)
        for each in candidates:
            if each.unreadable:
                raise CheckpointError(f"{each.path.name} cannot be read now ({each.problem}): nothing is pruned")
        return candidates

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
        size_bytes, wrong, opener = gives_back(status), "", openers.get(str(candidate.path), "")
        files: dict[str, Identity] = {}
        shared: dict[str, Identity] = {}
        every = {file.name: 0 for file in manifest.files}
        for file in manifest.files:
            try:
                with parent_of(top, file.name) as (parent, leaf):
                    found = regular(parent, leaf)
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
            every[file.name] = gives_back(found)
            if names[file.name] == 1:
                files[file.name] = Identity.of(found)
                size_bytes += gives_back(found)
            else:
                shared[file.name] = Identity.of(found)
        sight = Sight(Identity.of(status), files, shared)
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
                status, manifest = regular(top, name), read_manifest(top, name)
            except (OSError, CheckpointError):
                continue  # not one of ours
            others = manifests_naming(candidates)
            size_bytes = gives_back(status)
            for file in manifest.files:
                with contextlib.suppress(OSError, CheckpointError), parent_of(top, file.name) as (parent, leaf):
                    for each in (leaf, HIDDEN + leaf):
                        with contextlib.suppress(FileNotFoundError):
                            there = regular(parent, each)
                            if each != leaf or (file.name not in others and is_of(there, status, file)):
                                size_bytes += gives_back(there)
            self._seen[name] = Sight(Identity.of(status), {})
            age_s = self._clock.wall() - status.st_ctime
            kind, step, digest = Kind.UNFINISHED, manifest.step, manifest.digest
            found.append(Held(name=name, kind=kind, size_bytes=size_bytes, age_s=age_s, step=step, digest=digest))
        return found

    def _refused(self, top: int, names: dict[str, int], openers: dict[str, str]) -> list[Held]:
        """What lies in quarantine/, and what should have followed its manifest there."""
        found = self._leftovers(top, QUARANTINE_FOLDER, Kind.REFUSED, openers)
        stranded: dict[str, str] = {}
        for each in found:
            if each.origin == each.name.rpartition("/")[2]:
                stranded |= {name: each.origin for name in self._named_by(top, each.name) if name not in names}
        for name, origin in stranded.items():
            if "/" in name:
                continue  # only what lies beside the manifest is moved with it
            with contextlib.suppress(FileNotFoundError, CheckpointError), parent_of(top, name) as (parent, leaf):
                held = self._leftover(parent, leaf, name, Kind.STRANDED, openers)
                found.append(dataclasses.replace(held, origin=origin))
        return [_with_its_files(each, found) for each in found]

    def _named_by(self, top: int, name: str) -> list[str]:
        """Nothing for a refused manifest that is none at all."""
        with contextlib.suppress(OSError, CheckpointError), parent_of(top, name, leftover=True) as (parent, leaf):
            return [file.name for file in read_manifest(parent, leaf).files]
        return []

    def _leftover(self, parent: int, leaf: str, name: str, kind: Kind, openers: dict[str, str]) -> Held:
        """Raises FileNotFoundError, CheckpointError."""
        status = regular(parent, leaf)
        self._seen[name] = Sight(Identity.of(status), {})
        changed_wall_s = max(status.st_mtime, status.st_ctime)
        return Held(
            name=name,
            kind=kind,
            size_bytes=gives_back(status),
            age_s=self._clock.wall() - changed_wall_s,
            open_by=openers.get(str(self._folder / name), ""),
            # What was moved was renamed by us.
            touched_wall_s=status.st_mtime if kind is Kind.REFUSED else changed_wall_s,
            renamed_wall_s=status.st_ctime,
        )

    def _leftovers(self, top: int, below: str, kind: Kind, openers: dict[str, str]) -> list[Held]:
        """What was moved to quarantine, or temporary files beside the checkpoints; folders are nobody's leftovers."""
        found = []
        try:
            fd = os.open(below or ".", FOLDER_FLAGS, dir_fd=top)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            origins = _origins(fd) if kind is Kind.REFUSED else {}
            for leaf in sorted(os.listdir(fd)):
                if kind is Kind.TORN and not TORN.fullmatch(leaf):
                    continue
                with contextlib.suppress(FileNotFoundError, CheckpointError):
                    held = self._leftover(fd, leaf, f"{below}/{leaf}" if below else leaf, kind, openers)
                    found.append(dataclasses.replace(held, origin=origins.get(leaf, "")))
        finally:
            os.close(fd)
        return found


# --- by descriptor ------------------------------------------------------------------------------------------
def manifests_naming(candidates: tuple[Candidate, ...]) -> dict[str, int]:
    """How many manifests name each file."""
    names: dict[str, int] = {}
    for each in candidates:
        for name in {file.name for file in each.manifest.files} if each.manifest else ():
            names[name] = names.get(name, 0) + 1
    return names


@contextlib.contextmanager
def parent_of(top: int, name: str, *, leftover: bool = False) -> Iterator[tuple[int, str]]:
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
                below = os.open(part, FOLDER_FLAGS, dir_fd=fd)
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


def regular(parent: int, leaf: str) -> os.stat_result:
    """Raises FileNotFoundError, CheckpointError for anything but a regular file."""
    status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{leaf} is no regular file")
    return status


def read_manifest(top: int, name: str) -> contract.Manifest:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=top)
    with os.fdopen(fd, "rb") as file:
        content = file.read(_RECORD_BYTES)
    try:
        return contract.Manifest.from_record(json.loads(content))
    except (ValueError, AttributeError, contract.ContractError) as error:
        raise CheckpointError(f"{name} is no manifest: {error}") from error


def is_of(file: os.stat_result, manifest: os.stat_result, named: contract.FileDigest) -> bool:
    """Of the checkpoint whose manifest was hidden, not of one that is being saved under the same name: a manifest is
    written after its files."""
    return file.st_size == named.size_bytes and file.st_mtime_ns <= manifest.st_mtime_ns


def gives_back(status: os.stat_result) -> int:
    """Bytes that the disk has again; none for a file that has another name somewhere."""
    return status.st_blocks * 512 if status.st_nlink == 1 else 0


# --- what was left behind -----------------------------------------------------------------------------------
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
            files = {file.name for file in read_manifest(folder, manifest).files}
        except (OSError, CheckpointError):
            continue  # a refused one may be anything: what it names is not known
        for name in names:
            if name in files or ((match := _MOVED.fullmatch(name)) and match[1] in files):
                origins.setdefault(name, manifest)
    return origins
