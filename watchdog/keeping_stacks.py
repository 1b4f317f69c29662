"""Keeping where a run stands, beside the loop, between the record that it is stopped for a stall and its TERM.

Responsible for one keeping at a time, in a thread of its own, and for the one record of what came of it.
Refuses to decide when TERM is sent (core/ending.py does, and waits no longer than it says there), and to fail a stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from watchdog.actuators.stacks import ASK_S, SPY_S, Kept, Order, keep_stacks
from watchdog.clock import Clock
from watchdog.collectors.run import RunWatch
from watchdog.collectors.runner import Runner
from watchdog.core.facts import Fact, Known
from watchdog.core.identity import Process, ProcessId

_ONCE = float("inf")
_ALL_S = ASK_S + SPY_S + 2.0


class StackKeeper:
    """For use from the loop alone. `note` writes to the ledger what nothing depends on."""

    def __init__(self, clock: Clock, note: Callable[..., Any]) -> None:
        self._clock = clock
        self._note = note
        self._runner = Runner(clock)
        self._order: Order | None = None
        self._run: tuple[int, str] = (0, "")
        self._busy = False  # the thread of the last one is there; written by that thread

    @property
    def over(self) -> bool:
        """Nothing is under way."""
        return self._order is None

    def begin(self, watch: RunWatch, members: tuple[Process, ...], beating: ProcessId | None) -> None:
        """Start; returns at once. `members`: as this turn of the loop proved them."""
        number, run_id = watch.record.number, watch.record.run_id
        if self._order is not None or self._busy:
            words = f"run {number}: its stacks could not be kept: the last keeping does not end"
            self._note("stacks_kept", words, run_id=run_id, number=number, path=None)
            return
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._clock.wall()))
        self._run = (number, run_id)
        self._order = Order(
            members=members,
            beating=beating,
            leader=None if watch.start is None else watch.start.leader,
            log=watch.folder.log,
            file=watch.folder.stacks,
            title=f"run {number} ({run_id}) at {when} UTC, before it was asked to end for a stall",
        )
        self._runner = Runner(self._clock)
        self.look()

    def look(self) -> None:
        """Each turn: has it ended? Returns at once."""
        order = self._order
        if order is None:
            return

        def keep() -> Fact[Kept]:
            self._busy = True
            try:
                return Known(keep_stacks(order, self._clock), self._clock.monotonic())
            finally:
                self._busy = False

        polled = self._runner.poll("stacks", keep, every_s=_ONCE, deadline_s=_ALL_S)
        if polled.unread:
            return
        self._order = None
        number, run_id = self._run
        if not isinstance(polled.fact, Known):
            words = f"run {number}: its stacks could not be kept: {polled.fact.why}"
            self._note("stacks_kept", words, run_id=run_id, number=number, path=None)
            return
        kept: Kept = polled.fact.value
        name = "/".join(order.file.parts[-3:])  # below the job's state folder
        where = f"not written to {name}: {kept.why_not}" if kept.why_not else f"kept in {name}"
        told = [*kept.stacks.answers, *([] if kept.stacks.spied is None else [kept.stacks.spied])]
        self._note(
            "stacks_kept",
            f"run {number}: {kept.words}; {kept.stacks.counted}, {where}",
            run_id=run_id,
            number=number,
            path=None if kept.why_not else str(order.file),
            processes=len(kept.stacks.looks),
            threads=sum(len(look.threads) for look in kept.stacks.looks),
            place=kept.words,
            frames=list(kept.frames),
            asked=[[answer.id.pid, answer.command, answer.words] for answer in told],
        )
