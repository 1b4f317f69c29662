"""The control socket with real sockets: who is heard, what is answered, and that nothing a client does stays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from watchdog import control_server
from watchdog.control import NoSupervisorError, request, request_and_pid
from watchdog.control_server import ControlServer
from watchdog.errors import ControlError, StateError

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
Start = Callable[..., ControlServer]


def echo(message: dict[str, Any]) -> dict[str, Any]:
    return {"ok": True, "message": message, "thread": threading.current_thread().name}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[ControlServer] = []

    def call(
        path: Path, handle: Callable[[dict[str, Any]], dict[str, Any]] = echo, owner_uid: int | None = None
    ) -> ControlServer:
        server = ControlServer(path, handle, os.getuid() if owner_uid is None else owner_uid)
        server.start()
        servers.append(server)
        return server

    yield call
    for server in servers:
        server.stop()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(str(path))
    return connection


def read_answer(connection: socket.socket) -> dict[str, Any]:
    received = b""
    while block := connection.recv(65536):
        received += block
    assert received.endswith(b"\n")
    assert received.count(b"\n") == 1
    answer = json.loads(received)
    assert isinstance(answer, dict)
    return answer


def send_raw(path: Path, raw: bytes) -> dict[str, Any]:
    with connect(path) as connection:
        connection.sendall(raw)
        return read_answer(connection)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- the good case ------------------------------------------------------------------------------------------
def test_a_message_is_answered_in_the_server_thread(path: Path, start: Start) -> None:
    start(path)
    assert request(path, {"do": "status", "n": 1}) == {
        "ok": True,
        "message": {"do": "status", "n": 1},
        "thread": "control",
    }


def test_the_socket_is_the_owners_alone_whatever_the_umask(path: Path, start: Start) -> None:
    for mask in (0, 0o777):
        before = os.umask(mask)
        try:
            server = start(path)
        finally:
            os.umask(before)
        status = path.lstat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert os.listdir(path.parent) == [path.name]
        server.stop()


def test_the_socket_is_never_wider_than_the_owner(path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    chmod = os.chmod

    def look(name: Path, mode: int) -> None:
        seen.append(stat.S_IMODE(name.lstat().st_mode))
        chmod(name, mode)

    monkeypatch.setattr(os, "chmod", look)  # the first moment after bind at which anybody could look
    before = os.umask(0)
    try:
        start(path)
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_the_kernel_says_who_answered(path: Path, start: Start) -> None:
    start(path)
    assert request_and_pid(path, {})[1] == os.getpid()


def test_a_large_answer_arrives_whole(path: Path, start: Start) -> None:
    text = "x" * 3_000_000
    start(path, lambda _: {"ok": True, "text": text})
    assert request(path, {})["text"] == text


def test_a_path_longer_than_a_socket_address(tmp_path: Path, start: Start) -> None:
    folder = tmp_path.joinpath(*["a-folder-with-a-rather-long-name" for _ in range(6)])
    folder.mkdir(parents=True)
    path = folder / "control.sock"
    assert len(str(path)) > 200
    server = start(path)
    assert request(path, {"a": 1})["message"] == {"a": 1}
    server.stop()
    assert os.listdir(folder) == []
    with pytest.raises(NoSupervisorError):
        request(path, {})


def test_nothing_is_left_after_stop(path: Path, start: Start) -> None:
    start(path).stop()  # whatever is made only once has been made
    before = descriptors()
    server = start(path)
    idle = [connect(path) for _ in range(5)]
    assert request(path, {})["ok"]
    server.stop()
    server.stop()  # twice is once
    for connection in idle:
        connection.close()
    assert not server.alive
    assert not path.exists()
    assert descriptors() == before
    assert "control" not in [thread.name for thread in threading.enumerate()]


def test_no_descriptor_is_inherited_by_a_program(path: Path, start: Start, wait_until: Callable[..., Any]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    server = start(path)
    with connect(path) as held:
        wait_until(lambda: len(server._clients) == 1, "the connection is accepted")
        ours = {held.fileno()}
        listing = os.listdir("/proc/self/fd")
        for name in set(listing) - before:
            with contextlib.suppress(OSError):  # the listing's own descriptor is gone already
                assert int(name) in ours or not os.get_inheritable(int(name))


# --- bad messages -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"not json\n", "not JSON"),
        (b"\n", "not JSON"),
        (b'{"a": 1\n', "not JSON"),
        (b"\x80\xff\x00\x01\n", "not JSON"),
        (b"[" * 60_000 + b"\n", "not JSON"),
        (b"9" * 60_000 + b"\n", "not JSON"),
        (b"[1, 2]\n", "a JSON list, not an object"),
        (b"null\n", "NoneType"),
        (b'"status"\n', "a JSON str"),
        (b"x" * 70_000, "longer than 65536 bytes"),
        (b"x" * 70_000 + b"\n", "longer than 65536 bytes"),
        (b'{"a": "' + b"x" * 10_000_000 + b'"}\n', "longer than 65536 bytes"),
        (random.Random(2).randbytes(10_000_000).replace(b"\n", b"\0"), "longer than 65536 bytes"),
        (b'{"a": 1}\n{"b": 2}\n', None),
        (b'{"a": 1}\n' + b"x" * 1_000_000, None),
    ],
    ids=lambda value: f"{len(value)}-{value[:8]!r}" if isinstance(value, bytes) else None,
)
def test_a_bad_message_gets_one_clear_error(path: Path, start: Start, raw: bytes, said: str | None) -> None:
    server = start(path)
    answer = send_raw(path, raw)
    if said is None:
        assert answer["message"] == {"a": 1}
    else:
        assert answer["ok"] is False
        assert said in answer["error"]
        assert len(answer["error"]) < 500
    assert server.alive
    assert request(path, {"still": "there"})["ok"] is True


def test_half_a_message_and_a_close(path: Path, start: Start) -> None:
    server = start(path)
    with connect(path) as connection:
        connection.sendall(b'{"a": ')
        connection.shutdown(socket.SHUT_WR)
        assert "ends without a newline" in read_answer(connection)["error"]
    connect(path).close()
    with connect(path) as connection:
        connection.sendall(b'{"a": ')
    with connect(path) as connection:  # asks, and does not wait for the answer
        connection.sendall(b'{"a": 1}\n')
    assert request(path, {})["ok"] is True
    assert server.alive


def test_a_client_that_closes_before_a_large_answer(path: Path, start: Start) -> None:
    server = start(path, lambda _: {"text": "x" * 5_000_000})
    for _ in range(3):
        with connect(path) as connection:
            connection.sendall(b"{}\n")
            assert connection.recv(10)
    assert len(request(path, {})["text"]) == 5_000_000
    assert server.alive


def test_a_client_that_never_reads_is_let_go(
    path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(control_server, "CLIENT_DEADLINE_S", 1.0)
    server = start(path, lambda message: {"text": "x" * (5_000_000 if message else 1)})
    with connect(path) as connection:
        connection.sendall(b'{"much": 1}\n')
        connection.shutdown(socket.SHUT_WR)
        before = time.process_time()
        assert request(path, {})["text"] == "x"
        wait_until(lambda: not server._clients, "the deaf client is dropped")
        assert time.process_time() - before < 0.5  # and it was not waited for in a busy loop


def test_a_silent_client_is_told_and_let_go(path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "CLIENT_DEADLINE_S", 0.3)
    start(path)
    with connect(path) as silent, connect(path) as slow:
        slow.sendall(b'{"a"')
        assert request(path, {})["ok"] is True
        for connection in (silent, slow):
            assert "no complete message within 0.3 s" in read_answer(connection)["error"]


def test_a_client_that_sends_for_ever_stops_nobody(path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "CLIENT_DEADLINE_S", 1.0)
    start(path)
    ended = threading.Event()

    def pour() -> None:
        with contextlib.suppress(OSError), connect(path) as connection:
            while True:
                connection.sendall(b"x" * 65536)
        ended.set()

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        for number in range(20):
            assert request(path, {"n": number}, timeout_s=5)["message"] == {"n": number}
        assert ended.wait(20), "the endless client was never cut off"
    finally:
        thread.join(20)


def test_a_thousand_idle_connections_neither_stall_nor_exhaust(path: Path, start: Start) -> None:
    server = start(path)
    before = descriptors()
    idle: list[socket.socket] = []
    try:
        for number in range(1000):
            idle.append(connect(path))
            if number % 100 == 99:
                assert request(path, {"n": number})["message"] == {"n": number}
        # Ours are 1,000; the server's may be its limit, and one that is on its way.
        assert descriptors() - before <= 1000 + control_server.CLIENTS_AT_ONCE + 1
        assert request(path, {})["ok"] is True
        assert "displaced" in read_answer(idle[0])["error"]
    finally:
        for connection in idle:
            connection.close()
    assert server.alive


def test_no_descriptors_left_is_survived(path: Path) -> None:
    code = textwrap.dedent("""
        import resource, sys, time
        from pathlib import Path
        from watchdog.control_server import ControlServer
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        server = ControlServer(Path(sys.argv[1]), lambda message: {"ok": True}, 0)
        server.start()
        print("ready", flush=True)
        sys.stdin.read()
        server.stop()
        print(time.process_time(), flush=True)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        idle = [connect(path) for _ in range(60)]
        assert request(path, {}, timeout_s=20) == {"ok": True}
        for connection in idle:
            connection.close()
        assert request(path, {}, timeout_s=20) == {"ok": True}
        process.stdin.close()
        assert float(process.stdout.readline()) < 5
        assert process.wait(20) == 0


