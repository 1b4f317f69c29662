"""Deleting what the policy lets go: one thing at a time, and so that a crash in the middle leaves nothing that loads.

First the manifest is renamed to `.deleting-…` and that is made durable: from then on its files are no checkpoint. Then
its files are renamed and unlinked, the manifest last, so that what was cut short can be finished. Before, each is asked
whether it can go; where the first one does not go nevertheless, all of it is put back. Each file must still be the one
that was looked at, and so must each of the checkpoints that stay: others may delete here as well.
Refuses to choose (core/retention.py plans), to record (who calls does, before and after), and to touch a file that
another manifest names, that lies outside the folder or on another file system, or that actuators/seen_folder.py has not
looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import Iterable

from watchdog import contract
from watchdog.actuators.seen_folder import (
    FOLDER_FLAGS,
    Identity,
    SeenFolder,
    Sight,
    gives_back,
    is_of,
    manifests_naming,
    parent_of,
    read_manifest,
    regular,
)
from watchdog.checks.figures import size
from watchdog.core.retention import HIDDEN, Held, Kind
from watchdog.errors import CheckpointError

_CHEAP_BYTES = 64 * 1024 * 1024  # read back before what a crash left of it goes: a fraction of a second
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS
_UNTOUCHABLE = 0x10 | 0x20  # immutable, append-only


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far a deletion came: what has its hidden name, and whether bytes are gone for good."""

    taken: list[str] = dataclasses.field(default_factory=list)
    unlinked: bool = False
    freed_bytes: int = 0


