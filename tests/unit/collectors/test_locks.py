"""Locks as the kernel sees them: real ones held by real processes, and fixture trees for what cannot be made here."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors import locks, openfiles
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Fact, Known, Lock, Unknown

# Takes the lock and says so, then holds it until its stdin closes; with "hand-on" it gives it to a child that does
# the same, and ends.
HOLDER = """
import fcntl, os, subprocess, sys
how, path = sys.argv[1], sys.argv[-1]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
if how != "open":
    fcntl.flock(fd, fcntl.LOCK_SH if how == "shared" else fcntl.LOCK_EX)
if how == "hand-on":
    program = "import sys; print(__import__('os').getpid(), flush=True); sys.stdin.read()"
    subprocess.Popen([sys.executable, "-c", program], pass_fds=[fd])
else:
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
Hold = Callable[..., int]


@pytest.fixture
def hold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hold]:
    """`hold(how, path)` starts a holder and returns the pid that has the lock."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path_factory.mktemp("holder") / "hold.py"
    script.write_text(HOLDER)

    def start(how: str, path: Path, *more: str) -> int:
        argv = [sys.executable, str(script), how, *more, str(path)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if how == "hand-on":
            process.wait(10)
        return pid

    yield start
    for process in started:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()  # whoever reads it, child or grandchild, ends
        process.stdout.read()  # until the last holder has closed it
        process.stdout.close()
        process.wait(10)


def read(path: Path) -> Lock:
    fact = locks.read_lock(str(path), "run", Roots(), SystemClock())
    assert isinstance(fact, Known), fact
    return fact.value


def test_lines_of_proc_locks() -> None:
    text = (
        "1: POSIX  ADVISORY  WRITE 10 fe:00:5 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 4004 fe:1f:2146445 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 4005 fe:1f:2146445 0 EOF\n"
        "2:  -> FLOCK  ADVISORY  READ  4006 fe:1f:2146445 0 EOF\n"
        "3: FLOCK  ADVISORY  READ  0 00:1b:2 0 EOF\n"
        "4: OFDLCK ADVISORY  WRITE -1 00:1b:3 0 EOF\n"
    )
    assert locks.parse_locks(text) == (
        locks.KernelLock(pid=4004, exclusive=True, device=(0xFE, 0x1F), inode=2146445),
        locks.KernelLock(pid=0, exclusive=False, device=(0, 0x1B), inode=2),
    )
    assert locks.parse_locks("pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 4004 fe:00:21 0 EOF\n")[0].inode == 21


def test_a_file_that_is_not_there_is_a_free_lock(tmp_path: Path) -> None:
    lock = read(tmp_path / "not/yet.lock")
    assert (lock.held, lock.holders, lock.unlinked) == (False, (), False)


def test_an_exclusive_holder_is_named_with_its_command_masked(tmp_path: Path, hold: Hold) -> None:
    path = tmp_path / "run.lock"
    pid = hold("exclusive", path, "--api-key", "sk-very-secret")
    lock = read(path)
    assert (lock.held, lock.exclusive, lock.unlinked) == (True, True, False)
    (holder,) = lock.holders
    assert holder.pid == pid
    assert "--api-key" in holder.command
    assert "secret" not in holder.command
    assert holder.since_wall_s == pytest.approx(time.time(), abs=60)


def test_reading_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    path.touch()
    before = os.stat(path)
    with open(path) as file:
        read(path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # would raise if reading had left anything behind
    assert os.stat(path).st_atime_ns == before.st_atime_ns


def test_shared_holders_are_all_named(tmp_path: Path, hold: Hold) -> None:
    path = tmp_path / "run.lock"
    pids = sorted(hold("shared", path) for _ in range(2))
    lock = read(path)
    assert (lock.held, lock.exclusive) == (True, False)
    assert [holder.pid for holder in lock.holders] == pids


def test_who_only_has_the_file_open_is_no_holder(tmp_path: Path, hold: Hold) -> None:
    path = tmp_path / "run.lock"
    hold("open", path)
    assert not read(path).held
    pid = hold("exclusive", path)
    assert [holder.pid for holder in read(path).holders] == [pid]


def test_a_lock_inherited_from_a_dead_parent_is_found_at_its_heir(tmp_path: Path, hold: Hold) -> None:
    path = tmp_path / "run.lock"
    heir = hold("hand-on", path)  # the process that took it is dead and reaped
    lock = read(path)
    assert (lock.held, lock.exclusive) == (True, True)
    assert [holder.pid for holder in lock.holders] == [heir]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_unlinked_under_its_holder(tmp_path: Path, hold: Hold, replaced: bool) -> None:
    path = tmp_path / "run.lock"
    pid = hold("exclusive", path)
    path.unlink()
    if replaced:
        path.touch()
    lock = read(path)
    assert (lock.held, lock.unlinked) == (True, True)
    assert [holder.pid for holder in lock.holders] == [pid]


def test_a_stopped_holder_still_holds(tmp_path: Path, hold: Hold) -> None:
    path = tmp_path / "run.lock"
    pid = hold("exclusive", path)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert [holder.pid for holder in read(path).holders] == [pid]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_file_of_the_same_name_elsewhere_is_another_lock(tmp_path: Path, hold: Hold) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b/run.lock").touch()
    hold("exclusive", tmp_path / "a/run.lock")
    assert not read(tmp_path / "b/run.lock").held


class Host:
    """A fixture /proc with one native file system on device 8:1, for a lock file that exists."""

    def __init__(self, tmp_path: Path, kind: str = "ext4") -> None:
        self.path = tmp_path / "run.lock"
        self.path.touch()
        self.inode = os.stat(self.path).st_ino
        self.proc = tmp_path / "host/proc"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/mountinfo").write_text(f"22 1 8:1 / / rw - {kind} /dev/sda1 rw\n")
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("boot\n")
        (self.proc / "self/ns").mkdir()
        self.live_in("4026531836")
        (self.proc / "stat").write_text("cpu 1\nbtime 1700000000\n")

    def live_in(self, namespace: str) -> None:
        """The PID namespace that we are in; 4026531836 is the initial one."""
        link = self.proc / "self/ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(f"pid:[{namespace}]")

    def record(self, name: str, *, boot: str = "boot", namespace: str) -> None:
        """Where whoever locked last says that it lives."""
        (self.path.parent / name).write_text(json.dumps({"boot_id": boot, "pid_namespace": f"pid:[{namespace}]"}))

    def locks(self, text: str) -> None:
        (self.proc / "locks").write_text(text.format(inode=self.inode))

    def process(self, pid: int, *, target: str | None = None, fdinfo: str = "", state: str = "S") -> None:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "stat").write_text(f"{pid} (a (b) c) {state} 1 1 1 0 -1 4194304 " + "0 " * 12 + "500 0 0\n")
        (folder / "cmdline").write_bytes(b"python\0-m\0train\0")
        if target is not None:
            (folder / "fd/7").symlink_to(target)
            (folder / "fdinfo/7").write_text(fdinfo.format(inode=self.inode))

    def read(self, purpose: str = "run") -> Fact[Lock]:
        return locks.read_lock(str(self.path), purpose, Roots(str(self.proc.parent)), SystemClock())


LISTED = "1: FLOCK  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF\n"


def test_held_without_any_living_holder_is_a_ghosts(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks(LISTED)
    host.process(12)
    fact = host.read()
    assert isinstance(fact, Known)
    assert (fact.value.held, fact.value.exclusive, fact.value.holders) == (True, True, ())


def test_a_holder_that_ends_between_the_list_and_the_scan_left_no_ghost(tmp_path: Path) -> None:
    """The first list still has it, the second has not, or has its heir."""
    host = Host(tmp_path)
    host.process(12)
    for after, heirs in (("", []), (LISTED, [4712])):
        host.locks(LISTED)
        before = locks.Moment.of(Roots(str(host.proc.parent)))
        list(before.scan)
        host.locks(after)
        if heirs:
            host.process(4712, target=str(host.path), fdinfo="lock:\t" + LISTED)
        fact = locks.read_lock(str(host.path), "run", Roots(str(host.proc.parent)), SystemClock(), before)
        assert isinstance(fact, Known)
        assert (fact.value.held, [holder.pid for holder in fact.value.holders]) == (bool(heirs), heirs)


def test_the_file_systems_own_device_counts_where_stat_gives_another(tmp_path: Path) -> None:
    """As on btrfs: stat's device of the lock file here is certainly not 8:1's."""
    host = Host(tmp_path, "btrfs")
    host.locks(LISTED)
    host.process(4711, target=str(host.path), fdinfo="lock:\t" + LISTED)
    fact = host.read()
    assert isinstance(fact, Known)
    (holder,) = fact.value.holders
    assert (holder.pid, holder.command) == (4711, "python -m train")
    assert holder.since_wall_s == 1700000000 + 500 / os.sysconf("SC_CLK_TCK")


def test_another_inode_or_device_is_not_ours(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks("1: FLOCK  ADVISORY  WRITE 1 08:02:{inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 1 08:01:1{inode} 0 EOF\n")
    fact = host.read()
    assert isinstance(fact, Known)
    assert not fact.value.held


def test_a_lock_that_the_list_of_a_container_leaves_out_is_seen_at_its_descriptor(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks("")
    host.process(3, target=str(host.path), fdinfo="lock:\t1: FLOCK  ADVISORY  WRITE 0 08:01:{inode} 0 EOF\n")
    fact = host.read()
    assert isinstance(fact, Known)
    assert [holder.pid for holder in fact.value.holders] == [3]


def test_the_command_line_of_a_process_in_state_d_is_not_asked_for(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks(LISTED)
    host.process(4711, target=str(host.path), fdinfo="lock:\t" + LISTED, state="D")
    fact = host.read()
    assert isinstance(fact, Known)
    assert fact.value.holders[0].command == "[a (b) c]"


# --- a PID namespace that is not the initial one -----------------------------------------------------------
HERE, THERE = "4026532201", "4026532333"


@pytest.mark.parametrize("named", [None, "run.json", "supervisor.lock"])
def test_a_lock_that_nobody_is_seen_to_hold_is_not_free_where_others_are_hidden(
    named: str | None, tmp_path: Path
) -> None:
    host = Host(tmp_path)
    host.locks("")
    host.live_in(HERE)
    if named is not None:
        host.record(named, namespace=THERE)
    fact = host.read()
    assert isinstance(fact, Unknown)
    assert "PID namespace" in fact.why
    assert fact.why.endswith("ask on the host")


def test_what_is_seen_there_is_proof_all_the_same(tmp_path: Path) -> None:
    """A holder; a record of somebody who lives here; one of an earlier boot; a file that is not there."""
    host = Host(tmp_path)
    host.live_in(HERE)
    host.locks("")
    host.record("supervisor.lock", namespace=HERE)
    assert _held(host.read()) is False, "a supervisor of ours, and no run yet"
    host.record("run.json", namespace=THERE)
    assert isinstance(host.read(), Unknown), "who launched last counts, not who supervises"
    host.record("run.json", namespace=HERE)
    assert _held(host.read()) is False
    host.record("run.json", namespace=THERE, boot="an earlier one")
    assert _held(host.read()) is False
    host.record("run.json", namespace=THERE)
    host.locks(LISTED)
    assert _held(host.read()) is True
    host.locks("")
    host.path.unlink()
    assert _held(host.read()) is False


def test_a_supervisor_lock_says_itself_where_its_holder_lives(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.live_in(HERE)
    host.locks("")
    assert isinstance(host.read("supervisor"), Unknown), "an empty file"
    host.record("run.json", namespace=HERE)
    assert isinstance(host.read("supervisor"), Unknown), "a run is not a supervisor"
    host.record(host.path.name, namespace=HERE)
    assert _held(host.read("supervisor")) is False
    host.record(host.path.name, namespace=THERE)
    assert isinstance(host.read("supervisor"), Unknown)


def test_a_namespace_that_is_not_told_is_not_the_initial_one(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks("")
    (host.proc / "self/ns/pid").unlink()
    fact = host.read()
    assert isinstance(fact, Unknown)
    assert "not to be told" in fact.why


def _held(fact: Fact[Lock]) -> bool:
    assert isinstance(fact, Known), fact
    return fact.value.held


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users' descriptors are hidden, as they are without root."""
    real = os.listdir

    def listdir(path: str) -> list[str]:
        if path.endswith("/fd"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(openfiles.os, "listdir", listdir)


@pytest.mark.usefixtures("hidden")
def test_another_users_holder_is_named_by_the_list(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks(LISTED)
    host.process(4711)
    fact = host.read()
    assert isinstance(fact, Known)
    assert [holder.pid for holder in fact.value.holders] == [4711]


@pytest.mark.usefixtures("hidden")
def test_another_users_heir_makes_the_fact_unknown_and_not_a_ghost(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.locks(LISTED)
    host.process(4712)
    fact = host.read()
    assert isinstance(fact, Unknown)
    assert "taken by pid 4711" in fact.why
    assert "cannot be looked into: 1;" in fact.why


def test_without_proc_locks_and_without_a_holder_nothing_is_said(tmp_path: Path) -> None:
    fact = Host(tmp_path).read()
    assert isinstance(fact, Unknown)
    assert "locks" in fact.why


def test_a_path_without_true_flock_is_not_looked_at(tmp_path: Path) -> None:
    host = Host(tmp_path, "9p")
    host.locks(LISTED)
    fact = host.read()
    assert isinstance(fact, Unknown)
    assert "9p" in fact.why
