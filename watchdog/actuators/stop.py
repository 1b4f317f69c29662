"""Ending what is proven ours: TERM to the beating process, later KILL in rounds.

A round stops everything that it finds (SIGSTOP) and looks again until nothing new appears, so that what forks
faster than we look is caught, and then kills it all. The shim is never among the targets: its end is the proof.
Whom it has stopped it holds by descriptor, so that it can let them go on where no descriptor is to be had any more.
Refuses to decide when, and whom: it is given proven identities, and a function that looks again.
"""

from __future__ import annotations

import dataclasses
import resource
import signal
from collections.abc import Callable, Iterable

from watchdog.actuators.signals import Handle, Sent, hold, send, signal_process
from watchdog.collectors.processes import read_process
from watchdog.core.identity import Process, ProcessId

MAX_SCANS = 12
_HELD = 256  # descriptors a round keeps; whoever is beyond is reached with those that become free


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a kill round did: per process the outcome of the KILL."""

    outcomes: tuple[tuple[Process, Sent], ...]

    def of(self, sent: Sent) -> tuple[Process, ...]:
        return tuple(process for process, outcome in self.outcomes if outcome is sent)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """Whom a round has stopped, each as it was right before. For `kill` or `thaw`, which let its descriptors go."""

    known: dict[ProcessId, Process] = dataclasses.field(default_factory=dict)
    held: dict[ProcessId, Handle] = dataclasses.field(default_factory=dict)


def terminate(target: ProcessId, *, dry_run: bool = False) -> Sent:
    """TERM, then CONT when it is stopped: a stopped process gets its TERM only when it goes on."""
    process = read_process(target.pid)
    sent = signal_process(target, signal.SIGTERM, dry_run=dry_run)
    if sent is Sent.DELIVERED and process is not None and process.state == "T":
        signal_process(target, signal.SIGCONT, dry_run=dry_run)
    return sent


def freeze(look: Callable[[], Iterable[Process]], *, dry_run: bool = False) -> Frozen:
    """STOP everything that `look` proves ours, and look again until nothing new appears. At most MAX_SCANS looks.

    Whatever fails on the way, nobody stays stopped by it.
    """
    frozen = Frozen()
    most = min(_HELD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    try:
        for _ in range(MAX_SCANS):
            fresh = [process for process in look() if process.living and process.id not in frozen.known]
            if not fresh:
                break
            for process in fresh:
                frozen.known[process.id] = process
                handle = hold(process.id)
                if handle is None:
                    continue
                frozen.held[process.id] = handle
                send(handle, signal.SIGSTOP, dry_run=dry_run)
                if len(frozen.held) > most:
                    frozen.held.pop(process.id).close()
    except BaseException:
        thaw(frozen, dry_run=dry_run)
        raise
    return frozen


def thaw(frozen: Frozen, *, dry_run: bool = False) -> None:
    """Undo `freeze`: what could not be recorded is not killed. Who was stopped before, by somebody else, stays so.

    One that cannot be reached keeps nobody else.
    """
    _to_all(frozen, signal.SIGCONT, dry_run=dry_run)


def kill(frozen: Frozen, *, dry_run: bool = False) -> Round:
    """KILL to everything that was frozen. One that cannot be reached keeps nobody else from it."""
    sent = _to_all(frozen, signal.SIGKILL, dry_run=dry_run)
    return Round(tuple((process, sent[identity]) for identity, process in frozen.known.items()))


def _to_all(frozen: Frozen, number: signal.Signals, *, dry_run: bool) -> dict[ProcessId, Sent]:
    """Those held by descriptor first: each gives one back, with which the others are reached."""
    sent: dict[ProcessId, Sent] = {}
    for identity in (*frozen.held, *(each for each in frozen.known if each not in frozen.held)):
        handle = frozen.held.pop(identity, None)
        try:
            if number is signal.SIGCONT and frozen.known[identity].state == "T":
                continue
            if handle is None:
                sent[identity] = signal_process(identity, number, dry_run=dry_run)
            else:
                sent[identity] = send(handle, number, dry_run=dry_run)
        except OSError:
            sent[identity] = Sent.FAILED
        finally:
            if handle is not None:
                handle.close()
    return sent


def kill_round(look: Callable[[], Iterable[Process]], *, dry_run: bool = False) -> Round:
    """`freeze` and `kill` in one, for who has nothing to record in between."""
    return kill(freeze(look, dry_run=dry_run), dry_run=dry_run)
