"""The process table, read from `/proc`, and what ties a process to a run.

Reads `stat` of everybody, and `environ` and `fd` only of candidates: on a sick process those two can hang, so they
are asked for only when the shim was killed and nothing better is left.
Refuses to signal and to decide whose a process is (core/identity.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from watchdog import contract
from watchdog.core.identity import Host, Process, ProcessId, Traces

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_PREFIX_LIMIT_BYTES = 1024 * 1024


def this_host(proc: str = "/proc") -> Host:
    """Boot id and pid namespace. Raises OSError where `/proc` is not mounted."""
    boot_id = Path(proc, "sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    return Host(boot_id=boot_id, pid_namespace=os.readlink(f"{proc}/self/ns/pid"))


def parse_stat(data: bytes) -> Process:
    """Parse `/proc/PID/stat`; the command may hold spaces and parentheses. Raises ValueError, IndexError."""
    opening, closing = data.index(b"("), data.rindex(b")")
    fields = data[closing + 2 :].split()
    return Process(
        id=ProcessId(int(data[:opening]), int(fields[19])),
        ppid=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode("ascii", "replace"),
        command=data[opening + 1 : closing].decode("utf-8", "replace"),
        cpu_ticks=sum(map(int, fields[11:15])),
    )


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """One process, or None when there is none of that number, or none that we may see (`hidepid`)."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def process_table(proc: str = "/proc") -> tuple[Process, ...]:
    """Everybody that we may see; those that end while we look are left out."""
    table = []
    for name in os.listdir(proc):
        if name.isdigit():
            process = read_process(int(name), proc)
            if process is not None:
                table.append(process)
    return tuple(table)


def ancestry(proc: str = "/proc") -> tuple[ProcessId, ...]:
    """This process and its parents, up to process 1 or the edge of the pid namespace."""
    found: list[ProcessId] = []
    pid = os.getpid()
    while pid > 0 and len(found) < 256:
        process = read_process(pid, proc)
        if process is None:
            break
        found.append(process.id)
        pid = process.ppid
    return tuple(found)


def living_table(proc: str = "/proc") -> tuple[Process, ...]:
    """`process_table`, in which a process whose leader ended before its threads has the state of one of those.

    KILL makes a zombie of the leader at once, while a thread that waits in the kernel keeps the process, its memory and
    its files: by the leader's state alone nobody would be named.
    """
    return tuple(process if process.living else _as_its_threads(process, proc) for process in process_table(proc))


def _as_its_threads(process: Process, proc: str) -> Process:
    states = _thread_states(process.id.pid, proc)
    living = [state for state in states if state not in "ZXx"]
    if not living:
        return process
    return dataclasses.replace(process, state="D" if "D" in living else living[0])


def is_alive(identity: ProcessId, proc: str = "/proc") -> bool:
    """The same process, and not a zombie whose threads are all gone."""
    process = read_process(identity.pid, proc)
    if process is None or process.id != identity:
        return False
    return process.living or has_living_threads(identity.pid, proc)


def has_living_threads(pid: int, proc: str = "/proc") -> bool:
    """A zombie leader can have live threads: look at each."""
    return any(state not in "ZXx" for state in _thread_states(pid, proc))


def _thread_states(pid: int, proc: str) -> list[str]:
    states: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"{proc}/{pid}/task"):
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                open(f"{proc}/{pid}/task/{thread}/stat", "rb") as file,
            ):
                states.append(parse_stat(file.read()).state)
    return states


def tracer_of(pid: int, proc: str = "/proc") -> int:
    """TracerPid of `/proc/PID/status`: 0 = not traced. Raises OSError when the process is gone."""
    with open(f"{proc}/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"TracerPid:"):
                return int(line.split()[1])
    return 0


def traces_of(process: Process, run_lock: os.stat_result | None, proc: str = "/proc") -> Traces:
    """What a process carries of a run. Kernel threads (no memory of their own) and other users' read as clean.

    Without root a run cannot leave its user except through a set-user-id program, and those of other users are
    never readable: holding every launch for each of them would make a shared host useless.
    """
    pid = process.id.pid
    taker: int | None = None
    if run_lock is not None:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"{proc}/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"{proc}/{pid}/fd/{fd}")
                    if (status.st_dev, status.st_ino) == (run_lock.st_dev, run_lock.st_ino):
                        taker = _lock_taker(pid, fd, proc)
                        if taker is not None:
                            break
    holds, took = taker is not None, taker or 0
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            content = file.read(_PREFIX_LIMIT_BYTES)
    except (FileNotFoundError, ProcessLookupError):
        return Traces(readable=True, run_id=None, holds_run_lock=holds, lock_taker=took)
    except OSError:
        with contextlib.suppress(OSError):
            if os.stat(f"{proc}/{pid}").st_uid != os.getuid():
                return Traces(readable=True, run_id=None, holds_run_lock=holds, lock_taker=took)
        return Traces(readable=False, run_id=None, holds_run_lock=holds, lock_taker=took)
    marker = contract.ENV_RUN_ID.encode() + b"="
    for entry in content.split(b"\0"):
        if entry.startswith(marker):
            run_id = entry[len(marker) :].decode("utf-8", "replace")
            return Traces(readable=True, run_id=run_id, holds_run_lock=holds, lock_taker=took)
    kernel_thread = process.id.pid == 2 or process.ppid == 2
    readable = bool(content.strip(b"\0")) or kernel_thread
    return Traces(readable=readable, run_id=None, holds_run_lock=holds, lock_taker=took)


def _lock_taker(pid: int, fd: str, proc: str) -> int | None:
    """Who took the shared lock that the descriptor carries, the mark of a run; None where it carries none.

    Whoever merely has the file open (a pager, a backup) holds nothing, and an exclusive lock is a trainer's that a
    person started by hand.
    """
    with open(f"{proc}/{pid}/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"lock:") and b" FLOCK " in line and b" READ " in line:
                taker = line.partition(b" READ ")[2].split()[0]
                return int(taker) if taker.isdigit() else 0
    return None


def all_traces(
    table: Iterable[Process], *, since_ticks: int, run_lock: os.stat_result | None, proc: str = "/proc"
) -> dict[ProcessId, Traces]:
    """`traces_of` everybody living that started at `since_ticks` or later."""
    return {
        process.id: traces_of(process, run_lock, proc)
        for process in table
        if process.living and process.id.start_ticks >= since_ticks
    }


def marked_processes(proc: str = "/proc") -> list[tuple[Process, Traces]]:
    """Everybody living that carries a run id in its environment."""
    table = process_table(proc)
    traces = all_traces(table, since_ticks=0, run_lock=None, proc=proc)
    by_id = {process.id: process for process in table}
    return [(by_id[identity], trace) for identity, trace in traces.items() if trace.run_id is not None]
