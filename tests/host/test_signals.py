"""The one function that signals: never the wrong process, never a traced one, and nothing at all when run dry."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import until
from watchdog.actuators.signals import Sent, hold, send, signal_process
from watchdog.collectors.processes import is_alive, read_process, tracer_of
from watchdog.core.identity import ProcessId

# A child that asks to be traced by its parent and stops; the parent (the debugger) says who and waits.
DEBUGGED = """
import ctypes, os, signal, sys
child = os.fork()
if child == 0:
    if ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0:
        os._exit(77)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        signal.pause()
_, status = os.waitpid(child, os.WUNTRACED)
print(child if os.WIFSTOPPED(status) else 0, flush=True)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
"""


def identity(pid: int) -> ProcessId:
    process = read_process(pid)
    assert process is not None
    return process.id


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["/bin/sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_proven_process_gets_its_signal(sleeper: subprocess.Popen[bytes]) -> None:
    assert signal_process(identity(sleeper.pid), signal.SIGTERM) is Sent.DELIVERED
    assert sleeper.wait(10) == -signal.SIGTERM


def test_run_dry_nobody_is_touched(sleeper: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        assert signal_process(identity(sleeper.pid), number, dry_run=True) is Sent.DRY
    process = read_process(sleeper.pid)
    assert process is not None
    assert process.living
    assert process.state != "T"  # it may be running or asleep: on a busy host it has not even begun to sleep


@pytest.mark.parametrize("shift", [-1, 1, 100])
def test_a_number_with_another_start_time_is_another_process(sleeper: subprocess.Popen[bytes], shift: int) -> None:
    me = identity(sleeper.pid)
    assert signal_process(ProcessId(me.pid, me.start_ticks + shift), signal.SIGKILL) is Sent.GONE
    assert hold(ProcessId(me.pid, me.start_ticks + shift)) is None
    assert is_alive(me)


def test_a_number_that_was_given_to_another_after_we_looked_is_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """The pidfd of a dead process stays a dead process's, whoever has its number now."""
    victim = subprocess.Popen(["/bin/sleep", "600"])
    handle = hold(identity(victim.pid))
    assert handle is not None
    victim.kill()
    victim.wait()
    assert send(handle, signal.SIGKILL) is Sent.GONE
    handle.close()
    assert is_alive(identity(sleeper.pid))


def test_process_1_and_ourselves_are_refused_by_name() -> None:
    for pid in (1, os.getpid()):
        with pytest.raises(ValueError, match=f"pid {pid}"):
            signal_process(identity(pid), signal.SIGKILL)
    with pytest.raises(ValueError, match="pid 1"):
        signal_process(identity(1), signal.SIGTERM, dry_run=True)


def test_who_is_gone_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    me = identity(sleeper.pid)
    sleeper.kill()
    until(lambda: not is_alive(me), "a zombie")
    assert hold(ProcessId(2**22 - 3, 5)) is None
    sleeper.wait()
    assert hold(me) is None


def test_a_traced_process_is_never_touched() -> None:
    debugger = subprocess.Popen(
        [sys.executable, "-c", DEBUGGED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert debugger.stdout is not None
    pid = int(debugger.stdout.readline() or 0)
    if pid == 0:
        debugger.communicate("", timeout=10)
        pytest.skip("ptrace is not allowed here")
    try:
        assert tracer_of(pid) == debugger.pid
        for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
            assert signal_process(identity(pid), number) is Sent.TRACED
        assert is_alive(identity(pid))
        # The debugger itself is nobody's business either, but it is no traced process.
        assert tracer_of(debugger.pid) == 0
    finally:
        debugger.communicate("", timeout=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be played by root alone")
def test_another_users_process_is_refused_and_said_so(sleeper: subprocess.Popen[bytes]) -> None:
    target = identity(sleeper.pid)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writer, signal_process(target, signal.SIGKILL).value.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"refused"
    os.waitpid(pid, 0)
    assert is_alive(target)


def test_no_descriptor_is_left_behind(sleeper: subprocess.Popen[bytes]) -> None:
    me = identity(sleeper.pid)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        signal_process(me, signal.SIGCONT)
        signal_process(ProcessId(me.pid, 1), signal.SIGCONT)
    assert len(os.listdir("/proc/self/fd")) == before


def test_nobody_else_in_the_house_signals() -> None:
    """One place: os.kill, killpg and pidfd_send_signal stand nowhere else in the supervisor."""
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    root = Path(__file__).resolve().parents[2] / "watchdog"
    places = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if any(
            word in text for word in ("os.kill(", "os.killpg(", "pidfd_send_signal(", ".send_signal(", ".terminate()")
        ):
            places.add(str(path.relative_to(root)))
    assert places <= {"actuators/signals.py", "collectors/child.py"}
