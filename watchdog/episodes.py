"""Findings in the ledger: what begins, becomes louder or is over, all of one look in one record.

What could not be recorded has not begun and is not over: it is tried again, but seldom, since a disk that hangs keeps
whoever records waiting. Refuses to judge, and to tell a finding that stands a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from watchdog.core.episodes import Episode, Key, Turn, follow, unchanged
from watchdog.core.findings import Finding
from watchdog.core.state import Record
from watchdog.errors import RecordingError
from watchdog.render import duration
from watchdog.render_facts import finding_record

AGAIN_S = 30.0


class EpisodeBook:
    """For use from one thread."""

    def __init__(self, record: Callable[[Sequence[Record]], None], say_trouble: Callable[[str], None]) -> None:
        """`record` raises RecordingError, and then nothing of what it was given is on disk."""
        self._record = record
        self._say_trouble = say_trouble
        self._episodes: Mapping[Key, Episode] = {}
        self._not_before_s = float("-inf")
        self._first = True

    def look(self, findings: Iterable[Finding], now_s: float) -> None:
        """One look later. No findings at all: nothing could be judged yet, and it was no look."""
        findings = tuple(findings)
        turn = follow(self._episodes, findings, now_s)
        records = _records(turn, now_s, first=self._first)
        self._first = self._first and not findings
        if records and not self._recorded(records, now_s):
            self._episodes = unchanged(self._episodes, turn)
        else:
            self._episodes = turn.episodes

    def _recorded(self, records: Sequence[Record], now_s: float) -> bool:
        if now_s < self._not_before_s:
            return False
        try:
            self._record(records)
        except RecordingError as error:
            self._say_trouble(str(error))
            self._not_before_s = now_s + AGAIN_S
            return False
        return True


def _records(turn: Turn, now_s: float, *, first: bool) -> list[Record]:
    """`first`: nobody had looked before, so since when it stands is not known."""
    found = {"stood_before": True} if first else {}
    records = [
        Record("finding", f"{finding.subject} · {finding.check} · {finding.reason}", finding_record(finding) | found)
        for finding in turn.begun
    ]
    for episode in turn.over:
        finding = episode.finding
        words = f"{finding.subject} · {finding.check} · in order again after {duration(now_s - episode.since_s)}"
        records.append(Record("finding_over", words, {"check": finding.check, "subject": finding.subject}))
    return records
