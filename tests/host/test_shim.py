"""The shim with real processes: whatever a run does, the end of the shim is the proof that nothing of it lives."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import Shims, until
from watchdog.actuators.launch import SHIM
from watchdog.collectors.processes import is_alive, read_process
from watchdog.core.identity import ProcessId

SLEEP = "import time; time.sleep(600)"
# A child in a session of its own, with closed descriptors and an empty environment, whose parents are gone.
ESCAPE = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 200)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Shims]:
    bed = Shims(tmp_path)
    yield bed
    bed.close()


def status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return line.split(":", 1)[1].strip()
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("program", "code", "number"),
    [
        ("pass", 0, None),
        ("raise SystemExit(65)", 65, None),
        ("import os; os.kill(os.getpid(), 9)", None, 9),
        ("import os; os.kill(os.getpid(), 11)", None, 11),
        ("import os; os.kill(os.getpid(), 64)", None, 64),
    ],
)
def test_the_end_of_the_leader_is_recorded(bed: Shims, program: str, code: int | None, number: int | None) -> None:
    run = bed.run(program)
    assert run.shim.wait(10) == 0
    record = run.exit()
    assert (record["complete"], record["run_id"], record["exec_error"]) == (True, "1-a", None)
    assert (record["leader"]["code"], record["leader"]["signal"]) == (code, number)
    assert record["leader"]["pid"] == run.leader().pid
    assert run.lock_is_free()


def test_a_core_dump_is_told(bed: Shims) -> None:
    run = bed.run("import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); os.abort()")
    run.shim.wait(10)
    leader = run.exit()["leader"]
    assert leader["signal"] == signal.SIGABRT
    assert isinstance(leader["core"], bool)  # whether one is written is the host's choice


def test_the_shim_stays_for_whoever_escaped(bed: Shims) -> None:
    run = bed.run(ESCAPE)
    leader = run.leader()
    until(lambda: not is_alive(leader), "the end of the leader")
    (sleeper,) = until(lambda: run.members() if len(run.members()) == 1 else None, "the escaped one alone")
    until(lambda: Path(f"/proc/{sleeper}/comm").read_text() == "sleep\n", "its exec")
    assert Path(f"/proc/{sleeper}/environ").read_bytes() == b""
    assert os.listdir(f"/proc/{sleeper}/fd") == []
    assert run.shim.poll() is None
    until(lambda: run.exit()["leader"] is not None, "the leader's end, recorded while another lives")
    assert run.exit()["complete"] is False
    assert not run.lock_is_free()  # the shim itself holds it, whatever its children closed
    os.kill(sleeper, signal.SIGKILL)
    assert run.shim.wait(10) == 0
    assert run.exit()["complete"] is True
    assert run.lock_is_free()


def test_an_orphans_end_is_kept_beside_the_leaders(bed: Shims) -> None:
    run = bed.run(
        "import os\nif os.fork() == 0:\n  os.setsid()\n  os.execv('/bin/sh', ['sh', '-c', 'sleep 0.05; exit 7'])"
    )
    run.shim.wait(10)
    assert [end["code"] for end in run.exit()["ended"]] == [7]


def test_many_ends_do_not_burst_the_record(bed: Shims) -> None:
    program = """
import os
for number in range(60):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os._exit(3)
        os._exit(0)
