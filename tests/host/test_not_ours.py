"""Processes that are not the run's: nobody's but the run's own are ever killed, and nothing is started beside them.

And the other way round: work that a run's leader left in the background, and jobs of one name in two folders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.campaign_bed import WATCHDOG, wait_for
from bench.campaign_observer import is_living
from tests.host.bed import SLEEPER, HostBed, counter, holding, make_bed, script
from watchdog import contract
from watchdog.collectors.processes import read_process


def killed(bed: HostBed) -> set[int]:
    """Whom the ledger says to have killed."""
    return {pid for event in bed.kinds("run_killing") for pid in event["data"]["pids"]}


def run_lock_of(bed: HostBed) -> Path:
    return bed.checkpoints / contract.CONTROL_FOLDER / contract.RUN_LOCK


# --- a trainer that was started by hand ---------------------------------------------------------------------
def test_a_trainer_started_by_hand_after_everything_was_killed(tmp_path: Path) -> None:
    """Supervisor, shim and trainer are killed, a person trains on by hand: named, left alone, nothing beside it."""
    with make_bed(tmp_path / "bed", SLEEPER, level=0, stop={"kill_wait": "1s"}) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.kill_supervisor(supervisor)
        for pid in (run.shim, run.trainer):
            bed.harm(pid)
        wait_for(lambda: is_living(run.trainer, None) is None, "the end of the run")
        with holding(run_lock_of(bed), exclusive=True) as by_hand:
            assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
            assert by_hand.poll() is None, bed.tell()
            assert by_hand.pid not in killed(bed)
            assert not bed.kinds("signal_sent"), bed.tell()
            assert len(bed.kinds("run_launching")) == 1, bed.tell()
            assert f"pid {by_hand.pid} " in bed.kinds("hold")[0]["data"]["reason"]
        assert bed.call("relaunch").returncode == 0
        second = bed.start()
        bed.run_where(lambda _run, _beat: True, "a run of our own again", after=run.number)
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(second) == 5, bed.tell()


def test_a_new_beginning_beside_a_trainer_that_was_started_by_hand(tmp_path: Path) -> None:
    """Its files are not moved away under it."""
    with counter(tmp_path / "bed", "--steps", "6") as bed:
        assert bed.ended(bed.start()) == 0, bed.tell()
        before = sorted(path.name for path in bed.checkpoints.iterdir())
        with holding(run_lock_of(bed), exclusive=True) as by_hand:
            answer = bed.call("run", "--new")
            assert answer.returncode == 4, answer
            assert f"pid {by_hand.pid}" in answer.stderr
            assert by_hand.poll() is None
        assert sorted(path.name for path in bed.checkpoints.iterdir()) == before
        assert not bed.kinds("archiving", "archived"), bed.tell()
        assert len(bed.kinds("run_launching")) == 1
        assert bed.call("run", "--new").returncode == 0
        assert len(bed.kinds("archived")) == 1


# --- bystanders ---------------------------------------------------------------------------------------------
_BYSTANDER = """
import os, subprocess, sys, time
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
with open(sys.argv[2] + ".new", "w") as file: file.write(str(child.pid))
os.rename(sys.argv[2] + ".new", sys.argv[2])
"""


@pytest.fixture
def strangers() -> object:
    """Pids of processes that a test let loose; ended after it."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if is_living(pid, None) is not None:
            os.kill(pid, signal.SIGKILL)


def test_a_bystander_that_becomes_a_child_of_the_supervisor(tmp_path: Path, strangers: list[int]) -> None:
    """The supervisor was exec'd by a shell with children, and is given their orphans: that proves nothing."""
    flag, told = tmp_path / "flag", tmp_path / "told"
    with make_bed(tmp_path / "bed", SLEEPER, level=0) as bed:
        other = [*script(tmp_path, _BYSTANDER, "bystander.py"), str(flag), str(told)]
        with open(bed.root / "screen.txt", "ab") as screen:
            supervisor = subprocess.Popen(
                ["/bin/bash", "-c", '"${@:1:5}" & exec "${@:6}"', "bash", *other, *bed.command("run")],
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env=bed.environment(),
                cwd="/",
                start_new_session=True,
            )
        bed.supervisors.append(supervisor)
        assert len(other) == 5
        run = bed.run_where(lambda _run, _beat: True, "a run")
        flag.touch()
        wait_for(told.exists, "the bystander's child", timeout_s=10)
        strangers.append(int(told.read_text()))

        def given_to_us() -> bool:
            process = read_process(strangers[0])
            assert process is not None
            return process.ppid == supervisor.pid

        wait_for(given_to_us, "that the kernel gave it to the supervisor", timeout_s=10)
        bed.harm(run.shim)
        bed.run_where(lambda _run, _beat: True, "the next run", after=run.number)
        assert run.trainer in killed(bed), bed.tell()
        assert strangers[0] not in killed(bed), bed.tell()
        assert is_living(strangers[0], None) is not None, "the bystander was killed"
        assert bed.kinds("orphans_unproven"), bed.tell()
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()


