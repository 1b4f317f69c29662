"""The control socket, as who answers sees it: one JSON line in, one out.

Responsible for who may speak (the owner and root), for what a message may be, and for never standing in the loop's
way: the server is a thread of its own, and whatever a client does (garbage, ten megabytes, silence, a thousand
connections) ends with one clear error to that client alone. A request says until when its asker waits: one that is
read later, by a supervisor that was frozen, is dropped, so that what was told to have failed does not happen after all.
Refuses to know what a message means; `handle` does. Refuses to listen on anything but a file of mode 0600.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from watchdog.control import (
    CREDENTIALS,
    MESSAGE_LIMIT_BYTES,
    UNTIL,
    Message,
    boottime_s,
    reachable,
    unix_socket,
)
from watchdog.errors import ControlError, WatchdogError

CLIENT_DEADLINE_S: Final = 2.0  # for a client to send its line, and again to take the answer
CLIENTS_AT_ONCE: Final = 64  # a further one displaces the oldest
_ACCEPT_PAUSE_S: Final = 0.05  # after a failure to accept (no descriptors left): no busy loop


def _nothing(_message: Message, _why: str) -> None:
    return None


def _error(text: str) -> Message:
    return {"ok": False, "error": text}


def _is_answered(path: Path) -> bool:
    """Whether somebody listens on the socket at `path`."""
    with unix_socket() as probe, reachable(path) as address:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except BlockingIOError:  # its queue is full: it is there, and busy
            return True
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                return False
            raise
        return True


class _Client:
    """One connection and how far it has come: reading a line, then writing the answer, then waiting for its end."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self.connection = connection
        self.deadline_s = deadline_s
        self.received = bytearray()
        self.answer = b""
        self.answered = False
        self.ended = False  # it will send no more


