"""Who belongs to a run: bystanders of the same name, recycled numbers, older processes and others' children do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.identity import Orphans, Process, ProcessId, Traces, descendants, orphans_of

SHIM = ProcessId(100, 5000)
ME = 50
SINCE = 5000


def process(pid: int, ppid: int, ticks: int = 6000, state: str = "S", command: str = "python") -> Process:
    return Process(id=ProcessId(pid, ticks), ppid=ppid, session=pid, state=state, command=command)


def pids(processes: tuple[Process, ...]) -> set[int]:
    return {each.id.pid for each in processes}


# --- while the shim lives -----------------------------------------------------------------------------------
def test_descendants_are_found_whatever_session_they_made() -> None:
    table = [process(100, 50, 5000), process(101, 100), process(102, 101), process(103, 102), process(200, 1)]
    assert pids(descendants(SHIM, table)) == {101, 102, 103}


def test_a_recycled_number_of_the_shim_has_no_descendants_of_ours() -> None:
    table = [process(100, 50, 9999), process(101, 100)]
    assert descendants(SHIM, table) == ()
    assert descendants(SHIM, [process(101, 100)]) == ()


@settings(deadline=None, derandomize=True)
@given(parents=st.lists(st.integers(0, 14), min_size=1, max_size=15))
def test_exactly_those_whose_chain_of_parents_leads_to_the_shim(parents: list[int]) -> None:
    """Random forests: process n hangs below an earlier one; the shim is number 0."""
    table = [process(100, 1, 5000)]
    inside = {100}
    for number, choice in enumerate(parents, start=1):
        parent = 1 if choice == 0 else 100 + choice % number
        table.append(process(100 + number, parent))
        if parent in inside:
            inside.add(100 + number)
    assert pids(descendants(SHIM, reversed(table))) == inside - {100}


# --- after the shim was killed --------------------------------------------------------------------------------
CLEAN = Traces(readable=True, run_id=None, holds_run_lock=False)
MARKED = Traces(readable=True, run_id="1-a", holds_run_lock=False)
OTHER_RUN = Traces(readable=True, run_id="0-z", holds_run_lock=False)
HIDDEN = Traces(readable=False, run_id=None, holds_run_lock=False)
LAUNCHER = 40
HOLDER = Traces(readable=True, run_id=None, holds_run_lock=True, lock_taker=LAUNCHER)
TAKER_GONE = Traces(readable=True, run_id=None, holds_run_lock=True, lock_taker=0)
BACKUP = Traces(readable=True, run_id=None, holds_run_lock=True, lock_taker=777)


def orphans(
    table: list[Process],
    traces: dict[int, Traces],
    *,
    seen: frozenset[ProcessId] = frozenset(),
    subreaper: bool = False,
    own: frozenset[int] = frozenset(),
    cgroup: frozenset[int] = frozenset(),
    adopters: frozenset[int] | None = None,
) -> Orphans:
    by_id = {each.id: traces.get(each.id.pid, CLEAN) for each in table}
    return orphans_of(
        run_id="1-a",
        started_ticks=SINCE,
        table=table,
        traces=by_id,
        seen_before=seen,
        reparented_to=ME if subreaper else None,
        own_children=own,
        own_pid=ME,
        adopters=adopters,
        in_cgroup=cgroup,
        launcher=LAUNCHER,
    )


def test_the_marks_of_the_run_prove() -> None:
    table = [process(1, 0, 1), process(101, 1), process(102, 1), process(103, 1)]
    found = orphans(table, {101: MARKED, 102: HOLDER, 103: OTHER_RUN})
    assert pids(found.ours) == {101, 102}
    assert found.unclear == ()


def test_who_inherited_the_run_lock_is_ours_by_two_proofs_and_both_are_told() -> None:
    """Its environment is emptied, its session another: what it holds was taken by the one that launched the run."""
    found = orphans([process(101, 1)], {101: HOLDER}, adopters=frozenset({0, 1}))
    assert pids(found.ours) == {101}
    assert found.proofs[101] == ("started after it and holds the share of its run lock that its launcher took",)


@pytest.mark.parametrize("adopters", [frozenset({0, 1}), None])
def test_a_taker_whom_the_kernel_does_not_name_proves_nothing(adopters: frozenset[int] | None) -> None:
    """`exec 9<run.lock; flock -s 9` in a container, below `docker exec` (0), below 1: nobody's ghost, and its child."""
    table = [process(101, 1), process(102, 0), process(103, 102)]
    found = orphans(table, {101: TAKER_GONE, 102: TAKER_GONE}, adopters=adopters)
    assert (found.ours, pids(found.unclear)) == ((), {101, 102})


