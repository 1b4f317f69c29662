"""The runner: what hangs or raises becomes a fact, and never a second call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors.runner import Polled, Runner
from watchdog.core.facts import Absent, Fact, Known, Unknown


class HandClock:
    """Time moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_000_000

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Hanging:
    """A collector that answers when it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls = 0

    def __call__(self) -> Fact[int]:
        self.calls += 1
        self.gate.wait(30)
        return Known(self.calls, 0.0)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    collector = Hanging()
    yield collector
    collector.gate.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass within 10 s"
        time.sleep(0.005)


def test_an_answer_is_passed_on_and_counted() -> None:
    runner = Runner(SystemClock())
    assert runner.collect("memory", lambda: Known(5, 1.0), 5.0) == Known(5, 1.0)
    view = runner.views()["memory"]
    assert view.success
    assert view.last_success_wall_s == pytest.approx(time.time(), abs=60)
    assert 0 <= view.duration_s < 5


def test_absent_is_a_success_and_unknown_is_not() -> None:
    runner = Runner(SystemClock())
    runner.collect("driver", lambda: Absent("none"), 5.0)
    runner.collect("disk", lambda: Unknown("no idea"), 5.0)
    assert runner.views()["driver"].success
    assert not runner.views()["disk"].success
    assert runner.views()["disk"].why == "no idea"
    assert runner.views()["disk"].last_success_wall_s is None


@pytest.mark.parametrize(
    ("error", "words"),
    [(PermissionError(13, "Permission denied", "/proc/x"), "memory: /proc/x Permission denied"),
     (ValueError("odd line"), "memory: ValueError: odd line")],
)  # fmt: skip
def test_an_error_is_a_fact_with_its_reason(error: Exception, words: str) -> None:
    def failing() -> Fact[int]:
        raise error

    assert Runner(SystemClock()).collect("memory", failing, 5.0) == Unknown(words)


def test_a_hung_collector_is_reported_and_not_called_again(hanging: Hanging) -> None:
    runner = Runner(SystemClock())
    started = time.monotonic()
    assert isinstance(runner.collect("nvml", hanging, 0.1), Unknown)
    for _ in range(5):
        fact = runner.collect("nvml", hanging, 0.1)
        assert isinstance(fact, Unknown)
        assert "nvml has not answered for" in fact.why
    assert hanging.calls == 1
    assert time.monotonic() - started < 5
    assert not runner.views()["nvml"].success
    assert runner.collect("memory", lambda: Known(1, 0.0), 5.0) == Known(1, 0.0)  # the others go on
    hanging.gate.set()
    until(lambda: isinstance(runner.collect("nvml", hanging, 5.0), Known))


def test_poll_never_waits_and_shows_the_newest_with_its_age(hanging: Hanging) -> None:
    clock = HandClock()
    runner = Runner(clock)

    def poll() -> Polled[int]:
        return runner.poll("nvml", hanging, every_s=5.0, deadline_s=12.0)

    assert poll() == Polled(Unknown("nvml has not been read yet"), None, unread=True)
    hanging.gate.set()
    until(lambda: isinstance(poll().fact, Known))
    assert poll() == Polled(Known(1, 0.0), 100.0)  # at_s of the fact itself counts, not when we heard of it
    assert hanging.calls == 1  # not due yet

    hanging.gate.clear()
    clock.now += 5
    assert poll().fact == Known(1, 0.0)
    until(lambda: hanging.calls == 2)
    clock.now += 12
    assert poll().fact == Known(1, 0.0)  # within its deadline
    clock.now += 1
    assert poll().fact == Unknown("nvml has not answered for 13 s")
    clock.now += 60
    assert poll().fact == Unknown("nvml has not answered for 73 s")
    assert hanging.calls == 2
    view = runner.views()["nvml"]
    assert (view.success, view.duration_s) == (False, 73.0)
    assert view.last_success_wall_s == 1_000_100.0
    hanging.gate.set()
    until(lambda: poll().fact == Known(2, 0.0) or isinstance(poll().fact, Known))
    assert runner.views()["nvml"].success


def test_after_a_gap_old_answers_are_forgotten_and_hung_calls_get_their_time_anew(hanging: Hanging) -> None:
    clock = HandClock()
    runner = Runner(clock)
    runner.collect("memory", lambda: Known(1, clock.monotonic()), 5.0)
    runner.poll("nvml", hanging, every_s=5.0, deadline_s=12.0)
    clock.now += 3600  # the machine slept
    runner.ask_afresh()
    assert runner.poll("nvml", hanging, every_s=5.0, deadline_s=12.0).fact == Unknown("nvml has not been read yet")
    polled = runner.poll("memory", lambda: Known(2, clock.monotonic()), every_s=10_000.0, deadline_s=5.0)
    assert polled.fact != Known(1, 100.0)
    until(
        lambda: runner.poll("memory", lambda: Known(3, 0.0), every_s=10_000.0, deadline_s=5.0).fact == Known(2, 3700.0)
    )
    assert hanging.calls == 1


def test_no_thread_to_be_had_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    fact = Runner(SystemClock()).collect("memory", lambda: Known(1, 0.0), 5.0)
    assert fact == Unknown("memory could not be started: can't start new thread")


def test_collectors_run_beside_each_other() -> None:
    runner = Runner(SystemClock())
    barrier = threading.Barrier(2, timeout=10)

    def meet() -> Fact[int]:
        return Known(barrier.wait(), 0.0)

    runner.start("a", meet)
    runner.start("b", meet)
    assert all(isinstance(runner.wait(name, 10.0), Known) for name in ("a", "b"))
