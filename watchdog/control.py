"""The control socket, as who asks sees it: how `status`, `relaunch` and `stop` reach a running supervisor.

Responsible for one JSON line out and one in, within a deadline, and for saying why there is no answer: nobody listens,
somebody listens and is silent, or we may not ask. A request says until when its asker waits, so that what was told to
have failed does not happen after all (control_server.py drops what it reads later).
Refuses to know what a message means.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from watchdog.errors import EXIT_USAGE, ControlError

MESSAGE_LIMIT_BYTES: Final = 64 * 1024
ANSWER_LIMIT_BYTES: Final = 16 * 1024 * 1024
UNTIL: Final = "until_boottime_s"  # a field of every request: when its asker gives up, on CLOCK_BOOTTIME
CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: struct ucred, see unix(7)
_ANSWER_ON_ITS_WAY_S: Final = 0.5  # waited beyond that moment: an answer may have been written at the last one

Message = dict[str, Any]


class NoSupervisorError(ControlError):
    """Nobody listens: no supervisor of this job runs. Everything else about the socket is a plain ControlError."""


class SilentError(ControlError):
    """Somebody listens and does not answer. `pid`: who, as we count; 0 where that is not to be told."""

    def __init__(self, words: str, pid: int = 0) -> None:
        super().__init__(words)
        self.pid = pid


class LeavingError(ControlError):
    """The connection ended without an answer: whoever listened is probably ending. What was asked may be done."""


class OutOfReachError(ControlError):
    """We may not look, or not speak: nothing is known of who is there."""

    exit_code = EXIT_USAGE


# --- of both ends -------------------------------------------------------------------------------------------
@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for `path` that fits into the 107 bytes of a socket address, as long as the block lasts."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def boottime_s() -> float:
    """The same for every process of this host, and it goes on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- asking -------------------------------------------------------------------------------------------------
def request(path: Path, message: Message, timeout_s: float = 5.0) -> Message:
    """Send one message to the supervisor behind `path` and return its answer.

    Raises NoSupervisorError when nobody listens there, SilentError when there is no answer within `timeout_s` (what
    was asked is then not done), LeavingError when the connection ends before it, OutOfReachError without permission,
    ControlError for everything else.
    """
    return request_and_pid(path, message, timeout_s)[0]


def request_and_pid(path: Path, message: Message, timeout_s: float = 5.0) -> tuple[Message, int]:
    """As `request`, and who answered, by the kernel's word: its pid as we count, 0 where it has none here."""
    deadline_s = time.monotonic() + timeout_s
    line = json.dumps({**message, UNTIL: boottime_s() + timeout_s}, allow_nan=False).encode() + b"\n"
    pid = 0
    if len(line) > MESSAGE_LIMIT_BYTES:
        raise ControlError(f"message of {len(line)} bytes is longer than the {MESSAGE_LIMIT_BYTES} that are accepted")
    try:
        with unix_socket() as connection:
            _connect(connection, path, deadline_s)
            raw_credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            pid = CREDENTIALS.unpack(raw_credentials)[0]
            # Refused or displaced before the line was out: the answer says why, and it is still there to be read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line, socket.MSG_NOSIGNAL)
            raw = _receive_line(connection, deadline_s + _ANSWER_ON_ITS_WAY_S)
    except TimeoutError as error:
        raise SilentError(
            f"the supervisor behind {path} did not answer within {timeout_s:g} s: busy or frozen; see watchdog logs",
            pid,
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoSupervisorError(f"no supervisor of this job runs: there is no {path}") from error
    except ConnectionRefusedError as error:
        raise NoSupervisorError(
            f"no supervisor of this job runs: {path} was left behind by one that was killed"
        ) from error
    except PermissionError as error:
        raise _out_of_reach(path, error) from error
    except ConnectionError as error:
        raise LeavingError(f"talking to the supervisor behind {path} failed: {error.strerror or error}") from error
    except OSError as error:
        raise ControlError(f"talking to the supervisor behind {path} failed: {error.strerror or error}") from error
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"the answer behind {path} is not JSON: {bytes(raw[:80])!r}") from error
    if not isinstance(answer, dict):
        raise ControlError(f"the answer behind {path} is a JSON {type(answer).__name__}, not an object")
    return answer, pid


def _out_of_reach(path: Path, error: PermissionError) -> OutOfReachError:
    try:
        path.lstat()
    except OSError:  # not even its folder
        return OutOfReachError(unseen(path, error))
    return OutOfReachError(f"{path} belongs to another user; ask as that user or as root")


def words_of_silence(pid: int | None, error: SilentError) -> str:
    """Why a supervisor that listens does not answer, and what to do. `pid`: which one it is, where that is known."""
    if not pid:
        return str(error)
    from watchdog.collectors.processes import read_process

    process = read_process(pid)
    state = "" if process is None else process.state
    beginning = f"supervisor pid {pid} does not answer"
    if state == "T":
        return f"{beginning}; it is stopped (state T): kill -CONT {pid}"
    if state == "t":
        return f"{beginning}; it is stopped by a debugger (state t): let it go on there"
    return f"{beginning}: busy or frozen{f' (state {state})' if state else ''}; see watchdog logs"


def unseen(path: Path, error: OSError) -> str:
    """What is said where it is not to be told whether something is there."""
    return f"cannot be seen by uid {os.geteuid()}: {path}: {error.strerror}; ask as its owner or root"


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _connect(connection: socket.socket, path: Path, deadline_s: float) -> None:
    with reachable(path) as address:
        while True:
            connection.settimeout(_left_s(deadline_s))
            try:
                connection.connect(address)
                return
            except BlockingIOError:  # the queue is full: a Unix socket says so at once and does not wait
                time.sleep(min(0.02, _left_s(deadline_s)))


def _receive_line(connection: socket.socket, deadline_s: float) -> bytes:
    received = bytearray()
    while b"\n" not in received[-65536:]:
        connection.settimeout(_left_s(deadline_s))
        block = connection.recv(65536)
        if not block:
            break
        received += block
        if len(received) > ANSWER_LIMIT_BYTES:
            raise ControlError(f"the supervisor's answer is longer than {ANSWER_LIMIT_BYTES} bytes")
    if not received:
        raise LeavingError("the supervisor closed the connection without an answer: it is probably ending")
    return bytes(received)
