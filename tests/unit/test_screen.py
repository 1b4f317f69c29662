"""The screen: a live line on a terminal, silence on a closed one, and words that would hurt a terminal or a file."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog import screen as module
from watchdog.screen import LOG_LIMIT_BYTES, Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "watchdog.log"


def test_a_line_is_labelled_said_once_and_kept(log: Path) -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.log_to(log)
    screen.line("run 3", "run 3 exit 1\nand more")
    assert out.getvalue() == "run 3     exit 1\n          and more\n"
    assert [line[20:] for line in log.read_text().splitlines()] == ["run 3     exit 1", "          and more"]


def test_the_live_line_is_redrawn_below_lasting_lines() -> None:
    out = Terminal()
    screen = Screen(out)
    screen.live("step 1", 0.0)
    screen.live("step 1", 0.1)  # unchanged: nothing is written
    screen.line("gate", "open")
    screen.live("step 2", 0.2)
    screen.end_live()
    assert out.getvalue() == "step 1\r\x1b[Kgate      open\nstep 1\r\x1b[Kstep 2\n"


def test_without_a_terminal_the_live_line_is_said_now_and_then() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for second in range(31):
        screen.live(f"step {second}", float(second))
    assert out.getvalue().splitlines() == ["step 0", "step 15", "step 30"]


def test_without_a_terminal_a_short_wait_is_said_too() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for second, text in enumerate(
        ["run 1     step 1", *(f"wait      next run in {14 - n} s" for n in range(3)), "run 2     x"]
    ):
        screen.live(text, float(second))
    assert out.getvalue().splitlines() == ["run 1     step 1", "wait      next run in 14 s"]


def test_a_long_live_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((40, 20)))
    Screen(out).live("x" * 500, 0.0)
    assert len(out.getvalue()) == 39


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, "full"), ValueError("closed")]
)
def test_a_terminal_that_is_gone_is_silence_and_the_log_goes_on(log: Path, error: Exception) -> None:
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise error

    screen = Screen(Broken())
    screen.log_to(log)
    screen.line("a", "one")
    screen.line("b", "two")
    screen.live("live", 0.0)
    assert len(log.read_text().splitlines()) == 2


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    for fd in (ours, theirs):
        with contextlib.suppress(OSError):  # the test may have closed it
            os.close(fd)


def test_a_really_closed_terminal_costs_nothing(log: Path, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    out = open(theirs, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  closed below
    screen = Screen(out)
    screen.log_to(log)
    screen.live("step 1", 0.0)
    os.close(ours)
    for number in range(5):
        screen.line("x", str(number))
    assert len(log.read_text().splitlines()) == 5
    screen.close()
    out.close()


def test_detached_and_quiet_screens_write_to_the_log_only(log: Path) -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.log_to(log)
    screen.detach()
    screen.line("a", "b")
    Screen(out, quiet=True).line("c", "d")
    assert out.getvalue() == ""
    assert "a         b" in log.read_text()


def test_the_log_stays_bounded(log: Path) -> None:
    screen = Screen(io.StringIO())
    screen.log_to(log)
    log.write_bytes(b"x" * (LOG_LIMIT_BYTES + 1))
    screen.line("a", "b")
    assert log.stat().st_size < 100
    assert log.with_suffix(".log.1").stat().st_size == LOG_LIMIT_BYTES + 1


def test_a_log_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.log_to(tmp_path / "gone" / "watchdog.log")
    screen.line("a", "b")
    assert out.getvalue() == "a         b\n"


def utf8_file(path: Path) -> io.TextIOWrapper:
    return open(path, "w", encoding="utf-8")


def test_words_that_no_encoding_knows_neither_end_the_loop_nor_silence_the_screen(tmp_path: Path, log: Path) -> None:
    """A trainer's error, or the name of a file, can hold a lone surrogate."""
    with utf8_file(tmp_path / "out") as out, contextlib.closing(Screen(out)) as screen:
        screen.log_to(log)
        screen.line("error", "ValueError: \ud800 is no letter")
        screen.line("next", "watchdog relaunch")
    assert "watchdog relaunch" in (tmp_path / "out").read_text()
    assert "is no letter" in (tmp_path / "out").read_text()
    assert "is no letter" in log.read_text()


def test_a_terminal_of_few_letters_still_gets_its_words(tmp_path: Path, log: Path) -> None:
    """LANG=C over ssh: an arrow or a bar is no reason to fall silent for good."""
    with open(tmp_path / "out", "w", encoding="ascii") as out, contextlib.closing(Screen(out)) as screen:
        screen.log_to(log)
        screen.line("gate", "disk 9 ≥ 1 GiB ✓")
        screen.line("run 1", "starts")
    assert "starts" in (tmp_path / "out").read_text()


