"""Carrying out a stop: the last look, whom it reaches, and what is written down before."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import SLEEPER, Launched, folders_in, launched
from watchdog.collectors.processes import is_alive, read_process
from watchdog.collectors.run import RunWatch
from watchdog.contract import Beat
from watchdog.core.facts import Absent, Fact, Known, Unknown
from watchdog.core.identity import ProcessId
from watchdog.core.seen import BeatSeen
from watchdog.errors import RecordingError
from watchdog.signalling import Signaller


class Book:
    """A ledger in memory that can be full."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.data: list[dict[str, Any]] = []
        self.full = False

    def write(self, kind: str, _sentence: str, **data: Any) -> None:
        if self.full:
            raise RecordingError("no room")
        self.kinds.append(kind)
        self.data.append(data)


def beat(run: Launched, seq: int) -> Fact[BeatSeen]:
    leader = run.leader
    found = Beat(
        seq=seq,
        monotonic_s=1.0,
        run_id=run.record.run_id,
        pid=leader.pid,
        start_ticks=leader.start_ticks,
        phase="train",
    )
    return Known(BeatSeen(beat=found, alive=True, stopped=False), 1.0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Launched]:
    with launched(folders_in(tmp_path), SLEEPER) as run:
        yield run


@pytest.fixture
def watch(run: Launched) -> Iterator[RunWatch]:
    with contextlib.closing(RunWatch(run.record)) as watch:
        watch.shim()
        yield watch


def signaller(run: Launched, book: Book, seen: Fact[BeatSeen] | None = None) -> Signaller:
    return Signaller(run.folders.run_lock, lambda _watch, _now: seen or Absent(), book.write, book.write)


def test_term_reaches_the_leader_or_who_is_named(run: Launched, watch: RunWatch) -> None:
    book = Book()
    os.kill(run.leader.pid, signal.SIGSTOP)
    wait_for(lambda: (read_process(run.leader.pid) or run).state == "T", "the stop")  # type: ignore[union-attr]
    assert signaller(run, book).terminate(watch, None, None, 1.0)
    run.wait_over()
    assert book.kinds == ["signal_sent"]
    assert book.data[0] == {"pid": run.leader.pid, "outcome": "delivered"}


@pytest.mark.parametrize("who", ["ourselves", "another start time", "the shim"])
def test_term_never_reaches_who_is_not_proven_a_member(who: str, run: Launched, watch: RunWatch) -> None:
    me = read_process(os.getpid())
    assert me is not None
    target = {
        "ourselves": me.id,
        "another start time": ProcessId(run.leader.pid, run.leader.start_ticks + 1),
        "the shim": run.start.shim,
    }[who]
    book = Book()
    assert signaller(run, book).terminate(watch, target, None, 1.0)
    assert is_alive(run.leader)
    assert is_alive(run.start.shim)
    assert book.data == [{}]


@pytest.mark.parametrize("last", ["new beat", "unknown", "absent"])
def test_a_last_look_that_does_not_confirm_the_silence(last: str, run: Launched, watch: RunWatch) -> None:
    seen = {"new beat": beat(run, 8), "unknown": Unknown("torn"), "absent": Absent()}[last]
    book = Book()
    assert not signaller(run, book, seen).terminate(watch, run.leader, 7, 1.0)
    assert book.kinds == ["run_goes_on"]
    assert is_alive(run.leader)


def test_kill_is_recorded_before_and_after_and_once(run: Launched, watch: RunWatch) -> None:
    book = Book()
    stopper = signaller(run, book)
    stopper.kill(watch)
    run.wait_over()
    stopper.kill(watch)
    assert book.kinds == ["run_killing", "run_killed"]
    assert book.data[0] == {"pids": [run.leader.pid]}


def test_nobody_is_killed_unrecorded(run: Launched, watch: RunWatch) -> None:
    book = Book()
    book.full = True
    stopper = signaller(run, book)
    with pytest.raises(RecordingError):
        stopper.kill(watch)
    assert is_alive(run.leader)
    assert (read_process(run.leader.pid) or run).state != "T"  # type: ignore[union-attr]
    book.full = False
    stopper.kill(watch)
    run.wait_over()
    assert book.kinds == ["run_killing", "run_killed"]
