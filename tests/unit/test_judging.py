"""The verdict in the ledger: what stood, seldom, and tried again where it could not be written."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.core.test_verdict import NOTHING, POLICY, looks, state_of
from tests.unit.core.world import make_beat
from watchdog.core.facts import Unknown
from watchdog.core.seen import Seen
from watchdog.core.state import Record
from watchdog.core.verdict import Kind
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError
from watchdog.judging import EVERY_S, VerdictBook


class Book:
    """A ledger that may be full."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.said: list[str] = []
        self.full = False
        self.verdicts = VerdictBook(self.record, self.said.append)

    def record(self, records: Sequence[Record]) -> None:
        if self.full:
            raise RecordingError("the disk is full")
        self.records += records

    def look(self, now_s: float, *, blind: bool = False) -> Kind:
        beat = Unknown("it is torn") if blind else make_beat(now_s, run_id="7-abc")
        seen: Seen = looks(now_s=now_s, beat=beat, judged_s=now_s)
        return self.verdicts.look(state_of(), seen, POLICY, NOTHING, 1).kind

    @property
    def told(self) -> list[tuple[object, object]]:
        assert all(record.kind == "verdict_changed" for record in self.records)
        return [(record.data["before"], record.data["verdict"]) for record in self.records]


def test_a_verdict_is_told_once_when_it_has_stood() -> None:
    book = Book()
    for number in range(100):
        assert book.look(20_000.0 + 0.5 * number) is Kind.HEALTHY
    assert book.told == [(None, "healthy")]
    [record] = book.records
    assert record.sentence == "verdict healthy: step 5, last beat 0.0 s ago (rule: beats in time)"
    assert record.data["evidence"] == ["beats"]
    assert record.data["stood_s"] == 1.0


def test_what_flaps_is_told_seldom_and_at_last_as_it_stays() -> None:
    book = Book()
    for number in range(2000):  # two seconds of each, for over an hour
        book.look(20_000.0 + 2.0 * number + 1.5 * (number % 2), blind=number % 4 < 2)
    assert 10 < len(book.records) <= 4000 / EVERY_S + 1
    for number in range(20):
        book.look(30_000.0 + number)
    assert book.told[-1][1] == "healthy"


def test_what_lasts_a_moment_is_not_told() -> None:
    book = Book()
    for number in range(300):
        book.look(20_000.0 + 0.5 * number, blind=number % 20 == 10)
    assert book.told == [(None, "healthy")]


def test_what_could_not_be_written_is_tried_again_but_seldom() -> None:
    book = Book()
    book.full = True
    for number in range(int(2.5 * AGAIN_S)):
        book.look(20_000.0 + number)
    assert book.said == ["the disk is full"] * 3
    book.full = False
    for number in range(int(AGAIN_S) + 1):
        book.look(20_100.0 + number)
    assert book.told == [(None, "healthy")]
