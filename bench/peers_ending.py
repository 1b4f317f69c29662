"""How a side-by-side run ends: whatever a tool has started ends with its trial, and with us, however we end.

Responsible for making us the subreaper of everything that is started below us (daemons, sessions and orphans stay our
descendants), for turning TERM, INT and HUP into an end that still tidies up, and for ending all that is below us.
Refuses to signal anything that is not our descendant at that moment. SIGKILL of ourselves is the one end that leaves
things behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from bench.campaign_bed import BedError
from watchdog.actuators.errand import PR_SET_CHILD_SUBREAPER
from watchdog.actuators.signals import signal_process
from watchdog.collectors.processes import process_table
from watchdog.core.identity import Process

_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_END_S = 20.0


def below(root: int, table: Sequence[Process]) -> list[Process]:
    """Every descendant of `root`, by the parents in one look at the process table."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.ppid, []).append(process)
    found, look_at = [], [root]
    while look_at:
        its = children.get(look_at.pop(), [])
        found += its
        look_at += [process.id.pid for process in its]
    return found


def end_all(limit_s: float = _END_S) -> None:
    """Kill and reap every descendant. Raises BedError with the names of those that are left after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while left := below(os.getpid(), process_table()):
        if time.monotonic() > deadline_s:
            names = ", ".join(f"{process.command} (pid {process.id.pid}, {process.state})" for process in left)
            raise BedError(f"not ended in {limit_s:g} s: {names}")
        for process in left:
            if process.state != "Z":
                signal_process(process.id, signal.SIGKILL)
            elif process.ppid == os.getpid():
                with contextlib.suppress(ChildProcessError):  # a Popen of ours has reaped it
                    os.waitpid(process.id.pid, os.WNOHANG)
        time.sleep(0.02)


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """Once around everything. The first signal raises SystemExit(128 + its number), further ones do not cut it short.

    Raises OSError where we cannot become a subreaper, and BedError from `end_all`.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    def asked(number: int, _frame: FrameType | None) -> None:
        for each in _ASKED:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, asked) for each in _ASKED}
    try:
        yield
    finally:
        for each in _ASKED:
            signal.signal(each, signal.SIG_IGN)
        try:
            end_all()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