def test_who_took_a_share_of_the_run_lock_by_himself_is_named_and_never_ours() -> None:
    """`flock -s run.lock backup`, begun after the run: a share, and nothing else of the run."""
    table = [process(70, 1, 100, command="bash"), process(101, 70), process(102, 70), process(LAUNCHER, 70)]
    itself = Traces(readable=True, run_id=None, holds_run_lock=True, lock_taker=LAUNCHER)
    found = orphans(table, {101: BACKUP, 102: TAKER_GONE, LAUNCHER: itself}, adopters=frozenset({0, 1}))
    assert (found.ours, pids(found.unclear)) == ((), {101, 102, LAUNCHER})
    to_us = orphans(table, {101: BACKUP}, subreaper=True)
    assert to_us == Orphans(ours=(), unclear=()), "where orphans come to us it is excluded; the lock still shows it"


def test_a_bystander_with_the_same_name_is_nobody() -> None:
    table = [process(101, 1, command="train.py"), process(102, 1, command="train.py")]
    found = orphans(table, {101: MARKED})
    assert pids(found.ours) == {101}
    assert found.unclear == ()


def test_an_older_process_is_never_ours_nor_unclear() -> None:
    table = [process(101, 1, SINCE - 1), process(102, 1, SINCE - 1), process(103, 101, SINCE - 1)]
    found = orphans(table, {101: MARKED, 102: HIDDEN, 103: HOLDER})
    assert found == Orphans(ours=(), unclear=())


def test_a_number_seen_as_a_member_counts_only_with_its_start_time() -> None:
    seen = frozenset({ProcessId(101, 6000), ProcessId(102, 6000)})
    table = [process(101, 1, 6000), process(102, 1, 8000)]
    assert pids(orphans(table, {}, seen=seen).ours) == {101}


def test_an_unreadable_environment_is_unclear_and_not_clean() -> None:
    found = orphans([process(101, 1), process(102, 1)], {101: HIDDEN})
    assert (found.ours, pids(found.unclear)) == ((), {101})


def test_nobody_is_unclear_where_orphans_come_to_us() -> None:
    found = orphans([process(101, 1)], {101: HIDDEN}, subreaper=True)
    assert found == Orphans(ours=(), unclear=())


def test_orphans_that_came_to_us_are_ours_but_our_own_children_are_not() -> None:
    table = [process(ME, 1, 10), process(101, ME), process(102, ME), process(103, 102)]
    found = orphans(table, {101: HIDDEN}, subreaper=True, own=frozenset({102}))
    assert pids(found.ours) == {101}


def test_a_descendant_of_a_member_is_a_member_and_a_sibling_is_not() -> None:
    table = [process(101, 1), process(102, 101), process(103, 102), process(104, 1)]
    found = orphans(table, {101: MARKED, 103: HIDDEN})
    assert pids(found.ours) == {101, 102, 103}
    assert found.unclear == ()


def test_another_parents_child_is_not_ours_although_it_is_young() -> None:
    table = [process(70, 1, 100, command="sshd"), process(101, 70)]
    assert orphans(table, {}) == Orphans(ours=(), unclear=())


