"""Who holds the run lock after supervisor and shim are gone: a ghost of the run, a person's trainer, a backup.

A ghost is ended with what proves it written down; nobody else is touched, and nobody's lock file is ever deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.bed import CLOCK
from tests.host.shimmed import PYTHON, Shimmed, Shims, until
from watchdog.actuators.locks import take_run_lock
from watchdog.collectors.processes import ancestry, is_alive, read_process
from watchdog.collectors.run import RunWatch
from watchdog.core.facts import Absent
from watchdog.core.seen import Shim
from watchdog.opening import run_lock_holders
from watchdog.signalling import Signaller

# Leaves a process that nothing marks but the lock: its own session, its parent dead, every other descriptor closed, an
# environment that is neither empty nor the run's.
GHOST = """
import os, time
lock = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")
            and os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) == "run.lock")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, lock)
        os.closerange(lock + 1, 200)
        os.set_inheritable(lock, True)
        os.execve("/bin/sleep", ["sleep", "600"], {"A": "b"})
    os._exit(0)
os.wait()
time.sleep(600)
"""
LOCKS = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX if sys.argv[2] == "exclusive" else fcntl.LOCK_SH)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Shims]:
    bed = Shims(tmp_path)
    yield bed
    bed.close()


@contextlib.contextmanager
def locking(path: Path, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*PYTHON, LOCKS, str(path), mode], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def adopted(run: Shimmed) -> RunWatch:
    """As the next supervisor sees the run: with the record of it, and no memory of who was seen."""
    run.folder.members.unlink(missing_ok=True)
    return RunWatch(dataclasses.replace(run.record, ancestors=ancestry()))


def everything_killed_but(run: Shimmed, keep: set[int]) -> None:
    members = run.members()
    run.shim.kill()
    run.shim.wait(10)
    for pid in members - keep:
        os.kill(pid, 9)
    until(lambda: all((seen := read_process(pid)) is None or not seen.living for pid in members - keep), "their end")


def test_a_ghost_that_lost_every_mark_but_the_lock_is_ended_with_its_proofs(bed: Shims) -> None:
    run = bed.run(GHOST)
    leader = run.leader()

    def escaped() -> set[int]:
        return {pid for pid in run.members() if (seen := read_process(pid)) is not None and seen.command == "sleep"}

    (ghost,) = until(escaped, "the ghost")
    identity = read_process(ghost)
    assert identity is not None
    everything_killed_but(run, {ghost})
    assert not is_alive(leader)
    assert take_run_lock(run.lock) is None, "the ghost holds it"
    records: list[tuple[str, dict[str, Any]]] = []

    def write(kind: str, _sentence: str, **data: Any) -> None:
        records.append((kind, data))

    with contextlib.closing(adopted(run)) as watch:
        until(lambda: watch.shim() is Shim.LOST, "lost")
        orphans = watch.orphans(run.lock)
        assert ({each.id.pid for each in orphans.ours}, orphans.unclear) == ({ghost}, ())
        Signaller(run.lock, lambda _watch, _now: Absent(), write, write).kill(watch)
        until(lambda: not is_alive(identity.id), "its end")
        assert watch.orphans(run.lock).ours == ()
    killing = dict(records)["run_killing"]
    assert killing["pids"] == [ghost]
    (proof,) = killing["proofs"][str(ghost)]
    assert "started after it" in proof, "one proof"
    assert "holds the share of its run lock that its launcher took" in proof, "and another"
    assert run.lock.exists()
    lock = take_run_lock(run.lock)
    assert lock is not None, "free without having been deleted"
    lock.close()


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_trainer_started_by_hand_or_a_backup_is_named_and_left_alone(mode: str, bed: Shims) -> None:
    run = bed.run("import time; time.sleep(600)")
    run.leader()
    everything_killed_but(run, set())
    with locking(run.lock, mode) as stranger, contextlib.closing(adopted(run)) as watch:
        until(lambda: watch.shim() is Shim.LOST, "lost")
        orphans = watch.orphans(run.lock)
        assert orphans.ours == ()
        assert {each.id.pid for each in orphans.unclear} <= {stranger.pid}
        records: list[str] = []
        write = lambda kind, _sentence, **_data: records.append(kind)  # noqa: E731
        Signaller(run.lock, lambda _watch, _now: Absent(), write, write).kill(watch)
        assert stranger.poll() is None
        assert records == []
        assert f"pid {stranger.pid} " in run_lock_holders(str(run.lock), CLOCK)
        assert take_run_lock(run.lock) is None


def test_who_only_has_the_file_open_keeps_nobody_waiting(bed: Shims) -> None:
    run = bed.run("import time; time.sleep(600)")
    run.leader()
    everything_killed_but(run, set())
    with open(run.lock) as file, contextlib.closing(adopted(run)) as watch:
        reader = subprocess.Popen(["/bin/sleep", "600"], pass_fds=[file.fileno()], start_new_session=True)
        try:
            until(lambda: watch.shim() is Shim.LOST, "lost")
            orphans = watch.orphans(run.lock)
            assert (orphans.ours, orphans.unclear) == ((), ())
            lock = take_run_lock(run.lock)
            assert lock is not None
            lock.close()
        finally:
            reader.kill()
            reader.wait()


# In a PID namespace, as in any container: the kernel names no taker that has ended, and orphans go to its process 1.
BACKUP_ELSEWHERE = """
import contextlib, dataclasses, os, subprocess, sys
from pathlib import Path
from tests.host.shimmed import Shims, until
from tests.host.test_lock_ghosts import adopted, everything_killed_but
from watchdog.core.facts import Absent
from watchdog.core.seen import Shim
from watchdog.signalling import Signaller
bed = Shims(Path(sys.argv[1]))
run = bed.run("import time; time.sleep(600)")
run.leader()
everything_killed_but(run, set())
own = {"PATH": os.environ["PATH"], "A": "b"}
words = f"exec 9<{run.lock}; flock -s 9; echo locked; sleep 500 & wait"
backup = subprocess.Popen(["bash", "-c", words], stdout=subprocess.PIPE, start_new_session=True, env=own)
assert backup.stdout.readline() == b"locked\\n"
with contextlib.closing(adopted(run)) as watch:
    until(lambda: watch.shim() is Shim.LOST, "lost")
    orphans = watch.orphans(run.lock)
    assert orphans.ours == (), orphans
    assert backup.pid in {each.id.pid for each in orphans.unclear}, orphans
    records = []
    write = lambda kind, _sentence, **_data: records.append(kind)
    Signaller(run.lock, lambda _watch, _now: Absent(), write, write).kill(watch)
    assert (records, backup.poll()) == ([], None)
print("left alone", flush=True)
os._exit(0)  # and the kernel ends everybody in here
"""


def test_a_backup_whose_lock_was_taken_by_a_flock_that_is_gone_is_left_alone_in_a_container(
    tmp_path: Path, repository: Path
) -> None:
    """`exec 9<run.lock; flock -s 9`, as its manual says: below the process that orphans of the run are given to."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("flock") is None or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespace can be made here, or there is no flock(1)")
    done = subprocess.run(
        [*inside, sys.executable, "-B", "-P", "-c", BACKUP_ELSEWHERE, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "left alone\n", done.stderr
