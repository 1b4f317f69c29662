"""How often the micro-batch is halved: when once more, what the ledger remembers of it, and that it is never undone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.core.world import EVENTS, OPEN, World, chosen, events_of, launching, make_policy
from watchdog import contract
from watchdog.classify.ends import End, Evidence, ExitRecord, Kernel, classify
from watchdog.core import smaller
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.gpumemory import GpuMemory
from watchdog.core.gpumemory import after as memory_after
from watchdog.core.history import History, can_fold, fold
from watchdog.core.kernel import KernelKind, KernelLine
from watchdog.core.phase import Phase
from watchdog.core.restore import restore
from watchdog.core.seen import Request, Seen
from watchdog.core.state import Ended, Plan, Policy, Record, State

POLICY = make_policy(shrink_batch=2)
COMMAND = "c" * 64


def ended(cause: Cause = Cause.CUDA_OUT_OF_MEMORY, **changes: Any) -> Ended:
    values: dict[str, Any] = {
        "number": 1,
        "run_id": "1-a",
        "cause": cause,
        "words": "exit 1: device memory ran out",
        "baseline_step": 10,
        "last_step": 12,
        "error": "OutOfMemoryError: CUDA out of memory.",
    }
    return Ended(**(values | changes))


def weigh(
    state: State | None = None, policy: Policy = POLICY, *, step: int = 10, **of_the_end: Any
) -> tuple[State, Plan]:
    state = state or State(phase=Phase.WEIGHING, since_s=0.0)
    state = dataclasses.replace(state, phase=Phase.WEIGHING, ended=ended(**of_the_end))
    return decide(state, Seen(now_s=1.0, choice=chosen(step), gates=OPEN), policy)


def kinds(plan: Plan) -> list[str]:
    return [record.kind for record in plan.records]


def launch(history: History, number: int = 1, *, halvings: int = 0, command: str = COMMAND) -> History:
    plain = launching(number, f"{number}-a", 10)
    more = {"command_sha256": command, "batch_halvings": halvings}
    return fold(events_of([dataclasses.replace(plain, data={**plain.data, **more})]), history)


# --- deciding -----------------------------------------------------------------------------------------------
@given(cause=st.sampled_from(Cause), halvings=st.integers(0, 20), limit=st.integers(0, 16))
def test_only_device_memory_makes_it_smaller_by_one_and_never_beyond_the_limit(
    cause: Cause, halvings: int, limit: int
) -> None:
    after = smaller.halvings_after(cause, halvings, limit=limit)
    assert after in (halvings, halvings + 1)
    if after > halvings:
        assert cause is Cause.CUDA_OUT_OF_MEMORY
        assert after <= limit


@given(ends=st.lists(st.sampled_from(Cause), max_size=30), limit=st.integers(0, 5))
def test_it_never_grows_back_by_itself(ends: list[Cause], limit: int) -> None:
    halvings = 0
    for cause in ends:
        after = smaller.halvings_after(cause, halvings, limit=limit)
        assert after >= halvings
        halvings = after
    assert halvings == min(limit, ends.count(Cause.CUDA_OUT_OF_MEMORY))


def test_an_end_by_device_memory_is_recorded_with_its_evidence_before_it_is_weighed() -> None:
    state, plan = weigh()
    assert kinds(plan) == ["batch_shrunk", "run_weighed"]
    shrunk, weighed = plan.records
    assert shrunk.data["from"] == 0
    assert shrunk.data["to"] == 1
    assert shrunk.data["evidence"] == "OutOfMemoryError: CUDA out of memory."
    assert weighed.data["batch_halvings"] == 1
    assert (state.phase, state.batch_halvings, state.failures) == (Phase.GATING, 1, 1)


def test_memory_that_windows_could_not_make_resident_is_the_same_end() -> None:
    """As the end of the run is classified: an error of CUDA, and the kernel's word of a residency that failed."""
    said = 'Traceback (most recent call last):\n  File "/u/train.py", line 12, in step\n    go()\n'
    said += "RuntimeError: CUDA error: unknown error\n"
    refused = KernelLine(at_s=995.0, kind=KernelKind.DXG_RESIDENCY, text="make_resident: Ioctl failed: -12", number=12)
    leader = End(pid=10, code=1, signal=None, monotonic_s=1000.0)
    record = ExitRecord(run_id="1-a", complete=True, leader=leader, exec_error=None)
    for lines, halvings in (((refused,), 1), ((), 0)):
        end = classify(Evidence(record=record, log=said, kernel=Kernel(lines=lines, kills=0)))
        state, _ = weigh(cause=end.cause, words=end.words)
        assert state.batch_halvings == halvings, end


