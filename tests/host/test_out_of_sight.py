"""What is asked of a job that cannot be seen whole: from another PID namespace, beside a frozen supervisor, with a
ledger that is none, by a user before whom the folders are closed. Nothing of that reads as "nothing is there"."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import WATCHDOG, wait_for
from tests.e2e.test_other_user import needs_root_and_setpriv, prefix
from tests.host.bed import SLEEPER, HostBed, make_bed, strict_json

Answer = subprocess.CompletedProcess[str]
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[HostBed]:
    """A job of level 0 that sleeps."""
    with make_bed(tmp_path / "bed", SLEEPER, level=0) as bed:
        yield bed


def words_of(answer: Answer) -> str:
    return answer.stdout + answer.stderr


# --- another PID namespace ----------------------------------------------------------------------------------
@pytest.fixture
def elsewhere(sleeper: HostBed) -> HostBed:
    """The same job, asked from a PID namespace of its own, as a container's shell does."""
    if shutil.which("unshare") is None or subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    sleeper.prefix = list(ELSEWHERE)
    return sleeper


def test_from_another_pid_namespace_nothing_is_called_free_or_over(elsewhere: HostBed) -> None:
    elsewhere.prefix = []
    supervisor = elsewhere.start()
    run = elsewhere.run_where(lambda _run, _beat: True, "a run")
    elsewhere.prefix = list(ELSEWHERE)
    measured = elsewhere.call("probe", "--device", "cpu", "--no-store")
    assert measured.returncode == 3, measured
    assert "PID namespace" in words_of(measured)
    told = strict_json(elsewhere.call("diagnose", "--no-probe", "--all", "--json").stdout)
    reasons = [each["reason"] for each in told["findings"] if each["check"] == "lock-holder"]
    assert len(reasons) == 2
    assert all("PID namespace" in reason and not reason.startswith("free") for reason in reasons), reasons

    elsewhere.kill_supervisor(supervisor)
    seen = elsewhere.status()
    assert seen["run"]["alive"] is None, seen
    human = elsewhere.call("status").stdout
    assert "over" not in next(line for line in human.splitlines() if line.startswith("run 1")), human
    assert "ask on the host" in human
    told = strict_json(elsewhere.call("diagnose", "--no-probe", "--json").stdout)
    assert told["job"]["severity"] == "unknown", told["job"]
    assert "nothing brings it back" not in told["job"]["reason"]
    assert "PID namespace" in told["job"]["reason"]

    elsewhere.prefix = []  # on the host all of it is plain
    assert elsewhere.status()["run"]["alive"] is True
    os.kill(run.trainer, signal.SIGKILL)
    wait_for(lambda: elsewhere.status()["run"]["alive"] is False, "the end of the run")


# --- a frozen supervisor ------------------------------------------------------------------------------------
@pytest.fixture
def frozen(sleeper: HostBed) -> Iterator[tuple[HostBed, subprocess.Popen[bytes]]]:
    supervisor = sleeper.start()
    run = sleeper.run_where(lambda _run, _beat: True, "a run")
    sleeper.wait_status(state="running", run_alive=True, run_leader_pid=run.trainer)
    os.kill(supervisor.pid, signal.SIGSTOP)
    try:
        yield sleeper, supervisor
    finally:
        if supervisor.poll() is None:
            os.kill(supervisor.pid, signal.SIGCONT)


def test_what_a_frozen_supervisor_was_told_is_not_done_when_it_wakes(
    frozen: tuple[HostBed, subprocess.Popen[bytes]],
) -> None:
    bed, supervisor = frozen
    advice = f"supervisor pid {supervisor.pid} does not answer; it is stopped (state T): kill -CONT {supervisor.pid}"
    for words in (("relaunch",), ("stop",), ("stop", "--now")):
        answer = bed.call(*words)
        assert answer.returncode == 1, answer
        assert advice in answer.stderr
        assert f"the {words[0]} was not carried out and will not be" in answer.stderr
    # One that left at the very last moment, with its line already out.
    raw = b'{"command": "relaunch"}\n'
    gone = subprocess.run(
        [sys.executable, "-c", "import os, socket, sys; s = socket.socket(socket.AF_UNIX); "
         "os.chdir(sys.argv[1]); s.connect('control.sock'); s.sendall(sys.argv[2].encode())",
         str(bed.state), raw.decode()],
    )  # fmt: skip
    assert gone.returncode == 0
    os.kill(supervisor.pid, signal.SIGCONT)
    dropped = bed.wait_event("request_dropped", count=2)
    assert "relaunch" in dropped["sentence"]
    # It answers again, follows what is asked now, and nothing of what was asked before.
    bed.wait_status(state="running")
    until_s = time.monotonic() + 1.0  # several turns of the loop, each of which would have followed a request
    wait_for(lambda: time.monotonic() > until_s, "some turns")
    assert bed.kinds("run_stopping") == []
    assert bed.call("stop", "--now").returncode == 0
    assert bed.ended(supervisor) == 5


