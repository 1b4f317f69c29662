"""The small rules: budgets, gates, the choice of a checkpoint, pace, and the run record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.world import digest_of, make_checkpoint, run_record
from watchdog.contract import Beat, ContractError
from watchdog.core.budgets import Wait, backoff_s, failures_after, wait_from, wait_left_s
from watchdog.core.causes import Cause
from watchdog.core.choice import Known as KnownCheckpoint
from watchdog.core.choice import Refusal, conclude_choice, lineage_problem
from watchdog.core.facts import Absent, Disk, Known, Memory, Unknown
from watchdog.core.gates import disk_gate, lock_gate, memory_gate
from watchdog.core.pace import Pace
from watchdog.core.runrecord import Expectation, RunRecord

GIB = 1024**3


# --- budgets ------------------------------------------------------------------------------------------------
def test_the_first_retry_is_at_once_and_then_the_longest_wait_doubles_up_to_the_limit() -> None:
    longest = [backoff_s(failures, base_s=5.0, limit_s=60.0, luck=1.0) for failures in range(8)]
    assert longest == [0.0, 0.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    least = [backoff_s(failures, base_s=5.0, limit_s=60.0, luck=0.0) for failures in range(8)]
    assert least == [0.0, 0.0, *[5.0] * 6]
    assert backoff_s(3, base_s=5.0, limit_s=60.0, luck=0.5) == 12.5


@given(st.integers(0, 10**9), st.floats(), st.floats(0.0, 86400.0), st.floats(0.0, 86400.0))
def test_backoff_never_leaves_its_bounds(failures: int, luck: float, base_s: float, limit_s: float) -> None:
    """Nor does it ever fall to nothing, which would spend the budget on what needs a moment to pass."""
    wait_s = backoff_s(failures, base_s=base_s, limit_s=limit_s, luck=luck)
    assert wait_s == 0.0 if failures <= 1 else min(base_s, limit_s) <= wait_s <= limit_s


def test_without_room_between_the_bounds_nothing_is_drawn() -> None:
    """`backoff_limit` equal to `backoff` is how a person switches the drawing off."""
    assert {backoff_s(3, base_s=0.2, limit_s=0.2, luck=luck / 10) for luck in range(11)} == {0.2}


# --- a wait over a restart ----------------------------------------------------------------------------------
WAIT = Wait(wait_s=60.0, wall_s=1000.0, monotonic_s=100.0, boot_id="a")


@pytest.mark.parametrize(
    ("now_s", "wall_s", "boot_id", "left_s"),
    [
        (110.0, 1010.0, "a", 50.0),
        (110.0, 9e9, "a", 50.0),  # the wall clock was set forward: within a boot it is not asked
        (110.0, -9e9, "a", 50.0),
        (500.0, 1010.0, "a", 0.0),
        (50.0, 1010.0, "a", 60.0),  # a monotonic clock that goes backwards: the whole wait, and no more
        (5.0, 1040.0, "b", 20.0),  # another boot: only the wall clock is there
        (5.0, 10.0, "b", 60.0),  # and it was set back
        (5.0, 9e9, "b", 0.0),
        (float("nan"), float("nan"), "a", 60.0),
    ],
)
def test_what_is_left_of_a_wait(now_s: float, wall_s: float, boot_id: str, left_s: float) -> None:
    assert wait_left_s(WAIT, now_s=now_s, wall_s=wall_s, boot_id=boot_id, limit_s=600.0) == left_s


@given(st.floats(), st.floats(), st.sampled_from(["a", "b"]), st.floats(0.0, 600.0))
def test_no_clock_makes_a_wait_longer_than_its_limit(now_s: float, wall_s: float, boot_id: str, limit_s: float) -> None:
    left_s = wait_left_s(WAIT, now_s=now_s, wall_s=wall_s, boot_id=boot_id, limit_s=limit_s)
    assert 0.0 <= left_s <= min(limit_s, WAIT.wait_s)


@pytest.mark.parametrize("wait_s", [None, True, 0, 0.0, -1.0, "5", float("nan"), float("inf")])
def test_a_record_without_a_wait_begins_none(wait_s: object) -> None:
    assert wait_from({"wait_s": wait_s}, wall_s=1.0, monotonic_s=1.0, boot_id="a") is None


def test_progress_clears_and_only_failures_spend() -> None:
    assert failures_after(2, is_failure=True, progressed=True) == 0
    assert failures_after(2, is_failure=True, progressed=False) == 3
    assert failures_after(2, is_failure=False, progressed=False) == 2


def test_what_people_asked_for_and_what_was_never_started_is_no_failure() -> None:
    free = {cause for cause in Cause if not cause.is_failure}
    assert free <= {Cause.FINISHED, Cause.DRAINED, Cause.STOPPED, Cause.NOT_STARTED}
    assert {Cause.FINISHED, Cause.DRAINED, Cause.STOPPED} <= free


# --- gates --------------------------------------------------------------------------------------------------
def memory(available: int) -> Known[Memory]:
    return Known(Memory(total_bytes=8 * GIB, available_bytes=available, host_available_bytes=available), 1.0)


def disk(free: int, *, read_only: bool = False) -> Known[Disk]:
    values = {"path": "/s", "purpose": "state", "filesystem": "ext4", "total_bytes": 9 * GIB, "free_inodes": 9}
    return Known(Disk(free_bytes=free, read_only=read_only, true_flock=True, **values), 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("available", "is_open"), [(GIB, True), (GIB - 1, False), (0, False)])
def test_memory_and_disk_gates_open_at_their_need(available: int, is_open: bool) -> None:
    assert memory_gate(memory(available), GIB).open is is_open
    assert disk_gate(disk(available), GIB).open is is_open


def test_only_memory_that_is_known_to_be_short_is_worth_a_try_to_make_room() -> None:
    assert memory_gate(memory(0), GIB).short
    assert not memory_gate(memory(GIB), GIB).short
    assert not memory_gate(Unknown("no meminfo"), GIB).short
    assert not disk_gate(disk(0), GIB).short


def test_a_memory_gate_that_stays_closed_says_what_came_of_the_try_and_what_helps_on_wsl() -> None:
    words = memory_gate(memory(0), GIB, tried="0.40 GiB came back from reclaim", wsl=True).words
    assert "0.40 GiB came back" in words
    assert "wsl --shutdown" in words
    assert ".wslconfig" in words
    words = memory_gate(memory(GIB), GIB, tried="0.40 GiB came back from reclaim", wsl=True).words
    assert words == "memory 1.0 ≥ 1.0 GiB"
    assert "wsl" not in memory_gate(memory(0), GIB).words


@pytest.mark.parametrize("fact", [Unknown("the driver hangs"), Absent("no such file")])
def test_what_is_unknown_closes_its_gate_and_says_why(fact: Unknown | Absent) -> None:
    for gate in (memory_gate(fact, 0), disk_gate(fact, 0)):
        assert not gate.open
        assert fact.why in gate.words


def test_a_read_only_disk_is_closed_however_much_room_it_has() -> None:
    gate = disk_gate(disk(9 * GIB, read_only=True), 1)
    assert not gate.open
    assert "read-only" in gate.words


def test_a_lock_that_is_no_longer_the_file_closes_the_gate() -> None:
    assert lock_gate(intact=True, path="/c/lock").open
    assert not lock_gate(intact=False, path="/c/lock").open


# --- choice -------------------------------------------------------------------------------------------------
def problem(**changes: object) -> str | None:
    values: dict[str, object] = {
        "step": 10,
        "digest": digest_of(10),
        "run_id": "1-a",
        "lineage": ("1-a", "2-b"),
        "known": (KnownCheckpoint(step=10, digest=digest_of(10), run_id="1-a"),),
        "refused_runs": frozenset(),
    }
    return lineage_problem(**(values | changes))  # type: ignore[arg-type]


def test_what_was_verified_and_is_unchanged_is_ours() -> None:
    assert problem() is None


def test_a_changed_version_of_what_was_verified_is_refused_with_both_digests() -> None:
    why = problem(digest=digest_of(10, 1))
    assert why is not None
    assert digest_of(10)[:12] in why
    assert digest_of(10, 1)[:12] in why


def test_the_same_step_saved_by_a_later_run_of_this_job_is_ours() -> None:
    assert problem(digest=digest_of(10, 1), run_id="2-b") is None


def test_the_same_step_by_an_earlier_run_or_by_nobody_in_particular_was_swapped_in() -> None:
    later = (KnownCheckpoint(step=10, digest=digest_of(10), run_id="2-b"),)
    for run_id in ("1-a", None):
        assert problem(digest=digest_of(10, 1), run_id=run_id, known=later) is not None


def test_another_jobs_checkpoint_is_refused() -> None:
    assert "no run of this job" in (problem(step=20, digest="e" * 64, run_id="9-z") or "")


def test_what_a_refused_run_saved_is_refused_even_when_it_was_verified() -> None:
    assert problem(refused_runs=frozenset({"1-a"})) is not None


def test_without_a_record_of_lineage_the_ledger_still_knows() -> None:
    assert problem(lineage=None, step=30, run_id="9-z") is None
    assert problem(lineage=None, digest="e" * 64) is not None


@pytest.mark.parametrize("ever_knew", [False, True])
def test_a_first_start_needs_that_nobody_ever_knew_a_checkpoint(ever_knew: bool) -> None:
    refused = (Refusal(manifest="m", step=4, why="one bit is off"),) if ever_knew else ()
    choice = conclude_choice(chosen=None, refused=refused, ever_knew=ever_knew)
    assert choice.first_start is not ever_knew
    assert choice.chosen is None
    if ever_knew:
        assert "one bit is off" in choice.why


def test_a_chosen_checkpoint_is_never_a_first_start() -> None:
    choice = conclude_choice(chosen=make_checkpoint(3), refused=(), ever_knew=False)
    assert (choice.first_start, choice.chosen) == (False, make_checkpoint(3))


# --- pace ---------------------------------------------------------------------------------------------------
def beat(seq: int, at_s: float, step: int | None, phase: str = "train") -> Beat:
    tokens = None if step is None else step * 100
    return Beat(
        seq=seq,
        monotonic_s=at_s,
        run_id="r",
        pid=1,
        start_ticks=1,
        phase=phase,
        step=step,
        tokens=tokens,
        target_step=60,
    )


def test_pace_is_unknown_until_two_beats_lie_apart() -> None:
    pace = Pace()
    assert (pace.tokens_per_s(), pace.eta_s()) == (None, None)
    pace.see(beat(1, 10.0, 0))
    pace.see(beat(2, 10.1, 1))
    assert (pace.tokens_per_s(), pace.eta_s()) == (None, None)
    pace.see(beat(3, 20.0, 20))
    assert pace.tokens_per_s() == pytest.approx(200.0)
    assert pace.eta_s() == pytest.approx(20.0)


def test_pace_counts_training_only_and_each_beat_once() -> None:
    pace = Pace()
    for each in (beat(1, 10.0, 0), beat(1, 15.0, 9), beat(2, 12.0, 5, "evaluate"), beat(3, 20.0, 10)):
        pace.see(each)
    assert pace.tokens_per_s() == pytest.approx(100.0)
    pace.reset()
    assert pace.tokens_per_s() is None


def test_pace_forgets_what_is_older_than_its_window_and_stands_still_without_steps() -> None:
    pace = Pace()
    for seq in range(100):
        pace.see(beat(seq, float(seq), seq * 2))
    assert pace.tokens_per_s() == pytest.approx(200.0)
    still = Pace()
    still.see(beat(1, 1.0, 5))
    still.see(beat(2, 9.0, 5))
    assert still.eta_s() is None


# --- run record ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("expectation", [Expectation(fresh=True), Expectation(fresh=False, step=3, digest="d" * 64)])
def test_a_run_record_survives_json(expectation: Expectation) -> None:
    record = run_record(3, "3-x", -1, expectation)
    again = RunRecord.from_record(
        record.to_record()
        | {"expectation": {"fresh": expectation.fresh, "step": expectation.step, "digest": expectation.digest}}
    )
    assert again == record


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, ...) for name in ("run_id", "number", "boot_id", "started_ticks", "expectation", "baseline_step")),
        *(
            (name, value)
            for name in ("number", "started_ticks", "baseline_step", "expectation")
            for value in (None, [], "x")
        ),
    ],
)
def test_a_run_record_that_lacks_something_says_what(name: str, value: object) -> None:
    record: dict[str, object] = run_record(3, "3-x", -1, Expectation(fresh=True)).to_record()
    if value is ...:
        del record[name]
    else:
        record[name] = value
    with pytest.raises(ContractError):
        RunRecord.from_record(record)
