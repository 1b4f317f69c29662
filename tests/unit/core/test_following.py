"""Following a relaunch: what is told of each event, what counts as proven, and when it is over."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from watchdog.core.following import Following, Told, heard, seen
from watchdog.core.history import Event
from watchdog.core.view import RunView, StatusView


def event(kind: str, sentence: str = "", **data: Any) -> Event:
    return Event(seq=1, wall_s=1.0, kind=kind, sentence=sentence or f"{kind} it is", data=data)


def view(state: str = "running", **changes: Any) -> StatusView:
    return StatusView(job="x", state=state, since_wall_s=1.0, now_wall_s=2.0, sentence="s", **changes)


LAUNCH = event(
    "run_launching", number=2, run_id="2-a", resume_step=40, digest="ab" * 32, gates=["memory 4.0 ≥ 1.0 GiB"]
)


def follow(level: int, *events: Event) -> tuple[Following, list[Told]]:
    following, told = Following(level=level), []
    for each in events:
        following, lines = heard(following, each)
        told += lines
    return following, told


def test_a_relaunch_from_its_stop_to_what_it_restored() -> None:
    following, told = follow(
        2,
        event("run_stopping", run_id="1-a"),
        event("run_ended", "run 1 …; shim ended: nothing of it lives", run_id="1-a", number=1),
        event("checkpoint_verified", step=40),
        event("run_weighed", wait_s=0.0),
        LAUNCH,
        event("run_beats", run_id="1-a"),
        event("run_beats", run_id="2-a"),
        event("run_acknowledged", "run 2 restored step 40 abab…", run_id="2-a"),
        event("hold", "what comes later is not heard"),
    )
    marks = [(line.label, line.proven) for line in told]
    assert marks == [
        ("stop", False),
        ("proof", True),
        ("choose", True),
        ("gate", True),
        ("launch", False),
        ("beats", True),
        ("restored", True),
    ]
    assert told[2].words == "step 40 abababababab… read back, and chosen"
    assert following.end is not None
    assert (following.end.code, following.end.words) == (0, "run 2 restored step 40 abab…")


@pytest.mark.parametrize(
    ("kind", "code"), [("hold", 3), ("branch_refused", 3), ("supervisor_leaving", 5), ("finished", 0)]
)
def test_it_ends_with_the_reason_why_not(kind: str, code: int) -> None:
    following, _ = follow(2, event("run_stopping"), event(kind, "the reason"))
    assert following.end is not None
    assert (following.end.code, following.end.words) == (code, "the reason")


def test_a_run_that_ends_before_its_word_is_no_end_of_the_following() -> None:
    following, told = follow(
        2, LAUNCH, event("run_ended", "run 2 died", run_id="2-a", number=2), event("run_weighed", "w", wait_s=7.5)
    )
    assert following.end is None
    assert following.run_id is None
    assert [line.words for line in told[-2:]] == ["run 2 died", "w; the next run in 7.5 s"]
    assert not any(line.proven for line in told[-2:])
    # The word of a run that is over proves nothing.
    assert heard(following, event("run_acknowledged", run_id="2-a"))[0].end is None


def test_what_a_job_says_of_itself_is_what_is_waited_for() -> None:
    assert follow(1, LAUNCH, event("run_beats", run_id="2-a"))[0].end is not None
    assert follow(1, LAUNCH)[0].end is None
    run = RunView(number=2, run_id="2-a", alive=True, leader_pid=71, shim_pid=70)
    for level, is_over in ((0, True), (1, False), (2, False)):
        following, lines = seen(follow(level, LAUNCH)[0], view(run=run))
        assert [line.words for line in lines] == ["run 2: pid 71, shim 70"]
        assert following.end is None, "a process is no sign of life yet"
        soon = dataclasses.replace(view(run=run), now_wall_s=4.9)
        assert seen(following, soon) == (following, ())
        after, lines = seen(following, dataclasses.replace(soon, now_wall_s=5.1))
        assert ((after.end is not None and after.end.code == 0), lines) == (is_over, ())
        after, _ = seen(following, dataclasses.replace(soon, run=dataclasses.replace(run, step=3)))
        assert (after.end is not None) is is_over, "its output tells of steps"
        assert (heard(following, event("run_beats", run_id="2-a"))[0].end is not None) is (level < 2)
    older = RunView(number=1, run_id="1-a", alive=True, leader_pid=61)
    assert seen(follow(0, LAUNCH)[0], view(run=older))[0].end is None


def test_a_command_that_dies_at_once_was_not_relaunched() -> None:
    run = RunView(number=2, run_id="2-a", alive=True, leader_pid=71, shim_pid=70)
    following, _ = seen(follow(0, LAUNCH)[0], view(run=run))
    died = event("run_ended", "run 2 exit 1: ValueError", run_id="2-a", number=2, cause="exited")
    after, _ = heard(following, died)
    assert after.end is not None
    assert (after.end.code, after.end.words) == (1, "run 2 exit 1: ValueError")
    well = event("run_ended", "run 2 exit 0", run_id="2-a", number=2, cause="finished")
    after, _ = heard(heard(following, well)[0], event("finished", "the job is finished"))
    assert after.end is not None
    assert after.end.code == 0


def test_a_closed_gate_is_told_once_for_each_reason() -> None:
    following = Following(level=2)
    told = []
    for words in ("memory 0.50 < 1.0 GiB", "memory 0.61 < 1.0 GiB", "state disk 0.1 < 1.0 GiB"):
        following, lines = seen(following, view("gating", waiting_for=words))
        told += [line.words for line in lines]
    assert told == ["closed: memory 0.50 < 1.0 GiB", "closed: state disk 0.1 < 1.0 GiB"]


@pytest.mark.parametrize("kind", ["finding", "run_steps", "checkpoint_verified", "kind_of_a_later_version"])
def test_what_has_no_part_in_it_is_not_told(kind: str) -> None:
    assert follow(2, event(kind)) == (Following(level=2), [])
