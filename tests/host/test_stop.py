"""Ending what is proven ours, with real trees: fork bombs of bounded size, stopped processes, escapees, bystanders."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import Shims, until
from watchdog.actuators import stop
from watchdog.actuators.signals import Sent
from watchdog.actuators.stop import freeze, kill, kill_round, terminate, thaw
from watchdog.collectors.processes import is_alive, process_table, read_process
from watchdog.core.identity import Process, ProcessId, descendants

SLEEP = "import time; time.sleep(600)"
# Forks on and on: each child ends after having made the next two, up to 150 at a time by RLIMIT-free counting in a
# shared file, half of them in sessions of their own with closed descriptors.
BOMB = """
import os, signal, sys, time
counter = os.open("count", os.O_RDWR | os.O_CREAT)
def room():
    os.write(counter, b"x")
    return os.fstat(counter).st_size < 150
os.set_inheritable(counter, True)
while True:
    if not room():
        time.sleep(600)
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() > 0 and os.getpid() % 2:
            os._exit(0)
"""
SAVES = """
import os, signal, sys, time
def on_term(*_):
    os.write(1, b"saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
os.write(1, b"ready\\n")
time.sleep(600)
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Shims]:
    bed = Shims(tmp_path)
    yield bed
    bed.close()


def stop_process(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: (process := read_process(pid)) is not None and process.state == "T", "stopped")


def test_one_round_ends_a_fork_bomb_and_its_shim_proves_it(bed: Shims) -> None:
    run = bed.run(BOMB)
    watch = run.watch()
    until(lambda: (watch.shim(), len(watch.members()) >= 30)[1], "thirty of them")
    for _ in range(2):
        kill_round(watch.members)
        try:
            run.shim.wait(2)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        pytest.fail("two rounds were not enough")
    assert run.exit()["complete"] is True
    assert run.exit()["leader"]["signal"] == signal.SIGKILL
    watch.close()


def test_a_stopped_process_dies_of_a_round_too(bed: Shims) -> None:
    run = bed.run(SLEEP)
    watch = run.watch()
    stop_process(run.leader().pid)
    watch.shim()
    done = kill_round(watch.members)
    assert [process.id for process in done.of(Sent.DELIVERED)] == [run.leader()]
    assert run.shim.wait(10) == 0
    watch.close()


# Its first thread ends by itself, and the process is a zombie by /proc/PID/stat while another thread goes on.
LEADERLESS = """
import ctypes, os, threading, time
threading.Thread(target=lambda: time.sleep(600)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit of this thread alone
"""


def test_a_process_whose_leader_has_ended_is_a_member_and_dies_of_a_round(bed: Shims) -> None:
    run = bed.run(LEADERLESS)
    watch = run.watch()
    leader = run.leader()
    until(lambda: (found := read_process(leader.pid)) is not None and found.state == "Z", "the end of its first thread")
    watch.shim()
    (member,) = watch.members()
    assert (member.id, member.living) == (leader, True)
    kill_round(watch.members)
    assert run.shim.wait(10) == 0
    watch.close()


def test_an_escapee_dies_although_its_leader_is_long_dead(bed: Shims) -> None:
    run = bed.run(
        """
import os
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 200)
    os.execve("/bin/sleep", ["sleep", "600"], {})
"""
    )
    watch = run.watch()
    leader = run.leader()
    until(lambda: not is_alive(leader) and len(run.members()) == 1, "the escapee alone")
    watch.shim()
    kill_round(watch.members)
    assert run.shim.wait(10) == 0
    watch.close()


def test_a_bystander_of_the_same_name_and_command_is_not_touched(bed: Shims) -> None:
    run = bed.run("/bin/sleep", "600")
    bystander = subprocess.Popen(["/bin/sleep", "600"])
    watch = run.watch()
    run.leader()
    watch.shim()
    kill_round(watch.members)
    assert run.shim.wait(10) == 0
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    watch.close()


def test_a_run_dry_round_touches_nobody_and_says_whom_it_would(bed: Shims) -> None:
    run = bed.run(SLEEP)
    watch = run.watch()
    leader = run.leader()
    watch.shim()
    done = kill_round(watch.members, dry_run=True)
    assert [process.id for process in done.of(Sent.DRY)] == [leader]
    process = read_process(leader.pid)
    assert process is not None
    assert process.state in "SR"
    watch.close()


def test_a_round_ends_however_often_something_new_appears() -> None:
    looks = []

    def look() -> list[Process]:
        looks.append(1)
        return [Process(id=ProcessId(2**22 - 2, len(looks)), ppid=1, session=1, state="S", command="x")]

    done = kill_round(look)
    assert len(looks) < 100
    assert {sent for _, sent in done.outcomes} == {Sent.GONE}


def test_nobody_at_all_is_no_outcome() -> None:
    assert kill_round(lambda: []).outcomes == ()


