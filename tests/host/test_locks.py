"""Taking the locks of a job with real processes: second takers, other users, files that were unlinked."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.actuators import locks
from watchdog.actuators.locks import (
    SupervisorLock,
    describe_holder,
    make_control_folder,
    read_holder,
    require_true_flock,
    take_run_lock,
    take_supervisor_lock,
)
from watchdog.contract import start_ticks
from watchdog.core.identity import ProcessId
from watchdog.errors import HeldError, LockPathError, StateError

ROOT = Path(__file__).resolve().parents[2]
ME = ProcessId(os.getpid(), start_ticks())


def take(path: Path) -> SupervisorLock:
    return take_supervisor_lock(path, me=ME, wall_s=1.7e9, command="watchdog run", when="2023-11-14 22:13:20")


# Takes a lock as another process, perhaps as another user, and says what came of it.
TAKER = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from watchdog.actuators import locks
from watchdog.contract import start_ticks
from watchdog.core.identity import ProcessId
from watchdog.errors import HeldError, StateError
which, path, user = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if user:  # only now: this interpreter may lie where that user cannot read
    os.setgroups([]); os.setgid(user); os.setuid(user)
try:
    if which == "run":
        lock = locks.take_run_lock(path)
    else:
        me = ProcessId(os.getpid(), start_ticks())
        lock = locks.take_supervisor_lock(path, me=me, wall_s=1.0, command="the other one", when="then")
    print("taken" if lock is not None else "held", flush=True)
    sys.stdin.read()
except (HeldError, StateError) as error:
    print(type(error).__name__, str(error).replace("\\n", " | "), flush=True)
"""


def taker(which: str, path: Path, user: int = 0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", TAKER, which, str(path), str(user)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outcome(which: str, path: Path, user: int = 0) -> str:
    process = taker(which, path, user)
    said, _ = process.communicate("", timeout=20)
    return said.strip()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user reaches (pytest's own is closed to others)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def test_a_second_supervisor_is_told_who_has_the_job(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    lock = take(path)
    said = outcome("supervisor", path)
    assert said.startswith("HeldError")
    assert f"pid {os.getpid()} since 2023-11-14 22:13:20: watchdog run" in said
    lock.close()
    assert outcome("supervisor", path) == "taken"


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    holder = taker("supervisor", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "taken\n"
    with pytest.raises(HeldError, match=f"pid {holder.pid} "):
        take(path)
    holder.kill()
    holder.wait(10)
    holder.stdout.close()
    assert holder.stdin is not None
    holder.stdin.close()
    take(path).close()


def test_a_number_that_another_process_has_now_is_not_named_as_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    other = ProcessId(os.getpid(), ME.start_ticks - 100)
    lock = take_supervisor_lock(path, me=other, wall_s=1.0, command="watchdog run", when="then")
    assert str(os.getpid()) not in describe_holder(path)
    lock.close()


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b'{"pid": "x"}', b"\xff" * 5000, b"[" * 60000])
def test_a_lock_file_that_says_nothing_still_locks(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "supervisor.lock"
    path.write_bytes(content)
    assert read_holder(path) is None
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(HeldError, match="already supervised"):
            take(path)
    lock = take(path)
    holder = read_holder(path)
    assert holder is not None
    assert holder.pid == os.getpid()
    lock.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be played by root alone")
@pytest.mark.parametrize("first", [0, 65534])
def test_root_and_another_user_meet_at_the_same_lock(open_to_all: Path, first: int) -> None:
    for which in ("supervisor", "run"):
        path = open_to_all / f"{which}.lock"
        holder = taker(which, path, first)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        said = outcome(which, path, 65534 if first == 0 else 0)
        assert said == "held" if which == "run" else said.startswith("HeldError")
        if which == "supervisor":
            assert f"pid {holder.pid} " in said
        holder.communicate("", timeout=20)
        assert outcome(which, path, 65534 if first == 0 else 0) == "taken"


def test_the_descriptor_ends_with_an_exec(tmp_path: Path) -> None:
    lock = take(tmp_path / "supervisor.lock")
    assert not os.get_inheritable(lock.fd)
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, close_fds=False)
    lock.close()
    assert outcome("supervisor", tmp_path / "supervisor.lock") == "taken"  # the child does not keep it
    child.communicate(b"", timeout=10)


@pytest.mark.parametrize("how", ["unlinked", "replaced"])
def test_a_lock_whose_file_is_no_longer_there_is_not_intact(tmp_path: Path, how: str) -> None:
    path = tmp_path / "supervisor.lock"
    lock = take(path)
    assert lock.intact
    if how == "replaced":
        (tmp_path / "new").touch()
        os.replace(tmp_path / "new", path)
    else:
        path.unlink()
    assert not lock.intact
    lock.close()


def test_a_lock_file_replaced_faster_than_it_can_be_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between open and flock the path comes to name another file, each time."""
    path = tmp_path / "supervisor.lock"
    real = locks.try_lock

    def racing(fd: int, operation: int) -> bool:
        path.unlink()
        path.touch()
        return real(fd, operation)

    monkeypatch.setattr(locks, "try_lock", racing)
    with pytest.raises(StateError, match="replaced"):
        take(path)
    with pytest.raises(StateError, match="replaced"):
        take_run_lock(path)


def test_the_run_lock_is_exclusive_then_shared_and_closing_a_copy_frees_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    lock = take_run_lock(path)
    assert lock is not None
    assert take_run_lock(path) is None
    lock.downgrade()
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a late rank gets its share
    assert take_run_lock(path) is None
    copy = os.dup(lock.fd)
    lock.close()
    assert take_run_lock(path) is None  # the shim's copy holds on
    os.close(copy)
    again = take_run_lock(path)
    assert again is not None
    again.close()


def test_asking_leaves_no_trace_in_a_lock_that_is_held(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    lock = take_run_lock(path)
    assert lock is not None
    before = path.read_bytes(), os.stat(path).st_mtime_ns
    for _ in range(10):
        assert take_run_lock(path) is None
    assert (path.read_bytes(), os.stat(path).st_mtime_ns) == before
    lock.close()


@pytest.mark.parametrize("kind", ["9p", "drvfs", "nfs4", "fuse.sshfs", "", "vfat"])
def test_a_path_without_true_flock_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "filesystem_of", lambda _: kind)
    with pytest.raises(LockPathError, match=r"\[state\] folder") as caught:
        require_true_flock(tmp_path)
    assert (kind or "unknown") in str(caught.value)
    assert caught.value.exit_code == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["/proc", "/sys"])
def test_a_real_file_system_that_is_no_place_for_a_lock_is_refused(place: str) -> None:
    with pytest.raises(LockPathError, match=place):
        require_true_flock(Path(place))


def test_a_folder_in_the_place_of_a_lock_and_a_file_in_the_place_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StateError):
        make_control_folder(tmp_path / "file" / "control")
    with pytest.raises(StateError):
        take(tmp_path / "file" / "supervisor.lock")


def test_a_named_pipe_in_the_place_of_a_lock_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.lock")
    process = taker("run", tmp_path / "run.lock")
    try:
        said, _ = process.communicate("", timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("opening the lock hangs")
    assert said.startswith(("StateError", "taken"))


def test_a_disk_that_is_mounted_read_only_is_not_a_matter_of_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StateError, match="Read-only file system; mount its disk writable, or set other folders"):
        locks.make_control_folder(tmp_path / "x")
