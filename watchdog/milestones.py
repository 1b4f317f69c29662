"""Writing down what autopsies and ETTR need and nothing else tells: the first new step of a run, the moment in which it
has caught up with what was trained before, and now and then how long a step takes. Quiet but for a recovery.

What could not be recorded is tried again, but seldom: a disk that hangs keeps whoever records waiting. Refuses to
measure (core/progress.py does) and to decide.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from watchdog.core.ettr import Account, Part
from watchdog.core.facts import Progress, ProgressPoint
from watchdog.core.state import Record, RunState
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError
from watchdog.render import duration

_STEP_TIME_EVERY_S = 600.0
_STEP_TIME_NEWS = 0.1  # a change by less is none


class Milestones:
    """For use from one thread."""

    def __init__(
        self,
        account: Account,
        record: Callable[[Sequence[Record]], None],
        say_trouble: Callable[[str], None],
    ) -> None:
        """`account` is fed by whoever records. `record` raises RecordingError, and then nothing is on disk."""
        self._account = account
        self._record = record
        self._say_trouble = say_trouble
        self._not_before_s = float("-inf")
        self._timed_s = float("-inf")
        self._saved_to_s = float("-inf")
        self._saving_s = 0.0

    def look(self, run: RunState | None, progress: Progress | None, now_s: float, *, over: bool = False) -> None:
        """What the run says in this turn. `over`: these are its last words."""
        if run is None or progress is None or progress.run_id != run.run_id:
            return
        self._see_saving(progress)
        if (
            run.run_id != self._account.run_id
            or (run.level == 2 and not run.acknowledged)
            or now_s < self._not_before_s
        ):
            return
        records = [*self._steps(run, progress), *self._step_time(run, progress, now_s, over=over)]
        if not records:
            return
        try:
            self._record(records)
        except RecordingError as error:
            self._say_trouble(str(error))
            self._not_before_s = now_s + AGAIN_S
            return
        if any(record.kind == "step_time" for record in records):
            self._timed_s, self._saving_s = now_s, 0.0

    def _steps(self, run: RunState, progress: Progress) -> list[Record]:
        account = self._account
        first = _first_over(progress.points, run.expectation.step or 0)
        records = []
        if first is not None and not account.stepped:
            span = account.span
            data = {"run_id": run.run_id, "step": first.step, "made_s": round(first.at_s, 3)}
            words = f"run {run.number} trains: step {first.step}"
            kind = "run_steps"
            if span is not None and span.number is not None:
                kind = "run_recovered"
                now_s = account.now_s if progress.heard_s is None else self._at(first.at_s)
                again, high = f"training again at step {first.step}", account.high_step
                if run.level < 2 and high is not None and first.step is not None and first.step <= high:
                    again = f"started over at step {first.step}, where step {high} was reached before"  # no checkpoints
                words = (
                    f"{again}, {duration(max(0.0, now_s - span.began_s))} after the last "
                    f"sign of life: watchdog incidents show {span.number}"
                )
            records.append(Record(kind, words, data))
        if account.high_step is not None and (account.part is Part.REPLAY or records):
            passed = account.high_step if account.replay_to is None else account.replay_to
            new = _first_over(progress.points, passed)
            if new is not None and (account.part is Part.REPLAY or first is None or new.step != first.step):
                data = {"run_id": run.run_id, "step": new.step, "made_s": round(new.at_s, 3)}
                records.append(Record("run_caught_up", f"run {run.number} is beyond step {passed}", data))
        return records

    def _at(self, made_s: float) -> float:
        """A moment of CLOCK_MONOTONIC of this boot on the account's line."""
        last = self._account.newest
        if last is None or last.monotonic_s is None:
            return self._account.now_s
        return self._account.now_s + made_s - last.monotonic_s

    def _step_time(self, run: RunState, progress: Progress, now_s: float, *, over: bool) -> list[Record]:
        step_s = progress.typical_step_s or progress.recent_step_s
        before_s = self._account.step_s
        if step_s is None and before_s is None and over:
            step_s = _own_step_s(progress.points)  # a short job: it never was warm, and nothing else will ever be known
        if step_s is None or (before_s is not None and now_s - self._timed_s < _STEP_TIME_EVERY_S):
            return []
        if before_s is not None and abs(step_s - before_s) < _STEP_TIME_NEWS * before_s and not self._saving_s:
            return []
        data = {"run_id": run.run_id, "step_s": step_s, "saving_s": round(self._saving_s, 3)}
        return [Record("step_time", f"a step takes {duration(step_s)} (median)", data)]

    def _see_saving(self, progress: Progress) -> None:
        """Time between a word that it saves and the next one; a save that lay between two looks is not seen."""
        for one, other in itertools.pairwise(progress.points):
            if one.phase == "save" and other.at_s > self._saved_to_s:
                self._saving_s += other.at_s - max(one.at_s, self._saved_to_s)
                self._saved_to_s = other.at_s


def _first_over(points: Sequence[ProgressPoint], step: int) -> ProgressPoint | None:
    return next((point for point in points if point.step is not None and point.step > step), None)


def _own_step_s(points: Sequence[ProgressPoint]) -> float | None:
    """The median of what a step took between two words of the run, the first steps too."""
    told = [(point.at_s, point.step) for point in points if point.step is not None]
    passed = [
        (at_s - before_s) / (step - before)
        for (before_s, before), (at_s, step) in itertools.pairwise(told)
        if step > before and at_s > before_s
    ]
    return statistics.median(passed) if passed else None
