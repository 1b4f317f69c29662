"""What every test gets: a home of its own, and a way to wait that neither sleeps blindly nor waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or touches the state and the configuration of whoever runs it, or of a supervisor around it."""
    for name in list(os.environ):
        if name.startswith("GPUHOST_WATCHDOG_") or name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("xdg")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        folder = home / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """`wait_until(look, "what for", timeout_s=10)`: polls until `look()` is true, and gives back what it returned."""

    def wait(look: Callable[[], T], what: str, *, timeout_s: float = 10.0) -> T:
        deadline = time.monotonic() + timeout_s
        while not (seen := look()):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s} s: {what}; last seen {seen!r}")
            time.sleep(0.02)
        return seen

    return wait


@pytest.fixture
def chdir_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def debugger() -> Iterator[Callable[[int], Callable[[], None]]]:
    """`let_go = debugger(pid)`: seizes and stops the process as a debugger does, in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def seize(pid: int) -> Callable[[], None]:
        process = subprocess.Popen(
            [sys.executable, "-c", _DEBUGGER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        if said != b"held\n":
            pytest.skip(f"ptrace is not allowed here: {said!r}")
        return lambda: (process.communicate(), None)[1]

    yield seize
    for process in started:
        process.kill()
        process.communicate()


# The kernel lets go of a traced process when its tracer ends.
_DEBUGGER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid = int(sys.argv[1])
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
if libc.ptrace(SEIZE, pid, None, None) != 0 or libc.ptrace(INTERRUPT, pid, None, None) != 0:
    print("refused", ctypes.get_errno(), flush=True)
else:
    os.waitpid(pid, WALL)
    print("held", flush=True)
    sys.stdin.read()
"""
