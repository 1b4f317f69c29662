"""A run's memory by its cgroup, and by processes that are gone, hidden or share it. Real processes: tests/host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.host.bed import CLOCK
from watchdog.collectors import runmemory
from watchdog.collectors.roots import Roots
from watchdog.collectors.runmemory import RunMemory, read_run_memory
from watchdog.core.fact import Known
from watchdog.core.identity import ProcessId
from watchdog.core.runrecord import RunCgroup

MIB = 1024**2
GROUP = RunCgroup(path="/sys/fs/cgroup/x", device=1, inode=2)


class Proc:
    """A /proc of our own making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, anon_mib: int, shmem_mib: int = 0, pss_mib: int | None = None) -> ProcessId:
        place = self.folder / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} (python) S 1 1 1 " + "0 " * 15 + "77 0 0\n")
        (place / "status").write_text(
            f"Name:\tpython\nRssAnon:\t{anon_mib * 1024} kB\nRssShmem:\t{shmem_mib * 1024} kB\n"
        )
        if pss_mib is not None:
            (place / "smaps_rollup").write_text(f"00-ff ---p 00 00:00 0 [rollup]\nPss_Anon: {pss_mib * 1024} kB\n")
        return ProcessId(pid, 77)

    def read(self, *members: ProcessId, last: RunMemory | None = None) -> RunMemory:
        roots = Roots(str(self.folder))
        fact = read_run_memory(members, None, "1-a", roots, CLOCK, last)
        assert isinstance(fact, Known)
        return fact.value


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_processes_that_are_gone_hold_nothing(proc: Proc) -> None:
    assert proc.read(proc.add(5, 100, 20), proc.add(6, 10), ProcessId(7, 77)).held_bytes == 130 * MIB
    assert proc.read().held_bytes == 0


def test_several_large_ones_are_told_apart_from_what_they_share(proc: Proc) -> None:
    members = (proc.add(5, 1000, pss_mib=400), proc.add(6, 1000, pss_mib=350), proc.add(7, 10))
    assert proc.read(*members) == RunMemory(held_bytes=760 * MIB, rough_bytes=2010 * MIB)
    earlier = RunMemory(held_bytes=1, rough_bytes=2000 * MIB)
    assert proc.read(*members, last=earlier) == earlier
    earlier = RunMemory(held_bytes=1, rough_bytes=1000 * MIB)
    assert proc.read(*members, last=earlier).held_bytes == 760 * MIB


def test_page_tables_are_not_walked_without_end(proc: Proc) -> None:
    members = [proc.add(pid, 20_000, pss_mib=10_000) for pid in (5, 6)]
    assert proc.read(*members).held_bytes == 20_000 * MIB


def test_where_the_kernel_does_not_tell_the_largest_counts(proc: Proc) -> None:
    assert proc.read(proc.add(5, 1000, pss_mib=400), proc.add(6, 900)).held_bytes == 1000 * MIB


@pytest.mark.parametrize(
    ("stat", "held"),
    [
        ("anon 2000\nfile 9000000\nshmem 300\n", 2300),
        ("anon 0\nfile 5\n", 130 * MIB),  # the leader never got into it
        (None, 130 * MIB),  # no memory controller there
    ],
)
def test_the_cgroup_counts_without_page_cache(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stat: str | None, held: int
) -> None:
    folder = tmp_path / "group"
    folder.mkdir()
    if stat is not None:
        (folder / "memory.stat").write_text(stat)
    monkeypatch.setattr(runmemory, "open_proven", lambda *_: os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    roots = Roots(str(tmp_path))
    fact = read_run_memory([proc.add(5, 130)], GROUP, "1-a", roots, CLOCK)
    assert isinstance(fact, Known)
    assert fact.value.held_bytes == held


def test_a_cgroup_that_is_not_proven_to_be_the_runs_is_not_read(proc: Proc) -> None:
    roots = Roots(str(proc.folder))
    fact = read_run_memory([proc.add(5, 130)], GROUP, "1-a", roots, CLOCK)
    assert isinstance(fact, Known)
    assert fact.value.held_bytes == 130 * MIB
