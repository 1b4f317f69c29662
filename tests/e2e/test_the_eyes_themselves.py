"""The observer and the judge of the other tests: they see what they are there for, or those tests prove nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import campaign_judge as judge
from bench.campaign_bed import Bed, BedError, wait_for
from bench.campaign_observer import Observer
from watchdog import contract


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`member(run_id)`: a process that carries the marks of a run; `escaped=True`: in its command line only."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run_id: str, *, escaped: bool = False) -> subprocess.Popen[bytes]:
        marks = {contract.ENV_RUN_ID: run_id, contract.ENV_CHECKPOINTS: str(tmp_path)}
        words = [f"--of-run={run_id}", f"--of-job={tmp_path}"] if escaped else []
        process = subprocess.Popen(
            [sys.executable, "-c", "print('here', flush=True); input()", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={} if escaped else os.environ | marks,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("escaped", [False, True])
def test_two_runs_at_once_are_seen(escaped: bool, tmp_path: Path, member: Callable[..., Any]) -> None:
    observer = Observer(str(tmp_path))
    first = member("1-a")
    observer.look()
    assert observer.report()["overlaps"] == []
    second = member("2-b", escaped=escaped)
    observer.look()
    assert observer.overlaps[0]["runs"] == {"1-a": [first.pid], "2-b": [second.pid]}


def test_one_after_the_other_is_no_overlap(tmp_path: Path, member: Callable[..., Any]) -> None:
    """A zombie is dead: the second run may begin before the first one is reaped."""
    observer = Observer(str(tmp_path))
    first = member("1-a")
    observer.look()
    first.kill()
    wait_for(lambda: Path(f"/proc/{first.pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"Z", "the zombie")
    member("2-b")
    observer.look()
    assert observer.report()["overlaps"] == []
    assert set(observer.runs) == {"1-a", "2-b"}


def line(kind: str, **data: Any) -> dict[str, Any]:
    return {"event": kind, "wall_s": 10.0, "data": data}


def launch(number: int, step: int | None, digest: str | None) -> dict[str, Any]:
    return line("run_launching", number=number, run_id=f"{number}-a", resume_step=step, digest=digest)


VERIFIED = [line("checkpoint_verified", step=step, digest=f"d{step}") for step in (0, 10)]


def test_a_launch_beside_an_open_run_is_a_problem() -> None:
    assert judge.alternation([launch(1, None, None), launch(2, 0, "d0")])
    assert judge.alternation([launch(1, None, None), *[line("run_ended", run_id="1-a")] * 2])
    assert not judge.alternation([launch(1, None, None), line("run_ended", run_id="1-a"), launch(2, 0, "d0")])


def test_a_wrong_point_of_resume_is_a_problem() -> None:
    assert judge.resumes([*VERIFIED, launch(2, 0, "d0")]), "not the newest"
    assert judge.resumes([*VERIFIED, launch(2, 10, "other")]), "other bytes"
    assert judge.resumes([*VERIFIED, launch(2, None, None)]), "a fresh start"
    refused = line("checkpoint_refused", step=None, manifest="/x/step-00000010.manifest.json", why="")
    assert judge.resumes([*VERIFIED, refused, launch(2, 10, "d10")]), "a refused one"
    assert not judge.resumes([*VERIFIED, refused, launch(2, 0, "d0")])


def test_an_unrecorded_kill_is_a_problem() -> None:
    record = line("run_killing", pids=[7])
    assert judge.kills([record], {7: 9.0}, frozenset()), "recorded afterwards"
    assert judge.kills([record], {8: 11.0}, frozenset()), "somebody else"
    assert not judge.kills([record], {7: 11.0, 8: 11.0}, frozenset({8}))


def test_a_run_that_nobody_saw_is_a_problem() -> None:
    report = {"looks": 50, "overlaps": [], "runs": {}}
    assert judge.observed(report, [line("run_acknowledged", run_id="1-a")])
    assert judge.observed({**report, "looks": 3}, [])


def test_a_torn_line_in_the_middle_of_the_ledger_is_seen(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed()
    bed.state.mkdir(parents=True)
    first, third = (b'{"seq": %d, "wall_s": 1.0, "event": "a", "sentence": "b"}\n' % number for number in (1, 3))
    (bed.state / "ledger.jsonl").write_bytes(first + b'{"seq": 2, "wa\n' + third)
    with pytest.raises(BedError, match="line 2 of the ledger is no record"):
        bed.events()


def test_the_check_for_a_gpu_host_can_say_what_it_would_do(repository: Path) -> None:
    """Its dry form needs no GPU; where there is one it is not touched."""
    done = subprocess.run([repository / "tests/gpu/run", "--dry"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "watchdog probe" in done.stdout or "without --dry" in done.stdout
