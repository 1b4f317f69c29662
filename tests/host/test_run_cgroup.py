"""The run's own cgroup with the real kernel: made, entered, killed whole, and never believed where it is not proven."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.bed import BARE, SLEEPER, Launched, folders_in, record_of
from tests.host.shimmed import until
from watchdog.actuators import cgroup
from watchdog.actuators.launch import LaunchOrder, launch
from watchdog.actuators.signals import Sent
from watchdog.cgrouping import RunCgroups
from watchdog.collectors.processes import is_alive, read_process
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch, read_start
from watchdog.collectors.runcgroup import name_of, own_folder, pids_by_name, pids_in
from watchdog.core.facts import Absent
from watchdog.core.identity import ProcessId
from watchdog.core.runrecord import RunCgroup, RunRecord
from watchdog.core.seen import Shim
from watchdog.errors import RecordingError
from watchdog.folders import RunFolder
from watchdog.signalling import Signaller

BOMB = """
import os, time
for _ in range(400):
    if os.fork() == 0:
        for _ in range(3):
            os.fork()
            time.sleep(0.01)
        time.sleep(600)
    time.sleep(0.005)
time.sleep(600)
"""
# Leaves a process without a mark: another session, no descriptors, an environment that is not ours and not empty.
UNMARKED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 200)
        os.execve("/bin/sleep", ["sleep", "600"], {"A": "b"})
    os._exit(0)
os.wait()
time.sleep(600)
"""


class Book:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, dict[str, Any]]] = []
        self.full = False

    def write(self, kind: str, sentence: str, **data: Any) -> None:
        if self.full:
            raise RecordingError("no room")
        self.records.append((kind, sentence, data))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.records]

    def words(self, kind: str) -> str:
        return next(sentence for each, sentence, _ in self.records if each == kind)


class Runs:
    """Runs in cgroups of their own, launched as a supervisor does."""

    def __init__(self, root: Path) -> None:
        self.folders = folders_in(root)
        self.launched: list[Launched] = []
        self.groups: list[tuple[RunCgroup, str]] = []
        self.guests: list[subprocess.Popen[bytes]] = []

    def group(self, record: RunRecord) -> RunCgroup:
        try:
            made = cgroup.make(record.run_id)
        except (OSError, LookupError) as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        self.groups.append((made, record.run_id))
        return made

    def launch(self, command: list[str], *, make: Callable[[RunRecord], RunCgroup | None] | None = None) -> Launched:
        record = record_of(self.folders)
        record = dataclasses.replace(record, cgroup=(make or self.group)(record))
        order = LaunchOrder(
            record=record,
            command=tuple(command),
            directory=self.folders.state,
            environment={},
            manifest=None,
            beat_deadline_s=30.0,
        )
        child = launch(order, self.folders)
        folder = RunFolder(path=Path(record.folder))

        def started() -> Any:
            found = read_start(folder)
            return found if found is not None and found.leader is not None else None

        start = until(started, "the start record")
        run = Launched(folders=self.folders, record=record, child=child, start=start)
        self.launched.append(run)
        return run

    def guest(self, group: RunCgroup) -> subprocess.Popen[bytes]:
        """A process of somebody else that was moved in there."""
        guest = subprocess.Popen(SLEEPER, start_new_session=True)
        self.guests.append(guest)
        Path(group.path, "cgroup.procs").write_text(str(guest.pid))
        return guest

    def close(self) -> None:
        for guest in self.guests:
            guest.kill()
            guest.wait()
        for group, _ in self.groups:
            with contextlib.suppress(OSError):
                Path(group.path, "cgroup.kill").write_text("1")
        for run in self.launched:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.child.wait(10)
        for group, _ in self.groups:
            # Orphans of a killed shim are reaped by whoever got them.
            until(lambda path=group.path: _gone(path), f"{group.path} removed")  # type: ignore[misc]


def _gone(path: str) -> bool:
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return not os.path.exists(path)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    runs.close()


def python(code: str) -> list[str]:
    return [*BARE, "-c", code]


def group_of(run: Launched) -> RunCgroup:
    assert run.record.cgroup is not None
    return run.record.cgroup


def inside(run: Launched) -> frozenset[int]:
    found = pids_in(group_of(run), run.record.run_id)
    assert found is not None
    return found


def watching(run: Launched) -> RunWatch:
    watch = RunWatch(run.record, run.child)
    until(lambda: watch.shim() is not Shim.STARTING, "its start")
    return watch


def signaller(run: Launched, book: Book) -> Signaller:
    return Signaller(run.folders.run_lock, lambda _watch, _now: Absent(), book.write, book.write)


