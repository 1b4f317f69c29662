"""What may be given back, in which order, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.reclaiming import Goal, Group, How, Layout, Step, Switch, plan

GIB = 1024**3
DROP = Switch(path="/proc/sys/vm/drop_caches", writable=True)
COMPACT = Switch(path="/proc/sys/vm/compact_memory", writable=True)


def layout(**changes: Any) -> Layout:
    """8 GiB of cache, 1 GiB unused, nothing limited."""
    values: dict[str, Any] = {
        "available_bytes": 9 * GIB,
        "host_available_bytes": 9 * GIB,
        "host_free_bytes": GIB,
        "cached_bytes": 8 * GIB,
        "version": 2,
        "drop_caches": DROP,
        "compact": COMPACT,
    }
    return Layout(**(values | changes))


def group(path: str, **changes: Any) -> Group:
    values: dict[str, Any] = {
        "usage_bytes": 6 * GIB,
        "file_bytes": 5 * GIB,
        "control": f"/sys/fs/cgroup{path}/memory.reclaim",
        "writable": True,
    }
    return Group(path=path, **(values | changes))


def v1(path: str, **changes: Any) -> Group:
    return group(path, control=f"/sys/fs/cgroup/memory{path}/memory.force_empty", **changes)


def by_hand(target_bytes: int, **changes: Any) -> Goal:
    return Goal(target_bytes=target_bytes, free=True, **changes)


def hows(steps: tuple[Step, ...]) -> list[How]:
    return [step.how for step in steps]


def test_with_room_enough_nothing_is_done() -> None:
    found = plan(layout(), by_hand(GIB))
    assert (found.steps, found.why_not) == ((), "there is room enough")
    assert plan(layout(), Goal(target_bytes=9 * GIB)).steps == (), "cache is available as it is"


def test_the_jobs_own_groups_first_then_the_widest_then_the_host() -> None:
    own = group("/user.slice/job", limit_bytes=7 * GIB)
    above = group("/user.slice")
    found = plan(layout(groups=(own, above)), by_hand(3 * GIB))
    assert [(step.how, step.path, step.amount_bytes) for step in found.steps] == [
        (How.RECLAIM, own.control, 2 * GIB),  # 1 GiB below its limit is unused
        (How.RECLAIM, above.control, 2 * GIB),  # the host lacks as much
        (How.DROP_CACHES, DROP.path, 0),
    ]


def test_a_group_gives_no_more_than_it_has() -> None:
    own = group("/job", limit_bytes=6 * GIB, file_bytes=GIB, kernel_bytes=GIB // 2)
    (step, *_) = plan(layout(host_free_bytes=8 * GIB, groups=(own,)), by_hand(4 * GIB)).steps
    assert step.amount_bytes == GIB + GIB // 2


def test_slab_of_a_group_opens_a_gate_that_counts_it_as_held() -> None:
    own = group("/job", usage_bytes=6 * GIB, limit_bytes=6 * GIB, file_bytes=0, kernel_bytes=2 * GIB)
    tight = layout(available_bytes=0, groups=(own,))
    found = plan(tight, Goal(target_bytes=GIB))
    assert [(step.how, step.amount_bytes) for step in found.steps] == [(How.RECLAIM, GIB)], "the host has room"


def test_for_a_launch_nothing_is_dropped_in_vain() -> None:
    short = layout(available_bytes=2 * GIB, host_available_bytes=2 * GIB, cached_bytes=GIB)
    found = plan(short, Goal(target_bytes=3 * GIB))
    assert not found.steps
    assert "2.0 GiB at most, 3.0 are needed" in found.why_not
    assert plan(short, by_hand(3 * GIB)).steps, "a person gets what there is"


def test_of_a_limit_no_dropping_helps_beyond_it() -> None:
    own = group("/job", usage_bytes=2 * GIB, limit_bytes=2 * GIB, file_bytes=GIB)
    found = plan(layout(available_bytes=GIB, groups=(own,)), Goal(target_bytes=4 * GIB))
    assert not found.steps


def test_the_cache_of_a_living_run_is_left_alone_unless_asked_for() -> None:
    found = plan(layout(), by_hand(3 * GIB, run_lives=True))
    assert not found.steps
    assert found.run_in_the_way
    assert plan(layout(), by_hand(3 * GIB, run_lives=True, beside_run=True)).steps


def test_v1_empties_groups_whole_and_never_the_root() -> None:
    groups = (v1("/a/b", limit_bytes=6 * GIB), v1("/a"), v1("/"))
    found = plan(layout(version=1, groups=groups), by_hand(2 * GIB))
    assert [(step.how, step.path) for step in found.steps] == [
        (How.FORCE_EMPTY, groups[0].control),
        (How.FORCE_EMPTY, groups[1].control),
        (How.DROP_CACHES, DROP.path),
    ]
    assert found.steps[0].amount_bytes == 0
    assert found.steps[0].expected_bytes == 5 * GIB


def test_v1_pushes_nobody_into_swap_and_says_so() -> None:
    found = plan(layout(version=1, groups=(v1("/a", swaps=True),)), by_hand(2 * GIB))
    assert hows(found.steps) == [How.DROP_CACHES]
    assert "swap" in found.left_out[0]


def test_a_kernel_without_memory_reclaim_is_said() -> None:
    own = group("/job", limit_bytes=6 * GIB, control="")
    found = plan(layout(groups=(own,)), by_hand(2 * GIB))
    assert hows(found.steps) == [How.DROP_CACHES]
    assert "5.19" in found.left_out[0]


def test_what_is_not_permitted_is_planned_and_marked() -> None:
    closed = Switch(path=DROP.path, writable=False)
    groups = (group("/user/job"), group("/user", writable=False))
    found = plan(layout(drop_caches=closed, groups=groups), by_hand(4 * GIB))
    assert [(step.path, step.permitted) for step in found.steps] == [
        (groups[0].control, True),  # the widest that we may write to
        (DROP.path, False),
    ]


def test_on_wsl_pages_are_put_together_last_also_when_that_was_enough() -> None:
    on_wsl = layout(wsl=True)
    first = plan(on_wsl, by_hand(3 * GIB))
    assert hows(first.steps) == [How.DROP_CACHES, How.COMPACT]
    done = {(How.DROP_CACHES, DROP.path)}
    freed = layout(wsl=True, host_free_bytes=9 * GIB, cached_bytes=0)
    assert hows(plan(freed, by_hand(3 * GIB), done).steps) == [How.COMPACT]
    assert plan(freed, by_hand(3 * GIB), done | {(How.COMPACT, COMPACT.path)}).steps == ()
    assert plan(freed, by_hand(3 * GIB)).steps == (), "nothing was freed by us"
    assert hows(plan(layout(), by_hand(3 * GIB)).steps) == [How.DROP_CACHES], "elsewhere nobody waits for blocks"


def test_what_was_done_is_not_done_again() -> None:
    found = plan(layout(), by_hand(5 * GIB), {(How.DROP_CACHES, DROP.path)})
    assert not found.steps
    assert "no cache is left" in found.why_not


def test_free_is_what_the_tightest_limit_leaves() -> None:
    own, above = group("/a/b", limit_bytes=7 * GIB), group("/a", limit_bytes=6 * GIB + 1)
    seen = layout(groups=(own, above))
    assert seen.free_bytes == 1
    assert seen.tightest is above


sizes = st.integers(min_value=0, max_value=64 * GIB)


@given(
    usages=st.lists(st.tuples(sizes, st.none() | sizes, sizes, st.booleans(), st.booleans()), max_size=4),
    free=sizes,
    cached=sizes,
    version=st.sampled_from([1, 2]),
    target=sizes,
    by_person=st.booleans(),
    lives=st.booleans(),
    wsl=st.booleans(),
)
def test_every_plan_comes_to_an_end_and_stays_within_the_layout(
    usages: list[tuple[int, int | None, int, bool, bool]],
    free: int,
    cached: int,
    version: int,
    target: int,
    by_person: bool,
    lives: bool,
    wsl: bool,
) -> None:
    make = group if version == 2 else v1
    groups = tuple(
        make(
            f"/{number}", usage_bytes=usage, limit_bytes=limit, file_bytes=min(files, usage), writable=may, swaps=swaps
        )
        for number, (usage, limit, files, may, swaps) in enumerate(usages)
    )
    seen = layout(
        host_free_bytes=free, cached_bytes=cached, available_bytes=free, version=version, groups=groups, wsl=wsl
    )
    goal = Goal(target_bytes=target, free=by_person, run_lives=lives)
    allowed = {each.control for each in groups} | {DROP.path, COMPACT.path}
    done: set[tuple[How, str]] = set()
    while steps := plan(seen, goal, done).steps:
        assert not lives
        assert not goal.is_met(seen) or steps[0].how is How.COMPACT
        assert {step.path for step in steps} <= allowed
        assert len({(step.how, step.path) for step in steps}) == len(steps)
        ranks = [[How.RECLAIM, How.FORCE_EMPTY, How.DROP_CACHES, How.COMPACT].index(step.how) for step in steps]
        assert ranks == sorted(ranks)
        done.add((steps[0].how, steps[0].path))
    assert len(done) <= len(groups) + 2


@pytest.mark.parametrize("how", How)
def test_a_step_says_what_it_is(how: How) -> None:
    step = Step(how=how, path="/x", where="the host", expected_bytes=GIB, amount_bytes=GIB // 2)
    assert how.value in step.words
