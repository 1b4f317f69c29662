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

import bench
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


# An interpreter below a closed home is not there for others. In a mount namespace of its own it can be: the closed
# folder is covered by an open one, in which only what is needed is shown again, under the same path.
_OPEN_UP = """
covered=$1; count=$2; shift 2; number=0; keep=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$keep"
for path in $(seq $count); do eval "each=\\${$path}"; mkdir "$keep/$path"; mount --bind "$each" "$keep/$path"; done
mount -t tmpfs -o mode=755 tmpfs "$covered"
for path in $(seq $count); do eval "each=\\${$path}"; mkdir -p "$each"; mount --bind "$keep/$path" "$each"; done
umount -l "$keep"; rmdir "$keep"
shift $count
exec "$@"
"""


def closed_above(path: Path) -> Path | None:
    """The topmost folder above `path` that others may not enter."""
    for folder in reversed([path, *path.parents]):
        if folder.is_dir() and not folder.stat().st_mode & 0o001:
            return folder
    return None


def prefix(user: int) -> list[str]:
    if user == 0:
        return []
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), Path(bench.__file__).resolve().parents[1]]
    closed = {folder for path in needed if (folder := closed_above(path)) is not None}
    if not closed:
        return words
    if len(closed) > 1 or shutil.which("unshare") is None:
        pytest.skip(f"another user cannot reach the interpreter: {sorted(map(str, closed))} are closed")
    covered = closed.pop()
    below = [str(path) for path in needed if path.is_relative_to(covered)]
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _OPEN_UP, "sh"]
    return [*unshare, str(covered), str(len(below)), *below, *words]


def two_beds(folder: Path, first: int) -> tuple[Bed, Bed]:
    """Two configurations with different state folders and one checkpoint folder; each owner's files are its own."""
    beds = []
    for user in (first, NOBODY if first == 0 else 0):
        root = folder / ("first" if user == first else "second")
        root.mkdir()
        checkpoints = str(folder / "first" / "checkpoints")
        beds.append(Bed(root, COMMAND, prefix=prefix(user), settings={"job": {"checkpoints": checkpoints}}))
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
