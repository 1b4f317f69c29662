"""Real runs for the tests of the shim, the run's eyes and the stop: started, watched, and ended whatever a test did."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from watchdog.actuators.launch import shim_command, ticks_now
from watchdog.collectors.processes import process_table, read_process, this_host
from watchdog.collectors.run import RunWatch
from watchdog.contract import ENV_RUN_ID
from watchdog.core.identity import ProcessId, descendants
from watchdog.core.runrecord import Expectation, RunRecord
from watchdog.folders import RunFolder

# A trainer made of one line of Python; `-S -E` so that it starts in milliseconds.
PYTHON = (sys.executable, "-S", "-E", "-c")


def until(look: Any, what: str, timeout_s: float = 10.0) -> Any:
    """Poll until `look()` is true; AssertionError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}; last seen {seen!r}"
        time.sleep(0.01)
    return seen


def run_record(folder: Path, run_id: str = "1-a", **changes: Any) -> RunRecord:
    host = this_host()
    values: dict[str, Any] = {
        "run_id": run_id,
        "number": 1,
        "job": "job",
        "boot_id": host.boot_id,
        "pid_namespace": host.pid_namespace,
        "started_ticks": ticks_now(),
        "started_wall_s": time.time(),
        "folder": str(folder),
        "level": 0,
        "baseline_step": -1,
        "expectation": Expectation(fresh=True),
    }
    return RunRecord(**(values | changes))


@dataclasses.dataclass
class Shimmed:
    """A run under a real shim, with its lock."""

    record: RunRecord
    folder: RunFolder
    lock: Path
    shim: subprocess.Popen[bytes]

    @property
    def id(self) -> ProcessId:
        process = read_process(self.shim.pid)
        assert process is not None
        return process.id

    def start(self) -> dict[str, Any]:
        """The start file, once the leader stands in it."""

        def look() -> Any:
            with contextlib.suppress(FileNotFoundError):
                record = json.loads(self.folder.start.read_bytes())
                return record if record["leader"] else None
            return None

        return until(look, "the start file")

    def leader(self) -> ProcessId:
        leader = self.start()["leader"]
        return ProcessId(leader["pid"], leader["start_ticks"])

    def exit(self) -> dict[str, Any]:
        return json.loads(self.folder.exit.read_bytes())

    def members(self) -> set[int]:
        return {each.id.pid for each in descendants(self.id, process_table()) if each.living}

    def watch(self, *, adopted: bool = False) -> RunWatch:
        return RunWatch(self.record, None if adopted else self.shim)

    def lock_is_free(self) -> bool:
        fd = os.open(self.lock, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True


class Shims:
    """Starts runs below one folder and ends every process of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Shimmed] = []

    def run(self, *command: str, run_id: str = "1-a", **popen: Any) -> Shimmed:
        """`command` under a shim; one argument alone is a program in Python."""
        if len(command) == 1:
            command = (*PYTHON, command[0])
        folder = RunFolder(path=self.folder / run_id)
        folder.path.mkdir(exist_ok=True)
        lock = self.folder / "run.lock"
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(fd, fcntl.LOCK_SH)
        record = run_record(folder.path, run_id)
        with open(folder.log, "ab") as log:
            shim = subprocess.Popen(
                shim_command(folder, fd, run_id, command),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {ENV_RUN_ID: run_id},
                pass_fds=(fd,),
                start_new_session=True,
                **popen,
            )
        os.close(fd)
        started = Shimmed(record, folder, lock, shim)
        self.started.append(started)
        return started

    def close(self) -> None:
        """KILL in rounds to everything below the shims, and to orphans by the mark in their environment."""
        for run in self.started:
            while run.shim.poll() is None:
                for pid in run.members():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.shim.wait(0.05)
        since = min((run.record.started_ticks for run in self.started), default=0)
        for process in process_table():
            if process.id.start_ticks < since or process.id.pid == os.getpid():
                continue
            with contextlib.suppress(OSError):
                mine = str(self.folder).encode()
                if os.fsencode(os.readlink(f"/proc/{process.id.pid}/cwd")).startswith(mine):
                    os.kill(process.id.pid, signal.SIGKILL)
