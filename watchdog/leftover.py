"""What a leader that is gone has left: whether its output grows, whether its shim is stopped; and CONT to that shim.

Responsible for reading that in the turn that decides, and for recording a CONT before and after. Refuses to decide
(core/watching.py does), and to send it to a shim that is not proven to be the run's own, or that a debugger holds.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from watchdog.actuators.signals import signal_process
from watchdog.checks.leftover import left_over
from watchdog.collectors.processes import read_process
from watchdog.collectors.run import RunWatch
from watchdog.core.facts import Facts
from watchdog.core.identity import Process
from watchdog.core.limits import Limits
from watchdog.core.seen import Left, Seen, Shim
from watchdog.core.state import Policy, RunState

_STOPPED = "Tt"  # by a signal; by a debugger


class LeftEyes:
    """For use from the loop alone."""

    def __init__(self) -> None:
        self._run_id = ""
        self._size: int | None = None  # of its output, as it was seen last
        self._grew_s: float | None = None

    def look(
        self, watch: RunWatch | None, seen: Seen, facts: Facts, limits: Limits, run: RunState | None, policy: Policy
    ) -> Left | None:
        """None while the leader lives, and where nothing of the run is known to."""
        if watch is None or run is None or seen.leader_alive or seen.shim is not Shim.ALIVE:
            self._run_id = ""
            return None
        if self._run_id != run.run_id:
            self._run_id, self._size, self._grew_s = run.run_id, None, None
        size = _size_of(watch)
        if size is not None:
            if self._size is not None and size > self._size:
                self._grew_s = seen.now_s
            self._size = size
        return left_over(
            facts,
            limits,
            since_s=seen.now_s if run.leader_gone_s is None else run.leader_gone_s,
            now_s=seen.now_s,
            window_s=policy.idle_left_s,
            grew_s=self._grew_s,
            log_read=size is not None,
        )


def _size_of(watch: RunWatch) -> int | None:
    """It stands in the folder whose records are read in each turn as well."""
    try:
        return watch.folder.log.stat().st_size
    except OSError:
        return None


def stopped_shim(watch: RunWatch) -> Process | None:
    """The run's living shim, where it is stopped; None where it is not, or that cannot be seen."""
    identity = watch.shim_id
    if identity is None:
        return None
    try:
        process = read_process(identity.pid)
    except (OSError, ValueError, IndexError):
        return None
    if process is None or process.id != identity or process.state not in _STOPPED:
        return None
    return process


def continue_shim(watch: RunWatch, note: Callable[..., Any]) -> None:
    """CONT to the run's own shim; that it is next was recorded before."""
    identity = watch.shim_id
    if identity is None:
        note("shim_continued", "CONT was not sent: the shim is not known")
        return
    try:
        outcome = signal_process(identity, signal.SIGCONT).value
    except OSError as error:
        outcome = f"could not be sent ({error.strerror})"
    note("shim_continued", f"CONT to its shim, pid {identity.pid}: {outcome}", pid=identity.pid, outcome=outcome)
