"""What a finished leader leaves behind, who leaves too early, and a shim that somebody stops."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from bench.campaign_observer import is_living
from tests.host.bed import SLEEPER, HostBed, make_bed, script
from watchdog.collectors.processes import read_process

LEAVES_A_SLEEPER = """
import subprocess, time
subprocess.Popen(["setsid", "/bin/sleep", "1000"], env={})
for step in range(5):
    print("step", step, flush=True)
    time.sleep(0.05)
"""
TOO_EARLY = """
from watchdog import contract
run = contract.join()
for step in range(5):
    run.beat("train", step=step, target_step=100)
"""


def test_who_sleeps_in_the_background_of_a_finished_leader_is_named_and_never_healthy(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", script(tmp_path, LEAVES_A_SLEEPER), level=0) as bed:
        supervisor = bed.start()

        def told() -> dict[str, str] | None:
            verdict: dict[str, str] = bed.status().get("verdict") or {}
            return verdict if " sleep; " in verdict.get("reason", "") else None

        wait_for(lambda: (bed.state / "runs").is_dir() and any((bed.state / "runs").glob("*/exit.json")), "a run")
        verdict = wait_for(told, "the verdict")
        assert verdict["kind"] == "blind"
        assert "its leader has ended with 0; 1 process is left: " in verdict["reason"]
        assert verdict["rule"] == "leader is gone"
        assert not [each for each in bed.kinds("verdict_changed") if each["data"]["verdict"] == "healthy"], bed.tell()
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()


@pytest.mark.parametrize("level", [0, 1])
def test_exit_0_below_the_target_that_its_beats_state_is_a_failure(level: int, tmp_path: Path) -> None:
    command = script(tmp_path, TOO_EARLY)
    with make_bed(tmp_path / "bed", command, level=level, relaunch={"failures": 1}) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["exit_too_early"]
        assert "exit 0 at step 4 of 100, the target it stated" in bed.kinds("hold")[0]["data"]["reason"]


@pytest.mark.parametrize("supervised", [True, False])
def test_a_job_whose_shim_stays_stopped_is_not_called_stopped(supervised: bool, tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, stop={"grace": "1s", "kill_wait": "1s"}) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        if not supervised:
            bed.kill_supervisor(supervisor)
        with kept_stopped(run.shim):
            answer = bed.call("stop")
            assert answer.returncode == 3, answer
            assert "stopped\n" not in answer.stdout, answer
            assert f"kill -CONT {run.shim}" in answer.stderr + answer.stdout, answer
            assert is_living(run.shim, None) is not None


# --- a shim that somebody stops -------------------------------------------------------------------------------------
def test_a_stopped_shim_is_let_go_on_and_the_end_of_its_run_is_heard(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        os.kill(run.shim, signal.SIGSTOP)
        bed.harm(run.trainer)
        bed.run_where(lambda _run, _beat: True, "the next run", after=run.number)
        kinds = [json.loads(line)["event"] for line in (bed.state / "ledger.jsonl").read_bytes().splitlines()]
        assert kinds.index("shim_continuing") < kinds.index("shim_continued") < kinds.index("run_ended")
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["killed"], bed.tell()
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()


@contextlib.contextmanager
def kept_stopped(pid: int) -> Iterator[None]:
    """Whoever lets it go on, it is stopped again."""
    over = threading.Event()

    def stop() -> None:
        while not over.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            over.wait(0.0005)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def held_by_its_shim(bed: HostBed, shim: int) -> str:
    return wait_for(lambda: next((each["data"]["reason"] for each in bed.kinds("hold")), None), f"a hold for {shim}")


def test_a_shim_that_stays_stopped_is_named_by_the_hold_with_the_command(tmp_path: Path) -> None:
    short = {"grace": "1s", "kill_wait": "1s"}
    # Its shim cannot reap before it is stopped again: reaping waits for a child that is not there yet.
    with make_bed(tmp_path / "bed", SLEEPER, level=0, stop=short) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        process = read_process(run.shim)
        assert process is not None
        with kept_stopped(run.shim):
            wait_for(lambda: (read_process(run.shim) or process).state == "T", "a stopped shim")
            bed.harm(run.trainer)
            reason = held_by_its_shim(bed, run.shim)
            assert f"its shim, pid {run.shim}, is stopped (state T): kill -CONT {run.shim}" in reason, bed.tell()
            assert len(bed.kinds("shim_continuing")) == 1
            dry = bed.call("relaunch", "--dry-run")
            assert "would not" in dry.stdout + dry.stderr, dry
            assert f"kill -CONT {run.shim}" in dry.stdout, dry
            assert bed.ended(supervisor) == 3, bed.tell()
            assert is_living(run.shim, None) is not None
