"""The notify socket: beats as systemd defines them (sd_notify(3)), for trainers that speak nothing else.

Responsible for draining the socket in a thread of its own (it holds few unread messages, then a blocking sender
stalls), and for hearing only processes that are proven members of the run. The address is abstract: short whatever
the state folder is called, and gone with us; a supervisor that adopts the run binds it anew.
Refuses to judge: a message becomes a beat, core/ decides what its silence means.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import socket
import struct
import threading
from collections import deque

from watchdog.clock import Clock
from watchdog.collectors.beats import descends_from
from watchdog.collectors.processes import read_process
from watchdog.contract import Beat
from watchdog.core.facts import Absent, Fact, Known
from watchdog.core.identity import ProcessId
from watchdog.core.seen import BeatSeen

_MESSAGE_BYTES = 4096
_KEPT_MESSAGES = 100
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred, see unix(7)


def address_of(run_id: str) -> str:
    """The value of NOTIFY_SOCKET for a run; `@` stands for the leading zero byte of an abstract address."""
    return f"@gpuhost-watchdog/{run_id}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Notified:
    """What was said so far. `beats` counts WATCHDOG=1; `phase` follows READY and STOPPING."""

    sender: ProcessId
    beats: int
    at_s: float
    phase: str = "load"
    status: str | None = None
    extended_until_s: float = 0.0


def parse(datagram: bytes) -> dict[str, str]:
    """The assignments of one message; lines that are none are passed over."""
    pairs = (line.partition("=") for line in datagram.decode("utf-8", "replace").split("\n"))
    return {name: value for name, equals, value in pairs if equals}


def after(before: Notified | None, message: dict[str, str], sender: ProcessId, now_s: float) -> Notified | None:
    """What is known after a message; unchanged when it says nothing that we understand. Pure."""
    known = before if before is not None else Notified(sender=sender, beats=0, at_s=now_s)
    changes: dict[str, object] = {}
    if message.get("WATCHDOG") == "1":
        changes |= {"beats": known.beats + 1, "at_s": now_s, "sender": sender}
    if message.get("READY") == "1":
        changes |= {"phase": "train", "at_s": now_s}
    if message.get("STOPPING") == "1":
        changes |= {"phase": "drain", "at_s": now_s}
    if "STATUS" in message:
        changes["status"] = message["STATUS"][:200]
    extend = message.get("EXTEND_TIMEOUT_USEC", "")
    if extend.isascii() and extend.isdigit() and len(extend) < 16:
        changes["extended_until_s"] = now_s + int(extend) / 1e6
    return dataclasses.replace(known, **changes) if changes else before  # type: ignore[arg-type]


class NotifySocket:
    """Hears one run. What is said before its shim is known (`believe`) is kept, and judged then."""

    def __init__(self, run_id: str, clock: Clock) -> None:
        """Raises OSError when the address cannot be bound."""
        self._run_id = run_id
        self._clock = clock
        self._root: ProcessId | None = None
        self._unjudged: deque[tuple[ProcessId, bytes, float]] = deque(maxlen=_KEPT_MESSAGES)
        self._lock = threading.Lock()
        self._newest: Notified | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind("\0" + address_of(run_id)[1:])
        except OSError:
            self._socket.close()
            raise
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._drain, name="notify", daemon=True)
        self._thread.start()

    def believe(self, root: ProcessId) -> None:
        """From now on the descendants of this shim are heard, and what they said before."""
        with self._lock:
            if self._root is None:
                self._root = root
                while self._unjudged:
                    self._judge(*self._unjudged.popleft(), root)

    def beat(self, now_s: float) -> Fact[BeatSeen]:
        """The newest message as a beat. Until the first WATCHDOG=1 it promises none: who never beats is never late."""
        newest = self._newest
        if newest is None:
            return Absent("no beat yet")
        process = read_process(newest.sender.pid)
        alive = process is not None and process.id == newest.sender and process.living
        beat = Beat(
            seq=newest.beats,
            monotonic_s=newest.at_s,
            run_id=self._run_id,
            pid=newest.sender.pid,
            start_ticks=newest.sender.start_ticks,
            phase=newest.phase,
            status=newest.status,
        )
        stopped = alive and process is not None and process.state in "Tt"
        seen = BeatSeen(
            beat=beat, alive=alive, stopped=stopped, extended_until_s=newest.extended_until_s, promised=newest.beats > 0
        )
        return Known(seen, now_s)

    def close(self) -> None:
        """Stop hearing."""
        os.eventfd_write(self._wake, 1)
        self._thread.join(2.0)
        self._socket.close()
        os.close(self._wake)

    def _drain(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._socket, selectors.EVENT_READ)
        selector.register(self._wake, selectors.EVENT_READ)
        with selector:
            while True:
                if any(key.fd == self._wake for key, _ in selector.select()):
                    return
                self._receive()

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            datagram, ancillary, _, _ = self._socket.recvmsg(
                _MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC
            )
            pid = 0
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    # FDSTORE and BARRIER send descriptors; closing is what a barrier waits for.
                    for (fd,) in struct.iter_unpack("i", data[: len(data) // 4 * 4]):
                        os.close(fd)
            process = read_process(pid) if pid > 0 else None
            if process is None:
                return
            now_s = self._clock.monotonic()
            with self._lock:
                if self._root is None:
                    self._unjudged.append((process.id, datagram, now_s))
                else:
                    self._judge(process.id, datagram, now_s, self._root)

    def _judge(self, sender: ProcessId, datagram: bytes, at_s: float, root: ProcessId) -> None:
        process = read_process(sender.pid)
        if process is not None and process.id == sender and descends_from(sender.pid, root):
            self._newest = after(self._newest, parse(datagram), sender, at_s)