@pytest.mark.parametrize("words", ["a\x1b[2Jb", "a\x1b]0;title\x07b", "a\rb", "a\x00b", "a\x9bb"])
def test_control_characters_of_a_trainer_do_not_reach_the_terminal(words: str) -> None:
    out = Terminal()
    screen = Screen(out)
    screen.line("error", words)
    said = out.getvalue()
    assert said.isprintable() or set(said) - {"\n"} <= set(map(chr, range(0x20, 0x7F))) | set(
        map(chr, range(0xA0, 0x2FFF))
    )


def test_a_live_line_stays_one_line() -> None:
    out = Terminal()
    Screen(out).live("load: one\ntwo\rthree", 0.0)
    assert "\n" not in out.getvalue()
    assert "\r" not in out.getvalue()


# --- a reader that pauses ---------------------------------------------------------------------------------------------
WORDS = "x" * 200  # a pipe holds 64 KiB, a terminal less; a few thousand of these fill either


def finishes(work: Callable[[], None]) -> bool:
    """The work is done within a generous time, in a thread that may hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def read_all(fd: int, into: list[bytes]) -> threading.Thread:
    def work() -> None:
        with contextlib.suppress(OSError):  # a terminal whose other side is closed
            while content := os.read(fd, 65536):
                into.append(content)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    reading, writing = os.pipe()
    out = os.fdopen(writing, "w", encoding="utf-8")
    yield reading, out
    with contextlib.suppress(OSError):
        os.close(reading)  # whoever still writes is told so, and ends
    out.close()


def test_a_pipe_that_nobody_reads_never_makes_the_loop_wait(pipe: tuple[int, io.TextIOWrapper], log: Path) -> None:
    """`watchdog run | less`: what does not fit is dropped there, the log has all of it, and leaving takes a moment."""
    reading, out = pipe
    screen = Screen(out)
    screen.log_to(log)

    def talk() -> None:
        for number in range(3000):
            screen.line("x", f"{number} {WORDS}")
            screen.live(f"step {number}", float(number))

    assert finishes(talk), "a full pipe made the loop wait"
    assert finishes(screen.close), "a full pipe kept the process from leaving"
    assert len(log.read_text().splitlines()) == 3000
    os.set_blocking(reading, False)
    assert os.read(reading, 65536).startswith(b"x         0 x"), "what came first was said first"


def test_a_reader_that_goes_on_gets_whole_lines_in_order(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reading, out = pipe
    screen = Screen(out)
    for number in range(900):  # more than a pipe holds, fewer than are kept for it
        screen.line("x", f"{number} {WORDS}")
    got: list[bytes] = []
    reader = read_all(reading, got)
    screen.close()
    out.close()
    reader.join(30)
    assert b"".join(got).decode().splitlines() == [f"x         {number} {WORDS}" for number in range(900)]


def test_a_stopped_terminal_never_makes_the_loop_wait(terminal: tuple[int, int], log: Path) -> None:
    """Ctrl-S; and after Ctrl-Q it goes on where it was."""
    ours, theirs = terminal
    out = open(theirs, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  closed below
    screen = Screen(out)
    screen.log_to(log)
    termios.tcflow(theirs, termios.TCOOFF)

    def talk() -> None:
        for number in range(500):
            screen.line("x", f"{number} {WORDS}")
            screen.live(f"step {number}", float(number))

    assert finishes(talk), "a stopped terminal made the loop wait"
    assert len(log.read_text().splitlines()) == 500
    got: list[bytes] = []
    termios.tcflow(theirs, termios.TCOON)
    reader = read_all(ours, got)
    screen.close()
    out.close()
    os.close(theirs)
    reader.join(30)
    assert b"x         0 x" in b"".join(got)


def test_a_reader_that_went_away_ends_the_writing_and_nothing_else(
    pipe: tuple[int, io.TextIOWrapper], log: Path
) -> None:
    reading, out = pipe
    os.close(reading)
    screen = Screen(out)
    screen.log_to(log)
    for number in range(50):
        screen.line("x", str(number))
    assert finishes(screen.close)
    screen.line("x", "after the end")
    assert len(log.read_text().splitlines()) == 51


def test_what_was_said_last_is_there_when_the_screen_is_closed(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reading, out = pipe
    screen = Screen(out)
    screen.line("next", "watchdog relaunch")
    screen.close()
    assert os.read(reading, 100) == b"next      watchdog relaunch\n"
