"""bench/peers.py: what a trial came to is read from the trainer's own trace, and nobody is flattered."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench import peers
from bench.campaign_counter import final_value
from bench.peers_tools import OURS, TOOLS

RIGHT = final_value(peers.STEPS)
FAULT_S = 20.0


def trace(
    *, restart_s: float | None = 21.0, again: int = 41, last: int = peers.STEPS, value: str = RIGHT
) -> peers.Trace:
    """Started at 10 s, 43 steps until 19 s; started anew at `restart_s`, first step `again`, a step each 0.1 s."""
    steps = [(step, 10.0 + step * 0.2) for step in range(1, 44)]
    starts = [(100, 10.0)]
    done = None
    if restart_s is not None:
        starts.append((200, restart_s))
        steps += [(step, restart_s + 1.0 + (step - again) * 0.1) for step in range(again, last + 1)]
        if last == peers.STEPS:
            done = (value, restart_s + 10.0)
    return peers.Trace(starts=tuple(starts), steps=tuple(steps), done=done)


def judged(traced: peers.Trace, seen_s: float | None = None, tool: str = OURS, fault: str = "kill") -> peers.Outcome:
    return peers.judge(tool, fault, traced, FAULT_S, seen_s, "last words")


def test_a_trace_is_read_up_to_its_last_whole_line() -> None:
    read = peers.parse_trace("start 7 1.5\nstep 1 2.0\nstep 2 2.5\ndone abc 3.0\nstep 3")
    assert read == peers.Trace(starts=((7, 1.5),), steps=((1, 2.0), (2, 2.5)), done=("abc", 3.0))


def test_a_recovery_is_measured_from_the_fault() -> None:
    outcome = judged(trace())
    assert outcome.survived
    assert outcome.detect_s == pytest.approx(1.0)
    assert outcome.next_step_s == pytest.approx(2.3)  # step 44, three steps after 41
    assert outcome.lost == 3
    assert outcome.ettr == pytest.approx(peers.STEPS * peers.STEP_S / 21.0)


def test_a_worker_that_was_seen_killed_counts_as_detected_before_the_next_one_starts() -> None:
    assert judged(trace(), seen_s=20.4).detect_s == pytest.approx(0.4)


def test_what_a_woken_worker_still_does_is_no_recovery() -> None:
    woken = trace(again=45)
    woken = dataclasses.replace(woken, steps=(*woken.steps, (44, 20.5)))
    outcome = judged(woken)
    assert outcome.next_step_s == pytest.approx(2.0)
    assert outcome.lost == 0


def test_a_job_that_stands_still_is_charged_all_of_the_time() -> None:
    outcome = judged(trace(restart_s=None))
    assert not outcome.survived
    assert (outcome.detect_s, outcome.next_step_s, outcome.lost) == (None, None, None)
    assert outcome.wall_s == FAULT_S + peers.LIMIT_S - 10.0
    assert outcome.productive_s == pytest.approx(43 * peers.STEP_S)
    assert "started 0 times; last words" in outcome.why_not


def test_a_wrong_result_is_not_survived_and_only_what_came_before_counts() -> None:
    outcome = judged(trace(value="0" * 64))
    assert not outcome.survived
    assert outcome.next_step_s is None
    assert outcome.productive_s == pytest.approx(43 * peers.STEP_S)
    assert outcome.why_not == "done, with a wrong result"


def test_too_late_is_not_survived() -> None:
    assert not judged(trace(restart_s=FAULT_S + peers.LIMIT_S - 5.0)).survived


def test_a_peer_that_is_better_is_told() -> None:
    good, bad = judged(trace()), judged(trace(restart_s=None))
    peer_good, peer_bad = (dataclasses.replace(each, tool="circus") for each in (good, bad))
    assert peers.misses([good, peer_bad]) == []
    assert [words.split()[0] for words in peers.misses([bad, peer_good])] == ["circus", "circus"]
    assert peers.misses([peer_good]) == ["watchdog was not measured"]


def test_a_quicker_peer_has_its_reason_beside_it() -> None:
    quick = dataclasses.replace(judged(trace(), seen_s=20.1), tool="circus")
    ours, peer = peers.detail_rows([judged(trace()), quick])
    assert ours["why"] == ""
    assert peer["why"] == f"quicker (detected): {peers.FAULTS['kill'].quicker}"


def test_the_summary_counts_each_tool_over_the_schedule() -> None:
    outcomes = [judged(trace()), dataclasses.replace(judged(trace(restart_s=None)), fault="stop")]
    (row,) = peers.summary_rows(outcomes, [TOOLS[OURS]])
    assert (row["survived"], row["steps lost"]) == ("1 of 2", 3)
    assert row["ETTR"] == round((5.0 + 43 * 0.05) / (21.0 + 40.0), 3)


def test_names_may_be_beginnings_and_unknown_ones_are_refused() -> None:
    assert peers.chosen_of("kill,disk", peers.FAULTS, "the fault") == ["kill", "disk full for 10 s"]
    assert peers.chosen_of("all", TOOLS, "the peer") == list(TOOLS)
    with pytest.raises(ValueError, match="'nobody' is not known"):
        peers.chosen_of("nobody", TOOLS, "the peer")


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_every_tool_is_given_the_trainers_own_words(name: str, tmp_path: Path) -> None:
    trainer = ["python3", "-P", "-m", "bench.peers_trainer", "--folder", str(tmp_path / "checkpoints")]
    prepared = TOOLS[name].prepare(tmp_path, trainer)
    told = " ".join(prepared.command) + "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    assert all(word in told for word in trainer)
