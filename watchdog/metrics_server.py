"""The HTTP side of the metrics: one page, on loopback, in one thread.

Responsible for `GET /metrics` on 127.0.0.1 and for staying small whatever clients do: one daemon thread, a bounded
number of connections, a deadline for each. The server of prometheus_client has a thread for every connection, so that
a thousand idle ones would be a thousand threads in the supervisor.
Refuses any other address, any other path, and anything that is not a GET. Speaks just enough HTTP/1.1: one request a
connection, no body read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from watchdog.collectors.locks import command_of
from watchdog.collectors.openfiles import Scan
from watchdog.errors import SettingsError

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 32
DEADLINE_S = 5.0  # for a whole request and its answer; a slow writer gains nothing by going on
_HEAD_LIMIT_BYTES = 8192
_BACKLOG = 128
_Page = Callable[[str], tuple[bytes, str]]  # (Accept header) -> (body, content type)


class _Connection:
    """A client: what it has said so far, or what it has still to be told."""

    def __init__(self, client: socket.socket, now_s: float) -> None:
        self.client = client
        self.since_s = now_s
        self.head = b""
        self.answer: memoryview | None = None


class Server:
    """Serves until `close`. `url` is where."""

    def __init__(self, listener: socket.socket, page: _Page) -> None:
        self._listener = listener
        self._page = page
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, _Connection] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        listener.setblocking(False)
        self._wake_read.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self.port: int = listener.getsockname()[1]
        self.url = f"http://{ADDRESS}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; returns when the port is free again. A second call does nothing."""
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")
        self._thread.join(timeout=DEADLINE_S)

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            self._selector.close()
            for ours in (self._listener, self._wake_read, self._wake_write):
                ours.close()

    def _turn(self) -> bool:
        """Serve whoever is ready; False when asked to end."""
        for key, _ in self._selector.select(timeout=1.0 if self._connections else None):
            if key.fileobj is self._wake_read:
                return False
            if key.fileobj is self._listener:
                self._accept()
                continue
            connection: _Connection = key.data
            if connection.client not in self._connections:  # dropped in this very turn to make room
                continue
            try:
                self._advance(connection)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:  # the client went away: its business
                self._drop(connection)
        now_s = time.monotonic()
        for connection in [one for one in self._connections.values() if now_s - one.since_s > DEADLINE_S]:
            self._drop(connection)
        return True

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._make_room()  # or select would come straight back for it, for ever
                time.sleep(0.05)
            return
        client.setblocking(False)
        if len(self._connections) >= MOST_CONNECTIONS:
            self._make_room()
        connection = _Connection(client, time.monotonic())
        self._connections[client] = connection
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _make_room(self) -> None:
        """Drop the oldest: a scraper says what it wants at once, so the oldest is the idlest."""
        if self._connections:
            self._drop(next(iter(self._connections.values())))

    def _advance(self, connection: _Connection) -> None:
        if connection.answer is None:
            data = connection.client.recv(4096)
            connection.head += data
            complete = b"\r\n\r\n" in connection.head or b"\n\n" in connection.head
            if not complete and data and len(connection.head) <= _HEAD_LIMIT_BYTES:
                return
            if not complete and not data:
                self._drop(connection)
                return
            connection.answer = memoryview(self._respond(connection.head if complete else None))
            self._selector.modify(connection.client, selectors.EVENT_WRITE, connection)
        connection.answer = connection.answer[connection.client.send(connection.answer) :]
        if not connection.answer:
            # Say that we are done before closing, and leave no unread byte: a reset could overtake the answer.
            with contextlib.suppress(OSError):
                connection.client.shutdown(socket.SHUT_WR)
                connection.client.recv(_HEAD_LIMIT_BYTES)
            self._drop(connection)

    def _respond(self, head: bytes | None) -> bytes:
        if head is None:
            return _response("431 Request Header Fields Too Large", b"the request is too long\n")
        first, *lines = head.decode("latin-1").splitlines()
        words = first.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("400 Bad Request", b"this is no HTTP/1 request\n")
        method, target, _ = words
        if target.partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"there is only /metrics\n")
        if method != "GET":
            return _response("405 Method Not Allowed", b"there is only GET\n", extra="Allow: GET\r\n")
        pairs = (line.partition(":") for line in lines)
        accept = next((value.strip() for name, _, value in pairs if name.strip().lower() == "accept"), "")
        try:
            body, content_type = self._page(accept)
        except Exception as error:  # a bug in a collector must reach whoever scrapes, and not end the thread
            return _response("500 Internal Server Error", f"{type(error).__name__}: {error}\n".encode())
        return _response("200 OK", body, content_type)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.client, None) is not None:
            self._selector.unregister(connection.client)
            connection.client.close()


def _response(status: str, body: bytes, content_type: str = "text/plain; charset=utf-8", extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"X-Content-Type-Options: nosniff\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + body


def holder_of_port(port: int, proc: str = "/proc") -> str | None:
    """Who listens on a port of this host, as `pid 4711 (command)`; None when that cannot be seen."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"{proc}/net/{table}", encoding="ascii", errors="replace") as file:
            for line in file:
                words = line.split()  # sl local_address rem_address st ... inode, see proc_net(5)
                if len(words) > 9 and words[3] == "0A" and words[1].endswith(f":{port:04X}"):
                    inodes.add(f"socket:[{words[9]}]")
    if not inodes:
        return None
    holder = next((file for file in Scan(proc) if file.name in inodes), None)
    if holder is None:
        return None
    whose = "this very process" if holder.pid == os.getpid() else command_of(holder.pid, proc)
    return f"pid {holder.pid} ({whose or 'its command cannot be read'})"


def serve(registry: CollectorRegistry, port: int) -> Server:
    """Serve `registry` on 127.0.0.1. Port 0 takes any free one. Raises SettingsError, a line."""
    if not 0 <= port <= 65535:
        raise SettingsError(f"[metrics] port is {port}, not 0 to 65535")

    def page(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # After a restart the old port may be in TIME_WAIT; two listeners are still impossible.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            by = f" by {holder}" if (holder := holder_of_port(port)) else ", by whom cannot be seen"
            raise SettingsError(
                f"[metrics] port: {ADDRESS}:{port} is taken{by}; set another [metrics] port, or 0 for any free one "
                "(without a file: GPUHOST_WATCHDOG_METRICS__PORT=0)"
            ) from error
        raise SettingsError(
            f"[metrics] port: cannot listen on {ADDRESS}:{port}: {error.strerror}; set another [metrics] port"
        ) from error
    return Server(listener, page)
