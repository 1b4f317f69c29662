"""Starting a run in the order that Invariant 1 demands, with a real shim and a real trainer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import PYTHON, run_record, until
from watchdog import contract
from watchdog.actuators import launch as module
from watchdog.actuators.launch import LaunchOrder, launch, remember_lineage, trainer_environment
from watchdog.actuators.locks import take_run_lock
from watchdog.checkpoints.catalogue import read_lineage
from watchdog.core.runrecord import Expectation, RunRecord
from watchdog.errors import HeldError, StaleError, StateError
from watchdog.folders import JobFolders

SAY = """
import json, os, sys
names = {name: value for name, value in os.environ.items() if name.startswith(("GPUHOST", "NOTIFY", "WATCHDOG", "OWN"))}
print(json.dumps(names), flush=True)
"""


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    folders = JobFolders(state=tmp_path / "s", checkpoints=tmp_path / "c", control=tmp_path / "c" / ".gpuhost-watchdog")
    folders.control.mkdir(parents=True)
    return folders


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        while child.poll() is None:  # its trainer may not even be forked yet
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.05)


def order(folders: JobFolders, *command: str, run_id: str = "1-a", **changes: object) -> LaunchOrder:
    level, expectation = changes.pop("level", 0), changes.pop("expectation", Expectation(fresh=True))
    record = run_record(folders.run(run_id).path, run_id, level=level, expectation=expectation)
    values: dict[str, object] = {
        "directory": folders.checkpoints, "environment": {}, "manifest": None, "beat_deadline_s": 60.0,
    }  # fmt: skip
    return LaunchOrder(record=record, command=command or (*PYTHON, SAY), **(values | changes))  # type: ignore[arg-type]


def test_a_launch_records_starts_and_holds(folders: JobFolders, children: list) -> None:
    child = launch(order(folders, "/bin/sleep", "600"), folders)
    children.append(child)
    assert take_run_lock(folders.run_lock) is None  # from the first instruction on
    record = RunRecord.from_record(json.loads(folders.run_record.read_bytes()))
    assert record.run_id == "1-a"
    assert read_lineage(folders.lineage) == ("1-a",)
    until(lambda: folders.run("1-a").start.exists(), "the start file")
    assert os.stat(folders.run("1-a").log).st_mode & 0o077 == 0


def test_no_second_run_beside_a_living_one(folders: JobFolders, children: list) -> None:
    children.append(launch(order(folders, "/bin/sleep", "600"), folders))
    before = folders.run_record.read_bytes()
    marker = folders.checkpoints / "marker"
    with pytest.raises(HeldError, match=r"run\.lock"):
        launch(order(folders, "/bin/touch", str(marker), run_id="2-b"), folders)
    assert folders.run_record.read_bytes() == before, "the living run's record was written over"
    assert read_lineage(folders.lineage) == ("1-a",)
    assert not marker.exists()


def test_a_trainer_started_by_hand_is_a_run_too(folders: JobFolders) -> None:
    fd = contract.lock_by_hand(folders.checkpoints)
    with pytest.raises(HeldError):
        launch(order(folders), folders)
    os.close(fd)


def test_the_trainer_gets_the_contract_and_nothing_of_our_managers(
    folders: JobFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    monkeypatch.setenv("GPUHOST_WATCHDOG_LOOP_PERIOD", "9")
    monkeypatch.setenv(contract.ENV_RESUME, "require")
    child = launch(order(folders, environment={"OWN": "x"}), folders)
    assert child.wait(20) == 0
    said = json.loads(folders.run("1-a").log.read_bytes())
    assert said.pop("OWN") == "x"
    assert said.pop("NOTIFY_SOCKET") != "/run/systemd/notify"
    assert said.pop("WATCHDOG_USEC") == "60000000"  # the job's own deadline, not the manager's
    assert said == {
        contract.ENV_RUN_ID: "1-a",
        contract.ENV_JOB: "job",
        contract.ENV_BEAT_FILE: str(folders.run("1-a").beat),
        contract.ENV_ACK_FILE: str(folders.run("1-a").acknowledgement),
        contract.ENV_FAILURE_FILE: str(folders.run("1-a").failure),
        contract.ENV_CHECKPOINTS: str(folders.checkpoints),
        contract.ENV_RUN_LOCK: str(folders.run_lock),
        contract.ENV_RUN_RECORD: str(folders.run_record),
    }


@pytest.mark.parametrize(("fresh", "resume"), [(True, "fresh"), (False, "require")])
def test_a_level_2_run_is_told_to_resume_or_to_begin(folders: JobFolders, fresh: bool, resume: str) -> None:
    manifest = None if fresh else Path("/c/step-3.manifest.json")
    expectation = Expectation(fresh=fresh, step=None if fresh else 3, digest=None if fresh else "d" * 64)
    said = trainer_environment({}, order(folders, level=2, expectation=expectation, manifest=manifest), folders)
    assert said[contract.ENV_RESUME] == resume
    assert said.get(contract.ENV_RESUME_MANIFEST) == (None if manifest is None else str(manifest))


@pytest.mark.parametrize("victim", ["directory", "run folder", "run record", "lineage", "log"])
def test_what_cannot_be_recorded_or_entered_is_not_started_and_frees_the_lock(folders: JobFolders, victim: str) -> None:
    marker = folders.checkpoints / "marker"
    changes: dict[str, object] = {}
    match victim:
        case "directory":
            changes["directory"] = folders.checkpoints / "gone"
        case "run folder":
            folders.state.write_text("a file")
        case "run record":
            folders.run_record.mkdir()
        case "lineage":
            folders.lineage.mkdir()
        case "log":
            folders.run("1-a").log.mkdir(parents=True)
    with pytest.raises(StateError):
        launch(order(folders, "/bin/touch", str(marker), **changes), folders)
    assert not marker.exists()
    lock = take_run_lock(folders.run_lock)
    assert lock is not None
    lock.close()


def test_a_choice_that_does_not_stand_under_the_lock_is_not_launched_from(folders: JobFolders) -> None:
    """Whoever held the lock may have saved until we took it."""
    marker = folders.checkpoints / "marker"

    def why_stale() -> str:
        assert subprocess.run(["flock", "--nonblock", "--shared", folders.run_lock, "true"]).returncode == 1, "not held"
        return "step 15 was saved since"

    with pytest.raises(StaleError, match="step 15 was saved since"):
        launch(order(folders, "/bin/touch", str(marker)), folders, why_stale)
    assert not marker.exists()
    assert (folders.run_record.exists(), folders.lineage.exists()) == (False, False)
    lock = take_run_lock(folders.run_lock)
    assert lock is not None
    lock.close()


def test_nothing_leaks_into_the_supervisor(folders: JobFolders) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        child = launch(order(folders, "/bin/true", run_id=f"{number}-a"), folders)
        assert child.wait(20) == 0
        with pytest.raises(StateError):
            launch(order(folders, "/bin/true", directory=folders.checkpoints / "gone", run_id=f"{number}-b"), folders)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_shares_pass_without_a_moment_in_between(
    folders: JobFolders, monkeypatch: pytest.MonkeyPatch, children: list
) -> None:
    """At each step of a launch somebody asks for the lock: it is never free."""
    asked = []

    def ask(real: object) -> object:
        def step(*arguments: object, **named: object) -> object:
            result = real(*arguments, **named)  # type: ignore[operator]
            asked.append(take_run_lock(folders.run_lock))
            return result

        return step

    monkeypatch.setattr(module, "remember_lineage", ask(module.remember_lineage))
    monkeypatch.setattr(module.contract, "write_json_durably", ask(contract.write_json_durably))
    monkeypatch.setattr(module.subprocess, "Popen", ask(subprocess.Popen))
    children.append(launch(order(folders, "/bin/sleep", "600"), folders))
    assert asked == [None, None, None]
    assert take_run_lock(folders.run_lock) is None


def test_a_torn_line_of_the_lineage_swallows_no_run(folders: JobFolders) -> None:
    folders.lineage.write_bytes(b"\n1-a\n\n2-")
    remember_lineage(folders.lineage, "3-c")
    lineage = read_lineage(folders.lineage)
    assert lineage is not None
    assert {"1-a", "3-c"} <= set(lineage)