def lose_shim(run: Launched, watch: RunWatch) -> None:
    os.kill(run.start.shim.pid, signal.SIGKILL)
    run.child.wait(10)
    until(lambda: watch.shim() is Shim.LOST, "the loss of the shim")


# --- made, entered, removed ----------------------------------------------------------------------------------
def test_the_trainer_is_in_it_and_the_shim_is_not_and_the_record_names_it(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    assert inside(run) == {run.leader.pid}
    recorded = json.loads(run.folders.run_record.read_bytes())["cgroup"]
    assert recorded["path"].endswith("/gpuhost-watchdog-" + run.record.run_id)
    assert RunRecord.from_record(json.loads(run.folders.run_record.read_bytes())) == run.record
    assert Path(recorded["path"]).parent == Path(own_folder(Roots()))


def test_it_is_removed_after_the_end_and_not_before(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    assert cgroup.remove(group_of(run), run.record.run_id) == "somebody is in it"
    run.kill()
    run.wait_over()
    assert not os.path.exists(group_of(run).path)  # by the shim, whose end is the proof
    assert cgroup.remove(group_of(run), run.record.run_id) is None


def test_what_a_killed_shim_left_is_removed_by_the_supervisor(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    with contextlib.closing(watching(run)) as watch:
        lose_shim(run, watch)
        run.kill()
        until(lambda: watch.pids_in_cgroup() == frozenset(), "nobody in it")
    RunCgroups(Book().write).remove(run.record)
    assert not os.path.exists(group_of(run).path)


def test_a_cgroup_that_cannot_be_entered_costs_the_run_nothing_and_is_said_once(runs: Runs) -> None:
    run = runs.launch(
        SLEEPER, make=lambda record: RunCgroup(path="/nowhere/" + name_of(record.run_id), device=1, inode=1)
    )
    assert is_alive(run.leader)
    book = Book()
    groups = RunCgroups(book.write)
    with contextlib.closing(watching(run)) as watch:
        for _ in range(3):
            groups.look(watch)
        assert book.kinds == ["cgroup_missing"]
        assert "could not enter" in book.words("cgroup_missing")
        assert watch.pids_in_cgroup() is None
        signaller(run, book).kill(watch)
    run.wait_over()


def test_a_start_sweeps_what_earlier_runs_of_this_job_left_and_nothing_else(runs: Runs) -> None:
    old, living, foreign = (record_of(runs.folders, number=number) for number in (1, 2, 3))
    groups = [runs.group(record) for record in (old, living, foreign)]
    RunCgroups(Book().write).sweep((old.run_id, living.run_id), living.run_id)
    assert [os.path.exists(group.path) for group in groups] == [False, True, True]


# --- killed as a whole ---------------------------------------------------------------------------------------
def test_kill_takes_a_fork_bomb_whole_and_is_recorded_before(runs: Runs) -> None:
    run = runs.launch(python(BOMB))
    until(lambda: len(inside(run)) > 30, "thirty of them")
    book = Book()
    with contextlib.closing(watching(run)) as watch:
        signaller(run, book).kill(watch)
        run.child.wait(10)
        assert watch.shim() is Shim.ENDED
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"]
    assert book.records[1][2]["cgroup"] == group_of(run).path
    assert "cgroup delivered" in book.words("run_killed")
    assert not os.path.exists(group_of(run).path)


def test_it_is_not_killed_unrecorded(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    book = Book()
    book.full = True
    with contextlib.closing(watching(run)) as watch, pytest.raises(RecordingError):
        signaller(run, book).kill(watch)
    assert is_alive(run.leader)


def test_with_a_stranger_in_it_the_rounds_kill_alone_and_the_stranger_lives(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    guest = runs.guest(group_of(run))
    book = Book()
    with contextlib.closing(watching(run)) as watch:
        signaller(run, book).kill(watch)
        run.wait_over()
        assert watch.shim() is Shim.ENDED
    assert guest.poll() is None
    assert (read_process(guest.pid) or guest).state != "T"  # type: ignore[union-attr]
    assert f"left alone: pid {guest.pid}" in book.words("run_killed")
    assert all("cgroup" not in data for _, _, data in book.records)
    RunCgroups(book.write).remove(run.record)
    assert book.kinds[-1] == "cgroup_stays"


def test_a_traced_member_keeps_the_whole_from_being_killed(runs: Runs) -> None:
    code = "import ctypes, os, time\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nprint('traced', flush=True)\ntime.sleep(600)"
    # Its parent traces it: that is the leader, and both are of the run.
    run = runs.launch(python(f"import os, time\nif os.fork() == 0:\n    exec({code!r})\ntime.sleep(600)"))
    until(lambda: b"traced" in run.folder.log.read_bytes(), "the tracing")
    book = Book()
    with contextlib.closing(watching(run)) as watch:
        (traced,) = (pid for pid in inside(run) if pid != run.leader.pid)
        assert watch.traced_pids({traced}) == (traced,)
        whole = signaller(run, book)._whole(watch)
    assert whole == f"left alone: pid {traced} in it is under a debugger"


@pytest.mark.parametrize("change", ["inode", "device", "name", "no cgroup"])
def test_a_directory_that_is_not_the_recorded_one_is_neither_read_nor_killed_nor_removed(
    runs: Runs, change: str, tmp_path: Path
) -> None:
    run = runs.launch(SLEEPER)
    group, run_id = group_of(run), run.record.run_id
    match change:
        case "inode":
            group = dataclasses.replace(group, inode=group.inode + 1)
        case "device":
            group = dataclasses.replace(group, device=group.device + 1)
        case "name":
            run_id = "9-ffffffff"
        case "no cgroup":
            folder = tmp_path / name_of(run_id)
            folder.mkdir()
            (folder / "cgroup.kill").touch()
            status = folder.stat()
            group = RunCgroup(path=str(folder), device=status.st_dev, inode=status.st_ino)
    assert pids_in(group, run_id) is None
    assert cgroup.kill_whole(group, run_id) is Sent.GONE
    assert cgroup.remove(group, run_id) is None
    assert os.path.exists(group.path)
    assert is_alive(run.leader)


def test_a_kernel_without_it_leaves_the_rounds_alone(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 5.14 the file is not there."""
    monkeypatch.setattr(cgroup, "KILL", "cgroup.kill-of-5.14")
    run = runs.launch(SLEEPER)
    book = Book()
    with contextlib.closing(watching(run)) as watch:
        signaller(run, book).kill(watch)
    run.wait_over()
    assert "cgroup not killed: this kernel has no cgroup.kill" in book.words("run_killed")


def test_a_run_whose_records_were_removed_is_found_by_its_cgroup(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    assert pids_by_name(run.record.run_id) == {run.leader.pid}
    assert pids_by_name("1-never") == frozenset()


def test_a_dry_run_kills_nobody(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    assert cgroup.kill_whole(group_of(run), run.record.run_id, dry_run=True) is Sent.DRY
    assert is_alive(run.leader)


def test_a_cgroup_made_anew_under_the_old_name_is_another(runs: Runs) -> None:
    record = record_of(runs.folders)
    old = runs.group(record)
    os.rmdir(old.path)
    new = runs.group(record)
    assert new != old
    assert pids_in(old, record.run_id) is None
    assert pids_in(new, record.run_id) == frozenset()


def test_cgroups_that_the_run_made_below_are_seen_and_killed_too(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    below = Path(group_of(run).path, "below")
    below.mkdir()
    (below / "cgroup.procs").write_text(str(run.leader.pid))
    try:
        assert inside(run) == {run.leader.pid}
        assert cgroup.kill_whole(group_of(run), run.record.run_id) is Sent.DELIVERED
        run.wait_over()
        assert cgroup.remove(group_of(run), run.record.run_id) == "somebody is in it"  # never recursive
    finally:
        run.kill()
        run.wait_over()
        until(lambda: _gone(str(below)), "the one below removed")


# --- after the shim was killed ------------------------------------------------------------------------------
def _unmarked(run: Launched) -> ProcessId:
    def look() -> ProcessId | None:
        for pid in inside(run) - {run.leader.pid}:
            process = read_process(pid)
            if process is not None and process.command == "sleep" and process.ppid == run.start.shim.pid:
                return process.id
        return None

    found: ProcessId = until(look, "the unmarked one")
    return found


def test_without_its_shim_a_member_without_any_mark_is_found_by_the_cgroup_and_killed(runs: Runs) -> None:
    run = runs.launch(python(UNMARKED))
    unmarked = _unmarked(run)
    with contextlib.closing(RunWatch(run.record)) as watch:  # one that adopted it, and never saw its members
        until(lambda: watch.shim() is Shim.ALIVE, "its shim")
        lose_shim(run, watch)
        found = watch.orphans(run.folders.run_lock)
        assert {process.id for process in found.ours} == {run.leader, unmarked}
        book = Book()
        signaller(run, book).kill(watch)
        until(lambda: not is_alive(unmarked) and not is_alive(run.leader), "the end of both")
        until(lambda: not watch.orphans(run.folders.run_lock).ours, "nothing left")
    assert {unmarked.pid, run.leader.pid} <= set(book.records[0][2]["pids"])


def test_without_its_shim_a_stranger_in_it_is_doubtful_and_never_killed(runs: Runs) -> None:
    """Its parent, this test, is nobody whom orphans of the run could have been given to."""
    run = runs.launch(SLEEPER)
    run = dataclasses.replace(run, record=dataclasses.replace(run.record, ancestors=(ProcessId(1, 0),)))
    guest = runs.guest(group_of(run))
    with contextlib.closing(RunWatch(run.record)) as watch:
        until(lambda: watch.shim() is Shim.ALIVE, "its shim")
        lose_shim(run, watch)
        found = watch.orphans(run.folders.run_lock)
        assert [process.id for process in found.ours] == [run.leader]
        assert [process.id.pid for process in found.unclear] == [guest.pid]
        signaller(run, Book()).kill(watch)
        until(lambda: not is_alive(run.leader), "the end of the leader")
    assert guest.poll() is None


def test_an_older_stranger_in_it_is_nobody_and_lives(runs: Runs) -> None:
    older = subprocess.Popen(SLEEPER)
    runs.guests.append(older)
    until(lambda: b"while True" in Path(f"/proc/{older.pid}/cmdline").read_bytes(), "its exec")
    record = until(lambda: _later(runs, older.pid), "a later tick")
    run = runs.launch(SLEEPER)
    assert run.record.started_ticks >= record
    Path(group_of(run).path, "cgroup.procs").write_text(str(older.pid))
    with contextlib.closing(RunWatch(run.record)) as watch:
        until(lambda: watch.shim() is Shim.ALIVE, "its shim")
        lose_shim(run, watch)
        found = watch.orphans(run.folders.run_lock)
        assert [process.id for process in found.ours] == [run.leader]
        assert found.unclear == ()
        signaller(run, Book()).kill(watch)
        until(lambda: not is_alive(run.leader), "the end of the leader")
    assert older.poll() is None


def _later(runs: Runs, pid: int) -> int | None:
    process = read_process(pid)
    assert process is not None
    ticks = record_of(runs.folders).started_ticks
    return ticks if ticks > process.id.start_ticks else None


# --- hosts without one ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cgroups", "mounts", "words"),
    [
        ("4:memory:/a\n", "", "this host has no cgroup v2"),
        ("0::/a\n", "", "cgroup v2 is not mounted"),
        ("0::/a\n", "24 1 0:20 /other /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "cannot be reached"),
        ("0::/../a\n", "24 1 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "cannot be reached"),
        ("", "", "this host has no cgroup v2"),
    ],
    ids=["v1 only", "not mounted", "another part", "outside", "no cgroups"],
)
def test_a_host_without_one_is_told_with_the_reason(tmp_path: Path, cgroups: str, mounts: str, words: str) -> None:
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(cgroups)
    (proc / "mountinfo").write_text(mounts)
    with pytest.raises(LookupError, match=words):
        cgroup.make("1-a", Roots(str(tmp_path)))


@pytest.mark.parametrize("layout", ["pure", "hybrid", "container"])
def test_the_own_cgroup_is_found_in_every_layout(tmp_path: Path, layout: str) -> None:
    own, root, point = {
        "pure": ("/user.slice/x.scope", "/", "/sys/fs/cgroup"),
        "hybrid": ("/user.slice/x.scope", "/", "/sys/fs/cgroup/unified"),
        "container": ("/docker/c/x", "/docker/c", "/sys/fs/cgroup"),
    }[layout]
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(f"4:memory:/elsewhere\n0::{own}\n")
    (proc / "mountinfo").write_text(f"24 1 0:20 {root} {point} rw - cgroup2 cgroup2 rw\n")
    folder = tmp_path / point[1:] / own[1:].removeprefix(root[1:]).lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    assert own_folder(Roots(str(tmp_path))) == str(folder)


READ_ONLY = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from watchdog.collectors.roots import Roots
from watchdog.collectors.runcgroup import own_folder
point = sys.argv[2]
if subprocess.run(["mount", "-o", "remount,bind,ro", point]).returncode:
    sys.exit(77)
from watchdog.cgrouping import RunCgroups
print(RunCgroups(lambda kind, words, **data: print(kind, words)).make("1-readonly"))
"""


def test_a_read_only_mount_leads_to_none_and_is_said(repository: Path, runs: Runs) -> None:
    own = Path(runs.group(record_of(runs.folders)).path).parent
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    point = next(str(path) for path in (own, *own.parents) if os.path.ismount(path))
    own_namespace = ["unshare", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*own_namespace, sys.executable, "-P", "-c", READ_ONLY, str(repository), point],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"it cannot be mounted read-only here: {done.stderr.strip()}")
    first, second = done.stdout.splitlines()
    assert first.startswith("cgroup_missing runs have no cgroup of their own: ")
    assert second == "None", done.stderr


# --- stopped as a whole before --------------------------------------------------------------------------------
def frozen(run: Launched) -> bool:
    with open(f"{group_of(run).path}/cgroup.freeze", encoding="ascii") as file:
        return file.read().strip() == "1"


class Watching(Book):
    """Looks at the cgroup in the moment in which the KILL is recorded, twice; and may fail there."""

    def __init__(self, run: Launched, failure: BaseException | None = None) -> None:
        super().__init__()
        self.run, self.failure = run, failure
        self.looks: list[set[int]] = []

    def write(self, kind: str, sentence: str, **data: object) -> None:
        if kind == "run_killing":
            for _ in range(2):
                self.looks.append(set(inside(self.run)))
                threading.Event().wait(0.05)
            if self.failure is not None:
                raise self.failure
        super().write(kind, sentence, **data)


def test_who_is_recorded_is_who_is_killed_for_nobody_forks_meanwhile(runs: Runs) -> None:
    """A bomb that never rests: everybody who is in the cgroup while the record is written stands in it."""
    run = runs.launch(python(BOMB))
    until(lambda: len(inside(run)) > 30, "thirty of them")
    book = Watching(run)
    with contextlib.closing(watching(run)) as watch:
        signaller(run, book).kill(watch)
        run.child.wait(10)
        assert watch.shim() is Shim.ENDED
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"], "nobody had to be added"
    first, second = book.looks
    assert first == second
    assert first <= set(book.records[1][2]["pids"])  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [RecordingError("no room"), OSError("the table"), KeyboardInterrupt()], ids=repr)
def test_whatever_fails_before_the_kill_nobody_stays_frozen(failure: BaseException, runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    book = Watching(run, failure)
    with contextlib.closing(watching(run)) as watch, pytest.raises(type(failure)):
        signaller(run, book).kill(watch)
    assert not frozen(run)
    until(lambda: (process := read_process(run.leader.pid)) is not None and process.state == "S", "it runs on")
    with contextlib.closing(watching(run)) as watch:
        signaller(run, Book()).kill(watch)
        run.wait_over()


def test_what_a_killed_supervisor_left_frozen_is_killed_by_the_next(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    assert cgroup.freeze_whole(group_of(run), run.record.run_id)
    assert frozen(run)
    book = Book()
    with contextlib.closing(watching(run)) as watch:
        signaller(run, book).kill(watch)
        run.wait_over()
        assert watch.shim() is Shim.ENDED
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"]


def test_a_cgroup_with_a_stranger_in_it_is_not_frozen(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    runs.guest(group_of(run))
    seen: list[bool] = []

    class Asking(Book):
        def write(self, kind: str, sentence: str, **data: object) -> None:
            seen.append(frozen(run))
            super().write(kind, sentence, **data)

    with contextlib.closing(watching(run)) as watch:
        signaller(run, Asking()).kill(watch)
        run.wait_over()
    assert seen == [False] * len(seen) != []


def test_another_directory_of_that_name_is_not_frozen(runs: Runs) -> None:
    run = runs.launch(SLEEPER)
    other = dataclasses.replace(group_of(run), inode=group_of(run).inode + 1)
    assert not cgroup.freeze_whole(other, run.record.run_id)
    assert not cgroup.freeze_whole(group_of(run), "9-another")
    assert not frozen(run)
    run.kill()
    run.wait_over()


def test_what_a_killed_supervisor_left_frozen_goes_on_at_the_adoption_even_if_it_cannot_be_killed(runs: Runs) -> None:
    """The KILL is owed, but a stranger, a debugger or a full ledger may keep it waiting."""
    run = runs.launch(SLEEPER)
    assert cgroup.freeze_whole(group_of(run), run.record.run_id)
    groups = RunCgroups(Book().write)
    asked = {"run_id": run.record.run_id, "cause": "drained", "sent": True}
    for nobody_killed in (None, asked, asked | {"run_id": "9-another", "kill_now": True}):
        groups.release(run.record, nobody_killed)
        assert frozen(run), "that was not for a KILL of this run: somebody else has done it"
    groups.release(run.record, asked | {"kill_now": True})
    assert not frozen(run)
    run.kill()
    run.wait_over()
