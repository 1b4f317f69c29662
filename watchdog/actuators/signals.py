"""The one place that signals anybody. Every signal goes through `send`.

Responsible for: holding a process by pidfd, comparing its start time before each signal, never touching a traced
process, and doing nothing at all when told to run dry.
Refuses: process groups, numbers without a start time, ourselves, and process 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import signal

from watchdog.collectors.processes import read_process, tracer_of
from watchdog.core.identity import ProcessId


class Sent(enum.Enum):
    """What became of a signal."""

    DELIVERED = "delivered"
    GONE = "gone"  # the process is no longer there, or its number belongs to another
    TRACED = "traced"  # a debugger holds it: left alone
    REFUSED = "refused"  # the kernel did not allow it
    FAILED = "could not be sent"  # no descriptor to be had; the next round tries again
    DRY = "dry run"


@dataclasses.dataclass(frozen=True, slots=True)
class Handle:
    """A process held by pidfd: the number cannot be taken over by another unnoticed."""

    id: ProcessId
    fd: int

    def close(self) -> None:
        os.close(self.fd)


def hold(identity: ProcessId) -> Handle | None:
    """Open a pidfd and make sure that it is the process meant. None when that process is gone. Raises OSError."""
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    # Compared after opening: from here on the descriptor stands for this very process.
    process = read_process(identity.pid)
    if process is None or process.id != identity:
        os.close(fd)
        return None
    return Handle(identity, fd)


def send(handle: Handle, number: signal.Signals, *, dry_run: bool = False) -> Sent:
    """Signal one proven process through its pidfd. Raises OSError only for what no caller can expect."""
    if handle.id.pid in (1, os.getpid()):
        raise ValueError(f"refusing to signal pid {handle.id.pid}")
    try:
        process = read_process(handle.id.pid)
        if process is None or process.id != handle.id:
            return Sent.GONE
        if tracer_of(handle.id.pid) != 0:
            return Sent.TRACED
    except (FileNotFoundError, ProcessLookupError):
        return Sent.GONE
    except OSError:
        # No descriptor to be had: the one that is held proves who it is, and to be let go on harms nobody.
        if number is not signal.SIGCONT:
            raise
    if dry_run:
        return Sent.DRY
    try:
        signal.pidfd_send_signal(handle.fd, number)
    except ProcessLookupError:
        return Sent.GONE
    except PermissionError:
        return Sent.REFUSED
    return Sent.DELIVERED


def signal_process(identity: ProcessId, number: signal.Signals, *, dry_run: bool = False) -> Sent:
    """`hold`, `send`, close."""
    handle = hold(identity)
    if handle is None:
        return Sent.GONE
    with contextlib.closing(handle):
        return send(handle, number, dry_run=dry_run)