"""
    run = bed.run(program)
    assert run.shim.wait(20) == 0
    assert os.stat(run.folder.exit).st_size == 4096
    assert run.exit()["complete"] is True


def test_a_killed_shim_leaves_no_complete_record(bed: Shims) -> None:
    run = bed.run(SLEEP)
    leader = run.leader()
    run.shim.kill()
    run.shim.wait(10)
    assert run.exit()["complete"] is False
    assert is_alive(leader)  # the trainer lives on: it is the supervisor who ends it
    assert not run.lock_is_free()  # by the trainer's own share


def ends(pid: int) -> bool:
    process = read_process(pid)
    return process is None or not process.living


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP])
def test_signals_that_people_and_managers_send_do_not_end_the_shim(bed: Shims, number: signal.Signals) -> None:
    run = bed.run(SLEEP)
    leader = run.leader()
    for _ in range(3):
        os.kill(run.shim.pid, number)
    os.kill(leader.pid, signal.SIGKILL)
    assert run.shim.wait(10) == 0
    assert run.exit()["complete"] is True


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU, signal.SIGPWR])
def test_signals_of_batch_systems_do_not_end_the_shim(bed: Shims, number: signal.Signals) -> None:
    """`sbatch --signal=USR1@60` reaches every process of a step: the proof of the run must not die of it."""
    run = bed.run(SLEEP)
    leader = run.leader()
    os.kill(run.shim.pid, number)
    os.kill(leader.pid, signal.SIGKILL)
    run.shim.wait(10)
    assert run.shim.returncode == 0
    assert run.exit()["complete"] is True


def test_the_trainer_gets_signals_as_a_program_expects_them(bed: Shims) -> None:
    run = bed.run("/bin/sleep", "600")
    leader = run.leader().pid
    # Signals 32 and 33 are the C library's own: no sigaction of a program can reset what its starter ignored of them.
    reserved = 1 << 31 | 1 << 32
    assert int(status(leader, "SigBlk"), 16) & ~reserved == 0
    assert int(status(leader, "SigIgn"), 16) & ~reserved == 0


def test_a_child_signal_ignored_by_whoever_started_us_costs_no_end(bed: Shims) -> None:
    """Some service managers and shells start their children with SIGCHLD ignored; exec keeps that."""
    program = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    lock = bed.folder / "run.lock"
    lock.touch()
    fd = os.open(lock, os.O_RDONLY)
    start, end = bed.folder / "start.json", bed.folder / "exit.json"
    shim = [sys.executable, "-I", "-S", str(SHIM), str(start), str(end), str(fd), "1-a", "", "--"]
    done = subprocess.run(
        [sys.executable, "-c", program, *shim, "/bin/sh", "-c", "exit 7"], pass_fds=(fd,), timeout=20, check=False
    )
    os.close(fd)
    assert done.returncode == 0
    assert '"code": 7' in end.read_text()


def test_the_trainer_has_its_own_session_the_lock_and_goes_first_when_memory_runs_out(bed: Shims) -> None:
    run = bed.run(SLEEP)
    leader = run.leader().pid
    assert os.getsid(leader) == leader
    assert os.getsid(run.shim.pid) == run.shim.pid
    assert int(Path(f"/proc/{leader}/oom_score_adj").read_text()) >= 500
    ours = os.stat(run.lock)
    held = [os.stat(f"/proc/{leader}/fd/{fd}") for fd in os.listdir(f"/proc/{leader}/fd")]
    assert (ours.st_dev, ours.st_ino) in {(each.st_dev, each.st_ino) for each in held}

    def targets() -> set[str]:
        found = set()
        for fd in os.listdir(f"/proc/{leader}/fd"):
            with contextlib.suppress(FileNotFoundError):  # what it opens while it starts
                found.add(os.readlink(f"/proc/{leader}/fd/{fd}"))
        return found

    expected = {"/dev/null", str(run.folder.log), str(run.lock)}
    until(lambda: targets() == expected, f"nothing open but {expected}")


def test_a_lower_oom_score_is_only_ever_raised(bed: Shims) -> None:
    def protect() -> None:
        Path("/proc/self/oom_score_adj").write_text("900")

    run = bed.run(SLEEP, preexec_fn=protect)
    assert int(Path(f"/proc/{run.leader().pid}/oom_score_adj").read_text()) == 900


@pytest.mark.parametrize(("command", "number"), [("/no/such/program", 2), ("/etc/passwd", 13), ("/tmp", 13)])
def test_a_command_that_cannot_be_executed_is_recorded_with_its_reason(bed: Shims, command: str, number: int) -> None:
    run = bed.run(command, "argument")
    assert run.shim.wait(10) == 0
    record = run.exit()
    assert record["complete"] is True
    assert record["exec_error"][0] == number
    assert record["exec_error"][2] == command


def test_a_run_lock_that_is_no_descriptor_starts_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    argv = [str(tmp_path / "start"), str(tmp_path / "exit"), "77", "1-a", "", "--", "/bin/touch", str(marker)]
    done = subprocess.run([sys.executable, "-I", "-S", str(SHIM), *argv], capture_output=True, timeout=20, check=False)
    assert done.returncode == 111
    assert b"nothing was started" in done.stderr
    assert not marker.exists()


FULL_DISK = """
import os, subprocess, sys
folder, shim, marker = sys.argv[1:]
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]).returncode:
    sys.exit(77)
