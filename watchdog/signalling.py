"""Carrying out a stop: look again, record, act, record. Whom and when was decided before.

Nobody is signalled who is not proven a member of the run at this very moment, and nobody is killed unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog.actuators.stop import kill_round, terminate
from watchdog.collectors.run import RunWatch
from watchdog.core.facts import Fact, Known
from watchdog.core.identity import Process, ProcessId
from watchdog.core.seen import BeatSeen, Shim


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
        self._killed: frozenset[int] = frozenset()

    def forget(self) -> None:
        """A new run begins."""
        self._killed = frozenset()

    def terminate(self, watch: RunWatch, target: ProcessId | None, only_if_seq: int | None, now_s: float) -> bool:
        """TERM. False when the last look found a new beat: then nothing was done."""
        if only_if_seq is not None:
            beat = self._beat(watch, now_s)
            if not isinstance(beat, Known) or beat.value.beat.seq != only_if_seq:
                self._note("run_goes_on", "it beat at the last look before the stop: nothing was done")
                return False
        if target is None and watch.start is not None:
            target = watch.start.leader
        if target is None or target not in {process.id for process in watch.members()}:
            self._note("signal_sent", "TERM was not sent: nobody is proven to be the one to get it")
            return True
        sent = terminate(target)
        self._note("signal_sent", f"TERM to pid {target.pid}: {sent.value}", pid=target.pid, outcome=sent.value)
        return True

    def kill(self, watch: RunWatch) -> None:
        """One round of KILL; recorded before and after whenever it meets somebody new. Raises RecordingError."""

        def look() -> tuple[Process, ...]:
            return watch.orphans(self._run_lock).ours if watch.shim() is Shim.LOST else watch.members()

        targets = look()
        if not targets:
            return
        pids = frozenset(process.id.pid for process in targets)
        news = bool(pids - self._killed)
        if news:
            names = ", ".join(f"{process.id.pid} {process.command}" for process in targets[:20])
            self._record("run_killing", f"KILL to {names}", pids=sorted(pids)[:200])
            self._killed |= pids
        outcome = kill_round(look)
        if news:
            words = ", ".join(f"{process.id.pid} {sent.value}" for process, sent in outcome.outcomes[:20])
            self._note("run_killed", f"outcome of KILL: {words or 'nobody was left'}")
