"""OOM kills: counters of the host and of a cgroup, and what is new since when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.handclock import HandClock
from watchdog.collectors.oom import OomReader
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Known, OomKills, Unknown

V2 = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
HYBRID = V1 + "31 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


class Host:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.clock = HandClock()
        self.reader = OomReader(Roots(str(base)), self.clock)

    def write(self, path: str, text: str) -> None:
        target = self.base / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def layout(self, mountinfo: str, cgroup: str) -> None:
        self.write("/proc/self/mountinfo", mountinfo)
        self.write("/proc/self/cgroup", cgroup)

    def host_kills(self, count: int) -> None:
        self.write("/proc/vmstat", f"pgmajfault 4\noom_kill {count}\n")

    def v2(self, group: str, kills: int, limit: str = "max") -> None:
        folder = f"/sys/fs/cgroup{group}"
        self.write(f"{folder}/memory.events", f"low 0\nhigh 0\nmax 21\noom 3\noom_kill {kills}\noom_group_kill 0\n")
        self.write(f"{folder}/memory.max", limit + "\n")
        self.write(f"{folder}/memory.current", "1000\n")

    def v1(self, group: str, kills: int, limit: str = "9223372036854771712") -> None:
        folder = f"/sys/fs/cgroup/memory{group}"
        self.write(f"{folder}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        self.write(f"{folder}/memory.limit_in_bytes", limit + "\n")
        self.write(f"{folder}/memory.usage_in_bytes", "1000\n")

    def read(self, after_s: float = 0.0) -> OomKills:
        self.clock.now_s += after_s
        fact = self.reader.read()
        assert isinstance(fact, Known), fact
        return fact.value


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.host_kills(7)
    return host


def test_a_first_look_has_watched_nothing(host: Host) -> None:
    host.layout(V2, "0::/job\n")
    host.v2("/job", 2)
    assert host.read() == OomKills(host=7, cgroup=2, cgroup_path="/job")


def test_what_is_new_is_counted_from_the_first_look(host: Host) -> None:
    host.layout(V2, "0::/job\n")
    host.v2("/job", 2)
    host.read()
    host.host_kills(10)
    host.v2("/job", 4)
    seen = host.read(after_s=30.0)
    assert (seen.since_host, seen.since_cgroup, seen.watched_s) == (3, 2, 30.0)
    assert (host.read(after_s=30.0).since_cgroup, host.read().watched_s) == (2, 60.0)


def test_a_kill_is_told_for_an_hour_and_not_for_ever(host: Host) -> None:
    host.layout(V2, "0::/job\n")
    host.v2("/job", 0)
    host.read()
    host.v2("/job", 1)
    for _ in range(58):
        assert host.read(after_s=60.0).since_cgroup == 1
    for _ in range(5):
        seen = host.read(after_s=60.0)
    assert (seen.since_cgroup, seen.cgroup) == (0, 1)
    assert 3500.0 < seen.watched_s <= 3600.0


def test_v2_counts_at_the_nearest_limit_which_sees_the_groups_beside_ours(host: Host) -> None:
    host.layout(V2, "0::/slice/service/watchdog\n")
    host.v2("/slice/service/watchdog", 0)
    host.v2("/slice/service", 3, limit="5000000")
    host.v2("/slice", 9, limit="9000000")
    assert (host.read().cgroup, host.read().cgroup_path) == (3, "/slice/service")


def test_the_root_of_v2_counts_nothing(host: Host) -> None:
    host.layout(V2, "0::/\n")
    (host.base / "sys/fs/cgroup").mkdir(parents=True)
    assert host.read() == OomKills(host=7, cgroup=None, cgroup_path="")


def test_v1_counts_our_own_group_alone(host: Host) -> None:
    host.layout(V1, "4:memory:/slice/job\n")
    host.v1("/slice/job", 1)
    host.v1("/slice", 5, limit="5000000")
    assert (host.read().cgroup, host.read().cgroup_path) == (1, "/slice/job")


def test_hybrid_counts_in_v1(host: Host) -> None:
    host.layout(HYBRID, "4:memory:/job\n0::/trap\n")
    host.v1("/job", 1)
    host.write("/sys/fs/cgroup/unified/trap/memory.events", "oom_kill 99\n")
    assert (host.read().cgroup, host.read().cgroup_path) == (1, "/job")


def test_a_group_made_anew_counts_from_nothing(host: Host) -> None:
    host.layout(V2, "0::/job\n")
    host.v2("/job", 5)
    host.read()
    host.v2("/job", 6)
    host.read(after_s=1.0)
    host.v2("/job", 0)  # made again under the same name
    assert host.read(after_s=1.0).since_cgroup == 1
    host.v2("/job", 3)
    assert host.read(after_s=1.0).since_cgroup == 4
    host.v2("/job", 2)  # again, and two were killed before we looked
    assert host.read(after_s=1.0).since_cgroup == 6


def test_another_group_is_not_compared_with_the_one_before(host: Host) -> None:
    host.layout(V2, "0::/a\n")
    host.v2("/a", 5)
    host.v2("/b", 50)
    host.read()
    host.layout(V2, "0::/b\n")
    assert host.read(after_s=1.0).since_cgroup == 0
    host.v2("/b", 51)
    assert host.read(after_s=1.0).since_cgroup == 1


def test_without_a_cgroup_the_host_still_counts(host: Host) -> None:
    host.read()
    host.host_kills(8)
    assert host.read(after_s=1.0).since_host == 1


def test_a_kernel_that_counts_nowhere_is_unknown(host: Host) -> None:
    host.write("/proc/vmstat", "pgmajfault 4\n")
    fact = host.reader.read()
    assert isinstance(fact, Unknown)
    assert "4.13" in fact.why
