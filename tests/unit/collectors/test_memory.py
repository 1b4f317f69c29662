"""Host memory: parsing, and the tightest cgroup limit in fixture trees of every layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors import memory
from watchdog.collectors.roots import Roots
from watchdog.core.facts import CgroupLimit, Known, Memory

MIB = 1024**2
MEMINFO = "MemTotal:   8388608 kB\nMemFree:   100 kB\nMemAvailable:   6291456 kB\nHugePages_Total:       0\n"
NO_LIMIT_V1 = "9223372036854771712\n"


class Tree:
    """A host made of files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.write("/proc/meminfo", MEMINFO)
        self.mounts: list[str] = ["22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"]

    def write(self, path: str, text: str) -> None:
        target = self.base / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def mount(self, point: str, kind: str, options: str, root: str = "/") -> None:
        self.mounts.append(f"30 22 0:26 {root} {point} rw,nosuid shared:4 - {kind} {kind} {options}")
        (self.base / point.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def read(self, cgroup: str | None) -> Memory:
        if cgroup is not None:
            self.write("/proc/self/cgroup", cgroup)
        self.write("/proc/self/mountinfo", "\n".join(self.mounts) + "\n")
        fact = memory.read_memory(Roots(str(self.base)), SystemClock())
        assert isinstance(fact, Known)
        return fact.value

    def v2(self, folder: str, *, limit: str, usage: int, files: int = 0, high: str | None = None) -> None:
        self.write(f"{folder}/memory.max", limit + "\n")
        self.write(f"{folder}/memory.current", f"{usage}\n")
        half = files // 2
        self.write(f"{folder}/memory.stat", f"anon {usage - files}\ninactive_file {half}\nactive_file {half}\n")
        if high is not None:
            self.write(f"{folder}/memory.high", high + "\n")

    def v1(self, folder: str, *, limit: str, usage: int, files: int = 0) -> None:
        self.write(f"{folder}/memory.limit_in_bytes", limit)
        self.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        # The figures of the group itself are 0: only the total_ lines count its children, as usage does.
        self.write(
            f"{folder}/memory.stat",
            f"inactive_file 0\nactive_file 0\ntotal_inactive_file {files}\ntotal_active_file 0\n",
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_meminfo_is_read_as_bytes() -> None:
    parsed = memory.parse_meminfo(MEMINFO)
    assert parsed["MemAvailable"] == 6 * 1024 * MIB
    assert parsed["HugePages_Total"] == 0


def test_without_cgroups_mem_available_counts(tree: Tree) -> None:
    found = tree.read(None)
    assert (found.available_bytes, found.limit_bytes) == (6 * 1024 * MIB, None)
    assert found.total_bytes == 8 * 1024 * MIB


def test_v2_takes_the_tightest_ancestor_and_counts_file_pages_as_free(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw,nsdelegate")
    tree.v2("/sys/fs/cgroup/user.slice/job", limit="max", usage=900 * MIB)
    tree.v2("/sys/fs/cgroup/user.slice", limit=str(1000 * MIB), usage=1000 * MIB, files=600 * MIB)
    found = tree.read("0::/user.slice/job\n")
    assert found.available_bytes == 600 * MIB  # limit - usage alone would say 0
    assert (found.limit_bytes, found.limit_cgroup) == (1000 * MIB, "/user.slice")
    assert found.host_available_bytes == 6 * 1024 * MIB


def test_every_limit_is_told_our_own_group_first(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw")
    tree.v2("/sys/fs/cgroup/a/b", limit=str(900 * MIB), usage=500 * MIB, files=100 * MIB)
    tree.v2("/sys/fs/cgroup/a", limit=str(600 * MIB), usage=550 * MIB)
    found = tree.read("0::/a/b\n")
    assert found.limits == (
        CgroupLimit(cgroup="/a/b", limit_bytes=900 * MIB, held_bytes=400 * MIB),
        CgroupLimit(cgroup="/a", limit_bytes=600 * MIB, held_bytes=550 * MIB),
    )
    assert (found.available_bytes, found.limit_cgroup) == (50 * MIB, "/a")


def test_v1_tells_every_limit_too(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
    tree.v1("/sys/fs/cgroup/memory/a/b", limit=f"{300 * MIB}\n", usage=250 * MIB, files=200 * MIB)
    tree.v1("/sys/fs/cgroup/memory/a", limit=f"{500 * MIB}\n", usage=100 * MIB, files=150 * MIB)  # never below 0
    tree.v1("/sys/fs/cgroup/memory", limit=NO_LIMIT_V1, usage=7)
    found = tree.read("4:memory:/a/b\n0::/\n")
    assert [(limit.cgroup, limit.held_bytes) for limit in found.limits] == [("/a/b", 50 * MIB), ("/a", 0)]


def test_cache_and_swap_of_the_host(tree: Tree) -> None:
    tree.write(
        "/proc/meminfo",
        MEMINFO + "Buffers: 1024 kB\nCached: 10240 kB\nShmem: 2048 kB\nSReclaimable: 512 kB\n"
        "SwapCached: 7 kB\nSwapTotal: 4096 kB\nSwapFree: 3072 kB\n",
    )
    found = tree.read(None)
    assert found.cached_bytes == (1024 + 10240 + 512 - 2048) * 1024
    assert (found.swap_total_bytes, found.swap_free_bytes) == (4 * MIB, 3 * MIB)


def test_v2_memory_high_is_a_limit_too(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw")
    tree.v2("/sys/fs/cgroup/job", limit=str(4000 * MIB), usage=100 * MIB, high=str(300 * MIB))
    assert tree.read("0::/job\n").available_bytes == 200 * MIB


def test_v1_uses_the_totals_and_knows_its_word_for_no_limit(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup/cpu", "cgroup", "rw,cpu")
    tree.mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
    tree.v1("/sys/fs/cgroup/memory/docker/abc", limit=NO_LIMIT_V1, usage=5)
    tree.v1("/sys/fs/cgroup/memory/docker", limit=f"{500 * MIB}\n", usage=400 * MIB, files=150 * MIB)
    tree.v1("/sys/fs/cgroup/memory", limit=NO_LIMIT_V1, usage=7)
    found = tree.read("4:memory:/docker/abc\n1:cpu:/elsewhere\n")
    assert (found.available_bytes, found.limit_cgroup) == (250 * MIB, "/docker")


def test_hybrid_uses_the_v1_controller_beside_a_v2_mount_without_it(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup/unified", "cgroup2", "rw")
    tree.mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
    tree.v2("/sys/fs/cgroup/unified/trap", limit=str(MIB), usage=MIB)
    tree.v1("/sys/fs/cgroup/memory/real", limit=f"{800 * MIB}\n", usage=300 * MIB)
    found = tree.read("4:memory:/real\n0::/trap\n")
    assert (found.available_bytes, found.limit_cgroup) == (500 * MIB, "/real")


def test_the_mount_may_be_anywhere(tree: Tree) -> None:
    tree.mount("/elsewhere/memo\\040ry", "cgroup", "rw,memory")
    tree.v1("/elsewhere/memo ry/job", limit=f"{64 * MIB}\n", usage=0)
    assert tree.read("4:memory:/job\n").available_bytes == 64 * MIB


def test_a_container_sees_its_own_part_only(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory", root="/docker/abc")
    tree.v1("/sys/fs/cgroup/memory", limit=f"{100 * MIB}\n", usage=10 * MIB)
    tree.v1("/sys/fs/cgroup/memory/inner", limit=f"{200 * MIB}\n", usage=0)
    assert tree.read("4:memory:/docker/abc/inner\n").available_bytes == 90 * MIB


@pytest.mark.parametrize("path", ["/../sibling", "/docker/other"])
def test_a_group_outside_of_the_mount_leaves_the_mount_itself(tree: Tree, path: str) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw", root="/docker/abc" if path == "/docker/other" else "/")
    tree.v2("/sys/fs/cgroup", limit=str(50 * MIB), usage=0)
    assert tree.read(f"0::{path}\n").available_bytes == 50 * MIB


def test_a_limit_above_what_the_host_has_left_does_not_raise_it(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw")
    tree.v2("/sys/fs/cgroup/job", limit=str(10**15), usage=0)
    assert tree.read("0::/job\n").available_bytes == 6 * 1024 * MIB


def test_usage_over_the_limit_leaves_nothing_and_never_less(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw")
    tree.v2("/sys/fs/cgroup/job", limit=str(10 * MIB), usage=11 * MIB)
    assert tree.read("0::/job\n").available_bytes == 0


def test_a_limit_that_cannot_be_read_is_not_taken_for_none(tree: Tree) -> None:
    tree.mount("/sys/fs/cgroup", "cgroup2", "rw")
    (tree.base / "sys/fs/cgroup/job/memory.max").mkdir(parents=True)  # reading it fails, as EACCES would
    with pytest.raises(IsADirectoryError):
        tree.read("0::/job\n")


def test_meminfo_without_mem_available_is_an_error(tree: Tree) -> None:
    tree.write("/proc/meminfo", "MemTotal: 5 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        tree.read(None)


def test_this_host_answers() -> None:
    fact = memory.read_memory(Roots(), SystemClock())
    assert isinstance(fact, Known)
    assert 0 < fact.value.available_bytes <= fact.value.host_available_bytes <= fact.value.total_bytes
