"""A trainer that waits in the kernel, truly in state D: named, held for, nothing started beside it, and got over.

Got over by itself: what was held for is gone once the kernel lets go, and nobody has to come for that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import Bed, wait_for
from tests.host import fuse_that_sleeps
from watchdog.collectors.processes import living_table

# Beats, and then closes a file whose server never answers; in a thread, the leader waits for that.
TRAINER = """
import os, sys, threading, time
from watchdog import contract
flag, file, who = sys.argv[1:]
if os.path.exists(flag):
    raise SystemExit(0)
open(flag, "w").close()
run = contract.join()
for step in range(1, 6):
    run.beat("train", step=step)
    time.sleep(0.02)
def stuck():
    os.close(os.open(file, os.O_RDONLY))
if who == "leader":
    stuck()
thread = threading.Thread(target=stuck)
thread.start()
thread.join()
"""
SETTINGS = {"deadlines": {"train": "1s", "first_step": "1s"}, "stop": {"grace": "1s", "kill_wait": "2s"}}


class Fuse:
    """The file system, in a mount namespace of its own that ends with it."""

    def __init__(self, point: Path) -> None:
        point.mkdir()
        self.file = point / "stuck"
        self._server = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", sys.executable, fuse_that_sleeps.__file__, str(point)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        said = self._server.stdout.readline()
        if said != "ready\n":
            self.close()
            pytest.skip(f"no FUSE file system can be mounted here: {said.strip() or 'unshare failed'}")

    def inside(self, command: list[str]) -> list[str]:
        """The command, where the file system is seen."""
        return ["nsenter", f"--mount=/proc/{self._server.pid}/ns/mnt", "--", *command]

    def let_go(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write("let go\n")
        self._server.stdin.flush()

    def close(self) -> None:
        """The kernel ends every request when the server's descriptor is closed."""
        self._server.kill()
        with contextlib.suppress(OSError):
            self._server.communicate(timeout=20)


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Fuse]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a FUSE file system")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("needs unshare and nsenter (util-linux)")
    fuse = Fuse(tmp_path / "fuse")
    try:
        yield fuse
    finally:
        fuse.close()


@pytest.fixture
def stuck_bed(tmp_path: Path, fuse: Fuse) -> Iterator[Callable[[str], Bed]]:
    with contextlib.ExitStack() as beds:

        def make(who: str) -> Bed:
            program = tmp_path / "trainer_of_test.py"
            program.write_text(TRAINER)
            words = [sys.executable, "-P", str(program), str(tmp_path / "second"), str(fuse.file), who]
            bed = Bed(tmp_path, fuse.inside(words), level=1, settings=SETTINGS)
            beds.push(bed)
            return bed

        yield make
        fuse.close()  # before the bed: what is stuck cannot be killed


def in_state_d(pid: int) -> bool:
    return any(process.id.pid == pid and process.state == "D" for process in living_table())


@pytest.mark.parametrize("who", ["leader", "thread"])
def test_it_is_named_nothing_is_started_and_the_hold_lifts_itself_once_the_kernel_lets_go(
    who: str, fuse: Fuse, stuck_bed: Callable[[str], Bed]
) -> None:
    bed = stuck_bed(who)
    supervisor = bed.start("--on-hold", "wait")
    run = bed.run_at_step(5)
    held = bed.wait_event("hold")
    assert f"pid {run.trainer} (" in held["data"]["reason"], bed.tell()
    assert "waits in the kernel and cannot be killed" in held["data"]["reason"], bed.tell()
    assert in_state_d(run.trainer)
    wait_for(lambda: "reboot, or wsl --shutdown" in bed.screen, "the words on the screen")
    asked = bed.call("relaunch")
    assert asked.returncode != 0 or "lifted" not in asked.stdout, asked.stdout
    assert in_state_d(run.trainer)
    assert len(bed.kinds("run_launching")) == 1, bed.tell()
    fuse.let_go()
    assert bed.ended(supervisor) == 0, bed.tell()
    (lifted,) = bed.kinds("lifted")
    assert lifted["data"]["by"] == "end", lifted
    assert lifted["data"]["proof"] == "shim ended", lifted
    assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["stalled", "finished"], bed.tell()
    assert not bed.problems(), bed.tell()


def test_the_next_supervisor_adopts_what_is_stuck_and_starts_nothing_either(
    fuse: Fuse, stuck_bed: Callable[[str], Bed]
) -> None:
    bed = stuck_bed("leader")
    first = bed.start()
    run = bed.run_at_step(5)
    assert bed.ended(first) == 3, bed.tell()
    assert bed.ended(bed.start()) == 3, bed.tell()
    assert in_state_d(run.trainer)
    assert len(bed.kinds("run_launching")) == 1, bed.tell()
    fuse.let_go()
    wait_for(lambda: not in_state_d(run.trainer), "its end")
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert len(bed.kinds("run_launching")) == 2, bed.tell()
    assert [event["data"]["by"] for event in bed.kinds("lifted")] == ["end"], bed.tell()
    assert not bed.problems(), bed.tell()
