"""From text to token shards: train the tokenizer, encode, cache, read.

Responsible for the cache: one folder per digest of (file names, contents, vocabulary size, format), which appears
whole or not at all. Refuses to use a cache whose bytes are not the ones its `meta.json` names, and to choose files
or samples itself (`corpus`, `sampling`).

A folder being written is `.<digest>.<random>.tmp` with an flock on it, so that what a killed preparer left behind
can be told from what a living one is writing.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer import corpus as corpora
from trainer.console import Console, Progress
from trainer.corpus import Corpus, TextFile
from trainer.errors import DataError
from trainer.sampling import window_start
from watchdog import contract

FORMAT = 1
TOKENIZER_SAMPLE_BYTES = 12_000_000  # more text changes the vocabulary little and the time much
_BATCH_PIECES = 16
_FILES = ("train.bin", "validation.bin", "tokenizer.json")
_VALIDATION_SHARE_INSIDE = 0.05

Tokens: TypeAlias = "npt.NDArray[np.uint16]"
Beat = Callable[[float, str], None]


def default_cache() -> Path:
    """`$XDG_CACHE_HOME` or `~/.cache`, then `gpuhost-watchdog/data`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "gpuhost-watchdog" / "data"


def corpus_digest(corpus: Corpus, vocabulary: int) -> str:
    """sha256 over all that decides the tokens: format, vocabulary size, and each file's side, name and sha256."""
    digest = hashlib.sha256(f"{FORMAT}\0{vocabulary}\0{corpus.split_inside}\n".encode())
    for side, files in (("train", corpus.train), ("validation", corpus.validation)):
        for file in files:
            digest.update(f"{side}\0{file.name}\0{file.sha256}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def unigram_entropy(tokens: Tokens, vocabulary: int) -> float:
    """Entropy in nats per token of the tokens' own frequencies: what a model without context could reach at best."""
    counts = np.bincount(tokens, minlength=vocabulary).astype(np.float64)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Token shards, memory-mapped: uint16, one array each. `entropy` is the validation tokens' own, in nats."""

    digest: str
    folder: Path
    vocabulary: int
    train: Tokens
    validation: Tokens
    entropy: float

    def batch(self, position: int, size: int, *, context: int, seed: int) -> npt.NDArray[np.int64]:
        """Samples `position` to `position + size` of the training text, shape (size, context + 1)."""
        starts = [window_start(position + k, tokens=len(self.train), context=context, seed=seed) for k in range(size)]
        return np.stack([self.train[start : start + context + 1] for start in starts]).astype(np.int64)

    def validation_windows(self, most: int, *, context: int) -> npt.NDArray[np.int64]:
        """At most `most` windows, evenly spaced over the validation text, always the same; (n, context + 1)."""
        count = (len(self.validation) - 1) // context
        chosen = [k * count // min(most, count) for k in range(min(most, count))]
        return np.stack([self.validation[k * context : k * context + context + 1] for k in chosen]).astype(np.int64)

    def require(self, context: int) -> None:
        """Raises DataError when either part is shorter than one window."""
        for name, tokens in (("training", self.train), ("validation", self.validation)):
            if len(tokens) < context + 1:
                raise DataError(
                    f"the {name} text has {len(tokens)} tokens, a window needs {context + 1}; give more text (--data)"
                )


# --- reading ------------------------------------------------------------------------------------------------
class _BadCache(Exception):
    """A cache folder that is not what its meta.json says."""


def _open(folder: Path, digest: str) -> Dataset:
    """Raises FileNotFoundError when there is no such cache, _BadCache when it is damaged."""
    if not folder.exists():
        raise FileNotFoundError(folder)
    try:
        meta = contract.read_json(folder / "meta.json", "meta")
        if meta["digest"] != digest or meta["format"] != FORMAT:
            raise _BadCache(f"{folder} says that it is {meta['digest']}")
        for name in _FILES:
            found = contract.digest_file(folder / name)
            if dataclasses.asdict(found) != meta["files"][name]:
                raise _BadCache(f"{folder / name} has sha256 {found.sha256[:12]}, which is not what was written")
        return Dataset(
            digest=digest,
            folder=folder,
            vocabulary=meta["vocabulary"],
            train=np.memmap(folder / "train.bin", dtype=np.uint16, mode="r"),
            validation=np.memmap(folder / "validation.bin", dtype=np.uint16, mode="r"),
            entropy=meta["unigram_entropy"],
        )
    except (contract.ContractError, KeyError, TypeError, ValueError, FileNotFoundError, NotADirectoryError) as error:
        raise _BadCache(f"{folder}: {error!r}") from error


# --- writing ------------------------------------------------------------------------------------------------
def _sample(files: Sequence[TextFile], most_bytes: int) -> list[TextFile]:
    """Files for the tokenizer: all, or as many as fit in the order of their digests, which is as good as random."""
    chosen: list[TextFile] = []
    total = 0
    for file in sorted(files, key=lambda file: file.sha256):
        if not chosen or total + file.size_bytes <= most_bytes:
            chosen.append(file)
            total += file.size_bytes
    return sorted(chosen, key=lambda file: file.name)


def _train_tokenizer(files: Sequence[TextFile], vocabulary: int, progress: Progress) -> Tokenizer:
    """A byte-level BPE of `vocabulary` - 1 entries; the last id is the separator between files, and no text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def text() -> Iterator[str]:
        for piece, _last in corpora.pieces(files):
            yield piece
            progress.advance(len(piece.encode()))

    tokenizer.train_from_iterator(text(), trainer=trainer)
    return tokenizer


def _encode(
    tokenizer: Tokenizer, files: Sequence[TextFile], separator: int, out: IO[bytes], progress: Progress
) -> None:
    """Write all files' tokens as uint16, each file closed by the separator."""
    source = corpora.pieces(files)
    while batch := list(itertools.islice(source, _BATCH_PIECES)):
        encoded = tokenizer.encode_batch_fast([piece for piece, _last in batch], add_special_tokens=False)
        for (_piece, last), encoding in zip(batch, encoded, strict=True):
            ids = encoding.ids
            if last:
                ids.append(separator)
            out.write(np.asarray(ids, dtype=np.uint16).tobytes())
        progress.advance(sum(len(piece.encode()) for piece, _last in batch))


def _write(folder: Path, corpus: Corpus, vocabulary: int, digest: str, console: Console, beat: Beat | None) -> None:
    sample = _sample(corpus.train, TOKENIZER_SAMPLE_BYTES)
    sample_bytes = sum(file.size_bytes for file in sample)
    parts = (("train.bin", corpus.train), ("validation.bin", () if corpus.split_inside else corpus.validation))
    encode_bytes = sum(file.size_bytes for _name, files in parts for file in files)
    share = sample_bytes / (sample_bytes + encode_bytes)
    progress = Progress(console, "tokenizer", sample_bytes, beat=beat and (lambda done, text: beat(done * share, text)))
    tokenizer = _train_tokenizer(sample, vocabulary, progress)
    progress.close()
    tokenizer.save(str(folder / "tokenizer.json"))
    progress = Progress(
        console, "encode", encode_bytes, beat=beat and (lambda done, text: beat(share + done * (1 - share), text))
    )
    for name, files in parts:
        with open(folder / name, "wb") as out:
            _encode(tokenizer, files, vocabulary - 1, out, progress)
    progress.close()
    if corpus.split_inside:
        # One file: its last tokens are the validation text, since there is no second file to take.
        tokens = np.fromfile(folder / "train.bin", dtype=np.uint16)
        cut = len(tokens) - math.ceil(len(tokens) * _VALIDATION_SHARE_INSIDE)
        tokens[cut:].tofile(folder / "validation.bin")
        tokens[:cut].tofile(folder / "train.bin")
    for name in _FILES:
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())
    validation = np.fromfile(folder / "validation.bin", dtype=np.uint16)
    contract.write_json_durably(
        folder / "meta.json",
        {
            "format": FORMAT,
            "digest": digest,
            "vocabulary": vocabulary,
            "corpus": corpus.describe(),
            "unigram_entropy": unigram_entropy(validation, vocabulary),
            "files": {name: dataclasses.asdict(contract.digest_file(folder / name)) for name in _FILES},
        },
    )


def _clear_leftovers(cache: Path, digest: str) -> None:
    """Remove what preparers of this digest left when they were killed: folders that nobody holds a lock on."""
    for folder in cache.glob(f".{digest}.*.tmp"):
        with suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(fd)


@contextmanager
def _working_folder(cache: Path, digest: str) -> Iterator[Path]:
    """A locked temporary folder in `cache`, removed at the end if it is still there. Raises OSError."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{digest}.", suffix=".tmp", dir=cache))
        with suppress(FileNotFoundError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                break
            os.close(fd)  # somebody cleared it away between its making and its lock
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _put_in_place(written: Path, final: Path) -> None:
    """Rename; when another preparer was faster, its folder stays (and ours goes with the working folder)."""
    try:
        os.rename(written, final)
    except OSError:
        if not final.is_dir():
            raise
    contract.sync_folder(final.parent)


def prepare(corpus: Corpus, *, vocabulary: int, cache: Path, console: Console, beat: Beat | None = None) -> Dataset:
    """The corpus as tokens, from the cache or made now. `beat(fraction, text)` is told of finished work.

    Any number of processes may do this at once. Raises DataError, and OSError when the cache cannot be written.
    """
    if not 257 <= vocabulary <= 65_536:
        raise DataError(f"a vocabulary of {vocabulary} does not fit: 257 to 65,536 (bytes and a separator; uint16)")
    digest = corpus_digest(corpus, vocabulary)
    final = cache / digest[:32]
    try:
        return _open(final, digest)
    except FileNotFoundError:
        pass
    except _BadCache as error:
        console.say(f"data      the cache is damaged and is made again: {error}")
        with _working_folder(cache, digest[:32]) as aside, suppress(FileNotFoundError):
            os.rename(final, aside / "damaged")  # unless another preparer has done it already
    cache.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(cache, digest[:32])
    with _working_folder(cache, digest[:32]) as written:
        _write(written, corpus, vocabulary, digest, console, beat)
        _put_in_place(written, final)
    return _open(final, digest)
