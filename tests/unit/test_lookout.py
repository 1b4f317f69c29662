"""All eyes together: only what is wanted, nothing that hangs makes the loop wait, and what is not read yet says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes.nvml.standin import Scenario, build, environment
from tests.handclock import HandClock
from watchdog.collectors.processes import read_process
from watchdog.collectors.roots import Roots
from watchdog.core.fact import Absent, Known, Unknown
from watchdog.lookout import NOT_ASKED, Lookout, OfRun, Targets

NO_RUN = OfRun(beat=Absent("no run"), progress=Absent("no run"))
EMPTY: Mapping[str, str] = {}


class Bench:
    """Lookouts over one host, closed when the test is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = HandClock()
        self.made: list[Lookout] = []
        self.targets = Targets(
            disks=[(str(folder), "state"), (str(folder), "checkpoints")],
            locks=[(str(folder / "s.lock"), "supervisor"), (str(folder / "r.lock"), "run")],
        )

    def lookout(
        self,
        *,
        only: frozenset[str] | None = None,
        roots: Roots | None = None,
        environ: Mapping[str, str] = EMPTY,
        uses_gpu: bool = True,
    ) -> Lookout:
        lookout = Lookout(
            self.targets, roots=roots or Roots(), clock=self.clock, environ=environ, only=only, uses_gpu=uses_gpu
        )
        self.made.append(lookout)
        return lookout


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for lookout in made.made:
        lookout.close()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Roots]:
    """A host of which /proc/meminfo never answers: a FIFO that nobody writes to. The rest is real."""
    proc = tmp_path / "host/proc"
    proc.mkdir(parents=True)
    for name in os.listdir("/proc"):
        if name != "meminfo":
            (proc / name).symlink_to(f"/proc/{name}")
    os.mkfifo(proc / "meminfo")
    yield Roots(str(tmp_path / "host"))
    os.close(os.open(proc / "meminfo", os.O_RDWR | os.O_NONBLOCK))


def all_read(bench: Bench, lookout: Lookout, wait_until: Callable[..., object]) -> None:
    def look() -> bool:
        bench.clock.now_s += 0.01
        lookout.poll(NO_RUN)
        return not lookout.unread()

    wait_until(look, "the first answers")


# --- what is asked ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("only", "started"),
    [
        (frozenset({"memory"}), {"memory"}),
        (frozenset({"oom", "kernel"}), {"oom", "kernel"}),
        (frozenset({"disks"}), {"disk_state", "disk_checkpoints"}),
        (frozenset({"locks"}), {"locks"}),
        (frozenset({"driver"}), set()),
        (frozenset({"clocks", "beat", "progress", "probe"}), set()),
        (frozenset(), set()),
    ],
    ids=lambda value: "-".join(sorted(value)) or "none",
)
def test_only_what_is_wanted_is_started(bench: Bench, only: frozenset[str], started: set[str]) -> None:
    lookout = bench.lookout(only=only)
    facts = lookout.gather(NO_RUN, 10.0)
    assert set(lookout.views()) - {"disk_windows"} == started
    for name in ("memory", "pressure", "oom", "processes", "kernel", "wsl", "clocks", "devices"):
        asked = name in only or (name == "devices" and "driver" in only)
        assert (getattr(facts, name) == NOT_ASKED) is not asked, name
    assert bool(facts.disks) is ("disks" in only)
    assert len(facts.locks) == (2 if "locks" in only else 0)


def test_without_a_choice_everything_is_asked(bench: Bench) -> None:
    lookout = bench.lookout()
    facts = lookout.gather(NO_RUN, 10.0)
    assert {
        "memory", "pressure", "oom", "kernel", "wsl", "processes",
        "disk_state", "disk_checkpoints", "locks",
    } <= set(lookout.views())  # fmt: skip
    assert isinstance(facts.memory, Known)
    assert lookout.views()["memory"].success
    assert all(isinstance(disk, Known) for disk in facts.disks[:2])
    assert facts.beat == facts.progress == Absent("no run")
    assert facts.probe == Absent("not measured")


