"""What the trainer says must never end it."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.console import Console, Progress


def test_a_full_disk_costs_lines_and_they_are_counted(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    console = Console(full)
    console.say("one")
    console.say("two")
    assert console.lost == 2
    os.dup2(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT, 0o644), full)
    console.say("three")
    assert (tmp_path / "log").read_text() == "\n(2 lines could not be written)\nthree\n"
    assert console.lost == 0


def test_a_closed_reader_costs_lines_only() -> None:
    read, write = os.pipe()
    os.close(read)
    console = Console(write)
    console.say("nobody listens")
    assert console.lost == 1
    os.close(write)
    console.say("not even a descriptor")
    assert console.lost == 2


def test_numbers_keep_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Console(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)).say_json({"loss": 0.1 + 0.2})
    assert path.read_text() == '{"loss": 0.30000000000000004}\n'


def test_without_a_terminal_progress_is_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    progress = Progress(Console(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)), "encode", 1000)
    for _ in range(1000):
        progress.advance(1)
    progress.close()
    assert [line.split()[1] for line in path.read_text().splitlines()] == ["25%", "50%", "75%", "100%"]


def test_on_a_terminal_progress_is_one_line_redrawn() -> None:
    master, slave = os.openpty()
    progress = Progress(Console(slave), "encode", 10)
    for _ in range(10):
        progress.advance(1)
    progress.close()
    drawn = ""
    while not drawn.endswith("\n"):  # a terminal hands over what it has, not what was asked for
        drawn += os.read(master, 65536).decode(errors="ignore")
    os.close(slave)
    os.close(master)
    assert drawn.count("\n") == 1
    assert "100%" in drawn
    assert drawn.startswith("\r")
