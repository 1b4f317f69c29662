"""Runs collectors, each bounded in time, so that nothing they wait for makes the caller wait.

Responsible for timing, for counting success and failure, and for turning what hangs or raises into a fact. Each call
has a daemon thread of its own; a collector that did not come back keeps its one thread and gets no second.
Refuses to fork (the supervisor lock must never be inherited by accident) and to judge.

For use from one thread. A thread cannot be cancelled: what may hang in the kernel belongs in a disposable child
(child.py), since a thread in state D would keep our own exit from completing.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from watchdog.clock import Clock
from watchdog.core.collectorview import CollectorView
from watchdog.core.facts import Fact, Known, Unknown

T = TypeVar("T")


class Polled(Struct, Generic[T], frozen=True):
    """The newest fact and its age in seconds, None when there is none; `unread`: the first answer is on its way."""

    fact: Fact[T]
    age_s: float | None
    unread: bool = False


class _Call:
    """One call in its thread. Written by that thread until `done` is set, and only read afterwards."""

    def __init__(self, name: str, function: Callable[[], Fact[Any]], clock: Clock) -> None:
        self._name = name
        self._function = function
        self._clock = clock
        self.started_s = clock.monotonic()
        self.done = threading.Event()
        self.fact: Fact[Any] = Unknown(f"{name} ended without an answer")
        self.ended_s = self.started_s
        self.ended_wall_s = 0.0

    def begin(self) -> None:
        try:
            threading.Thread(target=self._run, name=f"collect-{self._name}", daemon=True).start()
        except RuntimeError as error:  # no thread to be had: said, not raised, or the loop would end for it
            self.fact = Unknown(f"{self._name} could not be started: {error}")
            self._end()

    def _run(self) -> None:
        try:
            self.fact = self._function()
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            self.fact = Unknown(f"{self._name}:{where} {error.strerror or error}")
        except Exception as error:  # whatever it is, the caller must hear it as a fact and not as silence
            self.fact = Unknown(f"{self._name}: {type(error).__name__}: {error}")
        finally:
            self._end()

    def _end(self) -> None:
        self.ended_s, self.ended_wall_s = self._clock.monotonic(), self._clock.wall()
        self.done.set()


@dataclasses.dataclass(slots=True)
class _Record:
    """What is known of one collector."""

    call: _Call | None = None  # outstanding, or ended and not looked at yet
    newest: Fact[Any] | None = None
    newest_s: float = 0.0
    last_start_s: float | None = None
    view: CollectorView | None = None
    last_success_wall_s: float | None = None
    due: bool = True


class Runner:
    """Bounds and times collectors by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def collect(self, name: str, function: Callable[[], Fact[T]], deadline_s: float) -> Fact[T]:
        """Call and wait, `deadline_s` at most. A call that hung before is not repeated: its silence is the answer."""
        self.start(name, function)
        return self.wait(name, deadline_s)

    def start(self, name: str, function: Callable[[], Fact[Any]]) -> None:
        """Call in a thread of its own, unless the last call is still outstanding. Returns at once."""
        record = self._records.setdefault(name, _Record())
        self._settle(record)
        if record.call is None:
            record.call = _Call(name, function, self._clock)
            record.last_start_s, record.due = record.call.started_s, False
            record.call.begin()

    def wait(self, name: str, deadline_s: float) -> Fact[Any]:
        """The answer of the call that was started; waits until `deadline_s` after its start."""
        record = self._records[name]
        if record.call is not None:
            record.call.done.wait(max(0.0, deadline_s - (self._clock.monotonic() - record.call.started_s)))
        self._settle(record)
        if record.call is None and record.newest is not None:
            return record.newest
        return self._silence(name, record)

    def poll(self, name: str, function: Callable[[], Fact[T]], *, every_s: float, deadline_s: float) -> Polled[T]:
        """The newest fact, at once. Starts a call when the last start is `every_s` ago and none is outstanding.

        A call older than `deadline_s` makes the fact Unknown until it answers. Each turn of the loop sees the answer
        of an earlier turn: the age says of which.
        """
        record = self._records.setdefault(name, _Record())
        self._settle(record)
        now = self._clock.monotonic()
        if record.call is None and (record.due or record.last_start_s is None or now - record.last_start_s >= every_s):
            self.start(name, function)
        if record.call is not None and now - record.call.started_s > deadline_s:
            return Polled(self._silence(name, record), None if record.newest is None else now - record.newest_s)
        if record.newest is None:
            return Polled(Unknown(f"{name} has not been read yet"), None, unread=True)
        return Polled(record.newest, now - record.newest_s)

    def soon(self, name: str) -> None:
        """What is known of it is of before something changed: its next poll asks, however long ago the last was."""
        if name in self._records:
            self._records[name].due = True

    def ask_afresh(self) -> None:
        """After a gap in the loop's schedule: what was read before is forgotten, and every collector is due now.

        A call that is outstanding stays outstanding, with its time counted from now: it may have been frozen with us.
        """
        for record in self._records.values():
            self._settle(record)
            record.newest, record.due = None, True
            if record.call is not None:
                record.call.started_s = self._clock.monotonic()

    def views(self) -> dict[str, CollectorView]:
        """How each collector fared last time, for status and metrics."""
        for record in self._records.values():
            self._settle(record)
        return {name: record.view for name, record in self._records.items() if record.view is not None}

    def _settle(self, record: _Record) -> None:
        """Take over the answer of a call that has ended."""
        call = record.call
        if call is None or not call.done.is_set():
            return
        record.call, record.newest = None, call.fact
        record.newest_s = call.fact.at_s if isinstance(call.fact, Known) else call.ended_s
        why = call.fact.why if isinstance(call.fact, Unknown) else ""
        if not why:
            record.last_success_wall_s = call.ended_wall_s
        record.view = CollectorView(
            duration_s=call.ended_s - call.started_s,
            success=not why,
            last_success_wall_s=record.last_success_wall_s,
            why=why,
        )

    def _silence(self, name: str, record: _Record) -> Unknown:
        elapsed_s = 0.0 if record.call is None else self._clock.monotonic() - record.call.started_s
        silence = Unknown(f"{name} has not answered for {elapsed_s:.0f} s")
        record.view = CollectorView(
            duration_s=elapsed_s, success=False, last_success_wall_s=record.last_success_wall_s, why=silence.why
        )
        return silence
