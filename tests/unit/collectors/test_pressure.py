"""Memory pressure: PSI where the kernel has it, rates of counters where it has not."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

import pytest

from tests.handclock import HandClock
from watchdog.collectors import pressure
from watchdog.collectors.pressure import PressureReader, parse_pressure
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Known, Pressure, Unknown

PSI = "some avg10=12.50 avg60=7.25 avg300=1.02 total=123456789\nfull avg10=3.75 avg60=2.00 avg300=0.40 total=23456789\n"


class Host:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.clock = HandClock(100.0)
        self.reader = PressureReader(Roots(str(base)), self.clock)

    def write(self, path: str, text: str) -> None:
        target = self.base / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def counters(self, faults: int, swapped: int) -> None:
        self.write("/proc/vmstat", f"pgfault 999\npgmajfault {faults}\npswpin {swapped}\npswpout 5\n")

    def read(self) -> Pressure:
        fact = self.reader.read()
        assert isinstance(fact, Known), fact
        return fact.value


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_psi_is_percent_of_time(host: Host) -> None:
    host.write("/proc/pressure/memory", PSI)
    assert host.read() == Pressure(
        from_psi=True,
        some_avg10_percent=12.5,
        some_avg60_percent=7.25,
        full_avg10_percent=3.75,
        full_avg60_percent=2.0,
    )


@pytest.mark.parametrize(
    "text", ["", "some avg10=1 avg60=2\n", "some avg10=x avg60=2\nfull avg10=1 avg60=2\n", "some ?\n"]
)
def test_psi_that_cannot_be_read_is_no_zero(text: str) -> None:
    with pytest.raises(ValueError, match=r"pressure|float|sequence"):
        parse_pressure(text)


def test_without_psi_two_looks_make_a_rate(host: Host) -> None:
    host.counters(1000, 50)
    assert host.read() == Pressure(from_psi=False)  # and the rates None: one look has seen nothing happen
    host.counters(3000, 60)
    host.clock.now_s += 4.0
    assert host.read() == Pressure(from_psi=False, major_faults_per_s=500.0, swapped_in_per_s=2.5)
    host.clock.now_s += 1.0
    assert host.read() == Pressure(from_psi=False, major_faults_per_s=0.0, swapped_in_per_s=0.0)


def test_without_psi_a_counter_of_nothing_needs_no_second_look(host: Host) -> None:
    host.counters(1000, 0)
    assert host.read() == Pressure(from_psi=False, swapped_in_per_s=0.0)


def test_psi_that_is_switched_off_fails_at_the_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kernels with psi=0 do it, WSL's among them: the file is there."""

    def refuse(path: str, **how: str) -> IO[str]:
        if path.endswith("/pressure/memory"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)
        return open(path, **how)

    monkeypatch.setattr(pressure, "open", refuse, raising=False)
    host.write("/proc/pressure/memory", PSI)
    host.counters(1, 1)
    assert host.read() == Pressure(from_psi=False)


def test_two_looks_at_one_moment_make_none(host: Host) -> None:
    host.counters(1000, 50)
    host.read()
    host.counters(2000, 60)
    assert host.read().major_faults_per_s is None


def test_neither_of_them_is_unknown(host: Host) -> None:
    fact = host.reader.read()
    assert isinstance(fact, Unknown)
    assert "vmstat" in fact.why
    assert "pressure" in fact.why
    host.write("/proc/vmstat", "nr_free_pages 7\n")
    assert isinstance(host.reader.read(), Unknown)


def test_a_pressure_file_that_fails_is_not_taken_for_none(host: Host) -> None:
    (host.base / "proc/pressure/memory").mkdir(parents=True)  # reading it fails in a way no kernel without PSI does
    host.counters(1, 1)
    with pytest.raises(IsADirectoryError):
        host.reader.read()
