"""Drills with real processes: made, seen through, and nothing of them left; nobody else is touched."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog import contract
from watchdog.core.causes import Cause
from watchdog.core.identity import ProcessId
from watchdog.drills.bed import WATCHDOG, Bed, BedError
from watchdog.drills.faults import by_name
from watchdog.drills.run import drill

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(0.1)"]


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the drill's folders are made."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def in_folder(folder: Path) -> list[int]:
    """Living processes whose command line or environment names it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            seen = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder / "gpuhost-watchdog-drill-") in seen:
            found.append(int(name))
    return found


def test_the_command_makes_a_fault_and_tells_it(own_tmp: Path, tmp_path: Path) -> None:
    """The user's own state, configuration and home are as they were; the job's folder is gone."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"HOME": str(home), "GPUHOST_WATCHDOG_MEMORY__NEED": "60TiB"}
    done = subprocess.run(
        [*WATCHDOG, "drill", "kill", "--json"], env=environment, cwd=home, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["drills"]
    assert (found["outcome"], found["detected_as"], found["ok"]) == ("recovered", "killed", True)
    assert 0 <= found["detected_s"] < 5
    assert found["next_step_s"] > 0
    assert found["steps_lost"] >= 0
    assert "1/1  the trainer is killed" in done.stderr
    assert not list(home.iterdir())
    assert not list(own_tmp.iterdir())
    assert not in_folder(own_tmp)


def test_a_drill_that_ends_otherwise_is_told(own_tmp: Path) -> None:
    """The same fault, with another expectation of what it is called."""
    fault = by_name("kill")
    assert fault is not None
    wrong = dataclasses.replace(fault, causes=frozenset({Cause.OOM_KILL}))
    result = drill(wrong, "train")
    assert not result.ok
    assert "called killed, should be oom_kill" in result.problems[0]
    assert not list(own_tmp.iterdir())


def test_an_interrupt_leaves_nothing(own_tmp: Path, wait_until: Callable[..., object]) -> None:
    process = subprocess.Popen(
        [*WATCHDOG, "drill", "kill"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: len(in_folder(own_tmp)) >= 3, "supervisor, shim and trainer", timeout_s=20)
    (runs,) = own_tmp.glob("*/bed/state/bed/runs")
    run_ids = os.listdir(runs)
    assert run_ids
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "interrupted" in said
    assert "Traceback" not in said
    left = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    assert not [name for name in left if any(run_id in name for run_id in run_ids)]
    assert not in_folder(own_tmp)
    assert not list(own_tmp.iterdir())


@pytest.fixture
def bystander() -> Callable[..., ProcessId]:
    return lambda process: ProcessId(process.pid, contract.start_ticks(process.pid))


def test_nobody_else_is_ever_signalled(tmp_path: Path, bystander: Callable[..., ProcessId]) -> None:
    """Not a process with the words of the job's command line, nor one whose number is ours with another start."""
    root = tmp_path / "bed"
    root.mkdir()
    command = [*SLEEPER, str(root / "checkpoints"), f"{root}/shim.py"]
    with Bed(root, SLEEPER, level=0) as bed:
        for words, environment in (
            (command, {}),
            (SLEEPER, {contract.ENV_CHECKPOINTS: str(tmp_path / "other")}),
            (SLEEPER, {contract.ENV_CHECKPOINTS: str(root / "checkpoints") + "2"}),
        ):
            process = subprocess.Popen(words, env=environment, cwd="/")
            try:
                with pytest.raises(BedError, match="is not proven to be of this drill"):
                    bed.strike(bystander(process), signal.SIGKILL)
                assert bystander(process) not in bed.members()
                bed.strike(ProcessId(process.pid, 1), signal.SIGKILL)  # that process is gone
                assert process.poll() is None
            finally:
                process.kill()
                process.wait()
