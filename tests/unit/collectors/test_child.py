"""The disposable child: bounded, alone, and never signalled by us."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors.child import DisposableChild
from watchdog.core.facts import Unknown

ALARM = "import signal, sys; from watchdog.collectors.child import end_after; end_after(float(sys.argv[1]));"


@pytest.fixture(autouse=True)
def ours_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def ask(child: DisposableChild, program: str, deadline_s: float = 5.0, *more: str) -> str | Unknown:
    return child.ask([sys.executable, "-P", "-c", ALARM + program, str(deadline_s), *more], deadline_s)


@pytest.fixture
def child() -> DisposableChild:
    return DisposableChild("the oracle", SystemClock())


def test_the_last_line_is_the_answer(child: DisposableChild) -> None:
    assert ask(child, "print('noise of a library'); print('42')") == "42"
    assert ask(child, "print('again')") == "again"


def test_what_is_given_is_what_it_reads(child: DisposableChild) -> None:
    argv = [sys.executable, "-P", "-c", ALARM + "print(len(sys.stdin.buffer.read()))", "5"]
    assert child.ask(argv, 5.0, given=b"x" * 3_000_000) == "3000000"
    assert child.ask(argv, 5.0) == "0"
    blind = [sys.executable, "-P", "-c", ALARM + "print('unread')", "5"]
    assert child.ask(blind, 5.0, given=b"x" * 3_000_000) == "unread"


def test_a_hang_ends_by_the_childs_own_alarm(child: DisposableChild) -> None:
    started = time.monotonic()
    answer = ask(child, "signal.pause()", 0.6)
    assert isinstance(answer, Unknown)
    assert answer.why == "the oracle did not answer within 0.6 s"
    assert child.late
    assert time.monotonic() - started < 5


def test_the_alarm_works_although_the_signal_was_blocked_and_ignored(child: DisposableChild) -> None:
    program = (
        "import os; signal.setitimer(signal.ITIMER_REAL, 0); signal.signal(signal.SIGALRM, signal.SIG_IGN);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); end_after(0.2);"
        "signal.pause()"
    )
    answer = ask(child, program)
    assert isinstance(answer, Unknown)
    assert "did not answer" in answer.why


def test_a_crash_is_named(child: DisposableChild) -> None:
    answer = ask(child, "import os; os.kill(os.getpid(), signal.SIGSEGV)")
    assert isinstance(answer, Unknown)
    assert "SIGSEGV" in answer.why
    assert not child.late


@pytest.mark.parametrize("program", ["sys.exit(3)", "pass", "print('half'); sys.exit(1)"])
def test_no_answer_is_no_answer(child: DisposableChild, program: str) -> None:
    assert isinstance(ask(child, program), Unknown)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """Whoever opens it to read waits, at the latest until the test is over."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def test_one_that_does_not_end_gets_no_second_beside_it(child: DisposableChild, fifo: Path, tmp_path: Path) -> None:
    """A child without its alarm stands in for one in state D; it ends when the test lets go of its FIFO."""
    started = tmp_path / "started"
    stuck = (
        "signal.setitimer(signal.ITIMER_REAL, 0); open(sys.argv[3], 'a').write('x');"
        "open(sys.argv[2]).read(); print('late')"
    )
    first = ask(child, stuck, 1.5, str(fifo), str(started))
    assert isinstance(first, Unknown)
    assert "no other is started" in first.why
    again = time.monotonic()
    second = ask(child, stuck, 1.5, str(fifo), str(started))
    assert isinstance(second, Unknown)
    assert time.monotonic() - again < 1.0  # not waited for again
    assert started.read_text() == "x"
    fifo.write_text("go")
    deadline = time.monotonic() + 10
    while isinstance(answer := ask(child, "print('well again')"), Unknown) and time.monotonic() < deadline:
        assert "no other is started" in answer.why
    assert answer == "well again"
