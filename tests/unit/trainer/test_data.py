"""Shards and their cache: the same text gives the same tokens, and half a cache is never used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer import corpus, data
from trainer.console import Console
from trainer.errors import DataError

VOCABULARY = 300


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT, 0o644))


def make(text: Path, cache: Path, console: Console, **more: object) -> data.Dataset:
    return data.prepare(corpus.find(text), vocabulary=VOCABULARY, cache=cache, console=console, **more)  # type: ignore[arg-type]


def test_the_same_text_gives_the_same_tokens(text: Path, tmp_path: Path, console: Console) -> None:
    one, two = (make(text, tmp_path / name, console) for name in ("one", "two"))
    assert one.digest == two.digest
    for name in ("train.bin", "validation.bin", "tokenizer.json"):
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_tokens_decode_to_the_text(text: Path, tmp_path: Path, console: Console) -> None:
    from tokenizers import Tokenizer

    made = make(text, tmp_path, console)
    tokenizer = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
    files = np.split(made.validation, np.flatnonzero(made.validation == VOCABULARY - 1) + 1)[:-1]
    decoded = [tokenizer.decode(list(ids[:-1])) for ids in files]
    assert decoded == [file.path.read_text() for file in corpus.find(text).validation]
    assert made.train.dtype == np.uint16
    assert made.train.max() < VOCABULARY


def test_entropy_is_that_of_the_frequencies() -> None:
    tokens = np.array([0, 0, 1, 1], dtype=np.uint16)
    assert data.unigram_entropy(tokens, 10) == pytest.approx(np.log(2))


def test_the_second_time_comes_from_the_cache(
    text: Path, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(text, tmp_path, console)
    monkeypatch.setattr(data, "_write", lambda *_: pytest.fail("prepared again"))
    assert make(text, tmp_path, console).entropy == first.entropy


def test_the_digest_knows_content_name_and_vocabulary(text: Path, tmp_path: Path) -> None:
    def digest(vocabulary: int = VOCABULARY) -> str:
        return data.corpus_digest(corpus.find(copy), vocabulary)

    copy = tmp_path / "copy"
    shutil.copytree(text, copy)
    before = digest()
    assert data.corpus_digest(corpus.find(text), VOCABULARY) == before  # where it lies is no part of it
    assert digest(301) != before
    (copy / "file00.txt").rename(copy / "file99.txt")
    renamed = digest()
    assert renamed != before
    (copy / "file99.txt").write_text("something else\n")
    assert digest() not in (before, renamed)


@pytest.mark.parametrize("harm", ["flip", "truncate", "no meta", "broken meta", "other digest"])
def test_a_damaged_cache_is_made_again(text: Path, tmp_path: Path, console: Console, harm: str) -> None:
    made = make(text, tmp_path, console)
    good = (made.folder / "train.bin").read_bytes()
    meta = made.folder / "meta.json"
    if harm == "flip":
        (made.folder / "train.bin").write_bytes(bytes([good[0] ^ 1]) + good[1:])
    elif harm == "truncate":
        (made.folder / "train.bin").write_bytes(good[:-2])
    elif harm == "no meta":
        meta.unlink()
    elif harm == "broken meta":
        meta.write_text("{")
    else:
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "digest": "0" * 64}))
    again = make(text, tmp_path, console)
    assert (again.folder / "train.bin").read_bytes() == good
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_an_interrupted_preparation_leaves_nothing_that_is_used(text: Path, tmp_path: Path, console: Console) -> None:
    cache = tmp_path / "cache"

    def stop(fraction: float, _text: str) -> None:
        if fraction > 0.5:
            raise InterruptedError("stopped in the middle")

    with pytest.raises(InterruptedError):
        make(text, cache, console, beat=stop)
    assert list(cache.iterdir()) == []


def test_what_a_killed_preparer_left_is_cleared_and_what_a_living_one_writes_is_not(
    text: Path, tmp_path: Path, console: Console
) -> None:
    digest = data.corpus_digest(corpus.find(text), VOCABULARY)[:32]
    dead = tmp_path / f".{digest}.dead.tmp"
    dead.mkdir()
    (dead / "train.bin").write_bytes(b"half")
    with data._working_folder(tmp_path, digest) as living:
        (living / "train.bin").write_bytes(b"growing")
        make(text, tmp_path, console)
        assert not dead.exists()
        assert (living / "train.bin").read_bytes() == b"growing"


def test_two_preparers_at_once_agree(text: Path, tmp_path: Path, console: Console) -> None:
    program = (
        "import sys; from pathlib import Path; from trainer import corpus, data; from trainer.console import Console\n"
        "print(data.prepare(corpus.find(Path(sys.argv[1])), vocabulary=300, cache=Path(sys.argv[2]),"
        " console=Console(2)).entropy)"
    )
    command = [sys.executable, "-P", "-c", program, str(text), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0] == f"{make(text, tmp_path / 'cache', console).entropy}\n"
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_progress_goes_from_nothing_to_all(text: Path, tmp_path: Path, console: Console) -> None:
    seen: list[float] = []
    make(text, tmp_path / "cache", console, beat=lambda fraction, _text: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_one_file_is_split_inside(tmp_path: Path, console: Console) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "book.txt").write_text("once upon a time there was a line\n" * 500)
    made = make(tmp_path / "text", tmp_path / "cache", console)
    assert len(made.validation) == pytest.approx(len(made.train) / 19, abs=2)


def test_too_little_text_is_told_with_figures(tmp_path: Path, console: Console) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("too short\n")
    made = make(tmp_path / "text", tmp_path / "cache", console)
    with pytest.raises(DataError, match="tokens, a window needs 33"):
        made.require(32)


def test_validation_windows_are_fixed_and_whole(text: Path, cache: Path, console: Console) -> None:
    made = make(text, cache, console)
    windows = made.validation_windows(8, context=32)
    assert windows.shape == (8, 33)
    assert (windows == made.validation_windows(8, context=32)).all()
    assert (windows[:, 0] != windows[:, 1]).any()
