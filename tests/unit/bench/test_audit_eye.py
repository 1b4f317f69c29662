"""The eye of the audit: whose a process is, and what is told of real lives and deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import audit_kernel
from bench.audit_eye import Who, who_is

_SLEEP = "import time\nwhile True: time.sleep(0.05)"
_ROOT = b"/jobs"
_OF_A_RUN = [b"GPUHOST_WATCHDOG_CHECKPOINTS=/jobs/one/checkpoints", b"GPUHOST_WATCHDOG_RUN_ID=1-ab"]


@pytest.mark.parametrize(
    ("words", "environment", "who"),
    [
        ([b"python", b"-m", b"job"], _OF_A_RUN, Who("one", "trainer", "1-ab")),
        ([b"python", b"-I", b"-S", b"/x/shim.py", b"start"], _OF_A_RUN, Who("one", "shim", "1-ab")),
        ([b"python", b"--of-run=1-ab", b"--of-job=/jobs/one/checkpoints"], [], Who("one", "trainer", "1-ab")),
        ([b"python", b"-c", b"-", b"run", b"--config", b"/jobs/one/w.toml"], [], Who("one", "supervisor", None, "run")),
        ([b"python", b"relaunch", b"--config", b"/jobs/one/w.toml"], [], Who("one", "command", None, "relaunch")),
        ([b"python", b"--data", b"/jobs/one/lessons.gz"], [], Who("one", "other")),
        ([b"python", b"--data", b"/jobs-of-others/one/lessons.gz"], [], None),
        ([b"python"], [b"GPUHOST_WATCHDOG_CHECKPOINTS=/elsewhere/checkpoints"], None),
        ([], [], None),
    ],
)
def test_whose_a_process_is(words: list[bytes], environment: list[bytes], who: Who | None) -> None:
    assert who_is(words, environment, _ROOT) == who


@pytest.fixture
def eye(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """`order("begin one")`, answered."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.audit_eye", str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def order(line: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().split() == line.encode().split()[:2]

    yield order
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def test_a_life_and_its_death_by_a_signal(
    tmp_path: Path, eye: Callable[[str], None], wait_until: Callable[..., Any]
) -> None:
    eye("begin one")
    folder = tmp_path / "one" / "checkpoints"
    marked = {"GPUHOST_WATCHDOG_CHECKPOINTS": str(folder), "GPUHOST_WATCHDOG_RUN_ID": "1-ab"}
    killed = subprocess.Popen([sys.executable, "-I", "-S", "-c", _SLEEP], env={**os.environ, **marked})
    stays = subprocess.Popen([sys.executable, "-I", "-S", "-c", _SLEEP, "--data", str(tmp_path / "one" / "lessons")])
    told = tmp_path / "one.kernel"
    try:
        wait_until(lambda: told.read_text().count('"born"') == 2, "both to be seen")
        struck_s = time.monotonic()
        eye(f"struck one {killed.pid} {int(signal.SIGKILL)} {struck_s}")
        killed.kill()
        killed.wait()
        wait_until(lambda: '"dead"' in told.read_text(), "the death to be told")
        eye("end one")
    finally:
        for process in (killed, stays):
            process.kill()
            process.wait()
    view = audit_kernel.read_view(told.read_text())
    lives = {process.pid: process for process in view.processes}
    dead, alive = lives[killed.pid], lives[stays.pid]
    assert (dead.role, dead.run_id, alive.role, alive.run_id) == ("trainer", "1-ab", "other", None)
    assert dead.dead_s is not None
    assert dead.born_s <= dead.alive_s <= dead.dead_s
    assert struck_s <= dead.dead_s < struck_s + 5
    if dead.signal is None:
        pytest.skip("this kernel tells no exit code of a process that was reaped (6.15 does)")
    assert dead.signal == signal.SIGKILL
    assert view.was_struck(dead)
    assert alive.dead_s is None
    lines = [json.loads(line)["kind"] for line in told.read_text().splitlines()]
    assert (lines[0], lines[-1]) == ("eye", "end")
    assert view.looks > 1
