"""What the next run needs of host memory: learned from an end for memory, and forgotten after any other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.checks.host import memory as seen_memory
from tests.unit.core.world import make_policy
from watchdog.core.decide import HOPELESS_S, decide
from watchdog.core.facts import CgroupLimit, Known
from watchdog.core.gates import memory_gate
from watchdog.core.history import Event, can_fold, fold
from watchdog.core.limits import Limits
from watchdog.core.memoryneed import MARGIN_BYTES, MIB, HostMemory, Learned, is_news, refused_in
from watchdog.core.phase import Phase
from watchdog.core.seen import Gate, Seen
from watchdog.core.state import Launch, MakeRoom, Room, State

GIB = 1024 * MIB
Line = tuple[str, dict[str, Any]]


def remembered(lines: Iterable[Line]) -> HostMemory:
    """Folded one after the other, as a supervisor does; and at once, as a restart does."""
    made = [Event(seq=n, wall_s=float(n), kind=kind, sentence=kind, data=data) for n, (kind, data) in enumerate(lines)]
    assert all(can_fold(event) for event in made)
    history = fold([])
    for event in made:
        history = fold([event], history)
    assert history.host_memory == fold(made).host_memory
    return history.host_memory


def launching(number: int = 1, command: str = "c", baseline: int = -1) -> Line:
    data = {"number": number, "run_id": f"{number}-a", "baseline_step": baseline, "command_sha256": command}
    return "run_launching", data


def held(peak: int, number: int = 1, before: int | None = 20 * GIB) -> Line:
    return "host_memory", {"run_id": f"{number}-a", "peak_bytes": peak, "before_bytes": before}


def ended(cause: str = "oom_kill", number: int = 1, **more: Any) -> Line:
    data = {"number": number, "run_id": f"{number}-a", "cause": cause, "words": "it ended", "baseline_step": -1}
    return "run_ended", data | more


def weighed(cause: str = "oom_kill", number: int = 1, step: int = -1) -> Line:
    return "run_weighed", {"run_id": f"{number}-a", "cause": cause, "failures": 0, "host_failures": 1, "step": step}


def need_of(*lines: Line) -> int | None:
    learned = remembered(lines).learned
    return None if learned is None else learned.need_bytes


def with_margin(had: int) -> int:
    return int(had * 1.1) + MARGIN_BYTES


@pytest.mark.parametrize("cause", ["host_memory", "oom_kill"])
def test_after_an_end_for_memory_the_next_run_needs_what_that_one_had(cause: str) -> None:
    lines = (launching(), held(4 * GIB), held(10 * GIB), ended(cause), weighed(cause))
    learned = remembered(lines).learned
    assert learned == Learned(
        need_bytes=with_margin(10 * GIB),
        words="its last run had 10.0 GiB when memory ran out",
        least_bytes=10 * GIB,
        before_bytes=20 * GIB,
    )


@pytest.mark.parametrize(
    "cause", ["exited", "signalled", "killed", "stalled", "drained", "cuda_out_of_memory", "code_error", "a new word"]
)
def test_after_any_other_end_it_needs_what_it_states(cause: str) -> None:
    """What leaked, or was a cache, must not keep a gate closed."""
    assert need_of(launching(), held(20 * GIB), ended(cause)) is None
    assert remembered([launching(), held(GIB), ended(), launching(2), ended(cause, 2)]).learned is None


def test_a_living_run_asks_for_nothing_and_nobody_saw_is_nothing() -> None:
    assert need_of(launching(), held(10 * GIB)) is None
    assert need_of(launching(), ended()) is None


@pytest.mark.parametrize("last", [launching(2, "another"), ("archived", {}), ("lifted", {}), ("budget_reset", {})])
def test_another_command_and_a_person_begin_anew(last: Line) -> None:
    assert need_of(launching(), held(10 * GIB), ended(), last, *([ended(number=2)] if last[1] else [])) is None


def test_a_hold_that_ended_by_itself_forgets_nothing() -> None:
    assert need_of(launching(), held(10 * GIB), ended(), ("lifted", {"by": "end", "run_id": "1-a"})) is not None


def test_a_run_that_got_less_does_not_lower_the_need() -> None:
    """The first one showed 10 GiB; the second was refused at 3, since somebody else had the rest."""
    first = (launching(), held(10 * GIB), ended())
    second = (launching(2), held(3 * GIB, 2), ended(number=2))
    learned = remembered([*first, *second]).learned
    assert learned is not None
    assert (learned.need_bytes, "needed 10.0 GiB" in learned.words) == (with_margin(10 * GIB), True)
    assert need_of(*first, launching(2), held(12 * GIB, 2), ended(number=2)) == with_margin(12 * GIB)
    assert need_of(*first, launching(2), ended("not_started", 2)) == with_margin(10 * GIB), "it has shown nothing"


def test_what_it_was_refused_is_needed_as_well() -> None:
    error = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 "
    error += "bytes. Error code 12 (Cannot allocate memory)"
    learned = remembered([launching(), held(GIB), ended("host_memory", error=error)]).learned
    assert learned is not None
    assert learned.need_bytes == with_margin(9 * GIB)
    assert learned.words == "its last run had 1.0 GiB when memory ran out, and was refused 8.0 GiB"


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ("numpy._core._ArrayMemoryError: Unable to allocate 16.0 GiB for an array with shape (1,)", 16 * GIB),
        ("RuntimeError: unable to mmap 4096 bytes from file </a>: Cannot allocate memory (12)", 0),
        ("MemoryError", 0),
        ("tried to allocate many bytes", 0),
        (None, 0),
        (7, 0),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal(error: object, refused: int) -> None:
    assert refused_in(error) == refused


def test_a_run_that_came_further_is_worth_another_one_like_it() -> None:
    """A leak that is lived with: no more is demanded than that run began with."""
    run = (launching(baseline=10), held(19 * GIB, before=18 * GIB), ended())
    assert need_of(*run, weighed(step=10)) == with_margin(19 * GIB)
    assert need_of(*run, weighed(step=20)) == 18 * GIB
    assert need_of(launching(baseline=10), held(19 * GIB, before=None), ended(), weighed(step=20)) is None


def test_only_news_is_recorded() -> None:
    assert not is_news(63 * MIB, 0)
    assert is_news(64 * MIB, 0)
    assert not is_news(10 * GIB + 500 * MIB, 10 * GIB)
    assert is_news(10 * GIB + 513 * MIB, 10 * GIB)


# --- the need of a launch -----------------------------------------------------------------------------------
LEARNED = Learned(need_bytes=11 * GIB, words="its last run had 9.8 GiB when memory ran out")


def test_the_need_is_the_larger_one() -> None:
    assert Limits(memory_learned=LEARNED).memory_need(uses_gpu=True) == 11 * GIB
    assert Limits(memory_learned=LEARNED, memory_need_bytes=12 * GIB).memory_need(uses_gpu=True) == 12 * GIB
    stated = Limits(memory_learned=LEARNED, memory_need_bytes=12 * GIB)
    assert stated.learned_need(uses_gpu=False) is None


def gate(available: int, *, total: int = 23 * GIB, need: int = 11 * GIB, **more: Any) -> Gate:
    seen = seen_memory(available_bytes=available, host_available_bytes=available, total_bytes=total, **more)
    learned = Learned(need_bytes=need, words=LEARNED.words)
    return memory_gate(Known(seen, 1.0), need, learned=learned)


def test_the_gate_says_which_need_it_is() -> None:
    opened = gate(int(22.9 * GIB))
    assert (opened.open, opened.words) == (True, f"memory 22.9 ≥ 11.0 GiB ({LEARNED.words})")
    closed = gate(8 * GIB)
    assert (closed.open, closed.short, closed.hopeless) == (False, True, False)
    assert closed.words.startswith(f"memory 8.0 < 11.0 GiB ({LEARNED.words}; free host memory, or make the job smaller")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((), "this host has 23.0 GiB in all: or make the job smaller"),
        (
            (CgroupLimit(cgroup="/slice", limit_bytes=8 * GIB, held_bytes=0),),
            "the limit of cgroup /slice is 8.0 GiB in all: raise that limit, or make the job smaller",
        ),
    ],
)
def test_what_the_host_could_never_give_is_said_with_figures(limits: tuple[CgroupLimit, ...], words: str) -> None:
    never = gate(22 * GIB, need=30 * GIB, limits=limits)
    assert (never.open, never.short, never.hopeless) == (False, False, True)
    assert "memory: the job needs 30.0 GiB (its last run had 9.8 GiB when memory ran out)" in never.words
    assert words.replace(": or make", ": make") in never.words


def test_a_gate_that_is_short_is_worth_the_one_try_and_then_the_wait() -> None:
    """Reclaimed once, waited for, and held for in the gate's words."""
    policy = make_policy(level=0)
    state = State(phase=Phase.GATING, since_s=0.0)
    gates = (gate(8 * GIB),)
    state, plan = decide(state, Seen(now_s=1.0, gates=gates), policy)
    assert plan.actions == (MakeRoom(),)
    state, plan = decide(state, Seen(now_s=2.0, gates=gates, room_made=True), policy)
    assert state.room is Room.TRIED
    state, plan = decide(state, Seen(now_s=3.0, gates=gates), policy)
    assert plan.rule == "gate closed"
    freed = (gate(12 * GIB),)
    assert decide(state, Seen(now_s=4.0, gates=freed), policy)[1].actions == (Launch(None),)
    state, plan = decide(state, Seen(now_s=2.0 + policy.gate_wait_s, gates=gates), policy)
    assert state.phase is Phase.HOLD
    assert state.hold is not None
    assert "9.8 GiB when memory ran out" in state.hold