# --- handle -------------------------------------------------------------------------------------------------
def test_a_failing_handle_is_the_clients_error(path: Path, start: Start) -> None:
    def handle(message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "state":
            raise StateError("the state folder is full; free 1 MiB")
        if message["do"] == "set":
            return {"value": {1, 2}}
        if message["do"] == "nan":
            return {"value": float("nan")}
        raise ZeroDivisionError("oh")

    server = start(path, handle)
    assert request(path, {"do": "state"}) == {"ok": False, "error": "the state folder is full; free 1 MiB"}
    assert "ZeroDivisionError: oh" in request(path, {"do": "x"})["error"]
    assert "KeyError" in request(path, {})["error"]
    assert "answer is not JSON" in request(path, {"do": "set"})["error"]
    assert "answer is not JSON" in request(path, {"do": "nan"})["error"]
    assert server.alive


def test_time_that_handle_takes_is_not_held_against_the_others(
    path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(control_server, "CLIENT_DEADLINE_S", 0.5)
    go_on = threading.Event()
    inside = threading.Event()

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        if message:
            inside.set()
            assert go_on.wait(20)
        return {"ok": True}

    server = start(path, handle)
    with connect(path) as waiting, connect(path) as blocking:
        wait_until(lambda: len(server._clients) == 2, "both are accepted")
        blocking.sendall(b'{"block": 1}\n')
        assert inside.wait(20)
        released = threading.Timer(1.0, go_on.set)
        released.start()
        waiting.sendall(b"{}\n")
        assert read_answer(waiting) == {"ok": True}
        assert read_answer(blocking) == {"ok": True}
        released.join()


def test_stop_does_not_wait_for_a_handle_that_hangs(path: Path, start: Start) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def handle(_: dict[str, Any]) -> dict[str, Any]:
        inside.set()
        go_on.wait(20)
        return {}

    server = start(path, handle)
    with connect(path) as connection:
        connection.sendall(b"{}\n")
        assert inside.wait(20)
        begun = time.monotonic()
        server.stop(timeout_s=0.1)
        assert time.monotonic() - begun < 5
        assert not path.exists()
        go_on.set()
        while connection.recv(1024):  # and the thread ends and closes what it had
            pass


# --- the file -----------------------------------------------------------------------------------------------
def test_a_stale_socket_is_replaced(path: Path, start: Start) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with pytest.raises(NoSupervisorError, match="left behind"):
        request(path, {})
    start(path)
    assert request(path, {})["ok"] is True


def test_a_socket_that_somebody_answers_is_left_alone(path: Path, start: Start) -> None:
    start(path)
    second = ControlServer(path, lambda _: {"second": True}, os.getuid())
    with pytest.raises(ControlError, match="another supervisor answers"):
        second.start()
    second.stop()
    assert "message" in request(path, {})
    assert os.listdir(path.parent) == [path.name]


def test_a_busy_listener_counts_as_an_answer(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        busy.bind(str(path))
        busy.listen(0)
        while True:  # fill its queue
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(ControlError, match="another supervisor answers"):
            ControlServer(path, echo, os.getuid()).start()
        with pytest.raises(ControlError, match=r"did not answer within 0.2 s"):
            request(path, {}, timeout_s=0.2)


def test_what_is_no_socket_is_not_touched(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ControlError, match="not a socket"):
        ControlServer(path, echo, os.getuid()).start()
    assert path.read_text() == "precious"


def test_stop_leaves_the_socket_of_a_successor(path: Path, start: Start) -> None:
    first = start(path)
    path.unlink()
    start(path)
    first.stop()
    assert request(path, {})["ok"] is True


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    before = descriptors()
    server = ControlServer(tmp_path / "none" / "control.sock", echo, os.getuid())
    with pytest.raises(ControlError, match="cannot be made: No such file"):
        server.start()
    server.stop()
    assert descriptors() == before


# --- the client ---------------------------------------------------------------------------------------------
def answer_once(path: Path, raw: bytes | None) -> threading.Thread:
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(20)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if raw is None:  # hold on until the client gives up
                    connection.recv(1)
                else:
                    connection.sendall(raw)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "without an answer"),
        (b"nonsense\n", "is not JSON: b'nonsense"),
        (b"[]\n", "a JSON list, not an object"),
        (b'{"half": ', "is not JSON"),
        (None, r"did not answer within 0.3 s"),
    ],
)
def test_a_wrong_answer_is_told(path: Path, raw: bytes | None, said: str) -> None:
    thread = answer_once(path, raw)
    with pytest.raises(ControlError, match=said) as caught:
        request(path, {}, timeout_s=0.3 if raw is None else 20)
    assert not isinstance(caught.value, NoSupervisorError)
    thread.join(20)


