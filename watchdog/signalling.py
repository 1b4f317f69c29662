"""Carrying out a stop: look again, record, act, record. Whom and when was decided before.

Nobody is signalled who is not proven a member of the run at this very moment, and nobody is killed unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog.actuators.stop import freeze, kill, terminate, thaw
from watchdog.collectors.run import RunWatch
from watchdog.core.facts import Absent, Fact, Known
from watchdog.core.identity import Process, ProcessId
from watchdog.core.seen import BeatSeen, Shim
from watchdog.core.state import Terminate
from watchdog.errors import RecordingError


class Signaller:
    """Ends one run after the other. `record` raises RecordingError, `note` writes what nothing depends on."""

    def __init__(
        self,
        run_lock: Path,
        beat: Callable[[RunWatch, float], Fact[BeatSeen]],
        record: Callable[..., Any],
        note: Callable[..., Any],
    ) -> None:
        self._run_lock = run_lock
        self._beat = beat
        self._record = record
        self._note = note
        self._killed: frozenset[ProcessId] = frozenset()

    def forget(self) -> None:
        """A new run begins."""
        self._killed = frozenset()

    def terminate(self, watch: RunWatch, order: Terminate, now_s: float) -> bool:
        """TERM. False when the last look found another beat than the one that was judged: then nothing was done."""
        target = order.target
        if order.look_again:
            beat = self._beat(watch, now_s)
            same = isinstance(beat, Known) and beat.value.beat.seq == order.only_if_seq
            still_none = isinstance(beat, Absent) and order.only_if_seq is None
            if not same and not still_none:
                self._note("run_goes_on", "at the last look before the stop its beat was another: nothing was done")
                return False
        if target is None and watch.start is not None:
            target = watch.start.leader
        if target is None or target not in {process.id for process in watch.members()}:
            self._note("signal_sent", "TERM was not sent: nobody is proven to be the one to get it")
            return True
        sent = terminate(target)
        self._note("signal_sent", f"TERM to pid {target.pid}: {sent.value}", pid=target.pid, outcome=sent.value)
        return True

    def terminate_rest(self, watch: RunWatch) -> None:
        """TERM to every member there is."""
        outcomes = [(process, terminate(process.id)) for process in watch.members()]
        words = ", ".join(f"{process.id.pid} {process.command} {sent.value}" for process, sent in outcomes[:20])
        self._note("signal_sent", f"TERM to what is left: {words or 'nobody was left'}")

    def kill(self, watch: RunWatch) -> None:
        """One round of KILL; recorded before and after whenever it meets somebody new. Raises RecordingError."""

        def look() -> tuple[Process, ...]:
            return watch.orphans(self._run_lock).ours if watch.shim() is Shim.LOST else watch.members()

        known = freeze(look)
        if not known:
            return
        fresh = [process for identity, process in known.items() if identity not in self._killed]
        if fresh:
            names = ", ".join(f"{process.id.pid} {process.command}" for process in fresh[:20])
            try:
                self._record(
                    "run_killing", f"KILL to {names}", pids=sorted(process.id.pid for process in fresh)[:20_000]
                )
            except RecordingError:
                thaw(known)
                raise
            self._killed |= known.keys()
        outcome = kill(known)
        if fresh:
            words = ", ".join(f"{process.id.pid} {sent.value}" for process, sent in outcome.outcomes[:20])
            self._note("run_killed", f"outcome of KILL: {words}")
