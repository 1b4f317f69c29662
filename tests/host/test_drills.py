"""Drills with real processes: made, seen through, and nothing of them left; nobody else is touched."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog import contract
from watchdog.core.causes import Cause
from watchdog.core.identity import ProcessId
from watchdog.drills import report
from watchdog.drills.bed import WATCHDOG, Bed, BedError, wait_for
from watchdog.drills.faults import by_name
from watchdog.drills.interrupts import Interrupted, held_off
from watchdog.drills.places import LockHolder, PlaceError, Stranger, why_no_number, why_no_read_only
from watchdog.drills.run import drill
from watchdog.drills.trainers import Quick

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


def test_the_bundled_trainer_is_harmed_when_it_is_asked_for(own_tmp: Path) -> None:
    """A real torch: its tensors are those of a run that nothing disturbed."""
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    done = subprocess.run(
        [*WATCHDOG, "drill", "kill", "--trainer", "bundled", "--json"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["trainer"] == "bundled"
    assert told["counts"] == {"recovered": 1, "held": 0, "unharmed": 0, "failed": 0, "skipped": 0}
    assert "1 drill, about" in done.stderr
    assert not list(own_tmp.iterdir())


@pytest.mark.parametrize("name", ["pid-reused", "metrics-port", "supervisor-launching", "exit-early"])
def test_faults_with_much_around_them_end_as_they_should(name: str, own_tmp: Path) -> None:
    fault = by_name(name)
    assert fault is not None
    if why := fault.why_not():
        pytest.skip(why)
    result = drill(fault, "train")
    if result.not_made:
        pytest.skip(result.not_made)
    assert result.ok, result.problems
    assert not list(own_tmp.iterdir())


def test_a_stranger_that_is_harmed_is_told(wait_until: Callable[..., object]) -> None:
    if why := why_no_number():
        pytest.skip(why)
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", "pass"])
    gone.wait()
    with contextlib.ExitStack() as cleanup:
        try:
            stranger = Stranger(gone.pid, ["--data", "lessons.gz"], cleanup)
        except PlaceError as error:
            pytest.skip(str(error))
        assert not stranger.harm()
        os.kill(gone.pid, signal.SIGKILL)
        wait_until(stranger.harm, "its harm")
        assert "was ended (-9) for having the number of a trainer" in stranger.harm()[0]


def test_what_could_not_be_made_after_all_is_no_failure_of_the_watchdog(
    own_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing made is not called well."""

    def refuse(_ring: object) -> None:
        raise PlaceError("the host said no")

    fault = by_name("kill")
    assert fault is not None
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the test's own process stay as they are
    code = report.perform([(dataclasses.replace(fault, make=refuse), "train")], Quick(), as_json=False, say=print)
    assert code == 1
    told = capsys.readouterr().out
    assert "0 NOT as they should" in told
    assert "1 not made here  kill: the host said no" in told
    assert not list(own_tmp.iterdir())


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
    assert said.rstrip().endswith("everything of this drill is ended and removed")
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


# --- interrupts ---------------------------------------------------------------------------------------------
def interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def make(made: list[str]) -> None:
    with held_off():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        made.append("made")


def test_an_interrupt_while_something_is_made_comes_after_it_was_written_down() -> None:
    """And one that is ignored stays so."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    made: list[str] = []
    try:
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with pytest.raises(KeyboardInterrupt):
            make(made)
        assert made
        assert signal.getsignal(signal.SIGINT) is interrupted
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


HOLDING = """
import contextlib, os, sys
from pathlib import Path
from watchdog.drills.places import LockHolder
cleanup = contextlib.ExitStack()
held = LockHolder(sys.executable, Path(sys.argv[1]), cleanup)
print(held.pid, flush=True)
sys.stdin.read()
"""


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_holder_ends_with_a_drill_that_is_killed(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    """It is stopped: nothing but KILL would end it, and nobody is left to send that."""
    lock = tmp_path / "lock"
    lock.touch()
    drilling = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDING, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with drilling:
        assert drilling.stdout is not None
        pid = int(drilling.stdout.readline())
        assert living(pid)
        drilling.kill()
        drilling.wait()
        wait_until(lambda: not living(pid), "the end of the holder", timeout_s=10)


def test_a_holder_is_written_down_before_it_is_waited_for(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    """Interrupted while it waits for a lock that somebody else has alone, it is ended with the rest."""
    lock = tmp_path / "lock"
    lock.touch()
    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        with open(lock) as file, contextlib.ExitStack() as cleanup:
            fcntl.flock(file, fcntl.LOCK_EX)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                LockHolder(sys.executable, lock, cleanup)
            marked = os.fsencode(lock)
            found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marked in words_of(pid)]
            assert found
            cleanup.close()
            assert not [pid for pid in found if marked in words_of(pid)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Stuck(Bed):
    """A bed that is interrupted at its start, and something of it cannot be ended."""

    def start(self, *_words: str) -> subprocess.Popen[bytes]:
        raise KeyboardInterrupt

    def close(self) -> None:
        super().close()
        raise BedError("pid 7 does not end")


def test_what_cannot_be_ended_neither_hides_the_interrupt_nor_is_hidden(own_tmp: Path) -> None:
    fault = by_name("kill")
    assert fault is not None
    with pytest.raises(Interrupted) as found:
        drill(fault, "train", make_bed=Stuck)
    assert found.value.left == ("not all of the drill could be ended: pid 7 does not end",)
    assert not list(own_tmp.iterdir())


class Immutable(Bed):
    """A bed whose folder cannot be removed while it lasts."""

    def start(self, *_words: str) -> subprocess.Popen[bytes]:
        (self.root / "kept").mkdir()
        subprocess.run(["chattr", "+i", str(self.root / "kept")], check=True)
        raise BedError("over")


def test_a_folder_that_stays_is_told(own_tmp: Path) -> None:
    if why := why_no_read_only():
        pytest.skip(why)
    if os.geteuid() != 0 or shutil.which("chattr") is None:
        pytest.skip("needs root and chattr for a folder that root cannot remove")
    fault = by_name("kill")
    assert fault is not None
    try:
        result = drill(fault, "train", make_bed=Immutable)
        (folder,) = own_tmp.iterdir()
        assert result.problems[0] == "over"
        assert f"{folder} could not be removed" in result.problems[1]
    finally:
        for kept in own_tmp.glob("*/bed/kept"):
            subprocess.run(["chattr", "-i", str(kept)], check=True)


def test_a_ledger_line_that_is_no_record_is_a_problem_and_no_crash(own_tmp: Path) -> None:
    class Garbled(Bed):
        def start(self, *words: str) -> subprocess.Popen[bytes]:
            process = super().start(*words)
            wait_for(lambda: (self.state / "ledger.jsonl").exists(), "the ledger")
            with open(self.state / "ledger.jsonl", "ab") as file:
                file.write(b"\nno record\n")
            return process

    fault = by_name("kill")
    assert fault is not None
    result = drill(fault, "train", make_bed=Garbled)
    assert any("of the ledger is no record: b'no record'" in problem for problem in result.problems)
    assert not list(own_tmp.iterdir())


def test_a_closed_terminal_ends_no_drill_under_nohup(own_tmp: Path, wait_until: Callable[..., object]) -> None:
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    process = subprocess.Popen(
        [*ignoring, *WATCHDOG, "drill", "kill"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(in_folder(own_tmp)) >= 3, "supervisor, shim and trainer", timeout_s=20)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "interrupted" not in said
