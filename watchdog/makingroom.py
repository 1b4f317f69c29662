"""Making room before a launch, beside the loop: look again, record, act, record.

Responsible for the one try that a closed memory gate is worth: what is asked of the kernel runs in a thread of its own,
and each record is written by the loop before the next part begins.
Refuses to decide when (core/decide.py does, once per stay at the gates, and never where `[memory] reclaim` is off: then
a person is told what they can do), and to judge the gate afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from watchdog.actuators.reclaim import (
    ALL_S,
    STEP_S,
    Outcome,
    Reclaimer,
    as_root,
    layout_record,
    outcome_record,
    outcome_words,
)
from watchdog.clock import Clock
from watchdog.collectors.locks import read_lock
from watchdog.collectors.roots import Roots
from watchdog.collectors.runner import Runner
from watchdog.core.facts import Absent, Fact, Known, Lock, Unknown
from watchdog.core.figures import gib
from watchdog.core.reclaiming import Goal, Layout, plan
from watchdog.core.state import Record
from watchdog.errors import RecordingError
from watchdog.places import job_options
from watchdog.settings import Settings

_LOCK_S = 10.0
_LOOK_S = 15.0
_ACT_S = ALL_S + STEP_S + 5.0
_ONCE = float("inf")


class RunLives:
    """Whether a run of this job is alive, by the run lock, without touching it. What cannot be seen may be one."""

    def __init__(self, lock: str, clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        self._runner = Runner(clock)  # the state folder may lie on a mount that hangs
        self.why = ""

    def __call__(self) -> bool:
        fact = self._runner.collect("run", lambda: read_lock(self._lock, "run", Roots(), self._clock), _LOCK_S)
        if isinstance(fact, Known):
            lock: Lock = fact.value
            holders = ", ".join(f"pid {holder.pid}" for holder in lock.holders)
            self.why = f"a run of this job is alive ({holders or 'its holder cannot be seen'})" if lock.held else ""
            return lock.held
        self.why = "" if isinstance(fact, Absent) else f"whether a run is alive cannot be told: {fact.why}"
        return not isinstance(fact, Absent)


def left_to_a_person(settings: Settings) -> str:
    """What is told at a closed gate where `[memory] reclaim` is off; "" where it is on."""
    if settings.memory.reclaim:
        return ""
    by_hand = f"watchdog reclaim{job_options(settings)}"
    return f"[memory] reclaim is false, so no page cache is given back before a launch; by hand: {by_hand}"


class RoomMaker:
    """For use from the loop alone. `over`: the try has ended, `words` say how; before there was one, `untried`."""

    def __init__(
        self,
        reclaimer: Reclaimer,
        clock: Clock,
        record: Callable[[Sequence[Record]], None],
        run_lives: Callable[[], bool],
        untried: str = "",
    ) -> None:
        """`record` raises RecordingError, and then nothing is done. `run_lives` sees one started by hand, too.

        `untried`: what a person at a closed gate should hear while there was no try.
        """
        self._untried = untried
        self._reclaimer = reclaimer
        self._run_lives = run_lives
        self._clock = clock
        self._record = record
        self.forget()

    def forget(self) -> None:
        """What was tried belongs to a launch that is past."""
        self._runner = Runner(self._clock)
        self._goal: Goal | None = None
        self._before: Layout | None = None
        self.over = False
        self.words = self._untried

    def begin(self, need_bytes: int) -> None:
        """Start a try: so much is to be available. No run lives, or the loop would not ask."""
        self.forget()
        self.words = ""
        self._goal = Goal(target_bytes=need_bytes)
        self.look()

    def look(self) -> None:
        """Each turn: go on with what has been answered. Returns at once."""
        if self._goal is None or self.over:
            return
        if self._before is None:
            self._plan(self._goal)
        else:
            self._wait_for(self._goal, self._before)

    def _plan(self, goal: Goal) -> None:
        polled = self._runner.poll("look", self._see, every_s=_ONCE, deadline_s=_LOOK_S)
        if polled.unread:
            return
        if not isinstance(polled.fact, Known):
            self._end(f"whether room can be made cannot be seen: {polled.fact.why}")
            return
        layout, lives = polled.fact.value
        planned = plan(layout, replace(goal, run_lives=lives))
        if not planned.steps:
            self._end("" if goal.is_met(layout) else "; ".join([planned.why_not, *planned.left_out]))
            return
        steps = [step.words for step in planned.steps]
        words = (
            f"{gib(layout.available_bytes)} GiB available, {gib(goal.target_bytes)} needed: asking the kernel to give "
            f"cache back ({', then '.join(steps)})"
        )
        data = {"target_bytes": goal.target_bytes, "of": "available", "before": layout_record(layout), "steps": steps}
        if self._recorded(Record("reclaiming", words, data)):
            self._before = layout
            self._wait_for(goal, layout)

    def _wait_for(self, goal: Goal, before: Layout) -> None:
        def act() -> Fact[Outcome]:
            return Known(self._reclaimer.act(goal, before, run_lives=self._run_lives), self._clock.monotonic())

        polled = self._runner.poll("reclaim", act, every_s=_ONCE, deadline_s=_ACT_S)
        if polled.unread:
            return
        if isinstance(polled.fact, Known):
            outcome = polled.fact.value
            self._recorded(Record("reclaimed", outcome_words(outcome), outcome_record(outcome)))
            self._end(said(outcome))
        else:
            why = f"making room came to no end: {polled.fact.why}"
            self._recorded(Record("reclaimed", why, {"target_bytes": goal.target_bytes, "met": False}))
            self._end(why)

    def _see(self) -> Fact[tuple[Layout, bool]]:
        try:
            return Known((self._reclaimer.look(), self._run_lives()), self._clock.monotonic())
        except ValueError as error:
            return Unknown(str(error))

    def _recorded(self, record: Record) -> bool:
        try:
            self._record([record])
        except RecordingError as error:
            self._end(f"nothing is reclaimed that cannot be recorded: {error}")
            return False
        return True

    def _end(self, words: str) -> None:
        self.over, self.words = True, words


def said(outcome: Outcome) -> str:
    """What a person at a gate that stayed closed should hear of the try."""
    words = f"{gib(outcome.freed_bytes)} GiB came back from reclaim"
    failed = [done for done in outcome.done if done.failed]
    if failed:
        words += f" ({'; '.join(f'{done.step.how.value}: {done.words}' for done in failed)})"
    if outcome.refused and os.geteuid() != 0:
        words += f"; permitted is: {as_root(outcome.goal.target_bytes)}"
    return "; ".join([words, *([outcome.note] if outcome.note else ())])
