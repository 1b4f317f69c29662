"""bench/endurance.py: which faults are drawn, that its time is bounded, and what counts as a failure."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bench import endurance
from bench.endurance_faults import FAULTS, Lessons, Tail, draw
from watchdog.drills import job as small


def test_the_same_seed_draws_the_same_faults() -> None:
    def drawn(seed: int) -> list[str]:
        chance = random.Random(seed)
        return [draw(chance, child=False, disk=False) for _ in range(50)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_job_gets_only_what_it_must_survive() -> None:
    chance = random.Random(1)
    plain, child, disk = (
        {draw(chance, child=child, disk=disk) for _ in range(3000)}
        for child, disk in ((False, False), (True, False), (False, True))
    )
    assert plain == {name for name, fault in FAULTS.items() if not fault.disk}
    assert child == {name for name in plain if not FAULTS[name].shim}
    assert disk == {name for name, fault in FAULTS.items() if not fault.plain}


def test_more_than_a_quarter_of_the_faults_kill_a_supervisor() -> None:
    total = sum(fault.weight for fault in FAULTS.values())
    itself = ("kill supervisor", "kill supervisor and trainer", "kill supervisor and shim", "kill everybody")
    always = sum(FAULTS[name].weight for name in (*itself, "torn ledger"))
    on_top = endurance.SUPERVISORS * sum(fault.weight for fault in FAULTS.values() if fault.spots)
    assert (always + on_top) / total > 0.3


def test_when_the_time_is_over_it_says_what_is_lacking(capsys: pytest.CaptureFixture[str]) -> None:
    assert endurance.main(["--faults", "3", "--minutes", "0"]) == 1
    assert "fell short: 0 of 3 faults in 0 minutes" in capsys.readouterr().err


def test_what_counts_as_a_failure() -> None:
    assert not endurance.Tally().failed
    for wrong in ({"wrong_weights": 1}, {"unfinished": 1}):
        assert endurance.Tally(**wrong).failed
    tally = endurance.Tally()
    tally.broken["one run"] += 1
    assert tally.failed
    assert tally.row()["broken invariants"] == 1


def test_the_data_ends_where_the_job_is_to_wait(tmp_path: Path) -> None:
    lessons = Lessons(tmp_path / "lessons.gz", 20)
    lessons.reach(5)
    assert small.read_lesson(lessons.path, 5) is not None
    assert small.read_lesson(lessons.path, 6) is None
    lessons.reach(20)
    assert small.final_weights(lessons.path, 20) == small.final_weights(lessons.whole, 20)


def test_the_end_of_a_ledger_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    lines = [{"event": "run_ended", "data": {}}, {"event": "hold", "data": {"reason": "a full disk"}}]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(whole[:-3])
    assert tail.new() == ["run_ended"]
    path.write_text(whole + "torn\n")
    assert tail.new() == ["hold"]
    assert tail.last_hold == "a full disk"
    assert tail.new() == []
