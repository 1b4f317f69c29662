"""What a drill that was killed leaves is found by the next one, proven dead, ended and removed; nothing else is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog import contract
from watchdog.drills.bed import WATCHDOG
from watchdog.drills.faults import by_name
from watchdog.drills.leftovers import LOCK, PREFIX, make_folder, set_immutable, sweep_leftovers
from watchdog.drills.places import why_no_memory_limit
from watchdog.drills.whose import Whose


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folders of drills are made; a test that fails leaves nothing that lives, or cannot be removed."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    for left in folder.glob(PREFIX + "*"):
        for member in Whose(left / "bed").members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        if os.geteuid() == 0 and (left / "bed" / "checkpoints").is_dir():
            with contextlib.suppress(OSError):
                set_immutable(left / "bed" / "checkpoints", False)


def naming(folder: Path) -> list[str]:
    """Living processes that carry the folder's name, or see it as a mount."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            for file in ("cmdline", "environ", "mountinfo"):
                if os.fsencode(folder / PREFIX) in Path(f"/proc/{name}/{file}").read_bytes():
                    found.append(f"{name}/{file}")
    return found


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def spoiled(fault: str, bed: Path) -> bool:
    """The fault has just been made."""
    checkpoints = bed / "checkpoints"
    if fault == "read-only":
        try:
            (checkpoints / "probe").touch()
            (checkpoints / "probe").unlink()
        except OSError as error:
            return error.errno in (errno.EPERM, errno.EACCES)
        return False
    members = Whose(bed).members()
    if fault == "stop":
        return any(state(member.pid) == "T" for member in members)
    # The disk is in another mount namespace, which a member shows.
    return any(Path(f"/proc/{member.pid}/root{checkpoints}/filling").exists() for member in members)


@pytest.mark.parametrize("fault", ["stop", "read-only", "disk-full"])
def test_a_drill_that_is_killed_is_cleaned_up_after(
    fault: str, own_tmp: Path, wait_until: Callable[..., object]
) -> None:
    known = by_name(fault)
    assert known is not None
    if why := known.why_not():
        pytest.skip(why)
    drilling = subprocess.Popen([*WATCHDOG, "drill", fault], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def made() -> bool:
            assert drilling.poll() is None, "it was over before it could be killed"
            return any(spoiled(fault, folder / "bed") for folder in own_tmp.glob(PREFIX + "*"))

        wait_until(made, fault, timeout_s=30)
    finally:
        drilling.kill()
        drilling.wait()
    (left,) = own_tmp.glob(PREFIX + "*")
    if fault == "stop":  # after the others the supervisor may have come to its hold, and have left, by now
        assert naming(own_tmp), "supervisor and trainer outlive the drill"
    done = subprocess.run([*WATCHDOG, "drill", "kill"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{left}, left by a drill that was killed: {fault}, in phase train" in done.stderr
    assert "folder removed" in done.stderr
    assert not naming(own_tmp)
    assert not list(own_tmp.iterdir())


def lock_of_dead(folder: Path, about: str = "kill, in phase train") -> Path:
    """A folder as a drill leaves it that was killed."""
    left = folder / f"{PREFIX}dead"
    left.mkdir()
    (left / LOCK).write_text(f"{about}\n{os.getpid()} 1\n")  # our number, and another start
    return left


def test_a_dead_folder_is_removed_and_told(own_tmp: Path) -> None:
    left = lock_of_dead(own_tmp)
    told = [str(swept) for swept in sweep_leftovers()]
    assert told == [
        f"{left}, left by a drill that was killed: kill, in phase train; none of its processes lived, folder removed"
    ]
    assert not left.exists()


def test_what_lives_or_is_not_of_a_drill_is_left_alone(own_tmp: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / LOCK).write_text("kill\n")
    (precious / "weights").write_text("weeks")
    (own_tmp / f"{PREFIX}link").symlink_to(precious)
    without = own_tmp / f"{PREFIX}without-lock"
    without.mkdir()
    (without / "weights").write_text("weeks")
    os.utime(without, (1, 1))
    (own_tmp / "another").mkdir()
    by_start_time = own_tmp / f"{PREFIX}lives"
    by_start_time.mkdir()
    (by_start_time / LOCK).write_text(f"kill\n{os.getpid()} {contract.start_ticks(os.getpid())}\n")
    links = own_tmp / f"{PREFIX}linked-lock"
    links.mkdir()
    (links / LOCK).symlink_to(precious / LOCK)
    expected = set(own_tmp.iterdir())
    if os.geteuid() == 0:
        anothers = own_tmp / f"{PREFIX}anothers"
        anothers.mkdir()
        (anothers / LOCK).write_text("kill\n")
        os.chown(anothers, 65534, 65534)
        expected.add(anothers)
    with contextlib.ExitStack() as cleanup:
        expected.add(make_folder("one that lives", cleanup))
        assert not list(sweep_leftovers())
        assert set(own_tmp.iterdir()) == expected
    assert (precious / "weights").read_text() == "weeks"


def test_a_drill_lives_by_its_lock_whatever_it_wrote(own_tmp: Path) -> None:
    left = lock_of_dead(own_tmp)
    holding = (
        "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.flock(f,fcntl.LOCK_EX); print('held',flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(left / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not list(sweep_leftovers())
        assert left.exists()
        holder.communicate(b"\n")
    assert list(sweep_leftovers())
    assert not left.exists()


def test_a_folder_of_nothing_is_removed_once_it_is_old(own_tmp: Path) -> None:
    """Killed between the folder and its lock."""
    young, old = own_tmp / f"{PREFIX}young", own_tmp / f"{PREFIX}old"
    young.mkdir()
    old.mkdir()
    os.utime(old, (1, 1))
    assert "it had not begun" in str(next(sweep_leftovers()))
    assert list(own_tmp.iterdir()) == [young]


def test_a_memory_cgroup_goes_with_its_drill(own_tmp: Path) -> None:
    if why := why_no_memory_limit():
        pytest.skip(why)
    left = lock_of_dead(own_tmp)
    tops = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    group = next(top for top in tops if (top / "cgroup.procs").exists()) / left.name
    group.mkdir()
    try:
        assert [swept.left for swept in sweep_leftovers()] == [""]
        assert not group.exists()
    finally:
        if group.exists():
            group.rmdir()


def test_the_lock_is_no_childs(own_tmp: Path, wait_until: Callable[..., object]) -> None:
    """A supervisor that outlives its drill must not keep it."""
    with contextlib.ExitStack() as cleanup:
        folder = make_folder("one", cleanup)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with open(folder / LOCK, "r+") as file:

            def taken() -> bool:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                return False

            wait_until(taken, "the lock", timeout_s=2)  # the kernel closes what exec closes a moment after it is told
            assert child.poll() is None, "it lives, and has not kept it"
    finally:
        child.communicate(b"\n")
