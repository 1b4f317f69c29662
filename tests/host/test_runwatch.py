"""Eyes on a real run: launched or adopted, its shim alive, ended or killed, its members and its orphans."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import Shimmed, Shims, run_record, until
from watchdog.classify.ends import Evidence, last_error
from watchdog.collectors.processes import is_alive
from watchdog.collectors.run import LastWords, RunWatch, read_exit, read_last_words, read_start
from watchdog.contract import ContractError
from watchdog.core.seen import Shim
from watchdog.folders import RunFolder

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import time; time.sleep(600)"
ESCAPE = """
import os
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 200)
    os.execve("/bin/sleep", ["sleep", "600"], {})
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Shims]:
    bed = Shims(tmp_path)
    yield bed
    bed.close()


@pytest.fixture(params=[False, True], ids=["launched", "adopted"])
def adopted(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def seen(watch: RunWatch, expected: Shim) -> None:
    until(lambda: watch.shim() is expected, expected.value)


def end(run: Shimmed) -> None:
    os.kill(run.leader().pid, signal.SIGKILL)
    run.shim.wait(10)


def test_a_living_run_is_alive_with_its_leader_and_members(bed: Shims, adopted: bool) -> None:
    run = bed.run(SLEEP)
    run.start()
    watch = run.watch(adopted=adopted)
    assert watch.shim() is Shim.ALIVE
    assert watch.leader_alive()
    assert watch.exit_record() is not None
    assert {process.id for process in watch.members()} == {run.leader()}
    assert watch.adopted is adopted
    watch.close()


def test_an_end_wakes_a_poll_and_is_ended_with_its_record(bed: Shims, adopted: bool) -> None:
    run = bed.run(SLEEP)
    run.start()
    watch = run.watch(adopted=adopted)
    assert watch.shim() is Shim.ALIVE
    poll = select.poll()
    for fd in watch.descriptors():
        poll.register(fd, select.POLLIN)
    assert len(watch.descriptors()) == 2
    os.kill(run.leader().pid, signal.SIGKILL)
    assert poll.poll(5000)
    seen(watch, Shim.ENDED)
    assert not watch.leader_alive()
    record = watch.exit_record()
    assert record is not None
    assert record.leader is not None
    assert record.leader.signal == signal.SIGKILL
    assert watch.descriptors() == []
    watch.close()


def test_a_run_that_ended_before_it_was_adopted_is_ended(bed: Shims) -> None:
    run = bed.run("raise SystemExit(7)")
    run.shim.wait(10)
    watch = run.watch(adopted=True)
    assert watch.shim() is Shim.ENDED
    record = watch.exit_record()
    assert record is not None
    assert record.leader is not None
    assert record.leader.code == 7
    assert not watch.leader_alive()
    watch.close()


def test_a_killed_shim_is_lost_and_never_ended(bed: Shims, adopted: bool) -> None:
    run = bed.run(SLEEP)
    leader = run.leader()
    watch = run.watch(adopted=adopted)
    assert watch.shim() is Shim.ALIVE
    run.shim.kill()
    run.shim.wait(10)
    seen(watch, Shim.LOST)
    assert is_alive(leader)
    os.kill(leader.pid, signal.SIGKILL)
    until(lambda: not is_alive(leader), "the leader's end")
    assert watch.shim() is Shim.LOST  # a run without its proof does not become proven by silence
    watch.close()


def test_a_recycled_number_is_neither_the_shim_nor_the_leader(bed: Shims) -> None:
    """The start file names numbers that others have now: here, our own."""
    run = bed.run("pass")
    run.shim.wait(10)
    exit_record = json.loads(run.folder.exit.read_bytes()) | {"complete": False}
    run.folder.exit.write_text(json.dumps(exit_record))
    me = {"pid": os.getpid(), "start_ticks": 1}
    run.folder.start.write_text(json.dumps({"run_id": "1-a", "shim": me, "leader": me}))
    watch = run.watch(adopted=True)
    assert watch.shim() is Shim.LOST
    assert not watch.leader_alive()
    assert watch.members() == ()
    watch.close()


def test_another_runs_complete_record_is_no_proof(bed: Shims) -> None:
    run = bed.run(SLEEP)
    run.start()
    watch = run.watch()
    assert watch.shim() is Shim.ALIVE
    run.shim.kill()
    run.shim.wait(10)
    record = run.exit() | {"run_id": "0-old", "complete": True}
    run.folder.exit.write_text(json.dumps(record))
    seen(watch, Shim.LOST)
    assert watch.exit_record() is None
    watch.close()


def test_a_shim_that_could_not_start_anything_says_so(bed: Shims) -> None:
    (bed.folder / "1-a").mkdir()
    (bed.folder / "1-a" / "exit.json").mkdir()
    run = bed.run(SLEEP)
    watch = run.watch()
    seen(watch, Shim.NEVER)
    assert run.shim.returncode == 111
    watch.close()


def test_the_leader_is_seen_to_end_while_a_remnant_lives(bed: Shims, adopted: bool) -> None:
    run = bed.run(ESCAPE)
    run.start()
    watch = run.watch(adopted=adopted)
    until(lambda: watch.shim() is Shim.ALIVE and not watch.leader_alive(), "the end of the leader alone")
    until(lambda: [remnant.command for remnant in watch.members()] == ["sleep"], "the remnant alone, past its exec")
    assert watch.shim() is Shim.ALIVE
    watch.close()


def test_members_are_remembered_for_a_supervisor_that_comes_after_a_lost_shim(bed: Shims) -> None:
    run = bed.run(ESCAPE)
    run.start()
    watch = run.watch()
    until(lambda: watch.shim() is Shim.ALIVE and not watch.leader_alive(), "the end of the leader")
    (remnant,) = until(watch.members, "the remnant")
    watch.close()
    run.shim.kill()
    run.shim.wait(10)
    later = run.watch(adopted=True)
    assert later.shim() is Shim.LOST
    assert remnant.id in {process.id for process in later.orphans(run.lock).ours}
    os.kill(remnant.id.pid, signal.SIGKILL)
    until(lambda: not is_alive(remnant.id), "its end")
    assert remnant.id not in {process.id for process in later.orphans(run.lock).ours}
    later.close()


def test_orphans_are_told_by_their_marks_and_bystanders_are_not_taken(bed: Shims) -> None:
    run = bed.run(SLEEP)
    leader = run.leader()
    bystander = subprocess.Popen([sys.executable, "-S", "-E", "-c", SLEEP])
    watch = run.watch(adopted=True)
    assert watch.shim() is Shim.ALIVE
    run.shim.kill()
    run.shim.wait(10)
    seen(watch, Shim.LOST)
    ours = {process.id.pid for process in watch.orphans(run.lock).ours}
    assert leader.pid in ours
    assert bystander.pid not in ours
    assert os.getpid() not in ours
    bystander.kill()
    bystander.wait()
    watch.close()


# A supervisor that is a subreaper, with a run whose only survivor carries no mark at all, and a child of its own.
SUBREAPER = """
import os, signal, subprocess, sys, time
sys.path.insert(0, ROOT)
from pathlib import Path
from tests.host.shimmed import Shims, until
from watchdog.collectors.processes import read_process
from watchdog.core.seen import Shim
from watchdog.subreaping import become_subreaper

alone = become_subreaper()
assert alone, "this process has had no children"
bed = Shims(Path(sys.argv[1]))
run = bed.run(ESCAPE)
run.start()
watch = run.watch()
watch.orphans_come_to_us = alone
until(lambda: watch.shim() is Shim.ALIVE and not watch.leader_alive(), "the end of the leader")
mine = subprocess.Popen(["/bin/sleep", "600"])  # a collector's child
(survivor,) = run.members()
run.folder.members.unlink(missing_ok=True)
run.shim.kill()
until(lambda: watch.shim() is Shim.LOST, "lost")
found = watch.orphans(run.lock)
print({process.id.pid for process in found.ours} == {survivor}, mine.poll() is None, found.unclear)
os.kill(survivor, signal.SIGKILL)
until(lambda: not watch.orphans(run.lock).ours, "nothing left")
until(lambda: read_process(survivor) is None, "reaped by us")
print(mine.poll() is None)
mine.kill()
mine.wait()
"""


def test_where_orphans_come_to_us_no_mark_is_needed_and_our_own_children_are_spared(tmp_path: Path) -> None:
    program = f"ROOT = {str(ROOT)!r}\nESCAPE = {ESCAPE!r}\n" + textwrap.dedent(SUBREAPER)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True ()", "True"]


# --- files that are none ------------------------------------------------------------------------------------
GARBAGE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"shim": 3}',
    b'{"shim": {"pid": "x"}, "leader": null}',
    b"\xff" * 100,
    b"[" * 90_000,
]


