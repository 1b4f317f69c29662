"""What the ledger alone says of a job, and the words on the screen that come from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.ledgers import HandLedger
from watchdog.core.history import Event, History, fold
from watchdog.core.view import StatusView
from watchdog.ledgerview import view_of_ledger
from watchdog.places import folders_of
from watchdog.render import status_lines
from watchdog.settings import load

LAUNCH = ("run_launching", {"number": 1, "run_id": "1-a", "baseline_step": -1})
ENDED = {"number": 1, "run_id": "1-a", "cause": "exited", "words": "exit 1", "baseline_step": -1, "error": "no"}
END = ("run_ended", ENDED)
WEIGH = ("run_weighed", {"run_id": "1-a", "cause": "exited", "failures": 1, "repeated": 4})
LEAVE = ("supervisor_leaving", {})


def history(*entries: tuple[str, dict[str, object]]) -> History:
    return fold(
        Event(seq=number, wall_s=100.0 + number, kind=kind, sentence=f"says {kind}", data=data)
        for number, (kind, data) in enumerate(entries)
    )


def view(*entries: tuple[str, dict[str, object]]) -> StatusView:
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    return view_of_ledger(settings, folders_of(settings), history(*entries))


@pytest.mark.parametrize(
    ("entries", "state"),
    [
        ((), "never started"),
        ((LAUNCH,), "unsupervised"),
        ((LAUNCH, END, WEIGH), "unsupervised"),
        ((LAUNCH, END, WEIGH, ("hold", {"reason": "why"})), "hold"),
        ((LAUNCH, END, WEIGH, ("hold", {"reason": "why"}), ("lifted", {})), "unsupervised"),
        ((LAUNCH, END, WEIGH, ("finished", {"step": 3})), "finished"),
        ((LAUNCH, END, LEAVE, WEIGH), "stopped"),
        ((LAUNCH, END, LEAVE, WEIGH, ("supervisor_started", {})), "unsupervised"),
        ((LEAVE,), "never started"),
        ((LAUNCH, END, WEIGH, ("finished", {"step": 3}), ("archived", {"place": "x"})), "never started"),
    ],
)
def test_the_state(entries: tuple[tuple[str, dict[str, object]], ...], state: str) -> None:
    assert view(*entries).state == state


def test_the_rest(tmp_path: Path) -> None:
    """A run that may live is shown, and never claimed to be alive: only a supervisor may ask its lock."""
    shown = view(LAUNCH)
    assert shown.run is not None
    assert (shown.run.number, shown.run.alive) == (1, None)
    assert shown.run.log is not None
    assert shown.run.log.endswith("runs/1-a/output.log")
    shown = view(LAUNCH, END, WEIGH, ("checkpoint_verified", {"step": 7, "digest": "d", "run_id": "1-a"}))
    assert shown.run is None
    assert (shown.failures, shown.steps_repeated, shown.last_error, shown.restarts) == (1, 4, "no", 0)
    assert (shown.checkpoint_step, shown.runs_by_cause) == (7, {"exited": 1})
    assert (shown.sentence, shown.since_wall_s) == ("says checkpoint_verified", None)
    assert view(LAUNCH, END, LEAVE, WEIGH).sentence == "says supervisor_leaving"
    assert view(LAUNCH, END, WEIGH, ("finding", {})).sentence == "says run_weighed"  # of the host, not of the job
    assert shown.supervisor_pid is None


def test_the_time_that_was_lost_is_told_with_the_events_and_grows_while_a_person_is_awaited() -> None:
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    hand = HandLedger(wall_s=100.0).launch(1).at(10).steps(1, 1, 10.0).verified(1, 8)
    hand.write("step_time", run_id="1-a", step_s=0.5).at(20).ended(1, died=20.0).write("hold", reason="r").weighed(1)
    shown = view_of_ledger(settings, folders_of(settings), fold(hand.events), hand.events)
    assert shown.lost_s["start"] == 10.0
    assert shown.lost_s["hold"] > 1e9  # since 1970
    assert shown.ettr_ratio is not None
    assert 0 < shown.ettr_ratio < 1e-6
    assert shown.incident == 1
    assert view_of_ledger(settings, folders_of(settings), fold(hand.events)).lost_s == {}


def test_since_when_is_told_only_where_the_ledger_says_it() -> None:
    """Its last record may be hours older than a supervisor's death; what never began has no beginning."""
    assert view().since_wall_s is None
    assert view(LAUNCH).since_wall_s is None
    assert view(LAUNCH, END, WEIGH, ("hold", {"reason": "why"})).since_wall_s == 103.0
    assert view(LAUNCH, END, LEAVE, WEIGH).since_wall_s == 103.0
    assert status_lines(view())[0].endswith("x · never started · no supervisor runs")