def test_a_gate_that_nothing_opens_is_a_hold_once_looks_agree() -> None:
    gates = (gate(22 * GIB, need=30 * GIB),)
    policy, gating = make_policy(level=0), State(phase=Phase.GATING, since_s=0.0)
    state, plan = decide(gating, Seen(now_s=1.0, gates=gates), policy)
    assert (state.phase, plan.records) == (Phase.GATING, ()), "one look at a limit is none"
    for between_them in ("another look", "a gap"):
        seen = Seen(
            now_s=10.0, gates=(gate(8 * GIB),) if between_them == "another look" else gates, gap=between_them == "a gap"
        )
        between, _ = decide(state, seen, policy)
        assert decide(between, Seen(now_s=11.5, gates=gates), policy)[0].phase is Phase.GATING, between_them
    after, plan = decide(state, Seen(now_s=1.0 + HOPELESS_S, gates=gates), policy)
    assert after.phase is Phase.HOLD
    assert [record.kind for record in plan.records] == ["hold"]
    assert "30.0 GiB" in plan.records[0].sentence
    assert "23.0" in plan.records[0].sentence


# --- a margin is a guess --------------------------------------------------------------------------------------
def gate_of(*lines: Line, available: float, total: float = 16.0) -> Gate:
    seen = seen_memory(available_bytes=int(available * GIB), total_bytes=int(total * GIB))
    return memory_gate(Known(seen, 0.0), 0, learned=remembered(lines).learned)


