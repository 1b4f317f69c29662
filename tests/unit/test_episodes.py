"""Findings in the ledger: one record a look, and none that begins without having been recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.core.episodes import QUIET_S
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.state import Record
from watchdog.episodes import AGAIN_S, EpisodeBook
from watchdog.errors import RecordingError
from watchdog.ledger import Ledger, read_events


def finding(subject: str, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(check="thermal", severity=severity, subject=subject, reason="81 C", remedy=Remedy.COOL)


class Shelf:
    """A real ledger that can be made to refuse; counts what it is asked to write at once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.jsonl"
        self.ledger = Ledger(self.path, folder / "ballast", clock=SystemClock(), boot_id="b", deadline_s=5.0)
        self.batches: list[int] = []
        self.refuses = False
        self.troubles: list[str] = []
        self.book = EpisodeBook(self.record, self.troubles.append)

    def record(self, records: Sequence[Record]) -> None:
        self.batches.append(len(records))
        if self.refuses:
            raise RecordingError("the ledger took no record: no space left on device")
        self.ledger.record_all([(each.kind, each.sentence, each.data) for each in records])

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.data["subject"]) for event in read_events(self.path)[0]]


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.ledger.close()


def test_all_of_a_look_wait_for_the_disk_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def counted(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    shelf.book.look([finding("one"), finding("two"), finding("three", Severity.CRITICAL)], 0.0)
    assert len(synced) == 1
    shelf.book.look([finding("four")], QUIET_S)
    assert len(synced) == 2
    begun = [("finding", subject) for subject in ("one", "two", "three", "four")]
    assert shelf.told() == [*begun, *(("finding_over", subject) for subject in ("one", "two", "three"))]
    over = next(event for event in read_events(shelf.path)[0] if event.kind == "finding_over")
    assert over.sentence == "one · thermal · in order again after 60 s"


def test_a_look_without_news_records_nothing(shelf: Shelf) -> None:
    for now_s in range(5):
        shelf.book.look([finding("one")], float(now_s))
    assert shelf.batches == [1]


def test_what_was_not_recorded_has_not_begun(shelf: Shelf) -> None:
    """It is told as soon as there is room, and a hanging disk is not asked at every look."""
    shelf.refuses = True
    for now_s in range(int(AGAIN_S)):
        shelf.book.look([finding("one")], float(now_s))
    assert shelf.batches == [1]
    assert shelf.troubles == ["the ledger took no record: no space left on device"]
    shelf.refuses = False
    shelf.book.look([finding("one"), finding("two")], AGAIN_S)
    shelf.book.look([finding("one"), finding("two")], AGAIN_S + 1)
    assert shelf.told() == [("finding", "one"), ("finding", "two")]


def test_what_could_not_be_recorded_as_over_is_over_later(shelf: Shelf) -> None:
    shelf.book.look([finding("one")], 0.0)
    shelf.refuses = True
    shelf.book.look([], QUIET_S)
    shelf.refuses = False
    shelf.book.look([], QUIET_S + AGAIN_S)
    assert shelf.told() == [("finding", "one"), ("finding_over", "one")]


def test_what_came_and_went_while_nothing_could_be_recorded_is_not_told(shelf: Shelf) -> None:
    shelf.refuses = True
    shelf.book.look([finding("one")], 0.0)
    shelf.refuses = False
    shelf.book.look([], AGAIN_S)
    assert shelf.told() == []
    assert shelf.batches == [1]


def test_what_stands_at_the_first_look_is_told_as_that(shelf: Shelf) -> None:
    """Since when it stands nobody knows; a look in which nothing could be judged was none."""
    shelf.book.look([], 0.0)
    shelf.book.look([finding("a")], 1.0)
    shelf.book.look([finding("a"), finding("b")], 2.0)
    assert [(e.data["subject"], e.data.get("stood_before")) for e in read_events(shelf.path)[0]] == [
        ("a", True),
        ("b", None),
    ]
