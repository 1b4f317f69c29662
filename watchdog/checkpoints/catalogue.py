"""The checkpoints of a job as they lie on disk: found, read back, compared with their manifests.

Verified = the digest of the bytes read back from disk by us. Torch-free and streaming: a file is never held whole.
Refuses to delete anything; what is refused is moved aside by checkpoints/quarantine.py, and what the policy lets go is
deleted by actuators/prune.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from watchdog import contract
from watchdog.core.choice import (
    Checkpoint,
    Choice,
    Known,
    Line,
    Refusal,
    Stamp,
    conclude_choice,
    lineage_problem,
)
from watchdog.errors import CheckpointError, UnreadableError

QUARANTINE_FOLDER = "quarantine"
ARCHIVE_FOLDER = "archive"
_BLOCK_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A manifest that was found. `manifest` None: it cannot be read, `problem` says why."""

    path: Path
    manifest: contract.Manifest | None
    problem: str | None
    signature: tuple[int, int, int]  # inode, mtime in ns, size of the manifest file
    unreadable: bool = False  # the disk refused it, which may pass

    @property
    def step(self) -> int:
        return -1 if self.manifest is None else self.manifest.step

    @property
    def stamp(self) -> Stamp:
        """Of the manifest file."""
        _, mtime_ns, size_bytes = self.signature
        return Stamp(self.path.name, mtime_ns, size_bytes)

    @property
    def claims(self) -> Known | None:
        """What the manifest says that it is, before anything was read back; None where it cannot be read."""
        manifest = self.manifest
        if manifest is None:
            return None
        return Known(step=manifest.step, digest=manifest.digest, run_id=manifest.run_id)


def _is_manifest(name: str) -> bool:
    return name.endswith(contract.MANIFEST_SUFFIX) and not name.startswith(".")