@pytest.mark.parametrize("stopped", [False, True])
def test_term_reaches_a_stopped_process_which_then_saves(bed: Shims, stopped: bool) -> None:
    run = bed.run(SAVES)
    leader = run.leader()
    until(lambda: b"ready" in run.folder.log.read_bytes(), "its handler")
    if stopped:
        stop_process(leader.pid)
    assert terminate(leader) is Sent.DELIVERED
    assert run.shim.wait(10) == 0
    assert b"saved" in run.folder.log.read_bytes()
    assert run.exit()["leader"]["code"] == 0


def test_term_run_dry_does_not_even_continue_a_stopped_process(bed: Shims) -> None:
    run = bed.run(SAVES)
    leader = run.leader()
    until(lambda: b"ready" in run.folder.log.read_bytes(), "its handler")
    stop_process(leader.pid)
    assert terminate(leader, dry_run=True) is Sent.DRY
    process = read_process(leader.pid)
    assert process is not None
    assert process.state == "T"


# A run whose member is held by a debugger that is itself no part of the run.
DEBUGGER = """
import ctypes, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, pid, None, None) != 0:  # PTRACE_ATTACH
    print("refused", flush=True); sys.exit()
os.waitpid(pid, 0x40000000)  # __WALL
print("attached", flush=True)
sys.stdin.read()
libc.ptrace(17, pid, None, None)  # PTRACE_DETACH
"""


def test_a_member_under_a_debugger_is_left_alone_and_told(bed: Shims) -> None:
    run = bed.run(SLEEP)
    leader = run.leader()
    debugger = subprocess.Popen(
        [sys.executable, "-c", DEBUGGER, str(leader.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert debugger.stdout is not None
    if debugger.stdout.readline() != "attached\n":
        debugger.communicate("", timeout=10)
        pytest.skip("ptrace is not allowed here")
    watch = run.watch()
    try:
        watch.shim()
        members = watch.members()
        assert watch.traced(members) == (leader.pid,)
        done = kill_round(watch.members)
        assert [process.id for process in done.of(Sent.TRACED)] == [leader]
        assert terminate(leader) is Sent.TRACED
        assert is_alive(leader)
    finally:
        debugger.communicate("", timeout=10)
    kill_round(watch.members)  # the debugger has let go
    assert run.shim.wait(10) == 0
    watch.close()


def test_nothing_of_all_this_is_left(bed: Shims) -> None:
    """The tests' own hygiene: a shim's tree can be emptied whatever lived in it."""
    run = bed.run(BOMB)
    until(lambda: len(run.members()) > 10, "some")
    identity = run.id
    bed.close()
    assert descendants(identity, process_table()) == ()


# --- where no descriptor is to be had, and who stood still before --------------------------------------------
@pytest.fixture
def two() -> Iterator[list[Process]]:
    children = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2)]
    found = [process for child in children if (process := read_process(child.pid)) is not None]
    yield found
    for child in children:
        child.kill()
        child.wait()


def state_of(process: Process) -> str:
    found = read_process(process.id.pid)
    assert found is not None
    return found.state


@contextlib.contextmanager
def no_descriptor_to_be_had() -> Iterator[None]:
    """Whatever is open stays so; nothing more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nobody_stays_stopped_where_the_descriptors_run_out_in_the_middle_of_a_round(two: list[Process]) -> None:
    with contextlib.ExitStack() as stack:
        looks = iter(two)

        def look() -> list[Process]:
            process = next(looks)
            if process is two[1]:
                until(lambda: state_of(two[0]) == "T", "the first is stopped")
                stack.enter_context(no_descriptor_to_be_had())
            return [process]

        with pytest.raises(OSError, match="Too many open files"):
            freeze(look)
    until(lambda: [state_of(each) for each in two] == ["S", "S"], "both go on")


def test_a_round_keeps_a_bounded_number_of_descriptors_and_gives_all_back(
    two: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(stop, "_HELD", 1)
    frozen = freeze(lambda: two)
    assert list(frozen.held) == [two[0].id]
    thaw(frozen)
    until(lambda: [state_of(each) for each in two] == ["S", "S"], "both go on, the one that is held and the other")
    done = kill(freeze(lambda: two))
    assert {sent for _, sent in done.outcomes} == {Sent.DELIVERED}
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_was_stopped_by_a_person_is_not_woken_by_a_round_that_comes_to_nothing(two: list[Process]) -> None:
    stop_process(two[0].id.pid)
    frozen = freeze(lambda: [now for each in two if (now := read_process(each.id.pid)) is not None])
    until(lambda: [state_of(each) for each in two] == ["T", "T"], "both are stopped")
    thaw(frozen)
    until(lambda: state_of(two[1]) == "S", "the one that ran goes on")
    assert state_of(two[0]) == "T"
