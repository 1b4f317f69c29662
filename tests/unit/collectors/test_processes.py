"""The process table where parts of it are hidden, and what makes a process one of a run."""

from __future__ import annotations

import builtins
import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.host.bed import BARE, holding
from watchdog.collectors import processes
from watchdog.collectors.processes import (
    all_traces,
    ancestry,
    is_alive,
    process_table,
    read_process,
    traces_of,
)
from watchdog.core.identity import Process, ProcessId

STAT = "{pid} (a name) S {ppid} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0"


def make_proc(folder: Path, *pairs: tuple[int, int]) -> str:
    """A /proc of these (pid, parent)."""
    for pid, ppid in pairs:
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(STAT.format(pid=pid, ppid=ppid, ticks=pid * 10))
    return str(folder)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Fill in pids: their files then answer as another user's do below `hidepid=1` (root would see them all)."""
    pids: set[int] = set()
    really_open = builtins.open

    def opening(path: Any, *what: Any, **how: Any) -> Any:
        parts = Path(path).parts if isinstance(path, str) else ()
        if any(str(pid) in parts for pid in pids):
            raise PermissionError(1, "Operation not permitted", path)
        return really_open(path, *what, **how)

    monkeypatch.setattr(processes, "open", opening, raising=False)
    return pids


def test_a_process_that_is_hidden_is_one_that_cannot_be_seen(tmp_path: Path, hidden: set[int]) -> None:
    proc = make_proc(tmp_path, (1, 0), (20, 1), (30, 20))
    assert [process.id.pid for process in sorted(process_table(proc), key=lambda each: each.id)] == [1, 20, 30]
    hidden.add(20)
    assert read_process(20, proc) is None
    assert not is_alive(ProcessId(20, 200), proc)
    assert sorted(process.id.pid for process in process_table(proc)) == [1, 30]


def test_our_own_parents_end_where_they_are_hidden(tmp_path: Path, hidden: set[int]) -> None:
    """A login as another user, `sudo`, a container's edge: the chain is shorter, and that is all."""
    me = os.getpid()
    proc = make_proc(tmp_path, (1, 0), (me + 1, 1), (me, me + 1))
    assert [each.pid for each in ancestry(proc)] == [me, me + 1, 1]
    hidden.add(1)
    assert [each.pid for each in ancestry(proc)] == [me, me + 1]
    hidden.add(me + 1)
    assert [each.pid for each in ancestry(proc)] == [me]


def test_the_traces_of_whoever_is_hidden_prove_nothing(tmp_path: Path, hidden: set[int]) -> None:
    proc = make_proc(tmp_path, (1, 0), (20, 1))
    table = process_table(proc)
    hidden.update({1, 20})
    traces = all_traces(table, since_ticks=0, run_lock=os.stat(tmp_path), proc=proc)
    assert {(trace.run_id, trace.holds_run_lock) for trace in traces.values()} == {(None, False)}


# --- marks ------------------------------------------------------------------------------------------------------
def seen(child: subprocess.Popen[bytes]) -> Process:
    process = read_process(child.pid)
    assert process is not None
    return process


def holds(child: subprocess.Popen[bytes], lock: Path) -> bool:
    return traces_of(seen(child), os.stat(lock)).holds_run_lock


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "run.lock"
    path.touch()
    return path


def test_a_shared_lock_is_a_mark(lock: Path) -> None:
    with holding(lock) as child:
        assert holds(child, lock)


def test_an_exclusive_lock_is_a_trainer_that_a_person_started(lock: Path) -> None:
    with holding(lock, exclusive=True) as child:
        assert not holds(child, lock)


def test_a_shared_lock_on_another_file_is_no_mark(lock: Path, tmp_path: Path) -> None:
    with holding(tmp_path / "other.lock") as child:
        assert not holds(child, lock)


# A backup, an editor, a file server: they have the file open, with locks of their own kinds.
OTHERS = {
    "merely open": "pass",
    "a record lock": "fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    "a lease": f"fcntl.fcntl(fd, {fcntl.F_SETLEASE}, fcntl.F_RDLCK)",
}


@pytest.mark.parametrize("how", OTHERS)
def test_whoever_has_the_run_lock_open_otherwise_carries_no_mark(how: str, lock: Path) -> None:
    code = (
        f"import fcntl, os, sys\nfd = os.open({str(lock)!r}, os.O_RDONLY)\n{OTHERS[how]}\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen([*BARE, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        assert not holds(child, lock)
    finally:
        child.communicate(timeout=20)