def find_candidates(folder: Path) -> tuple[Candidate, ...]:
    """All manifests in the folder, newest step first. Raises OSError when the folder cannot be read."""
    found = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return ()
    for name in names:
        if not _is_manifest(name):
            continue
        path = folder / name
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            continue  # the trainer's own retention was quicker
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        try:
            manifest = contract.Manifest.read(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = error.strerror or "unknown error"
            found.append(Candidate(path=path, manifest=None, problem=problem, unreadable=True, signature=signature))
        except contract.ContractError as error:
            found.append(Candidate(path=path, manifest=None, problem=str(error), signature=signature))
        else:
            found.append(Candidate(path=path, manifest=manifest, problem=None, signature=signature))
    return tuple(sorted(found, key=lambda candidate: candidate.step, reverse=True))


@retry(retry=retry_if_exception_type(OSError), stop=stop_after_attempt(3), wait=wait_fixed(0.2), reraise=True)
def _read_back(path: Path) -> tuple[int, str]:
    """Size and sha256 as the disk has them: clean pages are dropped first, so that it is the disk that is asked."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CheckpointError(f"{path.name} is no regular file")
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha256()
        size = 0
        while block := os.read(fd, _BLOCK_BYTES):
            digest.update(block)
            size += len(block)
        return size, digest.hexdigest()
    finally:
        os.close(fd)


def verify(candidate: Candidate) -> Checkpoint:
    """Read a candidate back. Raises CheckpointError with the difference, FileNotFoundError when it is gone."""
    manifest = candidate.manifest
    if manifest is None:
        kind = UnreadableError if candidate.unreadable else CheckpointError
        raise kind(f"its manifest {candidate.path.name} cannot be read: {candidate.problem}")
    folder = candidate.path.parent
    for file in manifest.files:
        path = folder / file.name
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise CheckpointError(f"{file.name} leads out of the checkpoint folder")
        try:
            problem = _difference(path, file)
            if problem is not None:
                problem = _difference(path, file)  # read twice before condemning: a bridge may lie once
        except FileNotFoundError:
            if candidate.path.exists():
                raise CheckpointError(f"{file.name} is missing") from None
            raise
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise  # says nothing of the checkpoint: an older one is no way out of it
            kind = CheckpointError if error.errno == errno.ELOOP else UnreadableError
            raise kind(f"{file.name} cannot be read: {error.strerror}") from error
        if problem is not None:
            raise CheckpointError(problem)
    return Checkpoint(
        step=manifest.step,
        digest=manifest.digest,
        manifest=str(candidate.path),
        run_id=manifest.run_id,
        target_step=manifest.target_step,
        tokens=manifest.tokens,
    )


def _difference(path: Path, file: contract.FileDigest) -> str | None:
    size, sha256 = _read_back(path)
    if size != file.size_bytes:
        return f"{file.name} has {size} bytes, its manifest says {file.size_bytes}"
    if sha256 != file.sha256:
        return f"{file.name} is {sha256[:12]}…, its manifest says {file.sha256[:12]}…"
    return None


def ever_had_checkpoints(folder: Path) -> bool:
    """The folder knew a checkpoint: a manifest lies in it, or something was ever moved to quarantine."""
    if find_candidates(folder):
        return True
    try:
        return any((folder / QUARANTINE_FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_lineage(path: Path) -> tuple[str, ...] | None:
    """The run ids that ever trained into the folder, oldest first; None without such a record. Raises OSError."""
    try:
        with contract.open_regular(path) as file:
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def choose(
    folder: Path,
    *,
    lineage: tuple[str, ...] | None,
    known: tuple[Known, ...],
    refused_runs: frozenset[str],
    ledger_knew: bool,
    line: Line | None = None,
    only: int | None = None,
    on_verified: Callable[[Checkpoint], None] = lambda _: None,
) -> Choice:
    """Newest first, until one is verified and ours. What was tried and failed is in `refused`. Raises OSError.

    What `line` abandons is passed over: it is neither read nor refused. `only`: that step alone, on whatever branch.
    """
    refused: list[Refusal] = []
    followed = line if only is None else None
    ever_knew = ledger_knew or ever_had_checkpoints(folder)
    candidates = find_candidates(folder)
    listed = frozenset(candidate.stamp for candidate in candidates)
    # What cannot be read has no step: it may be the newest, so it is told whatever is chosen.
    for candidate in sorted(candidates, key=lambda each: each.manifest is not None):
        step = None if candidate.manifest is None else candidate.manifest.step
        claims = candidate.claims
        if only is not None:
            if step != only:
                continue
        elif followed is not None and claims is not None and followed.abandons(claims):
            continue
        try:
            files = _stamps_of(candidate)  # before they are read: what is written meanwhile shows
            checkpoint = verify(candidate)
        except FileNotFoundError:
            continue
        except CheckpointError as error:
            movable = not isinstance(error, UnreadableError)
            refused.append(Refusal(manifest=str(candidate.path), step=step, why=str(error), movable=movable))
            continue
        problem = lineage_problem(
            step=checkpoint.step,
            digest=checkpoint.digest,
            run_id=checkpoint.run_id,
            lineage=lineage,
            known=known,
            refused_runs=refused_runs,
        )
        if problem is not None:
            refused.append(Refusal(manifest=str(candidate.path), step=step, why=problem))
            continue
        on_verified(checkpoint)
        choice = conclude_choice(chosen=checkpoint, refused=tuple(refused), ever_knew=True, line=followed)
        return dataclasses.replace(choice, listed=listed, files=files)
    nothing = not candidates
    choice = conclude_choice(chosen=None, refused=tuple(refused), ever_knew=ever_knew, line=followed, empty=nothing)
    return dataclasses.replace(choice, listed=listed)


def _stamp(folder: Path, name: str) -> Stamp | None:
    """None for what is not there. Raises OSError."""
    try:
        status = os.stat(folder / name, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(name, status.st_mtime_ns, status.st_size)


def _stamps_of(candidate: Candidate) -> tuple[Stamp, ...]:
    """Its manifest and its files. Of one that cannot be looked at there is none: reading it says what is wrong."""
    folder, stamps = candidate.path.parent, [candidate.stamp]
    for file in () if candidate.manifest is None else candidate.manifest.files:
        with contextlib.suppress(OSError, ValueError):
            stamp = _stamp(folder, file.name)
            stamps += [] if stamp is None else [stamp]
    return tuple(stamps)


def why_stale(folder: Path, choice: Choice) -> str | None:
    """Why nobody may be launched from what was chosen any more; None where it stands.

    Nothing is read back: whatever was saved, or taken away, since then has another stamp. Raises OSError.
    """
    if choice.first_start and ever_had_checkpoints(folder):
        return f"{folder} had no checkpoint and has had one since"
    try:
        names = [name for name in os.listdir(folder) if _is_manifest(name)]
    except FileNotFoundError:
        names = []
    there = {stamp for name in names if (stamp := _stamp(folder, name)) is not None}
    if saved := sorted(stamp.name for stamp in there - choice.listed):
        return f"{folder / saved[-1]} was saved since the checkpoints were verified"
    for stamp in choice.files:
        if _stamp(folder, stamp.name) != stamp:
            return f"{folder / stamp.name} was changed or removed since it was verified"
    return None