WEEKS = (launching(), held(int(14.5 * GIB), before=15 * GIB), ended("stalled"), weighed("stalled", step=9000))


def test_a_job_that_fits_is_not_held_for_a_margin_that_does_not() -> None:
    """It had 14.5 of 16 GiB for weeks; once another program took some before its first new checkpoint."""
    second = (launching(2, baseline=9000), held(int(14.5 * GIB), 2, before=15 * GIB), ended(number=2))
    lines = (*WEEKS, *second, weighed(number=2, step=9000))
    assert gate_of(*lines, available=15.0).open
    waits = gate_of(*lines, available=14.9)
    assert (waits.open, waits.short, waits.hopeless) == (False, True, False)
    untold = (launching(), held(int(14.5 * GIB), before=None), ended())
    assert (gate_of(*untold, available=14.4).open, gate_of(*untold, available=14.6).open) == (False, True)


def test_a_job_without_checkpoints_never_comes_further_and_is_not_held_for_it() -> None:
    lines = (launching(), held(int(14.6 * GIB), before=15 * GIB), ended(), weighed(step=-1))
    assert gate_of(*lines, available=15.5).open


def test_what_it_truly_had_is_beyond_this_host_where_that_is_so() -> None:
    lines = (launching(), held(int(15.5 * GIB), before=15 * GIB), ended(), weighed(step=-1))
    assert gate_of(*lines, available=15.0, total=15.4).hopeless
    assert not gate_of(*lines, available=15.0, total=15.6).hopeless


def test_the_pages_of_a_file_are_no_memory_that_is_needed() -> None:
    error = "RuntimeError: unable to mmap 32212254720 bytes from file </c/step.pt>: Cannot allocate memory (12)"
    assert gate_of(launching(), held(4 * GIB), ended("host_memory", error=error), available=14.0).open


def test_never_less_than_is_stated() -> None:
    lines = (launching(), held(int(14.5 * GIB), before=15 * GIB), ended())
    limits = Limits(memory_learned=remembered(lines).learned, memory_need_bytes=int(15.5 * GIB))
    seen = Known(seen_memory(available_bytes=int(15.2 * GIB), total_bytes=16 * GIB), 0.0)
    assert not memory_gate(seen, 0, learned=limits.learned_need(uses_gpu=False)).open


def test_a_launch_that_came_to_nothing_keeps_what_bounds_the_need() -> None:
    """How far the run before it came, and what that one began with; also over several of them."""
    lines = [launching(), held(14 * GIB, before=15 * GIB), ended(), weighed(step=100)]
    assert need_of(*lines) == 15 * GIB
    for number in (2, 3):
        lines += [launching(number, baseline=100), ended("not_started", number)]
        lines.append(("run_weighed", {"run_id": f"{number}-a", "cause": "not_started", "failures": 0}))
        assert need_of(*lines) == 15 * GIB
    last = (launching(4, baseline=100), held(3 * GIB, 4, before=16 * GIB), ended(number=4), weighed(number=4, step=100))
    assert need_of(*lines, *last) == with_margin(14 * GIB), "it came no further: another one like it is not worth it"