def test_no_supervisor_is_told_apart_from_a_silent_one(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSupervisorError, match="no supervisor of this job runs"):
        request(path, {})
    with pytest.raises(NoSupervisorError):
        request(tmp_path / "none" / "control.sock", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(NoSupervisorError):
        request(tmp_path / "file" / "control.sock", {})


def test_a_message_that_is_too_long_is_not_even_sent(path: Path) -> None:
    with pytest.raises(ControlError, match="65536"):
        request(path, {"a": "x" * 70_000})


# --- whoever asked waits no more ----------------------------------------------------------------------------
def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def deaf(path: Path) -> Iterator[tuple[ControlServer, list[dict[str, Any]], list[str]]]:
    """A server, what it handled, and what it dropped."""
    handled: list[dict[str, Any]] = []
    dropped: list[str] = []
    server = ControlServer(
        path,
        lambda message: handled.append(message) or {"ok": True},
        os.getuid(),
        lambda message, why: dropped.append(f"{message['do']}: {why}"),
    )
    server.start()
    yield server, handled, dropped
    server.stop()


def test_a_request_that_is_read_too_late_is_dropped(
    path: Path, deaf: tuple[ControlServer, list[dict[str, Any]], list[str]]
) -> None:
    _, handled, dropped = deaf
    line = json.dumps({"do": "stop", "until_boottime_s": boottime_s() - 2.0}).encode() + b"\n"
    answer = send_raw(path, line)
    assert answer["ok"] is False
    assert "gave up 2.0 s ago; it was not carried out and will not be" in answer["error"]
    assert (handled, len(dropped)) == ([], 1)
    assert request(path, {"do": "stop"}, timeout_s=20) == {"ok": True}
    assert handled == [{"do": "stop"}], "in time, and the handler sees nothing of the deadline"


@pytest.mark.parametrize("until", ["soon", True, [1], float("nan")])
def test_a_deadline_that_is_none_is_refused(
    until: object, path: Path, deaf: tuple[ControlServer, list[dict[str, Any]], list[str]]
) -> None:
    assert send_raw(path, json.dumps({"do": "stop", "until_boottime_s": until}).encode() + b"\n")["ok"] is False
    assert deaf[1] == []


def test_a_request_whose_asker_has_hung_up_is_dropped_and_one_that_only_says_no_more_is_not(
    path: Path, deaf: tuple[ControlServer, list[dict[str, Any]], list[str]]
) -> None:
    server, handled, dropped = deaf
    with connect(path) as connection:
        connection.sendall(b'{"do": "stop"}\n')
        connection.shutdown(socket.SHUT_WR)
        assert read_answer(connection) == {"ok": True}
    server.stop()
    ours = ControlServer(path, server._handle, os.getuid(), server._dropped)
    listening = threading.Event()
    accept, ours._accept = ours._accept, lambda: listening.wait(20) and accept()  # type: ignore[method-assign,func-returns-value,assignment]
    ours.start()
    connection = connect(path)
    connection.sendall(b'{"do": "relaunch"}\n')
    connection.close()
    listening.set()
    assert request(path, {"do": "status"}, timeout_s=20) == {"ok": True}
    ours.stop()
    assert handled == [{"do": "stop"}, {"do": "status"}]
    assert dropped == ["relaunch: whoever asked has hung up"]


# --- another user -------------------------------------------------------------------------------------------
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# Becomes somebody else after the imports: the interpreter may lie in a folder that only root can enter.
BECOME_NOBODY = f"""
import os, socket, sys
from pathlib import Path
from watchdog import control, errors
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
ASK = """
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(20)
    try:
        connection.connect(sys.argv[1])
    except PermissionError:
        print("permission denied")
        sys.exit()
    connection.sendall(b'{"do": "stop"}\\n')
    print(connection.makefile().read(), end="")
"""
REQUEST = """
try:
    print(control.request(Path(sys.argv[1]), {}))
except errors.ControlError as error:
    print(type(error).__name__, error)
"""


def as_nobody(code: str, path: Path) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", BECOME_NOBODY + code, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
    )
    return answer.stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@needs_root
def test_another_user_cannot_even_connect(open_folder: Path, start: Start) -> None:
    start(open_folder / "c.sock")
    assert as_nobody(ASK, open_folder / "c.sock") == "permission denied\n"


@needs_root
def test_another_user_is_refused_by_name_where_the_mode_was_opened(open_folder: Path, start: Start) -> None:
    handled: list[dict[str, Any]] = []
    start(open_folder / "c.sock", lambda message: handled.append(message) or {"ok": True})
    (open_folder / "c.sock").chmod(0o666)
    answer = json.loads(as_nobody(ASK, open_folder / "c.sock"))
    assert answer == {"ok": False, "error": f"uid {NOBODY} is not heard here: only uid 0"}
    assert handled == []


@needs_root
def test_the_owner_and_root_are_heard(open_folder: Path, start: Start) -> None:
    start(open_folder / "c.sock", owner_uid=NOBODY)
    (open_folder / "c.sock").chmod(0o666)
    assert json.loads(as_nobody(ASK, open_folder / "c.sock"))["message"] == {"do": "stop"}
    assert request(open_folder / "c.sock", {"do": "status"})["ok"] is True


@needs_root
def test_the_client_says_that_the_socket_is_anothers(open_folder: Path, start: Start) -> None:
    start(open_folder / "c.sock")
    said = as_nobody(REQUEST, open_folder / "c.sock")
    assert said.startswith("OutOfReachError ")
    assert "belongs to another user" in said
    open_folder.chmod(0o700)
    said = as_nobody(REQUEST, open_folder / "c.sock")
    assert f"cannot be seen by uid {NOBODY}: {open_folder}/c.sock: Permission denied" in said