@pytest.mark.parametrize("content", GARBAGE, ids=[repr(content[:16]) for content in GARBAGE])
def test_a_broken_record_is_no_record_and_no_crash(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(path=tmp_path)
    for path in (folder.start, folder.exit, folder.failure, folder.members):
        path.write_bytes(content)
    with pytest.raises(ContractError):
        read_start(folder)
    assert read_exit(folder) is None
    assert read_last_words(folder) == LastWords()
    watch = RunWatch(run_record(tmp_path))
    assert watch.shim() is Shim.STARTING
    assert watch.members() == ()
    assert watch.exit_record() is None
    watch.close()


@pytest.mark.parametrize(
    "leader",
    [
        {"pid": 1},
        [],
        {"pid": 1, "code": 1e999, "signal": None, "wall_s": 1.0},
        {"pid": 1, "code": 1, "signal": None, "wall_s": 10**400},
    ],
    ids=["no code", "a list", "an infinite code", "a time of 400 digits"],
)
def test_an_exit_record_with_impossible_values_is_none(tmp_path: Path, leader: object) -> None:
    folder = RunFolder(path=tmp_path)
    record = {"run_id": "1-a", "complete": True, "leader": leader, "exec_error": None, "ended": []}
    folder.exit.write_text(json.dumps(record))
    found = read_exit(folder)
    assert found is None or found.leader is None


def test_a_named_pipe_in_the_place_of_a_record_does_not_hang(tmp_path: Path) -> None:
    for name in ("start.json", "exit.json", "failure.json", "output.log", "members.json"):
        os.mkfifo(tmp_path / name)
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.host.shimmed import run_record
from watchdog.collectors.run import RunWatch, read_last_words
watch = RunWatch(run_record(Path(sys.argv[1])))
print(watch.shim().value, watch.exit_record(), read_last_words(watch.folder))
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=4, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail("looking at the run hangs")
    assert done.stdout == "starting None LastWords(failure=None, log='')\n", done.stderr


def last_words(folder: RunFolder) -> str | None:
    said = read_last_words(folder)
    return last_error(Evidence(record=None, failure=said.failure, log=said.log))


def test_the_last_words_are_the_failure_record_or_the_log(tmp_path: Path) -> None:
    folder = RunFolder(path=tmp_path)
    assert last_words(folder) is None
    folder.log.write_bytes(b"Traceback\n  line\nRuntimeError: boom\n\n")
    assert last_words(folder) == "RuntimeError: boom"
    folder.failure.write_text(json.dumps({"chain": [{"class": "OSError", "message": "full"}]}))
    assert last_words(folder) == "OSError: full"
    folder.failure.write_text(json.dumps({"chain": []}))
    assert last_words(folder) == "RuntimeError: boom"
    folder.log.write_bytes(b"x" * 100_000)
    words = last_words(folder)
    assert words is not None
    assert len(words) <= 400


# --- where no descriptor is to be had -----------------------------------------------------------------------
@contextlib.contextmanager
def no_descriptor_to_be_had() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_run_is_watched_although_its_first_looks_had_no_descriptor(bed: Shims, adopted: bool) -> None:
    """Right after its launch: what cannot be held yet is neither a crash nor gone, and is held by a later look."""
    run = bed.run(SLEEP)
    leader = run.leader()
    with no_descriptor_to_be_had():
        watch = run.watch(adopted=adopted)
    if not adopted:
        with no_descriptor_to_be_had():
            assert watch.shim() is Shim.STARTING
            assert watch.leader_alive()
    assert watch.shim() is Shim.ALIVE
    assert (watch.shim_id, watch.leader_alive(), len(watch.descriptors())) == (run.id, True, 2)
    os.kill(leader.pid, signal.SIGKILL)
    until(lambda: watch.shim() is Shim.ENDED, "its end")
    watch.close()


def test_we_are_no_member_of_a_run_that_we_were_started_in(bed: Shims, tmp_path: Path) -> None:
    """A shell below the trainer: whoever is started there descends from the shim, and may not end itself."""
    told = tmp_path / "told"
    look = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from watchdog.collectors.run import RunWatch
from watchdog.core.runrecord import RunRecord
from watchdog.contract import read_json
while not os.path.exists({str(tmp_path / "record.json")!r}): pass
watch = RunWatch(RunRecord.from_record(read_json(Path({str(tmp_path / "record.json")!r}), "run record")))
watch.shim()
members = [process.id.pid for process in watch.members()]
open({str(told)!r} + "~", "w").write(json.dumps([os.getpid(), os.getppid(), members]))
os.rename({str(told)!r} + "~", {str(told)!r})
"""
    run = bed.run(
        f"import subprocess, time; subprocess.Popen([{sys.executable!r}, '-B', '-P', '-c', {look!r}]); time.sleep(600)"
    )
    leader = run.leader()
    (tmp_path / "record.part").write_text(json.dumps(run.record.to_record()))
    (tmp_path / "record.part").rename(tmp_path / "record.json")
    until(told.exists, "its look")
    assert json.loads(told.read_text())[1:] == [leader.pid, [leader.pid]]
    end(run)
