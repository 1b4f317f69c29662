"""The process table and what ties a process to a run, on this very host."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import until
from watchdog.collectors.processes import (
    all_traces,
    has_living_threads,
    is_alive,
    parse_stat,
    process_table,
    read_process,
    this_host,
    traces_of,
)
from watchdog.contract import ENV_RUN_ID, start_ticks
from watchdog.core.identity import Process, ProcessId

SLEEP = [sys.executable, "-S", "-E", "-c", "import time; print(flush=True); time.sleep(600)"]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def sleeper(started: list, **popen: object) -> Process:
    child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, **popen)  # type: ignore[call-overload]
    started.append(child)
    assert child.stdout.readline() == b"\n"
    process = read_process(child.pid)
    assert process is not None
    return process


# --- reading ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a b", "a) S 1 2", "((", "))", ") Z 1 (", "x\ny", "\xff"])
def test_a_name_cannot_forge_the_rest_of_the_line(name: str) -> None:
    fields = ["S", "7", "8", "9", *["0"] * 15, "12345", "0"]
    process = parse_stat(b"42 (" + name.encode("latin-1") + b") " + " ".join(fields).encode())
    assert process.id == ProcessId(42, 12345)
    assert (process.state, process.ppid, process.session) == ("S", 7, 9)


@pytest.mark.parametrize("data", [b"", b"42", b"42 (x", b"42 (x) S 1 2", b"x (y) S " + b"0 " * 30])
def test_a_line_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_stat(data)


def test_we_are_in_the_table_with_our_start_time() -> None:
    me = ProcessId(os.getpid(), start_ticks())
    assert me in {process.id for process in process_table()}
    assert is_alive(me)
    assert this_host().boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_zombie_is_not_alive(started: list) -> None:
    process = sleeper(started)
    os.kill(process.id.pid, signal.SIGKILL)
    until(lambda: (now := read_process(process.id.pid)) is not None and now.state == "Z", "a zombie")
    assert not is_alive(process.id)


ZOMBIE_LEADER = """
import ctypes, threading, time, sys
def go_on():
    time.sleep(600)
threading.Thread(target=go_on).start()
print(flush=True)
ctypes.CDLL(None).syscall(60 if ctypes.sizeof(ctypes.c_void_p) == 8 and sys.platform == "linux" else 1, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="ends one thread by the number of a system call")
def test_a_dead_leader_with_a_living_thread_is_alive(started: list) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-E", "-c", ZOMBIE_LEADER], stdout=subprocess.PIPE)
    started.append(child)
    process = read_process(child.pid)
    assert process is not None
    until(lambda: (now := read_process(child.pid)) is not None and now.state == "Z", "the leader alone is a zombie")
    assert has_living_threads(child.pid)
    assert is_alive(process.id)


def test_a_table_read_while_processes_come_and_go_does_not_fall_over() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            subprocess.run(["/bin/true"], check=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(30):
            assert process_table()
    finally:
        stop.set()
        thread.join()


# --- traces -------------------------------------------------------------------------------------------------
def test_the_run_id_is_read_from_the_environment(started: list) -> None:
    process = sleeper(started, env={"A": "b", ENV_RUN_ID: "1-a", "Z": "z"})
    assert traces_of(process, None).run_id == "1-a"
    plain = sleeper(started, env={"A": f"x {ENV_RUN_ID}=1-a", "NOT_" + ENV_RUN_ID: "1-a"})
    assert traces_of(plain, None).run_id is None
    assert traces_of(plain, None).readable


def test_an_emptied_environment_is_unreadable_and_not_clean(started: list) -> None:
    assert not traces_of(sleeper(started, env={}), None).readable


def test_a_kernel_thread_is_clean() -> None:
    kernel = [process for process in process_table() if process.ppid == 2 or process.id.pid == 2]
    if not kernel:
        pytest.skip("no kernel threads are seen from this pid namespace")
    assert all(traces_of(process, None).readable for process in kernel)


def test_a_holder_of_the_run_lock_is_seen(tmp_path: Path, started: list) -> None:
    path = tmp_path / "run.lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        process = sleeper(started, env={}, pass_fds=[file.fileno()])
    traces = traces_of(process, os.stat(path))
    assert traces.holds_run_lock


def test_who_only_has_the_lock_file_open_holds_nothing(tmp_path: Path, started: list) -> None:
    """A backup or a pager that reads the file is a bystander: being taken for a member it would be killed."""
    path = tmp_path / "run.lock"
    path.touch()
    with open(path) as file:
        process = sleeper(started, env={"A": "b"}, pass_fds=[file.fileno()])
    assert not traces_of(process, os.stat(path)).holds_run_lock


def test_another_lock_file_of_the_same_name_is_another(tmp_path: Path, started: list) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "run.lock").touch()
    with open(tmp_path / "a" / "run.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        process = sleeper(started, env={"A": "b"}, pass_fds=[file.fileno()])
    assert not traces_of(process, os.stat(tmp_path / "run.lock")).holds_run_lock


def test_only_who_started_in_time_is_asked(started: list) -> None:
    process = sleeper(started, env={ENV_RUN_ID: "1-a"})
    table = process_table()
    since = process.id.start_ticks
    assert process.id in all_traces(table, since_ticks=since, run_lock=None)
    asked = all_traces(table, since_ticks=since + 1, run_lock=None)
    assert process.id not in asked
    assert ProcessId(os.getpid(), start_ticks()) not in asked


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be played by root alone")
def test_for_a_user_without_rights_other_users_processes_are_clean(started: list) -> None:
    """Else every launch of theirs would wait for each process of everybody."""
    process = sleeper(started, env={ENV_RUN_ID: "1-a"})
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            traces = traces_of(process, None)
            os.write(writer, f"{traces.readable} {traces.run_id}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"True None"
    os.waitpid(pid, 0)