def test_it_counts_as_a_failure_like_any_other_and_the_budget_is_its_end() -> None:
    """Four halvings are allowed and three failures: the third end is a hold, whatever could be tried."""
    policy = make_policy(shrink_batch=4)
    state, sizes = None, []
    for _ in range(3):
        state, plan = weigh(state, policy)
        sizes.append(state.batch_halvings)
    assert (sizes, state.failures, state.phase) == ([1, 2, 3], 3, Phase.HOLD)
    assert state.hold is not None
    assert "the next run is asked to halve its micro-batch 3 times" in state.hold
    assert kinds(plan) == ["hold", "batch_shrunk", "run_weighed"]


def test_progress_keeps_it_small() -> None:
    state, _ = weigh()
    state, plan = weigh(state, cause=Cause.KILLED, step=11)
    assert (state.batch_halvings, state.failures) == (1, 0)
    assert plan.records[-1].data["batch_halvings"] == 1
    state, _ = weigh(state, step=12, baseline_step=11)
    assert (state.batch_halvings, state.failures) == (2, 0), "and a later shortage makes it smaller still"


def test_at_the_limit_nothing_is_said_to_be_shrunk_and_the_hold_says_what_is_left_to_do() -> None:
    state = State(phase=Phase.WEIGHING, since_s=0.0, batch_halvings=2, failures=2)
    state, plan = weigh(state)
    assert kinds(plan) == ["hold", "run_weighed"]
    assert state.hold is not None
    assert state.hold.endswith(
        "; the micro-batch was halved twice already, and [job] shrink_batch = 2 allows no more: free the device, allow "
        "more, or make the model or its context smaller"
    )


def test_by_default_nothing_is_made_smaller() -> None:
    state, plan = weigh(policy=make_policy())
    assert (kinds(plan), state.batch_halvings) == (["run_weighed"], 0)


def test_a_hold_for_another_reason_says_nothing_of_batches() -> None:
    state = State(phase=Phase.WEIGHING, since_s=0.0, failures=2)
    state, _ = weigh(state, cause=Cause.EXITED, words="exit 1")
    assert state.hold is not None
    assert "batch" not in state.hold


def test_who_is_asked_to_leave_has_still_learned_it() -> None:
    """The next supervisor begins with the smaller one: the device has not grown meanwhile."""
    ends = State(phase=Phase.WEIGHING, since_s=0.0, ended=ended())
    state, plan = decide(ends, Seen(now_s=1.0, choice=chosen(10), request=Request.DRAIN), POLICY)
    assert (state.phase, state.batch_halvings) == (Phase.LEFT, 1)
    assert "batch_shrunk" in kinds(plan)


def test_a_person_who_forces_a_relaunch_begins_with_the_whole_batch() -> None:
    state = State(phase=Phase.BACKOFF, since_s=0.0, batch_halvings=2, failures=1, retry_at_s=100.0)
    afresh = Seen(now_s=1.0, gates=OPEN, request=Request.RELAUNCH_AFRESH)
    after, plan = decide(state, afresh, POLICY)
    assert kinds(plan) == ["budget_reset", "batch_whole", "wait_cut"]
    assert after.batch_halvings == 0
    plain, plan = decide(state, dataclasses.replace(afresh, request=Request.RELAUNCH), POLICY)
    assert (kinds(plan), plain.batch_halvings) == (["wait_cut"], 2)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(st.sampled_from((*EVENTS, *["device memory runs out"] * 10)), max_size=100), wait=st.booleans())
def test_no_life_of_a_job_that_may_shrink_breaks_an_invariant(events: list[str], wait: bool) -> None:
    """Budgets among them; and whoever restarts at any moment decides the same."""
    world, before = World(make_policy(shrink_batch=2, leave_on_hold=not wait)), 0
    for event in events:
        world.happen(event)
        now = world.history.batch_halvings
        assert 0 <= now <= 2
        assert now in (before, before + 1) or "batch_whole" in [each.kind for each in world.events], event
        before = now
    ends = world.history.runs_by_cause.get("cuda_out_of_memory", 0)
    assert [each.kind for each in world.events].count("batch_shrunk") <= ends


def test_the_world_reaches_what_it_is_for() -> None:
    world = World(make_policy(shrink_batch=2))
    for _ in range(2):
        for event in ("turn", "turn", "turn", "step", "step", "save", "device memory runs out", "turn", "turn", "turn"):
            world.happen(event)
    launches = [each.data["batch_halvings"] for each in world.events if each.kind == "run_launching"]
    assert launches == [0, 1, 2]