class PrunableFolder(SeenFolder):
    """One checkpoint folder. `look` first, `delete` what was looked at. For use from one thread at a time."""

    def delete(self, held: Held, stays: Iterable[str] | None = None) -> int:
        """One thing of the last look, and no other. Returns the bytes given back. Raises OSError, CheckpointError.

        `stays`: names of the checkpoints that must be as they were seen; None: all that were read back.
        """
        sight = self._seen.get(held.name)
        if sight is None:
            raise CheckpointError(f"{held.name} was not looked at")
        top = os.open(self._folder, FOLDER_FLAGS)
        try:
            status = os.fstat(top)
            if (status.st_dev, status.st_ino) != self._itself:
                raise CheckpointError(f"{self._folder} is another folder than the one that was looked at")
            staying = {name: self._seen.get(name) for name in (self._proven if stays is None else stays)}
            if stays is None:
                staying.pop(held.name, None)
            _must_stay(top, staying)
            if held.kind is Kind.UNFINISHED:
                return self._finish(top, held.name, sight, _Progress(), staying)
            if held.kind is Kind.CHECKPOINT:
                return self._go(top, held, sight, staying)
            if held.kind is Kind.STRANDED and held.name in manifests_naming(self._candidates()):
                raise CheckpointError(f"{held.name} is named by a checkpoint since it was looked at; it stays")
            with parent_of(top, held.name, leftover=True) as (parent, leaf):
                if Identity.of(found := regular(parent, leaf)) != sight.itself:
                    raise CheckpointError(f"{held.name} is another file than the one that was looked at")
                os.unlink(leaf, dir_fd=parent)
                os.fsync(parent)
                return gives_back(found)
        finally:
            os.close(top)

    def _go(self, top: int, held: Held, sight: Sight, staying: dict[str, Sight | None]) -> int:
        """A whole checkpoint: gone, or whole as before, or (once bytes of it are gone) for the next pass to finish."""
        hidden, progress = self._hide(top, held, sight), _Progress()
        try:
            return self._finish(top, hidden, sight, progress, staying)
        except (OSError, CheckpointError) as error:
            words = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if progress.unlinked:
                raise CheckpointError(
                    f"{words}; {size(progress.freed_bytes)} of it are gone and it is no checkpoint any more: once "
                    f"that is mended the next pruning finishes it ({hidden} names what is left)"
                ) from error
            for name in progress.taken:
                with parent_of(top, name) as (parent, leaf):
                    _put_back(parent, leaf)
            _put_back(top, held.name)
            os.fsync(top)
            remedy = ": let its files be deleted, or move it away yourself" if isinstance(error, OSError) else ""
            raise CheckpointError(f"{words}; it was put back and is whole{remedy}") from error

    def _hide(self, top: int, held: Held, sight: Sight) -> str:
        """Rename the manifest, for good: from here on it is no checkpoint. Returns its hidden name."""
        manifest = read_manifest(top, held.name)
        if manifest.digest != held.digest or Identity.of(regular(top, held.name)) != sight.itself:
            raise CheckpointError(f"{held.name} was saved anew since it was looked at; it stays")
        for name, identity in sight.files.items():
            with parent_of(top, name) as (parent, leaf):
                if Identity.of(found := regular(parent, leaf)) != identity:
                    raise CheckpointError(f"{name} was written since it was looked at; {held.name} stays")
                if why := _stuck(parent, leaf, found):
                    raise CheckpointError(f"{name} cannot be deleted: {why}; it is whole and stays")
        if why := _stuck(top, held.name, regular(top, held.name)):
            raise CheckpointError(f"{held.name} cannot be deleted: {why}; it is whole and stays")
        openers = self._openers()
        for name in (held.name, *sight.files):
            if opener := openers.get(str(self._folder / name)):
                raise CheckpointError(f"{opener} has {name} open; {held.name} stays")
        _take(top, held.name, sight.itself)
        os.fsync(top)
        return HIDDEN + held.name

    def _finish(
        self, top: int, hidden: str, sight: Sight, progress: _Progress, staying: dict[str, Sight | None]
    ) -> int:
        """Delete what a hidden manifest names and nobody else does; the manifest last."""
        status, manifest = regular(top, hidden), read_manifest(top, hidden)
        if Identity.of(status) != sight.itself:
            raise CheckpointError(f"{hidden} is another file than the one that was looked at")
        others = manifests_naming(self._candidates())
        _must_stay(top, staying)  # again: who has what open took its time to be read
        for file in manifest.files:
            with contextlib.suppress(FileNotFoundError), parent_of(top, file.name) as (parent, leaf):
                taken = False
                with contextlib.suppress(FileNotFoundError):
                    there = regular(parent, leaf)
                    known = sight.files.get(file.name)
                    if known is None:
                        its = is_of(there, status, file) and _holds(parent, leaf, file)
                    else:
                        its = Identity.of(there) == known
                    if its and file.name not in others:
                        _take(parent, leaf, Identity.of(there))
                        taken = True
                        progress.taken.append(file.name)
                with contextlib.suppress(FileNotFoundError):
                    there = regular(parent, HIDDEN + leaf)
                    if taken or (is_of(there, status, file) and _holds(parent, HIDDEN + leaf, file)):
                        os.unlink(HIDDEN + leaf, dir_fd=parent)
                        progress.unlinked = True
                        progress.freed_bytes += gives_back(there)
                os.fsync(parent)
        os.unlink(hidden, dir_fd=top)
        for folder in sorted({os.path.dirname(file.name) for file in manifest.files} - {""}, reverse=True):
            with contextlib.suppress(OSError, CheckpointError), parent_of(top, folder) as (parent, leaf):
                os.rmdir(leaf, dir_fd=parent)  # only an empty one: what else lies in it is not ours
        os.fsync(top)
        return progress.freed_bytes + gives_back(status)


# --- by descriptor ------------------------------------------------------------------------------------------
def _must_stay(top: int, staying: dict[str, Sight | None]) -> None:
    """Raises CheckpointError unless each is as it was seen; its bytes were read back, and are not again."""
    for name, sight in staying.items():
        if sight is None:
            raise CheckpointError(f"{name}, which must stay, was not looked at; nothing is deleted")
        for each, identity in ((name, sight.itself), *sight.files.items(), *sight.shared.items()):
            try:
                with parent_of(top, each, leftover=each == name) as (parent, leaf):
                    same = Identity.of(regular(parent, leaf)) == identity
            except FileNotFoundError:
                raise CheckpointError(f"{each} is gone, of {name}, which must stay; nothing is deleted") from None
            if not same:
                words = f"{each} was written since it was looked at, of {name}, which must stay; nothing is deleted"
                raise CheckpointError(words)


def _take(parent: int, leaf: str, identity: Identity) -> None:
    """Rename a file to its hidden name; put back what came in its place in this very moment."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(HIDDEN + leaf, dir_fd=parent, follow_symlinks=False)
        raise CheckpointError(f"{HIDDEN}{leaf} is in the way; {leaf} stays")
    os.rename(leaf, HIDDEN + leaf, src_dir_fd=parent, dst_dir_fd=parent)
    if Identity.of(os.stat(HIDDEN + leaf, dir_fd=parent, follow_symlinks=False)) != identity:
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
