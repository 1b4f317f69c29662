"""What is due, from what the ledger says: an episode once, over restarts; a failed attempt once more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.core.world import events_of, launching, make_run
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.history import History, fold
from watchdog.core.notice import BLINDNESS, HOLD, RECOVERY
from watchdog.core.notifying import LIVED_S, RETRY_S, Notice, due, notices, record_of
from watchdog.core.phase import Phase
from watchdog.core.state import Record, State

HELD = Record("hold", "HOLD: three runs", {"reason": "three runs with --token s3cr3tvalue"})
ENDED = Record(
    "run_ended",
    "run 1 died",
    {"number": 1, "run_id": "1-a", "cause": "signalled", "words": "died", "baseline_step": 10},
)
WEIGHED = Record("run_weighed", "run 1 counts", {"run_id": "1-a", "cause": "signalled", "failures": 1})
BLIND = Finding(
    check="blind",
    severity=Severity.WARNING,
    subject="the watchdog",
    reason="for 10 min it could not see: driver",
    evidence=(),
    cause="what is looked at hangs",
    remedy=Remedy.LOOK,
)
FOUND_BLIND = Record("finding", "blind", {"check": "blind", "subject": "the watchdog"})
SEES = Record("finding_over", "sees", {"check": "blind", "subject": "the watchdog"})


def begun(event: str, episode: str, attempt: int = 1) -> Record:
    return Record("notifying", "tells", {"event": event, "episode": episode, "attempt": attempt})


def ended(event: str, episode: str, outcome: str, attempt: int = 1) -> Record:
    return Record("notified", "told", {"event": event, "episode": episode, "attempt": attempt, "outcome": outcome})


def history_of(*records: Record) -> History:
    return fold(events_of(list(records)))


def on_hold() -> State:
    return State(phase=Phase.HOLD, since_s=0.0, hold="three runs with --token s3cr3tvalue")


def found(state: State, history: History, findings: Iterable[Finding] = (), now_s: float = 100.0) -> tuple[Notice, ...]:
    return notices(state, history, findings, now_s, job="bed", options=" --job bed")


def sent(state: State, history: History, findings: Iterable[Finding] = (), **how: Any) -> list[tuple[str, str, int]]:
    values: dict[str, Any] = {"failed_at_s": {}, "now_s": 100.0} | how
    going = due(found(state, history, findings), history.told, **values)
    return [(notice.event, notice.episode, attempt) for notice, attempt in going]


def test_a_hold_is_told_once_over_any_number_of_restarts() -> None:
    assert sent(on_hold(), history_of(HELD)) == [(HOLD, "1", 1)]
    # Begun and not heard of again: the supervisor died, and the message may have arrived.
    assert sent(on_hold(), history_of(HELD, begun(HOLD, "1"))) == []
    assert sent(on_hold(), history_of(HELD, begun(HOLD, "1"), ended(HOLD, "1", "delivered"))) == []


def test_the_next_hold_is_another() -> None:
    told = (HELD, begun(HOLD, "1"), ended(HOLD, "1", "delivered"), Record("lifted", "lifted"))
    state = State(phase=Phase.GATING, since_s=0.0)
    assert sent(state, history_of(*told)) == []
    assert sent(on_hold(), history_of(*told, HELD)) == [(HOLD, "5", 1)]


@pytest.mark.parametrize("outcome", ["failed", "late"])
def test_a_failed_one_is_repeated_once_after_a_pause(outcome: str) -> None:
    once = (HELD, begun(HOLD, "1"), ended(HOLD, "1", outcome))
    history = history_of(*once)
    assert sent(on_hold(), history, failed_at_s={HOLD: 100.0}) == []
    assert sent(on_hold(), history, failed_at_s={HOLD: 100.0}, now_s=100 + RETRY_S) == [(HOLD, "1", 2)]
    assert sent(on_hold(), history, failed_at_s={HOLD: 100.0}, leaving=True) == [(HOLD, "1", 2)]
    twice = history_of(*once, begun(HOLD, "1", 2), ended(HOLD, "1", outcome, 2))
    assert sent(on_hold(), twice, now_s=1e9, leaving=True) == []
    assert twice.notifications == {HOLD: {outcome: 2}}


def test_only_what_is_wanted() -> None:
    assert sent(on_hold(), history_of(HELD), wanted=(RECOVERY, BLINDNESS)) == []


def running(**run: Any) -> State:
    values: dict[str, Any] = {"number": 2, "run_id": "2-a", "beat_seen": True, "last_step": 11} | run
    return State(phase=Phase.RUNNING, since_s=0.0, run=make_run(**values))


AFTER_A_DEATH = (launching(1, "1-a", 10), ENDED, WEIGHED, launching(2, "2-a", 10))


def test_a_recovery_is_a_step_beyond_the_checkpoint() -> None:
    history = history_of(*AFTER_A_DEATH)
    assert sent(running(), history) == [(RECOVERY, "3", 1)]
    [notice] = found(running(), history)
    assert notice.summary == "recovered bed: run 2 trains again, at step 11; before: run 1 died"
    assert sent(running(last_step=10), history) == []
    # Where it failed at step 40, what is repeated up to there proves nothing yet.
    ended = Record("run_ended", "died", {**ENDED.data, "last_step": 40})
    repeating = history_of(launching(1, "1-a", 10), ended, WEIGHED, launching(2, "2-a", 10))
    assert sent(running(last_step=40), repeating) == []
    assert sent(running(last_step=41), repeating) == [(RECOVERY, "3", 1)]
    assert sent(running(last_step=None), history) == []
    assert sent(running(acknowledged=False), history) == []
    assert sent(running(), history_of(*AFTER_A_DEATH, begun(RECOVERY, "3"))) == []


def test_no_recovery_without_a_failure() -> None:
    assert sent(running(), history_of(launching(1, "1-a", -1))) == []
    drained = Record("run_weighed", "drained", {"run_id": "1-a", "cause": "drained", "failures": 0})
    assert sent(running(), history_of(launching(1, "1-a", 10), ENDED, drained, launching(2, "2-a", 10))) == []


@pytest.mark.parametrize(
    ("level", "beat_seen", "words"),
    [(0, False, "no beats, so no more can be proven"), (1, True, "has been beating"), (1, False, None)],
)
def test_who_says_nothing_of_its_steps_must_live_for_a_while(level: int, beat_seen: bool, words: str | None) -> None:
    state = running(level=level, beat_seen=beat_seen, last_step=None, acknowledged=False, baseline_step=-1)
    history = history_of(*AFTER_A_DEATH)
    assert found(state, history, now_s=LIVED_S - 1) == ()
    reasons = [notice.reason for notice in found(state, history, now_s=LIVED_S)]
    assert len(reasons) == (0 if words is None else 1)
    assert all(words is not None and words in reason for reason in reasons)


def test_a_blindness_is_one_until_something_was_seen_again() -> None:
    state = running()
    assert sent(state, history_of(FOUND_BLIND), [fine("blind", "the watchdog", "sees")]) == []
    assert sent(state, history_of(FOUND_BLIND), [BLIND]) == [(BLINDNESS, "1", 1)]
    # A supervisor after this one records it anew: the same episode.
    told = (FOUND_BLIND, begun(BLINDNESS, "1"), ended(BLINDNESS, "1", "delivered"), FOUND_BLIND)
    assert sent(state, history_of(*told), [BLIND]) == []
    assert sent(state, history_of(*told, SEES, FOUND_BLIND), [BLIND]) == [(BLINDNESS, "6", 1)]


def test_secrets_are_in_neither_summary_nor_record() -> None:
    [notice] = found(on_hold(), history_of(HELD))
    record = record_of(notice, job="bed", host="h", wall_s=1.0, attempt=1, ledger="/l")
    assert "s3cr3tvalue" not in json.dumps(record)
    assert notice.summary == "HOLD bed: three runs with --token ***"
    assert record["next"] == "watchdog relaunch --job bed"


def test_what_was_told_is_no_decision_about_the_job() -> None:
    assert history_of(HELD, begun(HOLD, "1")).last_sentence == "HOLD: three runs"
