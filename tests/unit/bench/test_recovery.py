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


def results(number: int, *, problems: tuple[str, ...] = ()) -> list[Result]:
    one = Result(fault="kill", phase="train", expected="recovered", outcome="recovered", problems=problems)
    return [one] * number


def told(found: list[Result], tally: recovery.Tally, *, whole: bool = True, may_recycle: bool = True) -> list[str]:
    return recovery.misses(found, tally, whole=whole, may_recycle=may_recycle)


def test_only_a_whole_proof_has_nothing_to_tell() -> None:
    enough = results(recovery.LEAST_PAIRS)
    assert told(enough, recovery.Tally(recycled=1)) == []
    assert told(enough, recovery.Tally(), may_recycle=False) == [], "only root chooses a number"
    assert told(results(1), recovery.Tally(), whole=False) == []


@pytest.mark.parametrize(
    ("found", "tally", "words"),
    [
        ([], recovery.Tally(), "not one pair was made"),
        (results(1, problems=("lost",)), recovery.Tally(), "kill/train did not end as it should"),
        (results(1), recovery.Tally(harmed=1), "1 bystanders were harmed"),
        (results(1), recovery.Tally(double_runs=1), "1 double runs were seen"),
        (results(1), recovery.Tally(bad_resumes=1), "1 resumes were bad"),
        (results(1), recovery.Tally(unrecorded_kills=1), "1 kills are on no record"),
    ],
)
def test_nothing_measured_and_every_count_is_told_of_a_part_as_well(
    found: list[Result], tally: recovery.Tally, words: str
) -> None:
    assert told(found, tally, whole=False) == [words]
    assert words in told(found, tally)


def test_too_few_pairs_and_a_number_that_was_never_taken_are_no_proof() -> None:
    assert told(results(recovery.LEAST_PAIRS - 1), recovery.Tally(recycled=1)) == [
        f"{recovery.LEAST_PAIRS - 1} pairs were made, {recovery.LEAST_PAIRS} are the least for a proof"
    ]
    [words] = told(results(recovery.LEAST_PAIRS), recovery.Tally())
    assert words == "no bystander was ever given the number of a trainer that died"


def test_a_pair_that_cannot_be_made_here_is_no_success_when_it_is_all_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(_tally: recovery.Tally) -> Result:
        raise AssertionError("it cannot be made")

    class Elsewhere:
        name, needs = "elsewhere", ()

        def why_not(self) -> str:
            return "no such device here"

    pair = recovery.Pair(fault=Elsewhere(), phase="train", perform=perform)  # type: ignore[arg-type]
    monkeypatch.setattr(recovery, "pairs", lambda: [pair])
    assert recovery.main(["--only", "elsewhere/train"]) == 1
    assert "not one pair was made" in capsys.readouterr().err


def test_a_part_is_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recovery.main(["--only", "kill/train", "--record"])
    assert "only all pairs" in capsys.readouterr().err
