"""The threads of a process, read from `/proc`, and whether it would answer if it were asked.

Reads `status` of the process, and `stat`, `wchan`, `syscall` and `stack` of its threads, as far as this user may; never
`cmdline`, `environ` or `maps`, which hang on a sick process and hold secrets. Bounded in number, in bytes and in time.
Refuses to signal, and to say what a thread waits for.
"""

from __future__ import annotations

import contextlib
import os
import signal

from watchdog import contract
from watchdog.clock import Clock
from watchdog.collectors.processes import parse_stat, read_process
from watchdog.core.identity import Process
from watchdog.core.stacks import ProcessThreads, Thread

THREADS_MOST = 200
_STACK_BYTES = 4096
_WORD_BYTES = 256


def is_python(process: Process, proc: str = "/proc") -> bool:
    """By its name, or by that of its program: a trainer may give itself another title."""
    if process.command.startswith("python"):
        return True
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"{proc}/{process.id.pid}/exe")).startswith("python")
    return False


def read_threads(process: Process, *, until_s: float, clock: Clock, proc: str = "/proc") -> ProcessThreads | None:
    """The process as it is now, with as many threads as `until_s` allows; None when it is gone."""
    pid = process.id.pid
    now = read_process(pid, proc)
    if now is None or now.id != process.id:
        return None
    try:
        tids = sorted(int(name) for name in os.listdir(f"{proc}/{pid}/task"))
        caught = contract.handles(signal.SIGUSR2, pid, proc)
    except OSError:
        return None
    threads: list[Thread] = []
    for tid in tids[:THREADS_MOST]:
        if threads and clock.monotonic() >= until_s:
            break
        thread = _read_thread(f"{proc}/{pid}/task/{tid}")
        if thread is not None:
            threads.append(thread)
    return ProcessThreads(
        process=now,
        threads=tuple(threads),
        left_out=len(tids) - len(threads),
        catches=caught,
        python=is_python(now, proc),
    )


def _read_thread(folder: str) -> Thread | None:
    try:
        stat = parse_stat(_read(f"{folder}/stat", 4096))
    except (OSError, ValueError, IndexError):
        return None
    wchan = _word(f"{folder}/wchan")
    syscall = _word(f"{folder}/syscall")
    stack: list[str] = []
    with contextlib.suppress(OSError):
        lines = _read(f"{folder}/stack", _STACK_BYTES).decode("ascii", "replace").splitlines()
        stack = [line.removeprefix("[<0>] ") for line in lines]
    return Thread(
        tid=stat.id.pid,
        name=stat.command,
        state=stat.state,
        wchan=None if wchan in ("", "0") else wchan,
        syscall=syscall if syscall.lstrip("-").isdigit() else None,  # "running" says no more than the state
        stack=tuple(stack),
    )


def _word(path: str) -> str:
    """The first word; empty where there is none, or none for us."""
    try:
        return _read(path, _WORD_BYTES).decode("ascii", "replace").partition(" ")[0].strip()
    except OSError:
        return ""


def _read(path: str, most: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(most) or b""