# --- remembering --------------------------------------------------------------------------------------------
def test_a_restart_at_any_record_decides_the_same() -> None:
    """Also when only a part of a batch of records reached the disk."""
    history = launch(History())
    end = Record("run_ended", "ended", dataclasses.asdict(ended()) | {"cause": "cuda_out_of_memory"})
    _, plan = weigh()
    records = [end, *plan.records]
    for cut in range(1, len(records) + 1):
        again = fold(events_of(records[:cut]), history)
        state = restore(again, None, 0.0, POLICY, wall_s=0.0, boot_id="boot")
        if cut < len(records):
            assert state.phase is Phase.WEIGHING
            state, _ = decide(state, Seen(now_s=1.0, choice=chosen(10), gates=OPEN), POLICY)
        assert (state.batch_halvings, state.failures) == (1, 1), cut


def test_what_is_learned_of_the_large_one_is_no_measure_for_the_small_one() -> None:
    history = launch(History())
    timed = Record("phase_time", "", {"run_id": "1-a", "phase": "train", "longest_s": 2.0, "steps": 50, "looked": 1})
    took = Record("gpu_memory", "", {"run_id": "1-a", "devices": {"GPU-1": {"before": 0, "peak": 10**10}}})
    history = fold(events_of([timed, took]), history)
    assert history.phase_times_s == {"train": 2.0}
    assert history.gpu.needs == {"GPU-1": 10**10}
    _, plan = weigh()
    history = fold(events_of(plan.records), history)
    assert history.batch_halvings == 1
    assert history.phase_times_s == {}
    assert history.gpu.needs == {}


def test_the_need_of_the_device_is_forgotten_and_its_doubts_are_not() -> None:
    """Also where the last word on what that run took is written after the batch was made smaller."""

    def took(run_id: str, peak: int) -> dict[str, Any]:
        return {"run_id": run_id, "devices": {"GPU-1": {"before": 0, "peak": peak}}}

    memory = memory_after(GpuMemory(needs={"GPU-1": 5}), "run_ended", {"cause": "cuda_error"}, 1, "doubt")
    memory = memory_after(memory, "batch_shrunk", {"run_id": "1-a"}, 2, "")
    assert (memory.needs, list(memory.doubts)) == ({}, [""])
    memory = memory_after(memory, "gpu_memory", took("1-a", 900), 3, "")
    assert memory.needs == {}
    assert memory.stays["GPU-1"].peak_bytes == 900, "what it has to give back is still known"
    memory = memory_after(memory, "gpu_memory", took("2-b", 500), 4, "")
    assert memory.needs == {"GPU-1": 500}


@pytest.mark.parametrize("kind", ["batch_whole", "archived"])
def test_what_makes_it_whole_again(kind: str) -> None:
    history = fold(events_of([Record("run_weighed", "", {"cause": "exited", "failures": 1, "batch_halvings": 2})]))
    assert history.batch_halvings == 2
    assert fold(events_of([Record(kind, "", {})]), history).batch_halvings == 0


@pytest.mark.parametrize("kind", ["lifted", "budget_reset", "finished", "hold", "supervisor_started"])
def test_what_does_not(kind: str) -> None:
    history = fold(events_of([Record("run_weighed", "", {"cause": "exited", "failures": 1, "batch_halvings": 2})]))
    assert fold(events_of([Record(kind, "", {"reason": "r"})]), history).batch_halvings == 2


def test_a_record_of_another_version_changes_nothing_and_one_that_is_damaged_is_none() -> None:
    old = Record("run_weighed", "", {"cause": "exited", "failures": 1})
    history = dataclasses.replace(History(), batch_halvings=1)
    assert fold(events_of([old]), history).batch_halvings == 1
    (damaged,) = events_of([Record("run_weighed", "", {"cause": "exited", "failures": 1, "batch_halvings": "two"})])
    assert not can_fold(damaged)


@given(halvings=st.integers(-(2**63), 2**63 - 1), limit=st.integers(0, 16), same=st.booleans())
def test_whatever_the_ledger_says_a_launch_is_within_the_limit(halvings: int, limit: int, same: bool) -> None:
    found = smaller.halvings_for(halvings, limit=limit, same_command=same)
    assert 0 <= found <= limit <= contract.BATCH_HALVINGS_MOST
    assert same or found == 0