class ControlServer:
    """Answers on the socket at `path` from a thread of its own.

    `handle` gets a message (a JSON object) in that thread and returns the answer (a JSON object); while it works the
    other clients wait, so it should answer within seconds. An exception of its becomes the client's error. Only
    processes of `owner_uid` and root are heard. `dropped` is told, in that thread, of a message whose asker waits no
    more, and why that is known; such a one is not handled.
    """

    def __init__(
        self,
        path: Path,
        handle: Callable[[Message], Message],
        owner_uid: int,
        dropped: Callable[[Message, str], None] = _nothing,
    ) -> None:
        self.path = path
        self._handle = handle
        self._dropped = dropped
        self._allowed = frozenset({owner_uid, 0})
        self._clients: dict[int, _Client] = {}  # by descriptor, in the order of arrival
        self._stopping = False
        self._accept_again_s = 0.0
        self._identity: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, then serve in the background. Once only. Raises ControlError when the socket cannot be had."""
        try:
            self._listener = self._listen()
        except OSError as error:
            raise ControlError(
                f"control socket {self.path} cannot be made: {error.strerror or error}; "
                "the state folder must be on a native Linux file system and yours to write"
            ) from error
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs: a fact for the supervisor, which should say so if it does not."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop answering, close everything, and remove the socket file if it is still this server's."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        thread.join(timeout_s)
        with contextlib.suppress(FileNotFoundError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self._identity:
                self.path.unlink()
        if not thread.is_alive():  # else `handle` has not returned; the thread closes its own when it does
            os.close(self._wake)

    # --- listening ------------------------------------------------------------------------------------------
    def _listen(self) -> socket.socket:
        self._make_room()
        listener = unix_socket()
        # Bound and listening under another name, then renamed: whoever finds the file finds somebody behind it.
        new = self.path.with_name(f".{self.path.name[:40]}.{os.getpid()}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
            # The mode of a socket file is that of the socket's own inode at bind, less the umask: 0600 from birth.
            os.fchmod(listener.fileno(), 0o600)
            with reachable(new) as address:
                listener.bind(address)
            os.chmod(new, 0o600)  # a narrower umask would have locked even the owner out
            status = new.lstat()
            self._identity = (status.st_dev, status.st_ino)
            listener.setblocking(False)
            listener.listen(128)
            os.rename(new, self.path)
        except BaseException:
            listener.close()
            self._identity = None
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        return listener

    def _make_room(self) -> None:
        """Leave a stale socket to be replaced; refuse where somebody answers, or where something else stands."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ControlError(f"{self.path} is not a socket; move it away, nothing of it was touched")
        if _is_answered(self.path):
            raise ControlError(f"another supervisor answers on {self.path}; see watchdog status")

    # --- serving --------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        try:
            while not self._stopping:
                ready = self._selector.select(self._patience_s())
                for selected, _ in ready:
                    if selected.fd == self._wake:
                        continue  # only `stop` writes there
                    if selected.fd == self._listener.fileno():
                        self._accept()
                    elif (client := self._clients.get(selected.fd)) is not None:
                        self._advance(client)
                self._expire()
        finally:
            self._close_all()

    def _patience_s(self) -> float | None:
        """Until the next deadline; None = nothing is due."""
        now = time.monotonic()
        due = [client.deadline_s for client in self._clients.values()]
        if self._accept_again_s:
            due.append(self._accept_again_s)
        return max(0.0, min(due) - now) if due else None

    def _expire(self) -> None:
        now = time.monotonic()
        for client in [each for each in self._clients.values() if each.deadline_s <= now]:
            if not client.answered:
                self._answer(
                    client, _error(f"no complete message within {CLIENT_DEADLINE_S:g} s: one JSON line is due")
                )
                self._flush(client)
            self._drop(client)
        if self._accept_again_s and now >= self._accept_again_s:
            self._accept_again_s = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        # A few at a time, each read at once: in a flood, a client that has already spoken is answered before it could
        # be displaced.
        for _ in range(16):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor or memory left: make room and look again a little later
                if self._clients:
                    self._drop(next(iter(self._clients.values())))
                self._selector.unregister(self._listener)
                self._accept_again_s = time.monotonic() + _ACCEPT_PAUSE_S
                return
            connection.setblocking(False)
            client = _Client(connection, time.monotonic() + CLIENT_DEADLINE_S)
            if len(self._clients) >= CLIENTS_AT_ONCE:
                oldest = next(iter(self._clients.values()))
                if not oldest.answered:
                    self._answer(oldest, _error("displaced: too many clients at once; try again"))
                    self._flush(oldest)
                self._drop(oldest)
            self._clients[connection.fileno()] = client
            self._selector.register(connection, selectors.EVENT_READ)
            if self._is_allowed(client):
                self._advance(client)

    def _is_allowed(self, client: _Client) -> bool:
        raw = client.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, uid, _ = CREDENTIALS.unpack(raw)
        if uid in self._allowed:
            return True
        owners = " and ".join(str(each) for each in sorted(self._allowed))
        self._answer(client, _error(f"uid {uid} is not heard here: only uid {owners}"))
        self._advance(client)
        return False

    def _advance(self, client: _Client) -> None:
        """Read what is there, answer when the line is complete, write what is left of the answer."""
        try:
            self._receive(client)
        except OSError:  # the client is gone; nobody is left to tell
            self._drop(client)
            return
        if client.answered and (not self._flush(client) or (client.ended and not client.answer)):
            self._drop(client)

    def _receive(self, client: _Client) -> None:
        for _ in range(16):  # a megabyte at most; then it is the others' turn
            if client.ended:
                return
            try:
                block = client.connection.recv(65536)
            except BlockingIOError:
                return
            client.ended = not block
            if client.answered:
                # Read and thrown away until the deadline, so that a client in the middle of ten megabytes gets to the
                # answer and not to a broken pipe.
                continue
            client.received += block
            if not client.ended and b"\n" not in block and len(client.received) <= MESSAGE_LIMIT_BYTES:
                continue
            line, newline, _ = bytes(client.received).partition(b"\n")
            if len(line) > MESSAGE_LIMIT_BYTES:
                self._answer(client, _error(f"message is longer than {MESSAGE_LIMIT_BYTES} bytes"))
            elif newline:
                self._answer(client, self._reply(client, line))
            elif client.ended:
                if not client.received:
                    raise ConnectionResetError  # a look whether somebody listens: no question, no answer
                self._answer(client, _error(f"message of {len(line)} bytes ends without a newline: it is incomplete"))

    def _reply(self, client: _Client, line: bytes) -> Message:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            return _error(f"message is not JSON: {error}")
        if not isinstance(message, dict):
            return _error(f"message is a JSON {type(message).__name__}, not an object")
        begun_s = time.monotonic()
        try:
            late = _late(client.connection, message.pop(UNTIL, None))
            if late:
                self._dropped(message, late)
                return _error(f"{late}; it was not carried out and will not be")
            return self._handle(message)
        except WatchdogError as error:
            return _error(str(error))
        except Exception as error:  # whatever it is, it is this client's answer and not the end of the thread
            return _error(f"the supervisor failed on this message: {type(error).__name__}: {error}")
        finally:
            # Time that `handle` took is not held against those who waited.
            taken_s = time.monotonic() - begun_s
            for each in self._clients.values():
                each.deadline_s += taken_s

    def _answer(self, client: _Client, answer: Message) -> None:
        try:
            text = json.dumps(answer, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps(_error(f"the supervisor's answer is not JSON: {error}"))
        client.received.clear()
        client.answer = text.encode() + b"\n"
        client.answered = True
        client.deadline_s = time.monotonic() + CLIENT_DEADLINE_S

    def _flush(self, client: _Client) -> bool:
        """Write what the client takes now. False when it is gone."""
        try:
            while client.answer:
                # MSG_NOSIGNAL: a client that left is an error here, never a SIGPIPE.
                sent = client.connection.send(client.answer, socket.MSG_NOSIGNAL)
                client.answer = client.answer[sent:]
            client.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            # An end that was read once would be readable for ever: no busy loop for it.
            reading = 0 if client.ended else selectors.EVENT_READ
            self._selector.modify(client.connection, reading | selectors.EVENT_WRITE)
            return True
        except OSError:
            return False
        self._selector.modify(client.connection, selectors.EVENT_READ)
        return True

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection.fileno(), None) is not None:
            self._selector.unregister(client.connection)
        client.connection.close()

    def _close_all(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        self._listener.close()
        self._selector.close()


def _late(connection: socket.socket, until_s: object) -> str:
    """Why nobody waits for the answer any more; "" when somebody does. Raises ControlError."""
    if until_s is not None:
        if isinstance(until_s, bool) or not isinstance(until_s, int | float):
            raise ControlError(f"{UNTIL} is {str(until_s)[:100]!r}, not a number of seconds")
        over_s = boottime_s() - until_s
        if not over_s <= 0:
            return f"whoever asked gave up {over_s:.1f} s ago"
    # Closed on its side altogether; one that merely sends no more still reads.
    poll = select.poll()
    poll.register(connection, 0)
    return "whoever asked has hung up" if any(event & select.POLLHUP for _, event in poll.poll(0)) else ""
