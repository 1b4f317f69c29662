"""What could be given back, in fixture trees of every layout of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.collectors.test_memory import NO_LIMIT_V1, Tree
from watchdog.collectors.reclaimable import HELPER, read_layout
from watchdog.collectors.roots import Roots
from watchdog.core.reclaiming import Layout

MIB = 1024**2
MEMINFO = "MemTotal: 8388608 kB\nMemFree: 1024000 kB\nMemAvailable: 6291456 kB\nBuffers: 1024 kB\nCached: 10240 kB\n"


class Host(Tree):
    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.write("/proc/meminfo", MEMINFO)

    def switches(self) -> None:
        self.write("/proc/sys/vm/drop_caches", "")
        self.write("/proc/sys/vm/compact_memory", "")

    def layout(self, cgroup: str | None = None) -> Layout:
        if cgroup is not None:
            self.write("/proc/self/cgroup", cgroup)
        self.write("/proc/self/mountinfo", "\n".join(self.mounts) + "\n")
        return read_layout(Roots(str(self.base)))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_cgroups_the_host_alone(host: Host) -> None:
    host.switches()
    found = host.layout()
    assert (found.version, found.groups, found.wsl) == (None, (), False)
    assert (found.host_free_bytes, found.available_bytes) == (1000 * MIB, 6144 * MIB)
    assert found.cached_bytes == 11 * MIB
    assert found.drop_caches is not None
    assert found.drop_caches.path == str(host.base / "proc/sys/vm/drop_caches")


def test_v2_has_our_group_and_those_above_it_and_no_other(host: Host) -> None:
    host.mount("/sys/fs/cgroup", "cgroup2", "rw")
    host.v2("/sys/fs/cgroup/a/b", limit=str(900 * MIB), usage=500 * MIB, files=100 * MIB)
    host.v2("/sys/fs/cgroup/a", limit="max", usage=550 * MIB)
    host.v2("/sys/fs/cgroup/a/neighbour", limit="max", usage=50 * MIB, files=50 * MIB)
    stat = f"inactive_file {60 * MIB}\nactive_file {40 * MIB}\nslab_reclaimable {7 * MIB}\nanon 5\n"
    host.write("/sys/fs/cgroup/a/b/memory.stat", stat)
    for path in ("", "/a", "/a/b", "/a/neighbour"):
        host.write(f"/sys/fs/cgroup{path}/memory.reclaim", "")
    host.write("/sys/fs/cgroup/memory.stat", f"inactive_file {MIB}\nactive_file 0\n")
    found = host.layout("0::/a/b\n")
    assert [group.path for group in found.groups] == ["/a/b", "/a", "/"]
    own, _, root = found.groups
    assert (own.limit_bytes, own.file_bytes, own.kernel_bytes) == (900 * MIB, 100 * MIB, 7 * MIB)
    assert own.control == str(host.base / "sys/fs/cgroup/a/b/memory.reclaim")
    assert (root.usage_bytes, root.limit_bytes) == (MIB, None)
    assert found.available_bytes == 500 * MIB
    assert found.free_bytes == 400 * MIB


def test_an_older_kernel_has_no_such_file(host: Host) -> None:
    host.mount("/sys/fs/cgroup", "cgroup2", "rw")
    host.v2("/sys/fs/cgroup/a", limit=str(900 * MIB), usage=500 * MIB, files=100 * MIB)
    (own,) = host.layout("0::/a\n").groups
    assert (own.control, own.writable) == ("", False)


def test_v1_and_what_would_swap(host: Host) -> None:
    host.mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
    for path in ("/a/b", "/a", ""):
        host.v1(f"/sys/fs/cgroup/memory{path}", limit=NO_LIMIT_V1, usage=70 * MIB, files=50 * MIB)
        host.write(f"/sys/fs/cgroup/memory{path}/memory.force_empty", "")
        host.write(f"/sys/fs/cgroup/memory{path}/memory.kmem.usage_in_bytes", f"{3 * MIB}\n")
        host.write(f"/sys/fs/cgroup/memory{path}/memory.swappiness", "0\n" if path == "/a" else "60\n")
    found = host.layout("4:memory:/a/b\n0::/\n")
    assert found.version == 1
    assert [(group.path, group.file_bytes, group.kernel_bytes) for group in found.groups] == [
        ("/a/b", 50 * MIB, 3 * MIB),
        ("/a", 50 * MIB, 3 * MIB),
        ("/", 50 * MIB, 3 * MIB),
    ]
    assert [group.swaps for group in found.groups] == [False, False, False], "there is no swap at all"
    host.write("/proc/meminfo", MEMINFO + "SwapTotal: 4096 kB\n")
    assert [group.swaps for group in host.layout().groups] == [True, False, True]


def test_hybrid_asks_v1_and_not_the_v2_mount_beside_it(host: Host) -> None:
    host.mount("/sys/fs/cgroup/unified", "cgroup2", "rw")
    host.mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
    host.write("/sys/fs/cgroup/unified/trap/memory.reclaim", "")
    host.v1("/sys/fs/cgroup/memory/real", limit=f"{800 * MIB}\n", usage=300 * MIB)
    host.write("/sys/fs/cgroup/memory/real/memory.force_empty", "")
    found = host.layout("4:memory:/real\n0::/trap\n")
    assert [group.control for group in found.groups] == [
        str(host.base / "sys/fs/cgroup/memory/real/memory.force_empty")
    ]


def test_wsl_is_told_by_its_kernel(host: Host) -> None:
    host.write("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    assert host.layout().wsl


def test_the_helper_of_a_person_stands_for_the_right_to_write(host: Host) -> None:
    host.switches()
    for name in ("drop_caches", "compact_memory"):
        os.chmod(host.base / "proc/sys/vm" / name, 0o400)
    found = host.layout()
    assert found.drop_caches is not None
    if os.geteuid() != 0:
        assert not found.drop_caches.writable
    host.write(HELPER, "#!/bin/sh\n")
    found = host.layout()
    assert found.drop_caches is not None
    assert found.drop_caches.writable


def test_meminfo_without_its_figures_is_an_error(host: Host) -> None:
    host.write("/proc/meminfo", "MemTotal: 5 kB\nMemAvailable: 3 kB\n")
    with pytest.raises(ValueError, match="MemFree"):
        host.layout()


def test_this_host_answers() -> None:
    found = read_layout(Roots())
    assert found.host_free_bytes > 0
    assert found.available_bytes <= found.host_available_bytes
