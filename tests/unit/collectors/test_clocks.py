"""Leaps of the clocks, with clocks that a hand moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors.clocks import ClockWatch
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Clocks, Jump, Known

BOOT_ID = "1d9c6f4e-0000-4000-8000-000000000001"


class Machine:
    """Three clocks and what happens to them."""

    def __init__(self, base: Path, *, is_wsl: bool = False) -> None:
        self.now, self.wall_s, self.boot_s = 100.0, 1_700_000_000.0, 130.0
        folder = base / "proc/sys/kernel/random"
        folder.mkdir(parents=True)
        (folder / "boot_id").write_text(BOOT_ID + "\n")
        self.watch = ClockWatch(Roots(str(base)), self, is_wsl=is_wsl, boottime=lambda: self.boot_s)

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.wall_s

    def sleep(self, seconds: float) -> None:
        self.passes(seconds)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.wall_s += seconds
        self.boot_s += seconds

    def look(self) -> Clocks:
        fact = self.watch.look()
        assert isinstance(fact, Known)
        return fact.value


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def wsl(tmp_path: Path) -> Machine:
    return Machine(tmp_path, is_wsl=True)


def test_time_that_passes_is_no_jump(machine: Machine) -> None:
    machine.look()
    machine.passes(3600)
    assert machine.look() == Clocks(boot_id=BOOT_ID, asleep_s=30.0, watched_s=3600.0, jumps=())


def test_a_machine_that_slept(machine: Machine) -> None:
    machine.look()
    machine.passes(10)
    machine.boot_s += 500
    machine.wall_s += 500
    found = machine.look()
    assert found.jumps == (Jump(kind="suspend", at_s=110.0, seconds=500.0),)
    assert found.asleep_s == 530.0
    machine.passes(10)
    assert machine.look().jumps == found.jumps  # told once


@pytest.mark.parametrize("seconds", [6.0, -3600.0, 7200.0])
def test_a_wall_clock_that_was_set(machine: Machine, seconds: float) -> None:
    machine.look()
    machine.passes(10)
    machine.wall_s += seconds
    assert machine.look().jumps == (Jump(kind="step", at_s=110.0, seconds=seconds),)


def test_a_sleep_after_which_the_wall_clock_was_wrong(machine: Machine) -> None:
    machine.look()
    machine.boot_s += 500
    machine.wall_s += 420
    assert [(jump.kind, jump.seconds) for jump in machine.look().jumps] == [("suspend", 500.0), ("step", -80.0)]


def test_slow_slewing_never_adds_up(machine: Machine) -> None:
    for _ in range(10_000):
        machine.look()
        machine.passes(10)
        machine.wall_s += 0.005
    assert machine.look().jumps == ()


@pytest.mark.parametrize(
    ("seconds", "kind"), [(63_297.0, "suspend"), (61.0, "suspend"), (59.0, "step"), (-63_297.0, "step")]
)
def test_on_wsl_only_the_wall_clock_tells_of_sleep(wsl: Machine, seconds: float, kind: str) -> None:
    wsl.look()
    wsl.wall_s += seconds
    assert [(jump.kind, jump.seconds) for jump in wsl.look().jumps] == [(kind, seconds)]


def test_a_freeze_is_told_by_who_was_late(machine: Machine) -> None:
    machine.look()
    machine.passes(40)
    machine.watch.froze(38.0)
    assert machine.look().jumps == (Jump(kind="freeze", at_s=140.0, seconds=38.0),)


def test_the_last_ten_are_kept(machine: Machine) -> None:
    for number in range(15):
        machine.watch.froze(float(number))
    assert [jump.seconds for jump in machine.look().jumps] == [float(number) for number in range(5, 15)]


def test_a_freeze_between_two_clocks_is_no_jump(tmp_path: Path) -> None:
    """Once, 30 s pass between reading the monotonic clock and the wall clock: it is read again."""
    machine = Machine(tmp_path)
    machine.look()
    late = [30.0]

    def wall() -> float:
        if late:
            machine.passes(late.pop())
        return machine.wall_s

    machine.wall = wall  # type: ignore[method-assign]
    assert machine.look().jumps == ()
    assert late == []


def test_the_real_clocks_agree() -> None:
    watch = ClockWatch(Roots(), SystemClock())
    watch.look()
    fact = watch.look()
    assert isinstance(fact, Known)
    assert fact.value.jumps == ()
    assert len(fact.value.boot_id) == 36
    assert fact.value.asleep_s == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic(), abs=1.0)


def test_without_a_boot_id_nothing_is_known(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel/random/boot_id").unlink()
    with pytest.raises(FileNotFoundError):
        machine.look()