def test_zombies_and_ourselves_are_never_among_them() -> None:
    table = [process(ME, 1, 7000), process(101, 1, state="Z"), process(102, 1, state="X")]
    assert orphans(table, {ME: MARKED, 101: MARKED, 102: HOLDER}) == Orphans(ours=(), unclear=())


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 12),
            st.sampled_from([SINCE - 10, SINCE, SINCE + 10]),
            st.sampled_from([CLEAN, MARKED, OTHER_RUN, HIDDEN, HOLDER, TAKER_GONE, BACKUP]),
            st.sampled_from("SRDZT"),
        ),
        max_size=12,
    ),
    subreaper=st.booleans(),
)
def test_no_table_makes_an_old_unmarked_process_ours(rows: list[tuple[int, int, Traces, str]], subreaper: bool) -> None:
    table, traces = [], {}
    for number, (parent, ticks, trace, state) in enumerate(rows):
        table.append(process(200 + number, 1 if parent == 0 else 199 + parent, ticks, state))
        traces[200 + number] = trace
    found = orphans(table, traces, subreaper=subreaper)
    assert not pids(found.ours) & pids(found.unclear)
    for each in (*found.ours, *found.unclear):
        assert each.id.start_ticks >= SINCE
        assert each.living
    for each in found.unclear:
        assert traces[each.id.pid] in (HIDDEN, TAKER_GONE, BACKUP)
    parents = {each.id.pid: each.ppid for each in table}
    for each in found.ours:
        pid = each.id.pid
        while pid in pids(found.ours) and traces[pid] not in (MARKED, HOLDER):
            pid = parents[pid]
        assert traces.get(pid) in (MARKED, HOLDER), "ours, and no chain to a mark"


# --- the run's own cgroup -------------------------------------------------------------------------------------
TO_US_OR_INIT = frozenset({0, 1, 60})


def test_who_is_in_the_cgroup_and_was_orphaned_as_the_run_s_are_is_ours_with_its_children() -> None:
    table = [process(60, 1, 10), process(101, 1), process(102, 60), process(103, 102), process(104, 1)]
    found = orphans(table, {}, cgroup=frozenset({101, 102}), adopters=TO_US_OR_INIT)
    assert (pids(found.ours), found.unclear) == ({101, 102, 103}, ())


def test_who_is_in_the_cgroup_with_another_parent_is_doubtful_and_its_children_are_not_ours() -> None:
    """A shell somewhere else started it, and somebody moved it there."""
    table = [process(70, 1, 100, command="bash"), process(101, 70), process(102, 101)]
    found = orphans(table, {}, cgroup=frozenset({101}), adopters=TO_US_OR_INIT)
    assert (found.ours, pids(found.unclear)) == ((), {101})


def test_who_is_in_the_cgroup_is_doubtful_where_it_is_not_known_whom_orphans_go_to() -> None:
    found = orphans([process(101, 1)], {}, cgroup=frozenset({101}), adopters=None)
    assert (found.ours, pids(found.unclear)) == ((), {101})


def test_an_older_process_in_the_cgroup_was_moved_there_and_is_nobody() -> None:
    found = orphans([process(101, 1, SINCE - 1)], {}, cgroup=frozenset({101}), adopters=TO_US_OR_INIT)
    assert found == Orphans(ours=(), unclear=())


def test_where_orphans_come_to_us_the_cgroup_proves_nothing_more() -> None:
    """Whoever did not come to us was moved there; and a collector's child stays ours to spare."""
    table = [process(ME, 1, 10), process(101, 1), process(102, ME)]
    traces = {101: CLEAN, 102: CLEAN}
    found = orphans(
        table, traces, subreaper=True, own=frozenset({102}), cgroup=frozenset({101, 102}), adopters=frozenset({1, ME})
    )
    assert found == Orphans(ours=(), unclear=())


def test_a_process_that_left_the_cgroup_is_still_found_by_its_marks() -> None:
    found = orphans([process(101, 1), process(102, 1)], {101: MARKED}, cgroup=frozenset({102}), adopters=TO_US_OR_INIT)
    assert pids(found.ours) == {101, 102}
