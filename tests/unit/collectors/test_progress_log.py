"""Progress from a real file that grows, is punched, torn, replaced and cut."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from watchdog.actuators.outputlog import punch_front
from watchdog.classify.progress_lines import PatternError
from watchdog.collectors.progress_log import ProgressLog

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def write(path: Path, content: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def line(step: int) -> str:
    return f"iter {step}: loss 2.5000, time 12.00ms, mfu 1.00%\n"


def read(log: ProgressLog, now_s: float = 5.0) -> list[int | None]:
    return [point.step for point in log.read_new(now_s)]


def test_only_what_is_new_is_read_and_lines_that_are_not_whole_wait(path: Path) -> None:
    log = ProgressLog(path, "nanogpt")
    assert log.source == "log (nanogpt)"
    assert read(log) == []  # there is no file yet
    write(path, line(1) + "noise\n" + line(2) + "iter 3: lo")
    points = log.read_new(7.5)
    assert [(point.at_s, point.step, point.loss, point.phase) for point in points] == [
        (7.5, 1, 2.5, None),
        (7.5, 2, 2.5, None),
    ]
    assert read(log) == []
    write(path, "ss 9.0, time 1.00ms\n")
    assert [(point.step, point.loss) for point in log.read_new(9.0)] == [(3, 9.0)]


def test_bytes_that_are_no_text_harm_nothing(path: Path) -> None:
    write(path, b"\xff\xfe\x80 \0\0 iter 1: loss \xe2\x82\n\x00\n" + line(2).encode() + b"\xe2")
    log = ProgressLog(path, "nanogpt")
    assert read(log) == [2]
    write(path, b"\x96\x88\n" + line(3).encode())  # the rest of a character
    assert read(log) == [3]


def test_bars_are_read_at_once_and_once(path: Path) -> None:
    """A bar ends with the \\r of the next one: a run that hangs would else show the step before its last."""
    log = ProgressLog(path, "huggingface")
    write(path, "\r 10%|█  | 1/10 [00:01<00:09,  1.00s/it]\r 20%|██ | 2/10 [00:02<00:08,  1.00s/it]")
    assert read(log) == [1, 2]
    assert read(log) == []
    write(path, "\r 30%|██ | 3/10 [00:03<00:07")
    assert read(log) == []
    write(path, ",  1.00s/it]")
    assert read(log) == [3]
    write(path, "{'loss': 0.5, 'grad_norm': 0.25, 'epoch': 0.3}\n")  # on the same line: it is read as a whole
    assert [(point.step, point.loss, point.gradient_norm) for point in log.read_new(1.0)] == [(3, 0.5, 0.25)]


def test_a_loss_has_the_step_of_the_bar_and_evaluations_are_held_back(path: Path) -> None:
    log = ProgressLog(path, "huggingface")
    write(path, " 50%|██ | 5/10 [00:05<00:05,  1.00s/it]\n{'loss': '0.5', 'epoch': '1.0'}\n")
    write(path, "\r 33%|██ | 1/3 [00:01<00:02,  1.00s/it]\r{'eval_loss': 0.4, 'epoch': 1.0}\n")
    assert [(point.step, point.loss) for point in log.read_new(1.0)] == [(5, None), (5, 0.5)]


def test_a_punched_front_is_passed_over(path: Path) -> None:
    log = ProgressLog(path, "nanogpt")
    write(path, line(1))
    assert read(log) == [1]
    for step in range(2, 6000):
        write(path, line(step))
    assert punch_front(path, 64 * 1024) > 0
    found = read(log)
    assert found[0] is not None
    assert found == list(range(found[0], 6000))
    assert 1000 < len(found) < 3000
    write(path, line(6000))
    assert read(log) == [6000]


def test_of_a_long_backlog_the_newest_mebibyte_is_read(path: Path) -> None:
    write(path, "".join(line(step) for step in range(1, 60_000)))
    log = ProgressLog(path, "nanogpt")
    found = read(log)
    assert found[-1] == 59_999
    assert found[0] is not None
    assert found == list(range(found[0], 60_000))
    assert os.stat(path).st_size > 2 * MIB
    assert len(found) * 46 < MIB
    assert read(log) == []


@pytest.mark.parametrize("how", ["replaced", "cut"])
def test_another_file_in_its_place_is_read_from_its_beginning(path: Path, how: str, tmp_path: Path) -> None:
    log = ProgressLog(path, "nanogpt")
    write(path, line(1) + line(2) + "iter 3: ")
    assert read(log) == [1, 2]
    if how == "replaced":
        other = tmp_path / "other"
        write(other, line(10) + line(11) + line(12) + line(13))
        os.replace(other, path)
        assert read(log) == [10, 11, 12, 13]
    else:
        path.write_text(line(10))
        assert read(log) == [10]


def test_the_pattern_is_found_by_itself_and_nothing_before_it_is_lost(path: Path) -> None:
    log = ProgressLog(path)
    write(path, "compiling\n" + line(1))
    assert (read(log), log.source) == ([], "log")
    write(path, line(2))
    assert (read(log), log.source) == ([1, 2], "log (nanogpt)")
    write(path, line(3))
    assert read(log) == [3]


def test_an_own_pattern_and_a_bad_one(path: Path) -> None:
    write(path, "at 7 of 9\n")
    assert read(ProgressLog(path, r"at (?P<step>\d+)")) == [7]
    with pytest.raises(PatternError, match="no group named"):
        ProgressLog(path, r"at \d+")


def test_an_own_pattern_reads_what_is_new_and_whatever_the_bytes_are(path: Path) -> None:
    log = ProgressLog(path, r"Schritt «(?P<step>\S+)»(?: von (?P<target_step>\d+))?(?: loss (?P<loss>\S+))?\x00?")
    assert log.source == "log (own)"
    write(path, "Schritt «1» von 9 loss 2.5\n\xff\n\x1b[1mSchritt\x1b[0m «2»\nSchritt «n/a»\nSchritt «3» loss nan")
    assert [(point.step, point.loss) for point in log.read_new(1.0)] == [(1, 2.5), (2, None)]
    write(path, b"\n\xff\xfe\x80\n\xe2\x80\xa8\x85 " + "Schritt «4»\n".encode())
    assert read(log) == [3, 4]
    assert (read(log), log.given_up) == ([], "")


def test_of_many_matches_of_an_own_pattern_the_newest_are_told(path: Path) -> None:
    write(path, "".join(f"at {step} of 90000\n" for step in range(60_000)))
    assert read(ProgressLog(path, r"at (?P<step>\d+) of")) == list(range(59_500, 60_000))


def test_an_own_pattern_that_takes_long_for_each_line_tells_of_the_newest(path: Path) -> None:
    """Measured: 15 ms for each line, so the mebibyte as a whole would take more than the deadline."""
    write(path, ("q" * 1999 + "\n") * 500 + "at 7\n" + ("q" * 1999 + "\n") * 3)
    log = ProgressLog(path, r".*y?z(?P<loss>\d)|at (?P<step>\d+)")
    assert (read(log), log.given_up) == ([7], "")


NASTY = [
    (r".*step.*=.*(?P<step>\d+).*loss.*=.*(?P<loss>[\d.]+).*", "step=1 " * 600),
    (r"a*a*a*a*a*a*(?P<step>\d+)$", "a" * 4000),
    (r"step (a|aa)+(?P<step>\d+)$", "step " + "a" * 4000),
]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Python that counts its starts, in the place of the one that children are started with."""
    counted = tmp_path / "started"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho x >> "{counted}"\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return counted


