"""The notifier beside the loop: real commands, a clock that can be set forward, and a ledger kept in memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.test_notifying import BLIND, FOUND_BLIND, HELD, on_hold, running
from watchdog.core.findings import fine
from watchdog.core.history import Event, History, fold
from watchdog.core.notifying import RETRY_S
from watchdog.core.state import Record
from watchdog.notifier import Notifier
from watchdog.settings import load

BARE = [sys.executable, "-I", "-S", "-c"]
SEES = fine("blind", "the watchdog", "everything that is here can be seen")


class MovableClock:
    """Real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def wall(self) -> float:
        return time.time() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Desk:
    """A notifier and what it records; `took=False`: the ledger takes nothing, as on a full disk."""

    def __init__(self, tmp_path: Path, *, took: bool = True, **notify: Any) -> None:
        self.clock, self.took, self.said = MovableClock(), took, list[str]()
        self.events: list[Event] = []
        self.settings = load(
            overrides={f"notify.{name}": value for name, value in notify.items()},
            environ={},
            home=tmp_path,
            cwd=tmp_path,
        )

    @property
    def history(self) -> History:
        return fold(self.events)

    def note(self, kind: str, sentence: str, **data: Any) -> None:
        if self.took:
            self.events.append(Event(seq=len(self.events) + 1, wall_s=1.0, kind=kind, sentence=sentence, data=data))

    def happens(self, *records: Record) -> None:
        for record in records:
            self.events.append(
                Event(seq=len(self.events) + 1, wall_s=1.0, kind=record.kind, sentence="", data=dict(record.data))
            )

    def notifier(self) -> Notifier:
        return Notifier(self.settings, self.clock, "/ledger", self.note, self.said.append, self.history.blind_seq)

    def outcomes(self) -> list[tuple[str, int, str]]:
        told = [event.data for event in self.events if event.kind == "notified"]
        return [(data["event"], data["attempt"], data["outcome"]) for data in told]


def test_a_failed_one_is_tried_again_after_the_pause_and_then_never(
    tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    desk = Desk(tmp_path, command=[*BARE, "import sys; sys.exit(4)"])
    desk.happens(HELD)
    notifier = desk.notifier()

    def looked(count: int) -> Callable[[], bool]:
        def look() -> bool:
            notifier.look(on_hold(), desk.history, ())
            return len(desk.outcomes()) == count

        return look

    wait_until(looked(1), "the first attempt")
    for _ in range(20):
        notifier.look(on_hold(), desk.history, ())
    assert [event.kind for event in desk.events].count("notifying") == 1, "not before the pause"
    desk.clock.ahead_s += RETRY_S
    wait_until(looked(2), "the second attempt")
    desk.clock.ahead_s += 100 * RETRY_S
    for _ in range(20):
        notifier.look(on_hold(), desk.history, ())
    notifier.close(desk.history)
    assert desk.outcomes() == [("hold", 1, "failed"), ("hold", 2, "failed")]
    assert "exit 4" in desk.said[0]


def test_one_at_a_time_for_an_event_and_events_beside_each_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path, command=[*BARE, "import time; time.sleep(0.3)"])
    desk.happens(HELD, FOUND_BLIND)
    notifier = desk.notifier()
    since_s = time.monotonic()
    for _ in range(50):
        notifier.look(on_hold(), desk.history, [BLIND])
    assert time.monotonic() - since_s < 0.3, "the loop waited"
    assert [event.data["event"] for event in desk.events if event.kind == "notifying"] == ["hold", "blindness"]
    notifier.close(desk.history)
    assert sorted(desk.outcomes()) == [("blindness", 1, "delivered"), ("hold", 1, "delivered")]


def test_what_the_ledger_does_not_take_is_told_all_the_same_and_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, took=False, command=[*BARE, "pass"])
    desk.happens(HELD)
    notifier = desk.notifier()
    notifier.look(on_hold(), desk.history, ())
    notifier.close(desk.history)
    for _ in range(10):
        notifier.look(on_hold(), desk.history, ())
    notifier.close(desk.history)
    assert len(desk.said) == 1


def test_a_blindness_that_ended_while_nobody_watched_is_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path, command=[*BARE, "pass"])
    desk.happens(FOUND_BLIND)
    first = desk.notifier()
    first.look(running(), desk.history, [BLIND])
    first.close(desk.history)
    second = desk.notifier()
    second.look(running(), desk.history, [BLIND])
    second.close(desk.history)
    assert len(desk.outcomes()) == 1, "still the same"
    third = desk.notifier()
    third.look(running(), desk.history, [SEES])
    third.look(running(), desk.history, [SEES])
    assert [event.kind for event in desk.events].count("finding_over") == 1
    desk.happens(FOUND_BLIND)
    third.look(running(), desk.history, [BLIND])
    third.close(desk.history)
    assert len(desk.outcomes()) == 2


@pytest.mark.parametrize("notify", [{}, {"command": [*BARE, "pass"], "events": ["recovery"]}])
def test_nothing_is_done_where_nobody_asked(tmp_path: Path, notify: dict[str, Any]) -> None:
    desk = Desk(tmp_path, **notify)
    desk.happens(HELD)
    notifier = desk.notifier()
    notifier.look(on_hold(), desk.history, ())
    notifier.close(desk.history)
    assert len(desk.events) == 1