# --- work in the background ---------------------------------------------------------------------------------
def background(tmp_path: Path, end: str) -> list[str]:
    """A launcher: its work goes on until a flag is there, and it ends itself at once."""
    work = f"while [ ! -e {tmp_path}/flag ]; do sleep 0.05; done; echo done > {tmp_path}/result"
    return ["/bin/sh", "-c", f"( {work} ) & {end}"]


def test_work_that_a_launcher_left_in_the_background_is_waited_for(tmp_path: Path) -> None:
    """Longer than what is left behind is given; the run ends with the last of it."""
    with make_bed(tmp_path / "bed", background(tmp_path, "exit 0"), level=0) as bed:
        supervisor = bed.start()
        run = wait_for(lambda: (bed.kinds("run_launching") or [None])[0], "a launch")
        start = bed.state / "runs" / run["data"]["run_id"] / "start.json"
        exit_record = start.with_name("exit.json")
        wait_for(lambda: exit_record.exists() and b'"code": 0' in exit_record.read_bytes(), "the launcher's end")
        with pytest.raises(subprocess.TimeoutExpired):
            supervisor.wait(2.8)
        assert not bed.kinds("run_stopping", "run_killing", "run_ended"), bed.tell()
        assert bed.status()["state"] == "running"
        (tmp_path / "flag").touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert (tmp_path / "result").read_text() == "done\n"
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["finished"]
        assert not bed.kinds("run_killing", "signal_sent"), bed.tell()


def test_what_a_launcher_that_failed_left_behind_is_ended(tmp_path: Path) -> None:
    command = background(tmp_path, "exit 7")
    with make_bed(tmp_path / "bed", command, level=0, relaunch={"failures": 1}) as bed:
        assert bed.ended(bed.start()) == 3, bed.tell()
        asked = [event["sentence"] for event in bed.kinds("signal_sent")]
        assert any("TERM to what is left" in sentence for sentence in asked), bed.tell()
        assert not (tmp_path / "result").exists()
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["exited"]


# --- one name, two folders ----------------------------------------------------------------------------------
def run_in(home: Path, folder: Path, *more: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`watchdog run -- python train.py ...` in a folder, without a configuration, to its end."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "GPUHOST_WATCHDOG_METRICS__PORT": "off"}
    environment |= {"GPUHOST_WATCHDOG_MEMORY__NEED": "16MiB", "GPUHOST_WATCHDOG_DISK__NEED": "0"}
    environment |= {"GPUHOST_WATCHDOG_RELAUNCH__FAILURES": "1"}
    command = [*WATCHDOG, "run", "--on-hold", "exit", *options, "--", sys.executable, "train.py", *more]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("code", "left_with"), [(0, 0), (7, 3)], ids=["finished", "held"])
def test_a_program_of_the_same_name_in_another_folder(code: int, left_with: int, tmp_path: Path) -> None:
    """Never "finished before", nor the other one's hold: it is another job, and is told to take a name of its own."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        script(folder, f"open('ran', 'a').write('x')\nraise SystemExit({code})\n", "train.py")
    assert run_in(tmp_path, one).returncode == left_with
    answer = run_in(tmp_path, two)
    assert answer.returncode == 2, answer
    assert "--job" in answer.stderr
    assert str(one) in answer.stderr
    assert not (two / "ran").exists()
    again = run_in(tmp_path, one)
    assert again.returncode == left_with, again
    assert (one / "ran").read_text() == "x"
    assert run_in(tmp_path, two, options=("--job", "other")).returncode == left_with
    assert (two / "ran").read_text() == "x"


def test_a_command_that_differs_only_in_what_is_not_shown(tmp_path: Path) -> None:
    """In a secret, or far behind: the job that is finished is another one."""
    script(tmp_path, "open('ran', 'a').write('x')\n", "train.py")
    first = ("--api-key=abcdefgh1", "y" * 400)
    assert run_in(tmp_path, tmp_path, *first).returncode == 0
    for other in (("--api-key=abcdefgh2", first[1]), (first[0], first[1] + "z")):
        answer = run_in(tmp_path, tmp_path, *other)
        assert answer.returncode == 2, answer
        assert "abcdefgh" not in answer.stderr
    assert run_in(tmp_path, tmp_path, *first).returncode == 0
    assert (tmp_path / "ran").read_text() == "x"