@pytest.mark.parametrize("field", ["disks", "locks"])
def test_a_purpose_is_given_once(field: str) -> None:
    with pytest.raises(ValueError, match="a purpose is given twice: state, run, state"):
        Targets(**{field: [("/a", "state"), ("/b", "run"), ("/c", "state")]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("only", "uses_gpu", "is_asked"),
    [("memory", True, False), ("devices", True, True), ("driver", True, True), ("devices", False, False)],
)
def test_no_child_is_started_for_a_driver_that_nobody_asks_for(
    bench: Bench, tmp_path: Path, only: str, uses_gpu: bool, is_asked: bool
) -> None:
    scenario = Scenario(tmp_path / "scenario", "[device]\n")
    (tmp_path / "host/dev").mkdir(parents=True)
    (tmp_path / "host/dev/nvidiactl").touch()
    (tmp_path / "host/proc").symlink_to("/proc")
    environ = os.environ | environment(build(tmp_path), scenario.path)
    lookout = bench.lookout(
        only=frozenset({only}), roots=Roots(str(tmp_path / "host")), environ=environ, uses_gpu=uses_gpu
    )
    lookout.poll(NO_RUN)
    assert (lookout._devices.pid is not None) is is_asked
    facts = lookout.gather(NO_RUN, 20.0)
    assert (lookout._devices.pid is not None) is is_asked
    assert isinstance(facts.devices, Known) is is_asked, facts.devices


# --- the loop -----------------------------------------------------------------------------------------------
def test_what_was_not_read_yet_says_so_by_name(bench: Bench, wait_until: Callable[..., object]) -> None:
    lookout = bench.lookout(only=frozenset({"memory", "disks", "locks"}))
    assert not lookout.unread(), "nothing was asked for yet"
    facts = lookout.poll(NO_RUN)
    assert facts.memory == Unknown("memory has not been read yet")
    assert lookout.unread()
    assert lookout.unread("disk", "driver")
    assert lookout.unread("locks")
    assert [type(lock) for lock in facts.locks] == [Unknown, Unknown]
    assert not lookout.unread("driver", "processes")
    all_read(bench, lookout, wait_until)
    assert isinstance(lookout.poll(NO_RUN).memory, Known)
    assert not lookout.unread("memory", "disk", "locks")


def test_what_is_known_is_not_asked_again_before_it_is_due(bench: Bench, wait_until: Callable[..., object]) -> None:
    lookout = bench.lookout(only=frozenset({"memory"}))
    all_read(bench, lookout, wait_until)
    first = lookout.poll(NO_RUN).memory
    assert lookout.poll(NO_RUN).memory is first

    def newer() -> bool:
        bench.clock.now_s += 1.0
        return lookout.poll(NO_RUN).memory is not first

    wait_until(newer, "the next look")


def test_a_collector_that_hangs_delays_nobody(bench: Bench, hanging: Roots, wait_until: Callable[..., object]) -> None:
    lookout = bench.lookout(only=frozenset({"memory", "disks", "pressure"}), roots=hanging)

    def others() -> bool:
        facts = lookout.poll(NO_RUN)
        return all(isinstance(disk, Known) for disk in facts.disks) and not lookout.unread("pressure")

    wait_until(others, "everybody else's answers")
    assert lookout.unread("memory")
    took_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        lookout.poll(NO_RUN)
        took_s.append(time.perf_counter() - began_s)
    assert sorted(took_s)[10] < 0.05, took_s
    bench.clock.now_s += 10.5
    facts = lookout.poll(NO_RUN)
    assert isinstance(facts.memory, Unknown)
    assert "memory has not answered for 1" in facts.memory.why
    assert not lookout.unread("memory"), "that it hangs is an answer"
    view = lookout.views()["memory"]
    assert (view.success, view.last_success_wall_s) == (False, None)
    assert view.duration_s > 10


def test_one_look_waits_no_longer_than_it_is_told(bench: Bench, hanging: Roots) -> None:
    lookout = bench.lookout(only=frozenset({"memory", "disks"}), roots=hanging)
    began_s = time.perf_counter()
    facts = lookout.gather(NO_RUN, 0.2)
    assert time.perf_counter() - began_s < 5
    assert isinstance(facts.memory, Unknown)
    assert all(isinstance(disk, Known) for disk in facts.disks)


def test_of_a_new_run_the_processes_are_looked_at_at_once(bench: Bench, wait_until: Callable[..., object]) -> None:
    """Else its ranks would look foreign until the next look, ten seconds later."""
    lookout = bench.lookout(only=frozenset({"processes"}))
    all_read(bench, lookout, wait_until)

    def run() -> list[int]:
        fact = lookout.poll(NO_RUN).processes
        return [process.pid for process in fact.value.run] if isinstance(fact, Known) else []

    me = read_process(os.getpid())
    assert me is not None
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as rank:
        assert run() == []
        lookout.root = me.id
        wait_until(lambda: rank.pid in run(), "the new run's processes")  # the clock stands still
        rank.communicate(b"\n")


def test_after_a_gap_nothing_old_is_believed(bench: Bench, wait_until: Callable[..., object]) -> None:
    lookout = bench.lookout(only=frozenset({"memory", "clocks"}))
    all_read(bench, lookout, wait_until)
    bench.clock.now_s += 30.0
    lookout.ask_afresh(30.0)
    facts = lookout.poll(NO_RUN)
    assert facts.memory == Unknown("memory has not been read yet")
    assert lookout.unread("memory")
    assert isinstance(facts.clocks, Known)
    assert [(jump.kind, jump.seconds) for jump in facts.clocks.value.jumps] == [("freeze", 30.0)]
    all_read(bench, lookout, wait_until)
    assert isinstance(lookout.poll(NO_RUN).memory, Known)
