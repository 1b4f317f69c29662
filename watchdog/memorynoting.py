"""Beside the loop: how much host memory the living run holds, and the record of the most it was seen with.

Responsible for reading it at a slow pace in a thread of its own, and for the records that core/memoryneed.py folds:
while it grows, and the last word before the end of the run is decided on.
Refuses to decide what follows, and to hold up the loop: a look that hangs is no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch
from watchdog.collectors.runmemory import RunMemory, read_run_memory
from watchdog.collectors.runner import Runner
from watchdog.core.facts import Fact, Facts, Known, value_of
from watchdog.core.history import History
from watchdog.core.memoryneed import is_news, peak_record
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import Record, RunState
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError

# What loads a model grows by some GiB a second; later it changes seldom. One look at two processes takes 0.3 ms.
_GROWING_EVERY_S, _EVERY_S, _YOUNG_S = 1.0, 5.0, 60.0
_DEADLINE_S = 10.0


class MemoryNoter:
    """For use from the loop alone."""

    def __init__(
        self,
        clock: Clock,
        record: Callable[[Sequence[Record]], None],
        say_trouble: Callable[[str], None],
        roots: Roots | None = None,
    ) -> None:
        """`record` raises RecordingError, and then nothing is on disk."""
        self._clock = clock
        self._record = record
        self._say_trouble = say_trouble
        self._roots = roots or Roots()
        self._run_id: str | None = None
        self._runner = Runner(clock)
        self._last: RunMemory | None = None
        self._peak_bytes = 0
        self._before_bytes: int | None = None
        self._grew_s = 0.0
        self._not_before_s = float("-inf")

    def look(self, run: RunState | None, watch: RunWatch | None, seen: Seen, facts: Facts, history: History) -> None:
        """What this turn tells: of the run, or of what the next one will find."""
        if run is None or watch is None:
            memory = value_of(facts.memory)
            if memory is not None:
                self._before_bytes = memory.available_bytes
            return
        if run.run_id != self._run_id:
            self._begin(run, history, seen.now_s)
        over = seen.shim not in (Shim.STARTING, Shim.ALIVE, Shim.LOST)
        if not over:
            self._read(watch, seen)
        recorded = history.host_memory.peak_of(run.run_id)
        if self._peak_bytes > recorded if over else is_news(self._peak_bytes, recorded):
            self._note(run, seen.now_s)

    def _begin(self, run: RunState, history: History, now_s: float) -> None:
        recorded = history.host_memory
        self._peak_bytes = recorded.peak_of(run.run_id)
        if self._peak_bytes:  # adopted
            self._before_bytes = recorded.before_bytes
        self._run_id, self._runner, self._last, self._grew_s = run.run_id, Runner(self._clock), None, now_s

    def _read(self, watch: RunWatch, seen: Seen) -> None:
        members = [process.id for process in seen.members]
        if not members and watch.record.cgroup is None:
            return
        group, run_id, last = watch.record.cgroup, watch.record.run_id, self._last

        def read() -> Fact[RunMemory]:
            return read_run_memory(members, group, run_id, self._roots, self._clock, last)

        every_s = _GROWING_EVERY_S if seen.now_s - self._grew_s < _YOUNG_S else _EVERY_S
        polled = self._runner.poll("memory of the run", read, every_s=every_s, deadline_s=_DEADLINE_S)
        if not isinstance(polled.fact, Known) or polled.fact.value == self._last:
            return
        self._last = polled.fact.value
        if is_news(self._last.held_bytes, self._peak_bytes):
            self._grew_s = seen.now_s
        self._peak_bytes = max(self._peak_bytes, self._last.held_bytes)

    def _note(self, run: RunState, now_s: float) -> None:
        if now_s < self._not_before_s:
            return
        kind, words, data = peak_record(run.run_id, run.number, self._peak_bytes, self._before_bytes)
        try:
            self._record([Record(kind, words, data)])
        except RecordingError as error:
            self._say_trouble(str(error))
            self._not_before_s = now_s + AGAIN_S
