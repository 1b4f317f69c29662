"""The most that a run was seen with is recorded as it grows, and for the last time before its end is decided on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.handclock import HandClock
from tests.unit.checks.host import GIB, host, memory
from tests.unit.core.world import launching, make_run, member
from watchdog import memorynoting
from watchdog.collectors.run import RunWatch
from watchdog.collectors.runmemory import RunMemory
from watchdog.core.fact import Known
from watchdog.core.history import Event, History, fold
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import Record
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError
from watchdog.memorynoting import MemoryNoter

MIB = 1024**2
FACTS = host(memory=memory(available_bytes=20 * GIB))


class Bench:
    """A noter, its ledger, the time, and what a look finds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = HandClock(100.0)
        self.held, self.looks, self.full = 0, 0, False
        self.records: list[Record] = []
        self.troubles: list[str] = []
        self.history = fold([event_of(launching(1, "1-a", -1), 0)])
        monkeypatch.setattr(memorynoting, "read_run_memory", self._read)
        self.noter = MemoryNoter(self.clock, self._record, self.troubles.append)

    def _read(self, *_: Any) -> Known[RunMemory]:
        self.looks += 1
        return Known(RunMemory(held_bytes=self.held), self.clock.monotonic())

    def _record(self, records: Sequence[Record]) -> None:
        if self.full:
            raise RecordingError("the disk is full")
        self.records += records
        self.history = fold([event_of(each, len(self.records)) for each in records], self.history)

    def turn(self, held: int = 0, shim: Shim = Shim.ALIVE, after_s: float = 1.0, run: bool = True) -> None:
        """Two looks of the loop: the second one hears the answer of the first."""
        self.held = held * MIB
        self.clock.now_s += after_s
        watch = cast(RunWatch, SimpleNamespace(record=SimpleNamespace(cgroup=None, run_id="1-a")))
        for _ in range(2):
            seen = Seen(now_s=self.clock.monotonic(), shim=shim, members=(member(),))
            if run:
                self.noter.look(make_run(), watch, seen, FACTS, self.history)
                pending = self.noter._runner._records.get("memory of the run")
                if pending is not None and pending.call is not None:
                    assert pending.call.done.wait(5)
            else:
                self.noter.look(None, None, seen, FACTS, self.history)

    @property
    def peaks(self) -> list[int]:
        return [record.data["peak_bytes"] // MIB for record in self.records]


def event_of(record: Record, seq: int) -> Event:
    return Event(seq=seq, wall_s=float(seq), kind=record.kind, sentence=record.sentence, data=dict(record.data))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_growth_is_recorded_and_the_last_word_before_the_end(bench: Bench) -> None:
    bench.turn(run=False)
    for held in (30, 900, 910, 2000, 500, 2040):
        bench.turn(held)
    assert bench.peaks == [900, 2000]
    bench.turn(9, shim=Shim.ENDED)
    assert bench.peaks == [900, 2000, 2040], "the same turn decides on the end"
    assert bench.records[-1].data["before_bytes"] == 20 * GIB
    bench.turn(9, shim=Shim.ENDED)
    bench.turn(run=False)
    assert len(bench.records) == 3


def test_the_next_supervisor_goes_on_from_what_is_on_record(bench: Bench) -> None:
    bench.turn(run=False)
    bench.turn(900)
    bench.noter = MemoryNoter(bench.clock, bench._record, bench.troubles.append)
    bench.turn(500)
    bench.turn(500, shim=Shim.ENDED)
    assert bench.peaks == [900]


def test_a_run_that_does_not_grow_is_looked_at_seldom(bench: Bench) -> None:
    for _ in range(70):
        bench.turn(900)
    young = bench.looks
    for _ in range(60):
        bench.turn(900)
    assert bench.looks - young <= 13, "each 5 s"
    assert young > 50


def test_what_cannot_be_recorded_is_told_and_tried_again_seldom(bench: Bench) -> None:
    bench.full = True
    for _ in range(4):
        bench.turn(900)
    assert (bench.troubles, bench.peaks) == (["the disk is full"], [])
    bench.full = False
    bench.turn(900, after_s=AGAIN_S)
    assert bench.peaks == [900]


def test_a_history_without_the_run_takes_nothing_of_it() -> None:
    record = Record(*memorynoting.peak_record("9-z", 9, 900 * MIB, None))
    assert fold([event_of(record, 1)]).host_memory == History().host_memory
