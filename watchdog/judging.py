"""The verdict of each turn, and its changes in the ledger: only what stood for a second, and one in ten seconds.

What could not be recorded is tried again, but seldom: a disk that hangs keeps whoever records waiting. Nothing depends
on such a record. Refuses to judge (core/verdict.py does) and to tell a verdict twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watchdog.core.facts import Facts
from watchdog.core.seen import Seen
from watchdog.core.state import Policy, Record, State
from watchdog.core.verdict import Kind, Verdict, judge
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError

STANDS_S = 1.0  # a relaunch takes less: what lies between two runs is told by its own records
EVERY_S = 10.0


class VerdictBook:
    """For use from the loop alone."""

    def __init__(self, record: Callable[[Sequence[Record]], None], say_trouble: Callable[[str], None]) -> None:
        """`record` raises RecordingError, and then nothing of what it was given is on disk."""
        self._record = record
        self._say_trouble = say_trouble
        self._verdict: Verdict | None = None
        self._told: Kind | None = None
        self._not_before_s = float("-inf")

    def look(self, state: State, seen: Seen, policy: Policy, facts: Facts, launches: int) -> Verdict:
        """The verdict of this turn; `state` as it is after the decision."""
        verdict = judge(state, seen, policy, facts=facts, launches=launches, before=self._verdict)
        self._verdict = verdict
        stands = seen.now_s - verdict.since_s >= STANDS_S
        if stands and verdict.kind is not self._told and seen.now_s >= self._not_before_s:
            self._tell(verdict, seen.now_s)
        return verdict

    def _tell(self, verdict: Verdict, now_s: float) -> None:
        data = {
            "verdict": verdict.kind.value,
            "rule": verdict.rule,
            "before": None if self._told is None else self._told.value,
            "evidence": list(verdict.evidence),
            "subject": verdict.subject,
            "number": verdict.run,
            "stood_s": round(now_s - verdict.since_s, 3),
        }
        words = f"verdict {verdict.kind.value}: {verdict.reason} (rule: {verdict.rule})"
        try:
            self._record([Record("verdict_changed", words, data)])
        except RecordingError as error:
            self._say_trouble(str(error))
            self._not_before_s = now_s + AGAIN_S
            return
        self._told, self._not_before_s = verdict.kind, now_s + EVERY_S
