"""The pairs of bench/recovery.py, and that what it counts is told as a miss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from bench import recovery
from watchdog.drills.run import Result


def test_there_are_pairs_enough_and_each_has_a_name_of_its_own() -> None:
    names = [pair.name for pair in recovery.pairs()]
    assert len(set(names)) == len(names)
    able = [pair for pair in recovery.pairs() if not pair.fault.needs]
    assert len(able) >= recovery.LEAST_PAIRS, "also for who is not root"


def test_a_bystander_that_is_harmed_is_told(wait_until: Callable[..., object]) -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        bystanders = recovery.Bystanders(["--data", "lessons.txt"])
        try:
            first = bystanders.start()
            assert bystanders.count == 3
            assert not bystanders.harmed()
            os.kill(first, number)
            wait_until(lambda: bystanders.harmed(), "its harm")  # noqa: B023
            assert bystanders.harmed() == [f"the bystander {first} was harmed"]
        finally:
            bystanders.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="the next process number is root's to choose")
def test_a_number_is_taken_over(wait_until: Callable[..., object]) -> None:
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", "pass"])
    gone.wait()
    bystanders = recovery.Bystanders([])
    try:
        bystanders.take_number(gone.pid, 5.0)
        if not bystanders.recycled:
            pytest.skip("this container does not let the number be chosen")
        assert bystanders.count == 1
        os.kill(gone.pid, signal.SIGKILL)
        wait_until(bystanders.harmed, "its harm")
    finally:
        bystanders.close()


def test_the_figures() -> None:
    good = Result(fault="kill", phase="train", expected="recovered", outcome="recovered", detected_s=0.5)
    bad = Result(
        fault="kill", phase="save", expected="recovered", outcome="recovered", problems=("the weights are {}, …",)
    )
    row = recovery.summary([good, bad], recovery.Tally(harmed=2, double_runs=1))
    assert (row["pairs"], row["as they should"], row["wrong final weights"]) == (2, 1, 1)
    assert (row["bystanders harmed"], row["double runs"]) == (2, 1)
