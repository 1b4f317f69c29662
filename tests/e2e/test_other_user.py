"""Root and another user meet at the same lock, whoever came first and whoever dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import Bed
from bench.campaign_counter import final_value
from bench.campaign_observer import is_living

NOBODY = 65534
COMMAND = [sys.executable, "-P", "-m", "bench.campaign_counter", "--steps", "120", "--delay", "0.03"]


def needs_root_and_setpriv() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (util-linux)")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="gpuhost-watchdog-users-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def prefix(user: int) -> list[str]:
    return [] if user == 0 else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]


def two_beds(folder: Path, first: int) -> tuple[Bed, Bed]:
    """Two configurations with different state folders and one checkpoint folder; each owner's files are its own."""
    beds = []
    for user in (first, NOBODY if first == 0 else 0):
        root = folder / ("first" if user == first else "second")
        root.mkdir()
        beds.append(
            Bed(root, COMMAND, prefix=prefix(user), settings={"job": {"checkpoints": str(folder / "first" / "checkpoints")}})
        )
        for path in (root, *root.iterdir()):
            os.chown(path, user, user)
    return beds[0], beds[1]


@pytest.mark.parametrize("first", [0, NOBODY], ids=["root first", "nobody first"])
def test_a_second_supervisor_as_another_user(first: int, open_folder: Path) -> None:
    """The second says who holds the job and leaves with 4; the run goes on to the right end."""
    needs_root_and_setpriv()
    mine, theirs = two_beds(open_folder, first)
    with mine, theirs:
        mine.observe()
        supervisor = mine.start()
        run = mine.run_at_step(5)
        second = theirs.start()
        assert theirs.ended(second) == 4, theirs.tell()
        assert f"pid {supervisor.pid} since" in theirs.screen
        assert is_living(run.trainer, None) is not None
        mine.harm(run.trainer)
        mine.run_at_step(6, after=run.number)
        assert theirs.ended(theirs.start()) == 4, theirs.tell()
        assert mine.ended(supervisor) == 0, mine.tell()
        assert not mine.problems(), mine.tell()
        assert not theirs.kinds("run_launching")
        assert final_value(120) in (mine.checkpoints / "count.json").read_text()


@pytest.mark.parametrize("first", [0, NOBODY], ids=["root first", "nobody first"])
def test_another_user_takes_over_a_job_whose_run_lives(first: int, open_folder: Path) -> None:
    """The first supervisor is killed, its run lives on: whatever the other user may do, it starts no second run."""
    needs_root_and_setpriv()
    mine, theirs = two_beds(open_folder, first)
    with mine, theirs:
        mine.observe()
        supervisor = mine.start()
        run = mine.run_at_step(5)
        mine.kill_supervisor(supervisor)
        second = theirs.start()
        mine.run_at_step(30)
        assert mine.living() == run, "the run was touched, or another one was started\n" + theirs.tell()
        assert not theirs.kinds("run_launching"), theirs.tell()
        if second.poll() is None:
            theirs.kill_supervisor(second)
        else:
            assert second.returncode in (2, 3, 4), theirs.tell()
        with contextlib.suppress(FileNotFoundError):
            (mine.seen / "screen.txt").unlink()
        assert mine.ended(mine.start()) == 0, mine.tell()
        assert not mine.problems(), mine.tell()
        assert final_value(120) in (mine.checkpoints / "count.json").read_text()