@pytest.mark.parametrize(("pattern", "text"), NASTY)
def test_a_pattern_that_takes_hours_holds_nobody_up_and_is_tried_once(
    path: Path, pattern: str, text: str, children: Path
) -> None:
    log = ProgressLog(path, pattern)
    assert read(log) == []
    write(path, "half a line")
    assert read(log) == []
    assert not children.exists(), "no new line, no child"
    write(path, f"\n{text}\n")
    over = threading.Event()
    gaps_s: list[float] = []

    def tick() -> None:
        last_s = time.monotonic()
        while not over.wait(0.01):
            gaps_s.append(time.monotonic() - last_s)
            last_s = time.monotonic()

    ticking = threading.Thread(target=tick)
    ticking.start()
    started_s = time.monotonic()
    try:
        assert read(log) == []
    finally:
        over.set()
        ticking.join()
    assert time.monotonic() - started_s < 5
    assert (len(gaps_s) > 20, max(gaps_s) < 1.0) == (True, True), (len(gaps_s), max(gaps_s))
    assert log.given_up == (
        "the pattern of [job] progress took more than 2 s for the run's output: simplify it; "
        "progress is not read any more"
    )
    write(path, "step aa7\n")
    assert read(log) == []
    assert children.read_text() == "x\n"


def test_a_search_that_dies_of_something_else_is_said_and_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/bin/false")
        log = ProgressLog(path, r"at (?P<step>\d+)")
    write(path, "at 7\n")
    for _ in range(2):
        with pytest.raises(OSError, match=r"pattern of \[job\] progress: .* ended with code 1"):
            read(log)
        write(path, "at 8\n")
    assert log.given_up == ""


def test_a_line_without_end_is_bounded(path: Path) -> None:
    log = ProgressLog(path, "nanogpt")
    for _ in range(3):
        write(path, "x" * 900_000)
        assert read(log) == []
    write(path, "iter 1: loss 1.0, \n" + line(2))  # its end belongs to what was dropped
    assert read(log) == [2]


def test_a_pipe_in_its_place_is_refused(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        ProgressLog(path, "nanogpt").read_new(1.0)


def test_when_anything_was_printed_is_known_whatever_it_was(path: Path) -> None:
    log = ProgressLog(path, "nanogpt")
    log.read_new(1.0)
    assert log.printed_s is None, "no file"
    write(path, b"\xff" * 200 * 1024)
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    log.read_new(10_000.0)
    assert log.printed_s == pytest.approx(6400.0, abs=60), "before we looked: by the file's time"
    assert punch_front(path, 64 * 1024) > 0
    log.read_new(10_050.0)
    assert log.printed_s == pytest.approx(6400.0, abs=60), "what is punched out is not printed"
    write(path, "x")
    log.read_new(10_060.0)
    assert log.printed_s == 10_060.0
