"""The run's progress for one turn: from its beats, or where they tell no step from what it prints.

Responsible for feeding each new word into the window of core/progress.py, and for what the checks are told of the run:
of its beat the very deadline that core/watching.py holds it to. The log is read beside the loop, until a beat tells a
step: who only says that it is ready (sd_notify) tells none. Refuses to judge.
"""

from __future__ import annotations

from pathlib import Path

from watchdog.clock import Clock
from watchdog.collectors.progress_log import ProgressLog
from watchdog.collectors.run import RunWatch
from watchdog.collectors.runner import Runner
from watchdog.core.decide import beat_deadline
from watchdog.core.fact import Absent, Fact, Known, Unknown
from watchdog.core.facts import BeatFact, Progress, ProgressPoint
from watchdog.core.progress import ProgressWindow, add, fact, from_beat, skip, window_for
from watchdog.core.seen import BeatSeen, Seen, Shim
from watchdog.core.state import Policy, RunState
from watchdog.lookout import OfRun

_LOG_EVERY_S, _LOG_DEADLINE_S = 2.0, 10.0
_NO_RUN = Absent("no run of this job is alive")


class ProgressEyes:
    """For use from the loop alone."""

    def __init__(self, pattern: str, clock: Clock, ledger_step_s: float | None = None) -> None:
        """`pattern` is [job] progress; `ledger_step_s`: what a step took when this job was last watched."""
        self._pattern = pattern
        self._ledger_step_s = ledger_step_s
        self._read_s: float | None = None  # when a beat of this run could last be read
        self._blind = False  # and since then one could not
        self._clock = clock
        self._runner = Runner(clock)
        # Apart: a change of the source would cost the history of the other.
        self._beaten: ProgressWindow | None = None
        self._read: ProgressWindow | None = None
        self._log: ProgressLog | None = None
        self._log_of = ""
        self._taken_s = 0.0
        self._unread = ""  # why the log could not be read last time
        self.newest: Progress | None = None

    def skip(self, away_s: float) -> None:
        """The loop was away: that time belongs to no step."""
        now_s = self._clock.monotonic()
        if self._beaten is not None:
            self._beaten = skip(self._beaten, seconds=away_s, now_s=now_s)
        if self._read is not None:
            self._read = skip(self._read, seconds=away_s, now_s=now_s)

    def forget(self) -> None:
        """The next run's steps are of another kind: those before it are no measure for them."""
        self._beaten = self._read = self._ledger_step_s = None

    def look(self, watch: RunWatch | None, seen: Seen, policy: Policy, run: RunState | None) -> OfRun:
        """What is known of the run in this turn."""
        if watch is None or run is None or seen.shim not in (Shim.STARTING, Shim.ALIVE):
            self.newest, self._log = None, None
            return OfRun(beat=_NO_RUN, progress=_NO_RUN)
        return OfRun(beat=_beat_fact(seen, run, policy), progress=self._progress(watch, seen))

    def _progress(self, watch: RunWatch, seen: Seen) -> Fact[Progress]:
        run_id = watch.record.run_id
        if isinstance(seen.beat, Known):
            window = window_for(self._beaten, run_id, "beats")
            if self._blind and self._read_s is not None and window.points:
                # It may have evaluated, or taken steps and gone back: nobody knows, and it is not held against it.
                window = skip(window, seconds=seen.now_s - self._read_s, now_s=seen.now_s)
            self._beaten = add(window, from_beat(seen.beat.value.beat, seen.now_s))
            self._read_s, self._blind = seen.now_s, False
        else:
            self._blind = True
        beaten = _of(self._beaten, run_id)
        if self._pattern != "off" and not isinstance(seen.beat, Unknown) and (beaten is None or beaten.step is None):
            for point in self._printed(run_id, watch.folder.log):
                assert self._log is not None
                self._read = add(window_for(self._read, run_id, self._log.source), point)
            if self._unread:
                self.newest = None
                return Unknown(self._unread)
        told = _of(self._read, run_id) if beaten is None or beaten.step is None else None
        told = told or beaten
        printed_s = None if self._log is None or self._log_of != run_id else self._log.printed_s
        self.newest = None if told is None else fact(told, printed_s=printed_s, ledger_step_s=self._ledger_step_s)
        if self.newest is not None:
            return Known(self.newest, seen.now_s)
        if isinstance(seen.beat, Unknown):
            return Unknown(seen.beat.why)
        if printed_s is None or self._log is None:
            return Absent("the run has shown no progress that could be read")
        return Known(Progress(run_id=run_id, source=self._log.source, points=(), printed_s=printed_s), seen.now_s)

    def _printed(self, run_id: str, path: Path) -> tuple[ProgressPoint, ...]:
        """What the log said since the last turn; read in a thread, so it is that of a turn before."""
        if self._log is None or self._log_of != run_id:
            self._log, self._log_of = ProgressLog(path, self._pattern, self._clock), run_id
            self._runner = Runner(self._clock)  # what is still being read of the run before belongs to nobody
        log, clock = self._log, self._clock

        def read() -> Fact[tuple[ProgressPoint, ...]]:
            points = log.read_new(clock.monotonic())
            return Unknown(log.given_up) if log.given_up else Known(points, clock.monotonic())

        polled = self._runner.poll("progress_log", read, every_s=_LOG_EVERY_S, deadline_s=_LOG_DEADLINE_S)
        self._unread = polled.fact.why if isinstance(polled.fact, Unknown) and not polled.unread else ""
        if not isinstance(polled.fact, Known) or polled.fact.at_s == self._taken_s:
            return ()
        self._taken_s = polled.fact.at_s
        return polled.fact.value


def _of(window: ProgressWindow | None, run_id: str) -> ProgressWindow | None:
    """The window, if it is of this run and has something to tell."""
    return window if window is not None and window.run_id == run_id and window.points else None


def _beat_fact(seen: Seen, run: RunState, policy: Policy) -> Fact[BeatFact]:
    if not isinstance(seen.beat, Known):
        return seen.beat
    beat: BeatSeen = seen.beat.value
    since_s, deadline_s = beat_deadline(run, beat, policy)
    value = beat.beat
    return Known(
        BeatFact(
            run_id=value.run_id,
            pid=value.pid,
            phase=value.phase,
            age_s=max(0.0, seen.now_s - since_s),  # a grace that began anew counts from there
            deadline_s=deadline_s,
            step=value.step,
            target_step=value.target_step,
            alive=beat.alive,
        ),
        seen.now_s,
    )
