"""Which files are the text: found, judged, de-duplicated and split, the same way on every machine.

Refuses binary files (a NUL byte, or not UTF-8), anything that is no regular file, every symbolic link that leaves
the folder, and hidden folders (a repository's own files are no text of its owner's). Reads only; holds no text in
memory beyond one block.
"""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainer.errors import DataError

_BLOCK_BYTES = 1024 * 1024
_TELL_EVERY = 100  # files
_VALIDATION_ONE_IN = 20  # about 5 % of the files
_NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextFile:
    """One file of the corpus: `name` relative to the root with `/`, size in bytes, sha256 of its bytes."""

    name: str
    path: Path
    size_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The files in order of their names, and what was left out.

    `validation` and `train` share no file, unless there is only one: then both name it, and the split is made
    inside its tokens (`split_inside`).
    """

    label: str
    train: tuple[TextFile, ...]
    validation: tuple[TextFile, ...]
    split_inside: bool
    skipped_binary: int
    skipped_duplicate: int
    skipped_outside: int

    @property
    def files(self) -> tuple[TextFile, ...]:
        return self.train if self.split_inside else tuple(sorted(self.train + self.validation, key=lambda f: f.name))

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def describe(self) -> str:
        text = f"{self.label}, {len(self.files):,} files, {self.size_bytes / 1e6:.1f} MB"
        skipped = [
            f"{count} {why}"
            for count, why in (
                (self.skipped_binary, "binary or not UTF-8"),
                (self.skipped_duplicate, "duplicates"),
                (self.skipped_outside, "outside the folder or unreadable"),
            )
            if count
        ]
        return f"{text} (skipped: {', '.join(skipped)})" if skipped else text


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def _candidates(root: Path, suffix: str | None, exclude: Path | None) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise DataError(f"data folder {error.filename} cannot be read: {error.strerror}") from error

    for folder, names, files in os.walk(root, onerror=fail, followlinks=False):
        names[:] = [
            name
            for name in sorted(names)
            if not name.startswith(".")
            and (suffix is None or name not in _NOT_OURS)
            and (exclude is None or Path(folder, name) != exclude)
        ]
        for name in files:
            if suffix is None or name.endswith(suffix):
                yield Path(folder, name)


def _judge(path: Path) -> tuple[int, str] | None:
    """Size and sha256 of a text file; None when it is binary or not UTF-8. Raises OSError."""
    digest = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = 0
    # O_NONBLOCK: a FIFO that took the name since it was listed must not stop us.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if b"\0" in block:
                return None
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return None
            digest.update(block)
            size += len(block)
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return size, digest.hexdigest()


def is_validation(name: str) -> bool:
    """The split: a pure function of the relative path, so that a file never changes sides."""
    number = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")
    return number % _VALIDATION_ONE_IN == 0


def _split(files: list[TextFile]) -> tuple[list[TextFile], list[TextFile], bool]:
    if len(files) == 1:
        return files, files, True
    validation = [file for file in files if is_validation(file.name)]
    train = [file for file in files if not is_validation(file.name)]
    # A handful of files may all fall on one side: the last one by name changes it.
    if not validation:
        validation = [train.pop()]
    elif not train:
        train = [validation.pop()]
    return train, validation, False


def find(
    folder: Path | None = None, *, exclude: Path | None = None, seen: Callable[[str], None] | None = None
) -> Corpus:
    """The corpus in `folder` (any text), or the standard library's `*.py` when it is None.

    Order and split depend on relative names and contents only. `exclude` is a folder inside that is no text of the
    user's: the checkpoint folder, whose manifests would change the corpus while it is trained on. `seen` is told
    of progress now and then. Raises DataError when there is no text.
    """
    suffix = ".py" if folder is None else None
    label = "Python standard library" if folder is None else str(folder)
    root = (standard_library() if folder is None else folder).resolve()
    if not root.is_dir():
        raise DataError(f"data folder {root} is no folder; name one that holds text files")
    files: list[TextFile] = []
    real_paths: set[Path] = set()
    contents: set[str] = set()
    binary = duplicate = outside = looked_at = 0
    for path in sorted(_candidates(root, suffix, exclude.resolve() if exclude else None)):
        looked_at += 1
        if seen is not None and looked_at % _TELL_EVERY == 0:
            seen(f"{looked_at:,} files read")
        try:
            real = path.resolve()
            if not real.is_relative_to(root) or not stat.S_ISREG(real.stat().st_mode):
                outside += 1
                continue
            if real in real_paths:
                duplicate += 1
                continue
            judged = _judge(real)
        except OSError:
            outside += 1
            continue
        real_paths.add(real)
        if judged is None:
            binary += 1
            continue
        size, sha256 = judged
        if size == 0:
            continue
        if sha256 in contents:
            duplicate += 1
            continue
        contents.add(sha256)
        files.append(TextFile(name=path.relative_to(root).as_posix(), path=real, size_bytes=size, sha256=sha256))
    if not files:
        what = f"holds {looked_at:,} files, none of them text (UTF-8 without NUL)" if looked_at else "holds no files"
        raise DataError(f"data folder {root} {what}; name a folder with text files")
    files.sort(key=lambda file: file.name)
    train, validation, inside = _split(files)
    return Corpus(
        label=label,
        train=tuple(train),
        validation=tuple(validation),
        split_inside=inside,
        skipped_binary=binary,
        skipped_duplicate=duplicate,
        skipped_outside=outside,
    )


def _cut(text: bytes, size: int) -> int:
    """Where to cut: after the last end of line, or anywhere between characters when a line is longer than `size`."""
    cut = text.rfind(b"\n") + 1
    if cut or len(text) < size:
        return cut
    cut = len(text)
    while text[cut - 1] & 0xC0 == 0x80:  # a continuation byte: its character may not be whole yet
        cut -= 1
    return cut - 1 if text[cut - 1] >= 0xC0 else cut


def pieces(files: Iterable[TextFile], *, size: int = 256 * 1024) -> Iterator[tuple[str, bool]]:
    """The text in pieces of about `size` characters, cut at ends of lines; True marks the last piece of a file.

    Raises DataError when a file is no longer what `find` saw, so that a cache never holds what its name denies.
    """
    for file in files:
        digest = hashlib.sha256()
        try:
            with open(file.path, "rb") as stream:
                rest = b""
                while block := stream.read(size):
                    digest.update(block)
                    rest += block
                    cut = _cut(rest, size)
                    if cut:
                        yield rest[:cut].decode(), False
                        rest = rest[cut:]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file.path} cannot be read any more: {error}") from error
        if digest.hexdigest() != file.sha256:
            raise DataError(f"{file.path} changed while it was being read; start again when it is at rest")
        yield rest.decode(), True
