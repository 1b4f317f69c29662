"""The file of baselines: written whole, and never over something that cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from watchdog import baselines
from watchdog.errors import StateError

RESULTS = {"GPU-1 560.35.03 bf16 8192": (25.1, 24.9), "cpu:i7 no driver fp32 1024": (0.31,)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/baselines.json"


def test_what_was_written_is_read(path: Path) -> None:
    assert baselines.read(path) == {}
    baselines.write(path, RESULTS)
    assert baselines.read(path) == RESULTS
    baselines.write(path, {})
    assert baselines.read(path) == {}
    assert os.listdir(path.parent) == ["baselines.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2, "tflops": {}}',
        '{"format": 1, "tflops": []}',
        '{"format": 1, "tflops": {"k": 25.1}}',
        '{"format": 1, "tflops": {"k": "251"}}',
        '{"format": 1, "tflops": {"k": {"25.1": 1}}}',
        '{"format": 1, "tflops": {"k": ["25.1"]}}',
        '{"format": 1, "tflops": {"k": [null]}}',
        '{"format": 1, "tflops": {"k": [true]}}',
        '{"format": 1, "tflops": {"k": [NaN]}}',
        '{"format": 1, "tflops": {"k": [Infinity]}}',
        '{"format": 1, "tflops": {"k": [-1.0]}}',
        '{"format": 1, "tflops": {"k": [1e999]}}',
        '{"format": 1, "tflops": {"k": [1' + "0" * 400 + "]}}",
        "\udcff",
    ],
)
def test_a_file_that_is_none_of_ours_is_one_clear_line(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(StateError) as caught:
        baselines.read(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path} is no file of baselines (")
    assert line.endswith("move it away to begin anew")


def test_what_cannot_be_read_or_written_is_one_clear_line(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StateError, match=f"{path} cannot be read: "):
        baselines.read(path)
    with pytest.raises(StateError, match=f"{path} cannot be written: {os.strerror(errno.EISDIR)}"):
        baselines.write(path, RESULTS)
    beneath = path / "file"
    beneath.write_text("")
    with pytest.raises(StateError, match="cannot be written"):
        baselines.write(beneath / "baselines.json", RESULTS)
