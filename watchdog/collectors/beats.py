"""The run's last beat, read from its beat file.

Absent: there is no file yet. Unknown: there is one, and it cannot be believed (torn, another run's, not a regular
file). Known: a valid beat of this run; whether its process lives is said with it.
Refuses to judge its age: core/decide.py has the deadlines.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from watchdog.collectors.processes import read_process
from watchdog.contract import BEAT_SIZE_BYTES, Beat, ContractError
from watchdog.core.facts import Absent, Fact, Known, Unknown
from watchdog.core.identity import ProcessId
from watchdog.core.seen import BeatSeen

_TRIES = 5  # a read beside an overwrite in place may be torn; the writer needs microseconds


def read_beat_file(path: Path) -> Beat | None:
    """The beat in the file, None when there is no file. Raises OSError, ContractError."""
    problem: ContractError | None = None
    for _ in range(_TRIES):
        try:
            # O_NONBLOCK: a named pipe in its place must not hang the loop.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ContractError(f"{path} is not a regular file")
            content = os.pread(fd, BEAT_SIZE_BYTES, 0)
        finally:
            os.close(fd)
        if not content:
            return None  # just made, nothing written yet
        try:
            return Beat.from_bytes(content)
        except ContractError as error:
            problem = error
    assert problem is not None
    raise problem


def descends_from(pid: int, root: ProcessId, proc: str = "/proc") -> bool:
    """The chain of parents of `pid` leads to the root. A few reads instead of the whole table."""
    for _ in range(256):
        process = read_process(pid, proc)
        if process is None:
            return False
        if process.id == root:
            return True
        if process.ppid <= 1:
            return False
        pid = process.ppid
    return False


def see_beat(path: Path, *, run_id: str, now: Callable[[], float], shim: ProcessId | None) -> Fact[BeatSeen]:
    """The beat as a fact. `alive` only if the process is the one that beat and descends from the shim.

    `now` is the monotonic clock, asked after the beat was read: on a busy host seconds lie between the two, and a beat
    that was made meanwhile is not from the future.
    """
    try:
        beat = read_beat_file(path)
    except ContractError as error:
        return Unknown(f"the beat file cannot be believed: {error}")
    except OSError as error:
        return Unknown(f"the beat file cannot be read: {error.strerror}")
    if beat is None:
        return Absent("no beat yet")
    if beat.run_id != run_id:
        return Unknown(f"the beat is from run {beat.run_id}")
    now_s = now()
    if beat.monotonic_s > now_s + 1.0:
        return Unknown(f"the beat is {beat.monotonic_s - now_s:.0f} s in the future")
    process = read_process(beat.pid)
    identity = ProcessId(beat.pid, beat.start_ticks)
    alive = process is not None and process.id == identity and process.living
    if alive and shim is not None:
        alive = descends_from(beat.pid, shim)
    stopped = alive and process is not None and process.state in "Tt"
    return Known(BeatSeen(beat=beat, alive=alive, stopped=stopped), now_s)
