"""An independent eye on the processes of one job: it polls /proc and trusts nobody's record.

Responsible for telling whether processes of two different runs of a job were ever alive at the same moment. A process
belongs to the job when its environment names the job's checkpoint folder, or its command line says `--of-job=FOLDER`
(an escapee of a drill, whose environment is empty). The shim is no trainer and is left out; so are the dead, zombies
whose threads are gone among them.
Refuses to read the ledger, the locks or anything else that the supervisor writes, and to signal anybody.

    python -P -m bench.campaign_observer FOLDER     until its standard input is closed; then one JSON line on its output
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import Any

from watchdog import contract

PERIOD_S = 0.01
_YOUNG_S = 3.0  # so long a process may still be on its way through fork and exec
_FORGET_S = 1.0


def run_of(pid: int, folder: str, proc: str = "/proc") -> str | None:
    """The run id of a process of this job, None for everybody else."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        with open(f"{proc}/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return None
    if any(word.endswith(b"/shim.py") for word in words[:5]):
        return None
    if b"--of-job=" + os.fsencode(folder) in words:
        return _value(words, b"--of-run=")
    if contract.ENV_CHECKPOINTS.encode() + b"=" + os.fsencode(folder) in environment:
        return _value(environment, contract.ENV_RUN_ID.encode() + b"=")
    return None


def _value(entries: list[bytes], prefix: bytes) -> str | None:
    for entry in entries:
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return None


def is_living(pid: int, ticks: int | None, proc: str = "/proc") -> int | None:
    """The start time of a living process, None when it is dead or, with `ticks`, another one."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    fields = data[data.rindex(b")") + 2 :].split()
    started = int(fields[19])
    if (ticks is not None and ticks != started) or fields[0] in (b"Z", b"X"):
        return None
    return started


class Observer:
    """Looks again and again; `report` is what it has seen so far."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._members: dict[int, tuple[int, str]] = {}  # pid -> (start time, run id)
        self._others: dict[int, tuple[float, float]] = {}  # pid -> (first seen, looked at last)
        self.runs: dict[str, dict[str, Any]] = {}
        self.overlaps: list[dict[str, Any]] = []
        self.looks = 0
        self.longest_gap_s = 0.0
        self._last_s: float | None = None

    def look(self) -> None:
        """One look at every process."""
        now_s = time.monotonic()
        if self._last_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.looks += 1
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for gone in self._others.keys() - pids:
            del self._others[gone]
        for pid in pids - self._members.keys():
            first, last = self._others.get(pid, (now_s, -1.0))
            if now_s - first > _YOUNG_S and now_s - last < _FORGET_S:
                continue
            run_id = run_of(pid, self._folder)
            started = is_living(pid, None) if run_id is not None else None
            if run_id is not None and started is not None:
                self._members[pid] = (started, run_id)
                self._others.pop(pid, None)
            else:
                self._others[pid] = (first, now_s)
        living: dict[str, list[int]] = {}
        for pid, (ticks, run_id) in list(self._members.items()):
            if is_living(pid, ticks) is None:
                del self._members[pid]
            else:
                living.setdefault(run_id, []).append(pid)
        for run_id, members in living.items():
            seen = self.runs.setdefault(run_id, {"first_s": now_s, "pids": []})
            seen["last_s"] = now_s
            seen["pids"] = sorted({*seen["pids"], *members})
        if len(living) > 1:
            self.overlaps.append({"at_s": now_s, "runs": living})

    def report(self) -> dict[str, Any]:
        return {
            "looks": self.looks,
            "longest_gap_s": self.longest_gap_s,
            "runs": self.runs,
            "overlaps": self.overlaps[:100],
            "overlap_count": len(self.overlaps),
        }


def main(argv: list[str]) -> int:
    observer = Observer(os.path.realpath(argv[0]))
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            began_s = time.monotonic()
            observer.look()
            if observer.looks == 1:
                print("watching", flush=True)
            if poll.poll(max(0.0, PERIOD_S - (time.monotonic() - began_s)) * 1000):
                break
    observer.look()
    print(json.dumps(observer.report()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