def test_a_frozen_supervisor_hides_nothing_that_ledger_and_processes_tell(
    frozen: tuple[HostBed, subprocess.Popen[bytes]],
) -> None:
    bed, supervisor = frozen
    advice = f"supervisor pid {supervisor.pid} does not answer; it is stopped (state T): kill -CONT {supervisor.pid}"
    answer = bed.call("status")
    assert answer.returncode == 0, answer
    assert advice in answer.stdout
    assert "run 1" in answer.stdout
    seen = bed.status()
    assert (seen["supervisor_pid"], seen["silence"], seen["run"]["alive"]) == (supervisor.pid, advice, True)
    job = strict_json(bed.call("diagnose", "--no-probe", "--json").stdout)["job"]
    assert job["severity"] == "warning", job
    assert job["reason"] == advice


# --- a ledger that is none ----------------------------------------------------------------------------------
def test_a_ledger_that_cannot_be_understood_hides_no_hold(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", ["false"], level=0, relaunch={"failures": 1, "backoff": "0.1s"}) as bed:
        waiting = bed.start("--on-hold", "wait")
        bed.wait_status(state="hold")
        ledger = bed.state / "ledger.jsonl"
        whole = ledger.read_bytes()
        ledger.write_bytes(os.urandom(5000))
        # Beside a living supervisor, which remembers.
        assert "the ledger" in bed.call("status").stdout
        assert any(each["check"] == "ledger" for each in bed.status()["findings"])
        job = strict_json(bed.call("diagnose", "--no-probe", "--json").stdout)["job"]
        assert (job["state"], job["severity"]) == ("hold", "critical")
        assert any("cannot be understood" in each for each in job["evidence"]), job
        bed.kill_supervisor(waiting)
        for words in (("status",), ("status", "--json"), ("relaunch",), ("run",)):
            answer = bed.call(*words)
            assert answer.returncode == 2, (words, answer)
            assert f"the ledger {ledger} cannot be understood (byte 0" in answer.stderr
        diagnosis = bed.call("diagnose", "--no-probe", "--json")
        job = strict_json(diagnosis.stdout)["job"]
        assert (job["state"], job["severity"]) == ("unknown", "unknown")
        assert "cannot be understood" in job["reason"]
        assert diagnosis.returncode != 0
        ledger.write_bytes(whole)
        assert bed.status()["state"] == "hold"


# --- closed folders -----------------------------------------------------------------------------------------
NOBODY = 65534


class Closed:
    """A job of root's in a folder that everybody may enter, asked by nobody."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("state", "checkpoints"):
            (root / name).mkdir()
        (root / "watchdog.toml").write_text(
            f'[job]\nname = "bed"\ncommand = ["true"]\nlevel = 0\ncheckpoints = "{root}/checkpoints"\n'
            f'[state]\nfolder = "{root}/state"\n[memory]\nneed = "16MiB"\n[disk]\nneed = 0\n[metrics]\nport = "off"\n'
        )

    def call(self, *words: str) -> Answer:
        line = [*prefix(NOBODY), *WATCHDOG, words[0], "--config", str(self.root / "watchdog.toml"), *words[1:]]
        environment = {"HOME": str(self.root), "PATH": os.environ["PATH"]}
        return subprocess.run(line, env=environment, cwd="/", capture_output=True, text=True, timeout=60)


@pytest.fixture
def closed() -> Iterator[Closed]:
    needs_root_and_setpriv()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Closed(Path(name))


@pytest.mark.parametrize("folder", ["checkpoints", "state"])
def test_a_closed_folder_is_not_an_empty_one(folder: str, closed: Closed) -> None:
    (closed.root / folder).chmod(0o700)
    said = f"cannot be seen by uid {NOBODY}: {closed.root / folder}"
    for words in (("status",), ("status", "--json"), ("relaunch",), ("stop",)):
        answer = closed.call(*words)
        assert answer.returncode == 2, (words, answer)
        assert said in answer.stderr, answer
        assert "Permission denied; ask as its owner or root" in answer.stderr
        assert "belongs to another user" not in answer.stderr
    answer = closed.call("logs")
    assert answer.returncode == 2, answer
    assert (said in answer.stderr) is (folder == "state"), answer
    answer = closed.call("diagnose", "--no-probe", "--json")
    told: dict[str, Any] = strict_json(answer.stdout)
    assert (told["job"]["state"], told["job"]["severity"]) == ("unknown", "unknown"), told["job"]
    assert said in told["job"]["reason"]
    if folder == "checkpoints":  # where a launch leaves its record
        assert "no run was ever launched" not in answer.stdout
    assert answer.returncode != 0


def test_an_open_folder_is_looked_into(closed: Closed) -> None:
    answer = closed.call("status")
    assert (answer.returncode, "never started" in answer.stdout) == (0, True), answer
    assert "for 0.0 s" not in answer.stdout
