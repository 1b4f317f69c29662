"""What is chosen to launch from is as new as the launch: a person trains by hand while the supervisor waits for it.

Their trainer holds the run lock and saves; real supervisor, real files. Also the last line of defence, asked for while
nobody else can hold the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import CLOCK, SLEEPER, HostBed, make_bed
from tests.host.test_learned_memory import _TOLD
from watchdog.collectors.processes import this_host
from watchdog.contract import CONTROL_FOLDER
from watchdog.drills.job import write_data
from watchdog.folders import JobFolders
from watchdog.opening import open_ledger

STEPS = "60"
BY_HAND = """
import json, sys
from pathlib import Path
from watchdog import contract
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
keep = contract.lock_by_hand(folder)
print("held", flush=True)
sys.stdin.readline()
for step in (0, 5, 10, 15):
    content = json.dumps({"step": step, "value": 0.5, "chain": "by hand"}).encode().ljust(16384)
    name = f"step-{step:08d}"
    written = contract.write_durably(folder / f"{name}.json", lambda file: file.write(content))
    manifest = contract.Manifest(step=step, files=(written,), target_step=60, run_id=None)
    contract.write_json_durably(folder / f"{name}{contract.MANIFEST_SUFFIX}", manifest.to_record())
print("saved", flush=True)
sys.stdin.readline()
"""


class ByHand:
    """A trainer that a person started: it holds the run lock, saves four steps when told to, and ends when told to."""

    def __init__(self, bed: HostBed) -> None:
        arguments = [sys.executable, "-P", "-c", BY_HAND, str(bed.checkpoints)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hears("held")

    def hears(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def says(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def save(self) -> None:
        self.says()
        self.hears("saved")

    def end(self) -> None:
        self.says()
        assert self.process.wait(10) == 0


@contextlib.contextmanager
def by_hand(bed: HostBed) -> Iterator[ByHand]:
    person = ByHand(bed)
    try:
        yield person
    finally:
        person.process.kill()
        person.process.wait(10)
        for pipe in (person.process.stdin, person.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    data = tmp_path / "data.gz"
    write_data(data, int(STEPS))
    words = ("--data", str(data), "--steps", STEPS, "--pause", "0.02", "--delay", "0.05")
    return [sys.executable, "-P", "-m", "watchdog.drills.job", *words]


def event(bed: HostBed, kind: str) -> dict[str, Any]:
    wait_for(lambda: bed.kinds(kind), kind, timeout_s=40)
    data: dict[str, Any] = bed.kinds(kind)[0]["data"]
    return data


def assert_gone_on_from_15(bed: HostBed) -> None:
    assert event(bed, "run_launching")["resume_step"] == 15, bed.tell()
    assert event(bed, "run_acknowledged")["step"] == 15, bed.tell()
    kept = json.loads((bed.checkpoints / "step-00000000.json").read_bytes())
    assert kept["chain"] == "by hand", "what a person had trained was overwritten"


def test_a_first_start_that_waited_for_a_trainer_by_hand_goes_on_from_what_it_saved(
    job: list[str], tmp_path: Path
) -> None:
    """It saves while the launch pauses after the lock was found held, and ends then."""
    with make_bed(tmp_path / "bed", job, relaunch={"gate_wait": "60s"}) as bed, by_hand(bed) as person:
        bed.start()
        event(bed, "launch_troubled")
        person.save()
        person.end()
        assert_gone_on_from_15(bed)


def test_a_trainer_by_hand_behind_a_closed_gate_is_gone_on_from(job: list[str], tmp_path: Path) -> None:
    told = tmp_path / "told"

    def host_has(available: int) -> None:
        new = told.with_suffix(".new")
        new.write_text(json.dumps([available, 16 * 2**30]))
        os.replace(new, told)

    host_has(2**20)
    with make_bed(tmp_path / "bed", job, relaunch={"gate_wait": "60s"}) as bed:
        arguments = [sys.executable, "-P", "-c", _TOLD, str(told), "run", "--config", str(bed.config)]
        with open(bed.root / "screen.txt", "ab") as screen:
            supervisor = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env=bed.environment(),
                cwd="/",
                start_new_session=True,
            )
        bed.supervisors.append(supervisor)
        wait_for(lambda: "gate      closed: memory" in bed.screen, "a closed gate", timeout_s=20)
        with by_hand(bed) as person:
            person.save()
            person.end()
        host_has(8 * 2**30)
        assert_gone_on_from_15(bed)


def test_a_hold_over_a_suspect_is_lifted_by_nobody_but_who_asks_now(tmp_path: Path) -> None:
    """A relaunch that was asked before the hold was answered by it; the next supervisor asks for nothing."""
    limits = {"stop": {"grace": "1s", "kill_wait": "2s"}, "relaunch": {"failures": 5}}
    with make_bed(tmp_path / "bed", SLEEPER, level=0, **limits) as bed:
        first = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        suspect = subprocess.Popen(["/bin/sleep", "300"], env={}, start_new_session=True)
        try:
            bed.kill_supervisor(first)
            assert bed.call("relaunch").returncode == 0
            for pid in (run.shim, run.trainer):
                bed.harm(pid)
            assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
            folders = JobFolders(state=bed.state, checkpoints=bed.checkpoints, control=bed.checkpoints / CONTROL_FOLDER)
            with contextlib.closing(open_ledger(folders, CLOCK, this_host())) as ledger:  # as `relaunch --from` left it
                ledger.record("branched", "", step=0, digest="d" * 64, by="a person", why="before the hold")
            assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
            assert str(suspect.pid) in bed.kinds("hold")[0]["data"]["reason"]
            assert not bed.kinds("lifted"), bed.tell()
            assert len(bed.kinds("run_launching")) == 1, bed.tell()
        finally:
            suspect.kill()
            suspect.wait(10)
