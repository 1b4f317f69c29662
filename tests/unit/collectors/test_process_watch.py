"""The process table over several looks: fixture trees for time and bounds, real processes for the kernel's words."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.collectors.test_runner import HandClock
from watchdog.clock import SystemClock
from watchdog.collectors import process_watch
from watchdog.collectors.process_watch import ProcessWatch
from watchdog.collectors.processes import read_process
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Known, Processes, RunProcess
from watchdog.core.identity import ProcessId

STAT = "{pid} ({command}) {state} {ppid} 1 1 0 -1 0 0 0 0 0 {cpu} 0 0 0 20 0 1 0 {ticks} 0 0"


class Tree:
    """A `/proc` made of files, and a watch on it whose clock moves when told."""

    def __init__(self, base: Path) -> None:
        self.proc = base / "proc"
        (self.proc / "sys/kernel").mkdir(parents=True)
        (self.proc / "sys/kernel/pid_max").write_text("4194304\n")
        (self.proc / "self/ns").mkdir(parents=True)
        (base / "dev").mkdir()
        self.clock = HandClock()
        self.watch = ProcessWatch(Roots(str(base)), self.clock)
        self.namespace("4026531836")

    def namespace(self, inode: str) -> None:
        link = self.proc / "self/ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(f"pid:[{inode}]")

    def put(self, pid: int, ppid: int, state: str = "S", command: str = "python", ticks: int = 0, cpu: int = 0) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        text = STAT.format(pid=pid, command=command, state=state, ppid=ppid, ticks=ticks or pid * 10, cpu=cpu)
        (folder / "stat").write_text(text)
        self.thread(pid, pid, state, ticks)

    def thread(self, pid: int, tid: int, state: str, ticks: int = 0, channel: str = "0") -> None:
        folder = self.proc / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        text = STAT.format(pid=tid, command="python", state=state, ppid=1, ticks=ticks or tid * 10, cpu=0)
        (folder / "stat").write_text(text)
        (folder / "wchan").write_text(channel)
        (self.proc / str(pid) / "wchan").write_text(channel)

    def look(self, after_s: float = 0.0, **how: object) -> Processes:
        self.clock.now += after_s
        fact = self.watch.read(ProcessId(20, 200), **how)  # type: ignore[arg-type]
        assert isinstance(fact, Known)
        return fact.value


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.put(1, 0, command="init")
    tree.put(20, 1, command="shim")
    tree.put(30, 20)
    return tree


def test_the_run_is_what_descends_from_the_shim_with_its_threads(tree: Tree) -> None:
    tree.put(31, 30, "R")
    tree.thread(31, 301, "S")
    tree.thread(31, 302, "S")
    tree.put(40, 1)  # nobody's
    found = tree.look()
    assert {process.pid: process.states for process in found.run} == {30: (("S", 1),), 31: (("R", 1), ("S", 2))}
    assert (found.pid_max, found.initial_namespace, found.holders, found.stuck) == (4194304, True, (), ())


def test_without_a_shim_there_is_no_run(tree: Tree) -> None:
    nobody = tree.watch.read(None)
    assert isinstance(nobody, Known)
    assert nobody.value.run == ()


def test_being_stuck_is_measured_from_look_to_look(tree: Tree) -> None:
    tree.thread(30, 301, "D", channel="nvidia_close")
    [first] = tree.look().run
    assert (first.stuck_s, first.wait_channel, first.state) == (0.0, "nvidia_close", "S")
    assert tree.look(after_s=7).run[0].stuck_s == 7
    tree.thread(30, 301, "S")
    assert tree.look(after_s=1).run[0].stuck_s == 0
    tree.thread(30, 301, "D")
    assert tree.look(after_s=1).run[0].stuck_s == 0  # it begins anew
    assert tree.look(after_s=5).run[0].stuck_s == 5
    tree.thread(30, 301, "D", ticks=999)  # the number was given to another
    assert tree.look(after_s=5).run[0].stuck_s == 0


def test_after_a_gap_of_ours_every_duration_begins_anew(tree: Tree) -> None:
    tree.put(30, 20, "D")
    tree.look()
    assert tree.look(after_s=5).run[0].stuck_s == 5
    tree.watch.forget()
    assert tree.look(after_s=600).run[0].stuck_s == 0


def test_the_hosts_stuck_are_told_longest_first(tree: Tree) -> None:
    tree.put(50, 1, "D", command="cp")
    tree.look()
    for pid in range(100, 140):
        tree.put(pid, 1, "D")
    found = tree.look(after_s=3)
    assert found.stuck[0] == RunProcess(pid=50, command="cp", state="D", stuck_s=3.0)
    assert len(found.stuck) == 20


def test_a_leader_that_ended_while_its_threads_live_is_not_defunct(tree: Tree) -> None:
    tree.put(30, 20, "Z")
    tree.thread(30, 301, "S")
    tree.look()
    found = tree.look(after_s=9)
    assert (found.run[0].state, found.run[0].defunct_s) == ("Z", 0.0)
    tree.thread(30, 301, "X")
    tree.look()
    assert tree.look(after_s=4).run[0].defunct_s == 4.0


def test_kernel_threads_are_not_stuck_and_number_two_of_a_container_is_anybody(tree: Tree) -> None:
    tree.put(2, 0, "S", command="kthreadd")
    tree.put(3, 2, "D", command="kworker")
    assert tree.look().stuck == ()
    tree.put(2, 1, "D", command="bash")
    assert sorted(process.pid for process in tree.look().stuck) == [2, 3]


@pytest.mark.parametrize(("inode", "expected"), [("4026531836", True), ("4026532281", False), ("", None)])
def test_the_namespace_is_told_by_its_number(tree: Tree, inode: str, expected: bool | None) -> None:
    if inode:
        tree.namespace(inode)
    else:
        (tree.proc / "self/ns/pid").unlink()
    assert tree.look().initial_namespace is expected


def test_hidden_processes_make_pids_no_proof(tree: Tree) -> None:
    shutil.rmtree(tree.proc / "1")
    assert tree.look().initial_namespace is None


def test_threads_are_bounded(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "_MOST_THREADS", 3)
    for tid in (301, 302):
        tree.thread(30, tid, "S")
    tree.put(31, 30, "D")
    found = {process.pid: process for process in tree.look().run}
    assert found[30].states == (("S", 3),)
    assert (found[31].states, found[31].state) == ((), "D")
    assert {process.pid: process.stuck_s for process in tree.look(after_s=2).run} == {30: 0.0, 31: 2.0}


def test_without_pid_max_nothing_is_guessed(tree: Tree) -> None:
    (tree.proc / "sys/kernel/pid_max").unlink()
    with pytest.raises(FileNotFoundError):
        tree.look()


# --- the kernel's own words ---------------------------------------------------------------------------------------
# Who waits for its vfork child is in state D, and so is nobody else by so little effort.
STUCK = """
#include <unistd.h>
int main(void) { if (vfork() == 0) { alarm(60); pause(); _exit(0); } return 0; }
"""


def test_a_real_process_in_state_d(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for a process in state D: apt install gcc libc6-dev")
    (tmp_path / "stuck.c").write_text(STUCK)
    subprocess.run([compiler, "-o", str(tmp_path / "stuck"), str(tmp_path / "stuck.c")], check=True)
    parent = subprocess.Popen([str(tmp_path / "stuck")], start_new_session=True)
    try:
        watch = ProcessWatch(Roots(), SystemClock())
        me = read_process(os.getpid())
        assert me is not None

        def look() -> RunProcess | None:
            fact = watch.read(me.id)
            assert isinstance(fact, Known)
            return next((each for each in fact.value.run if each.pid == parent.pid and each.stuck_s > 0), None)

        found = wait_until(look, "a look that sees it stuck again")
        assert isinstance(found, RunProcess)
        assert (found.command, found.state, found.states) == ("stuck", "D", (("D", 1),))
        assert found.wait_channel in ("", "kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)  # our own child, not yet waited for
        parent.wait(10)


def test_a_real_zombie(wait_until: Callable[..., object]) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "pass"])
    try:
        watch = ProcessWatch(Roots(), SystemClock())
        me = read_process(os.getpid())
        assert me is not None

        def look() -> RunProcess | None:
            fact = watch.read(me.id)
            assert isinstance(fact, Known)
            return next((each for each in fact.value.run if each.pid == child.pid and each.defunct_s > 0), None)

        assert wait_until(look, "a look that sees it defunct again")
    finally:
        child.wait(10)


# --- CPU time -----------------------------------------------------------------------------------------------------
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def spent(processes: Processes) -> list[tuple[float, float]]:
    """(seconds since the first look, CPU seconds)."""
    return [(look.at_s - processes.cpu[0].at_s, look.seconds) for look in processes.cpu]


def test_cpu_time_counts_from_the_first_look_and_never_goes_back(tree: Tree) -> None:
    tree.put(30, 20, cpu=500 * _TICKS_PER_S)
    assert spent(tree.look()) == [(0.0, 0.0)]
    tree.put(30, 20, cpu=501 * _TICKS_PER_S)
    tree.put(31, 30, cpu=3 * _TICKS_PER_S)  # it has not been seen before: all of its time
    assert spent(tree.look(10.0))[-1] == (10.0, 4.0)
    shutil.rmtree(tree.proc / "31")
    assert spent(tree.look(10.0))[-1] == (20.0, 4.0)
    tree.put(20, 1, command="shim", cpu=2 * _TICKS_PER_S)  # it has waited for somebody who was never seen
    assert spent(tree.look(10.0))[-1] == (30.0, 6.0)
    tree.put(40, 1, cpu=900 * _TICKS_PER_S)  # nobody's
    assert spent(tree.look(10.0))[-1] == (40.0, 6.0)


def test_cpu_looks_are_some_seconds_apart_and_bounded(tree: Tree) -> None:
    for _ in range(3000):
        seen = tree.look(0.5)
    assert len(seen.cpu) <= 100
    gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(seen.cpu)]
    assert min(gaps[:-1]) >= 7.5
    assert seen.cpu[-1].at_s == tree.clock.now
    assert sum(gaps) >= 600.0


def test_after_a_gap_or_for_another_run_cpu_time_begins_anew(tree: Tree) -> None:
    tree.look()
    assert len(tree.look(10.0).cpu) == 2
    tree.watch.forget()
    assert len(tree.look(10.0).cpu) == 1
    fact = tree.watch.read(ProcessId(21, 210))
    assert isinstance(fact, Known)
    assert (fact.value.cpu, fact.value.gone) == ((), ())


def test_who_was_of_the_run_and_is_gone_is_remembered(tree: Tree) -> None:
    tree.put(31, 30)
    assert tree.look().gone == ()
    shutil.rmtree(tree.proc / "31")
    assert tree.look(10.0).gone == (31,)
    tree.put(31, 1, ticks=9999)
    assert tree.look(10.0).gone == (), "the number is somebody else's by now"
    tree.put(30, 20, "Z")
    tree.thread(30, 30, "Z")
    assert tree.look(10.0).gone == (30,), "a zombie holds nothing any more"


def test_a_real_child_that_computes_is_counted_and_who_waits_is_not() -> None:
    """As the kernel measures it, and of a child that no look ever saw: a wrong field of stat would end healthy runs."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    script = 'echo up; read go; "$0" -c "$1"; echo done; read go'
    shim = "import subprocess, sys; subprocess.run(['sh', '-c', *sys.argv[1:]])"
    command = [sys.executable, "-c", shim, script, sys.executable, burn]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        try:
            assert run.stdout.readline() == "up\n"
            own = read_process(run.pid)
            assert own is not None
            watch = ProcessWatch(Roots(), SystemClock())
            assert used_by(watch, own.id) == 0.0
            run.stdin.write("go\n")
            run.stdin.flush()
            assert run.stdout.readline() == "done\n"
            used_s = used_by(watch, own.id)
            assert 0.25 <= used_s < 5.0
            assert used_by(watch, own.id) - used_s < 0.1
        finally:
            os.killpg(run.pid, signal.SIGKILL)


def used_by(watch: ProcessWatch, shim: ProcessId) -> float:
    fact = watch.read(shim)
    assert isinstance(fact, Known)
    return fact.value.cpu[-1].seconds
