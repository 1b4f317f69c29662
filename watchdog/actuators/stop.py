"""Ending what is proven ours: TERM to the beating process, later KILL in rounds.

A round stops everything that it finds (SIGSTOP) and looks again until nothing new appears, so that what forks
faster than we look is caught, and then kills it all. The shim is never among the targets: its end is the proof.
Refuses to decide when, and whom: it is given proven identities, and a function that looks again.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterable

from watchdog.actuators.signals import Sent, signal_process
from watchdog.collectors.processes import read_process
from watchdog.core.identity import Process, ProcessId

MAX_SCANS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a kill round did: per process the outcome of the KILL."""

    outcomes: tuple[tuple[Process, Sent], ...]

    def of(self, sent: Sent) -> tuple[Process, ...]:
        return tuple(process for process, outcome in self.outcomes if outcome is sent)


def terminate(target: ProcessId, *, dry_run: bool = False) -> Sent:
    """TERM, then CONT when it is stopped: a stopped process gets its TERM only when it goes on."""
    process = read_process(target.pid)
    sent = signal_process(target, signal.SIGTERM, dry_run=dry_run)
    if sent is Sent.DELIVERED and process is not None and process.state == "T":
        signal_process(target, signal.SIGCONT, dry_run=dry_run)
    return sent


def freeze(look: Callable[[], Iterable[Process]], *, dry_run: bool = False) -> dict[ProcessId, Process]:
    """STOP everything that `look` proves ours, and look again until nothing new appears. At most MAX_SCANS looks.

    Whatever fails on the way, nobody stays stopped by it.
    """
    known: dict[ProcessId, Process] = {}
    try:
        for _ in range(MAX_SCANS):
            fresh = [process for process in look() if process.living and process.id not in known]
            if not fresh:
                break
            for process in fresh:
                known[process.id] = process
                signal_process(process.id, signal.SIGSTOP, dry_run=dry_run)
    except BaseException:
        thaw(known, dry_run=dry_run)
        raise
    return known


def thaw(known: Iterable[ProcessId], *, dry_run: bool = False) -> None:
    """Undo `freeze`: what could not be recorded is not killed. One that cannot be reached keeps nobody else."""
    for identity in known:
        _send(identity, signal.SIGCONT, dry_run=dry_run)


def kill(known: dict[ProcessId, Process], *, dry_run: bool = False) -> Round:
    """KILL to everything that was frozen. One that cannot be reached keeps nobody else from it."""
    sent = {identity: _send(identity, signal.SIGKILL, dry_run=dry_run) for identity in known}
    return Round(tuple((process, sent[identity]) for identity, process in known.items()))


def _send(identity: ProcessId, number: signal.Signals, *, dry_run: bool) -> Sent:
    try:
        return signal_process(identity, number, dry_run=dry_run)
    except OSError:
        return Sent.FAILED


def kill_round(look: Callable[[], Iterable[Process]], *, dry_run: bool = False) -> Round:
    """`freeze` and `kill` in one, for who has nothing to record in between."""
    return kill(freeze(look, dry_run=dry_run), dry_run=dry_run)
