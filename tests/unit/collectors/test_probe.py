"""The probe as it is run: what becomes of its answer, and of none."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest

from tests.unit.collectors.standin import Standin, answer
from watchdog.clock import SystemClock
from watchdog.collectors.probe import CPU, Measured, ProbeReader, parse, program
from watchdog.core.fact import Absent, Fact, Known, Unknown

CLOCK = SystemClock()
UUID = "GPU-3f1c0a52"


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return Standin(tmp_path).says(answer())


def reader(standin: Standin) -> ProbeReader:
    return ProbeReader(str(standin.path), CLOCK, memory_bytes=2**30)


def measure(standin: Standin, deadline_s: float = 20.0) -> Fact[Measured]:
    return reader(standin).measure(UUID, deadline_s)


def value(fact: Fact[Measured]) -> Measured:
    assert isinstance(fact, Known), fact
    return fact.value


def why(fact: Fact[Measured]) -> str:
    assert isinstance(fact, Unknown), fact
    assert fact.why.isprintable()
    return fact.why


def test_a_right_product(standin: Standin) -> None:
    before_s = CLOCK.monotonic()
    fact = measure(standin)
    assert value(fact) == Measured(
        device=UUID,
        name="a card",
        tflops=25.5,
        dtype="bf16",
        size=8192,
        seconds=0.043,
        correct=True,
        worst_error=0.0021,
        threads=8,
        total_s=3.2,
        torch="2.7.1",
    )
    assert isinstance(fact, Known)
    assert before_s <= fact.at_s <= CLOCK.monotonic()


def test_what_is_run_is_the_program_beside_the_package(standin: Standin, repository: Path) -> None:
    measure(standin, 20.5)
    (asked,) = standin.asked
    assert asked == [
        "-P", str(repository / "bench/matmul.py"), "--device", UUID, "--deadline-s", "20.5",
        "--memory-cap-bytes", str(2**30),
    ]  # fmt: skip
    assert program() == str(repository / "bench/matmul.py")


def test_a_wrong_product_is_measured_and_wrong(standin: Standin) -> None:
    found = value(measure(standin.says(answer(correct=False, worst_error="inf", threads=None), 1)))
    assert not found.correct
    assert found.worst_error == math.inf
    assert found.threads is None


def test_the_program_may_say_why_it_could_not(standin: Standin) -> None:
    said = {"format": 1, "error": "cuda-error", "text": "CUDA error: an illegal memory access was encountered"}
    assert why(measure(standin.says(said, 2))) == said["text"]


def test_without_torch_there_is_nothing_to_measure_with_and_nothing_wrong(standin: Standin) -> None:
    said = {"format": 1, "error": "no-torch", "text": "torch cannot be loaded: No module named 'torch'"}
    found = measure(standin.says(said, 2))
    assert isinstance(found, Absent)
    assert "[probe] python" in found.why


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault",
        "{",
        "[]",
        "3",
        '"error"',
        "{}",
        "[" * 100_000,
        '{"device": "a card"}',
        str(answer()),
    ],
    ids=lambda line: line[:20],
)
def test_garbage_is_no_answer(standin: Standin, line: str) -> None:
    text = why(measure(standin.says(line)))
    assert text.startswith("the probe answered ")
    assert len(text) < 500


@pytest.mark.parametrize(
    "changes",
    [
        {"tflops": None},
        {"tflops": "fast"},
        {"tflops": math.nan},
        {"tflops": math.inf},
        {"tflops": 0.0},
        {"tflops": -3.0},
        {"seconds": 0.0},
        {"seconds": math.nan},
        {"size": math.inf},
        {"size": [8192]},
        {"worst_error": None},
        {"worst_error": "bad"},
        {"threads": "many"},
    ],
    ids=str,
)
def test_a_figure_that_is_none_is_never_a_result(standin: Standin, changes: dict[str, object]) -> None:
    assert "which is no answer" in why(measure(standin.says(answer(**changes))))


@pytest.mark.parametrize("correct", [None, "true", 1])
def test_only_true_is_right(correct: object) -> None:
    assert not value(parse(json.dumps(answer(correct=correct)), device=CPU, at_s=1.0)).correct


def test_a_death_without_an_answer_is_named(standin: Standin) -> None:
    assert "SIGABRT" in why(measure(standin.does("os.kill(os.getpid(), signal.SIGABRT)")))
    assert "ended with code 1, no answer" in why(measure(standin.does("sys.exit(1)")))
    assert "ended with code 3, no answer" in why(measure(standin.says(answer(), 3)))


def test_a_hang_ends_by_the_programs_own_alarm(standin: Standin) -> None:
    began_s = time.monotonic()
    hang = "signal.setitimer(signal.ITIMER_REAL, float(sys.argv[sys.argv.index('--deadline-s') + 1]))\nsignal.pause()"
    assert why(measure(standin.does(hang), 0.4)) == "the probe did not answer within 0.4 s"
    assert time.monotonic() - began_s < 5


def test_one_that_does_not_end_is_left_alone_and_gets_no_second(standin: Standin, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    probe = reader(standin.does(f"open({str(fifo)!r}).read()"))
    try:
        assert "does not end" in why(probe.measure(UUID, 1.5))
        assert "no other is started" in why(probe.measure(UUID, 1.5))
        assert len(standin.asked) == 1
    finally:
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
    standin.says(answer())
    deadline_s = time.monotonic() + 10
    while not isinstance(found := probe.measure(UUID, 5.0), Known):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)
    assert len(standin.asked) == 2


def test_a_python_that_is_not_there_names_the_setting(tmp_path: Path) -> None:
    none = tmp_path / "venv/bin/python"
    fact = ProbeReader(str(none), CLOCK, memory_bytes=2**30).measure(CPU, 5.0)
    assert why(fact) == f"the probe cannot be started: {none}: No such file or directory; see [probe] python"
    none.parent.mkdir(parents=True)
    none.write_text("")
    assert "Permission denied" in why(ProbeReader(str(none), CLOCK, memory_bytes=2**30).measure(CPU, 5.0))


# --- which Python -------------------------------------------------------------------------------------------
def test_a_name_alone_is_looked_up_on_path(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/nonexistent:{standin.path.parent}")
    named = ProbeReader(standin.path.name, CLOCK, memory_bytes=2**30)
    assert value(named.measure(UUID, 20.0)).tflops == 25.5
    monkeypatch.setenv("PATH", "/nonexistent")
    said = why(named.measure(UUID, 20.0))
    assert said == "there is no 'python-with-torch' on PATH (/nonexistent); [probe] python names the one with torch"


def test_a_path_that_is_relative_to_path_is_found_from_the_childs_folder(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(standin.path.parent.parent)
    monkeypatch.setenv("PATH", standin.path.parent.name)
    assert value(ProbeReader(standin.path.name, CLOCK, memory_bytes=2**30).measure(UUID, 20.0)).tflops == 25.5