with open(folder + "/fill", "wb", buffering=0) as fill:
    try:
        while True:
            fill.write(bytes(4096))
    except OSError:
        pass
lock = os.open(folder, os.O_RDONLY)
command = [sys.executable, "-I", "-S", shim, folder + "/start", folder + "/exit", str(lock), "1-a", "", "--"]
print(subprocess.run([*command, "/bin/touch", marker], pass_fds=[lock]).returncode, os.path.exists(marker))
"""


def test_on_a_full_disk_nothing_is_started(tmp_path: Path) -> None:
    own_namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    folder, marker = tmp_path / "full", tmp_path / "started"
    folder.mkdir()
    argv = [*own_namespace, sys.executable, "-c", FULL_DISK, str(folder), str(SHIM), str(marker)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.stdout == "111 False\n", done.stderr
    assert "nothing was started" in done.stderr


FULL_LATER = FULL_DISK.replace(
    'with open(folder + "/fill"', 'open(folder + "/exit", "wb").write(bytes(4096))\nwith open(folder + "/fill"'
)


def test_a_disk_that_fills_while_the_run_lives_does_not_swallow_its_end(tmp_path: Path) -> None:
    """The exit record's space is taken at the start: only the start file's last replacement may fail."""
    program = FULL_LATER.replace(
        'print(subprocess.run([*command, "/bin/touch", marker], pass_fds=[lock]).returncode, os.path.exists(marker))',
        """
os.truncate(folder + "/fill", os.path.getsize(folder + "/fill") - 8192)
child = subprocess.Popen([*command, "/bin/sh", "-c", "read line; exit 7"], pass_fds=[lock], stdin=subprocess.PIPE)
import json, time
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    try:
        if json.load(open(folder + "/start"))["leader"]:
            break
    except (OSError, ValueError):
        pass
    time.sleep(0.01)
with open(folder + "/fill2", "wb", buffering=0) as fill:
    try:
        while True:
            fill.write(bytes(4096))
    except OSError:
        pass
child.stdin.close()
print(child.wait(), json.load(open(folder + "/exit"))["leader"]["code"])
""",
    )
    own_namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    folder = tmp_path / "full"
    folder.mkdir()
    argv = [*own_namespace, sys.executable, "-c", program, str(folder), str(SHIM), "unused"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.stdout == "0 7\n", done.stderr


def test_the_shim_is_small(bed: Shims) -> None:
    run = bed.run(SLEEP)
    run.leader()
    peak_kib = int(status(run.shim.pid, "VmHWM").split()[0])
    assert peak_kib < 15 * 1024
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.leader().pid, signal.SIGKILL)


def test_wrong_arguments_start_nothing() -> None:
    argv = [sys.executable, "-I", "-S", str(SHIM), "a", "b", "0", "1-a", "", "no separator", "/bin/true"]
    done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    assert done.returncode == 111
    assert b"expected" in done.stderr


def test_an_identity_needs_its_start_time(bed: Shims) -> None:
    leader = bed.run(SLEEP).leader()
    assert is_alive(leader)
    assert not is_alive(ProcessId(leader.pid, leader.start_ticks + 1))
    assert not ends(leader.pid)
