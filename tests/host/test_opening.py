"""What became of the last run: every case in which a job may be found, and supervisors killed at any moment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from bench.campaign_counter import final_value
from bench.campaign_observer import is_living
from tests.host.bed import (
    BARE,
    CLOCK,
    HostBed,
    counter,
    folders_in,
    history_of,
    holding,
    launched,
    make_bed,
    record_of,
    script,
    write_record,
)
from watchdog.collectors.processes import is_alive, this_host
from watchdog.collectors.run import RunWatch
from watchdog.core.causes import Cause
from watchdog.core.history import History
from watchdog.core.identity import Host
from watchdog.core.seen import Shim
from watchdog.core.state import Ended
from watchdog.drills.bed import WATCHDOG
from watchdog.errors import HeldError, StateError
from watchdog.folders import JobFolders
from watchdog.ledger import Ledger
from watchdog.opening import find_run, open_ledger, read_run_record, run_lock_is_free, take

SEED = 20261130
EXIT_7 = [*BARE, "-c", "raise SystemExit(7)"]


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    return folders_in(tmp_path)


@contextlib.contextmanager
def found(
    folders: JobFolders, history: History, host: Host | None = None
) -> Iterator[tuple[RunWatch | None, Ended | None]]:
    watch, ended = find_run(folders, history, host or this_host())
    try:
        yield watch, ended
    finally:
        if watch is not None:
            watch.close()


# --- nothing that could live --------------------------------------------------------------------------------
def test_a_job_that_never_ran(folders: JobFolders) -> None:
    with found(folders, History()) as (watch, ended):
        assert (watch, ended) == (None, None)


def test_recorded_in_the_ledger_and_killed_before_anything_else(folders: JobFolders) -> None:
    record = record_of(folders)
    with found(folders, history_of(record)) as (watch, ended):
        assert watch is None
        assert ended is not None
        assert (ended.run_id, ended.cause) == (record.run_id, Cause.NOT_STARTED)


def test_recorded_twice_and_the_shim_never_started(folders: JobFolders) -> None:
    record = record_of(folders)
    write_record(folders, record)
    with found(folders, history_of(record)) as (watch, ended):
        assert watch is None
        assert ended is not None
        assert ended.cause is Cause.NOT_STARTED


def test_recorded_and_never_started_while_the_record_on_disk_is_the_run_before(folders: JobFolders) -> None:
    ours = record_of(folders, number=2)
    with launched(folders, EXIT_7) as run:
        run.wait_over()
        with found(folders, history_of(run.record, ours, ended=[run.record])) as (watch, ended):
            assert watch is None
            assert ended is not None
            assert (ended.run_id, ended.cause) == (ours.run_id, Cause.NOT_STARTED)


def test_recorded_and_never_started_after_a_run_whose_shim_was_killed(folders: JobFolders) -> None:
    """That one ended for good, and has no exit record: it is not adopted, ended and counted a second time."""
    ours = record_of(folders, number=2)
    with launched(folders) as run:
        for identity in (run.start.shim, run.leader):
            run.kill(identity)
        run.child.wait(20)
        wait_for(lambda: not is_alive(run.leader), "the end of the leader")
        with found(folders, history_of(run.record, ours, ended=[run.record])) as (watch, ended):
            assert watch is None
            assert ended is not None
            assert (ended.run_id, ended.cause) == (ours.run_id, Cause.NOT_STARTED)


def test_a_run_whose_end_was_recorded_is_no_news(folders: JobFolders) -> None:
    with launched(folders, EXIT_7) as run:
        run.wait_over()
        with found(folders, history_of(run.record, ended=[run.record])) as (watch, ended):
            assert (watch, ended) == (None, None)


def test_from_before_a_reboot(folders: JobFolders) -> None:
    record = record_of(folders, host=Host(boot_id="another", pid_namespace="pid:[1]"))
    write_record(folders, record)
    with found(folders, history_of(record)) as (watch, ended):
        assert watch is None
        assert ended is not None
        assert (ended.run_id, ended.cause) == (record.run_id, Cause.HOST_RESTARTED)
    with found(folders, History()) as (watch, ended):
        assert (watch, ended) == (None, None)


def test_from_another_pid_namespace(folders: JobFolders) -> None:
    """Over when nobody holds the run lock; else nothing may be launched from here."""
    record = record_of(folders, host=dataclasses.replace(this_host(), pid_namespace="pid:[1]"))
    write_record(folders, record)
    with found(folders, history_of(record)) as (watch, ended):
        assert watch is None
        assert ended is not None
        assert (ended.run_id, ended.cause) == (record.run_id, Cause.UNKNOWN)
    with holding(folders.run_lock), pytest.raises(StateError, match="another pid namespace"):
        find_run(folders, history_of(record), this_host())


# --- alive --------------------------------------------------------------------------------------------------
def test_ours_alive_is_adopted_and_its_end_is_seen(folders: JobFolders) -> None:
    with launched(folders) as run, found(folders, history_of(run.record)) as (watch, ended):
        assert ended is None
        assert watch is not None
        assert watch.adopted
        assert (watch.shim(), watch.leader_alive()) == (Shim.ALIVE, True)
        assert [each.id for each in watch.members()] == [run.leader]
        assert not run_lock_is_free(folders)
        run.kill()
        run.wait_over()
        assert (watch.shim(), watch.leader_alive()) == (Shim.ENDED, False)
        exit_record = watch.exit_record()
        assert exit_record is not None
        assert exit_record.leader is not None
        assert exit_record.leader.signal == signal.SIGKILL
        assert run_lock_is_free(folders)


def test_ours_ended_while_nobody_watched(folders: JobFolders) -> None:
    with launched(folders, EXIT_7) as run:
        run.wait_over()
        with found(folders, history_of(run.record)) as (watch, ended):
            assert ended is None
            assert watch is not None
            assert watch.shim() is Shim.ENDED
            exit_record = watch.exit_record()
            assert exit_record is not None
            assert exit_record.leader is not None
            assert exit_record.leader.code == 7


def test_shim_killed_while_nobody_watched(folders: JobFolders) -> None:
    """The trainer lives: found by its marks, and only it."""
    with launched(folders) as run:
        run.kill(run.start.shim)
        run.child.wait(20)
        with found(folders, history_of(run.record)) as (watch, ended):
            assert ended is None
            assert watch is not None
            assert watch.shim() is Shim.LOST
            assert [each.id for each in watch.orphans(folders.run_lock).ours] == [run.leader]
            assert not run_lock_is_free(folders)
            run.kill()
            wait_for(lambda: not is_alive(run.leader), "the end of the leader")
            assert watch.orphans(folders.run_lock).ours == ()
            assert run_lock_is_free(folders)


def test_another_supervisors_run_in_the_same_checkpoint_folder(folders: JobFolders, tmp_path: Path) -> None:
    """Another state folder, the same job: adopted while it lives, no news afterwards, and ours is told besides."""
    theirs = folders_in(tmp_path, "elsewhere")
    ours = record_of(folders, number=4)
    with launched(theirs, number=9) as run:
        for history, stale in ((History(), None), (history_of(ours), ours.run_id)):
            with found(folders, history) as (watch, ended):
                assert watch is not None
                assert watch.record == run.record
                assert watch.shim() is Shim.ALIVE
                assert (None if ended is None else ended.run_id) == stale
        run.kill()
        run.wait_over()
        with found(folders, History()) as (watch, ended):
            assert (watch, ended) == (None, None)
        with found(folders, history_of(ours)) as (watch, ended):
            assert watch is None
            assert ended is not None
            assert ended.run_id == ours.run_id


# --- records that are none ----------------------------------------------------------------------------------
GARBAGE = {
    "empty": b"",
    "torn": b'{"run_id": "1-aaa',
    "binary": bytes(range(256)) * 20,
    "a list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "other fields": b'{"hello": 1}',
    "numbers beyond": b'{"run_id": "x", "number": 1e999, "shim": {"pid": 1e999, "start_ticks": 1}, "leader": null, '
    b'"complete": true, "exec_error": null, "ended": [{"pid": 1e999, "code": 1e999, "signal": null, "wall_s": 1}]}',
    "long": b'{"a": "' + b"x" * 5_000_000 + b'"}',
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_broken_run_record(kind: str, folders: JobFolders) -> None:
    """One clear error; a living run is neither forgotten nor doubled."""
    folders.run_record.write_bytes(GARBAGE[kind])
    with pytest.raises(StateError, match="run record"):
        read_run_record(folders.run_record)
    with found(folders, History()) as (watch, ended):
        assert (watch, ended) == (None, None)
    with holding(folders.run_lock), pytest.raises(StateError, match="holds the run lock"):
        find_run(folders, History(), this_host())


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_broken_exit_record(kind: str, folders: JobFolders) -> None:
    """How it ended is not known; that it is over is proven by the cross-checks."""
    with launched(folders, EXIT_7) as run:
        run.wait_over()
        run.folder.exit.write_bytes(GARBAGE[kind])
        with found(folders, history_of(run.record)) as (watch, ended):
            assert ended is None
            assert watch is not None
            assert watch.shim() is Shim.LOST
            assert watch.exit_record() is None
            assert watch.orphans(folders.run_lock).ours == ()
            assert run_lock_is_free(folders)


@pytest.mark.parametrize("kind", [*GARBAGE, "strangers"])
def test_a_broken_list_of_members(kind: str, folders: JobFolders) -> None:
    """A cross-check that is lost, no more: nobody is taken for ours because of it."""
    content = GARBAGE.get(kind, json.dumps([[1, 1], [os.getppid(), 1]]).encode())
    with launched(folders) as run:
        run.folder.members.write_bytes(content)
        run.kill(run.start.shim)
        run.child.wait(20)
        with found(folders, history_of(run.record)) as (watch, _):
            assert watch is not None
            assert [each.id for each in watch.orphans(folders.run_lock).ours] == [run.leader]


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_broken_start_record_of_a_run_that_is_over(kind: str, folders: JobFolders) -> None:
    """The shim's exit record still says how it ended: never claimed that it was not started."""
    with launched(folders, EXIT_7) as run:
        run.wait_over()
        run.folder.start.write_bytes(GARBAGE[kind])
        with found(folders, history_of(run.record)) as (watch, ended):
            assert ended is None or ended.cause is not Cause.NOT_STARTED, ended
            assert watch is None or watch.shim() is Shim.ENDED


def test_a_broken_start_record_of_a_living_run(folders: JobFolders) -> None:
    """Whatever is done about it, the end of the run must become known."""
    with launched(folders) as run:
        run.folder.start.write_bytes(GARBAGE["torn"])
        try:
            watch, ended = find_run(folders, history_of(run.record), this_host())
        except StateError:
            return  # told to a person, and nothing is launched: good as well
        assert ended is None
        assert watch is not None
        with contextlib.closing(watch):
            run.kill()
            run.wait_over()
            wait_for(lambda: watch.shim() is not Shim.STARTING, "any word about the end of the run", timeout_s=3)


def test_a_run_that_was_being_started_and_came_to_nothing(folders: JobFolders) -> None:
    """Found while the lock is held and no start record is there yet; then the holder is gone and none will ever be."""
    record = record_of(folders)
    write_record(folders, record)
    with holding(folders.run_lock) as shim:
        watch, ended = find_run(folders, history_of(record), this_host())
        assert ended is None
        assert watch is not None
        assert watch.shim() is Shim.STARTING
        shim.communicate(timeout=20)
    with contextlib.closing(watch):
        wait_for(lambda: watch.shim() is not Shim.STARTING, "that nothing was started", timeout_s=3)


def test_a_broken_run_record_does_not_make_a_run_that_ended_into_one_that_was_never_started(
    folders: JobFolders,
) -> None:
    with launched(folders, EXIT_7) as run:
        run.wait_over()
        folders.run_record.write_bytes(b"")
        with found(folders, history_of(run.record)) as (watch, ended):
            assert watch is not None or (ended is not None and ended.cause is not Cause.NOT_STARTED), ended


# --- taking the job -----------------------------------------------------------------------------------------
def test_a_job_is_taken_once(folders: JobFolders) -> None:
    lock = take(folders, CLOCK, ["watchdog", "run", "--api-key=abcdefgh1"])
    with contextlib.closing(lock):
        with pytest.raises(HeldError, match=rf"already supervised by pid {os.getpid()} since .*watchdog run") as caught:
            take(folders, CLOCK, ["watchdog"])
        assert "abcdefgh1" not in str(caught.value)
        assert lock.intact
        folders.supervisor_lock.unlink()
        assert not lock.intact
    take(folders, CLOCK, ["watchdog"]).close()


def test_the_state_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folders = dataclasses.replace(folders_in(tmp_path), state=tmp_path / "new" / "bed")
    ledger = open_ledger(folders, CLOCK, this_host())
    with contextlib.closing(ledger):
        ledger.record("hold", "HOLD: x", reason="x")
    assert folders.state.stat().st_mode & 0o77 == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot make the state folder"):
        open_ledger(dataclasses.replace(folders, state=tmp_path / "file" / "bed"), CLOCK, this_host())


# --- with whole supervisors ---------------------------------------------------------------------------------
def value_of(bed: HostBed) -> object:
    return json.loads((bed.checkpoints / "count.json").read_bytes())["value"]


def test_died_while_nobody_watched_and_is_weighed_once(tmp_path: Path) -> None:
    body = "import os, sys, time\nif os.path.exists(sys.argv[1]): sys.exit(0)\nwhile True: time.sleep(0.05)\n"
    flag = tmp_path / "flag"
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(flag)], level=0) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.kill_supervisor(supervisor)
        bed.harm(run.trainer)
        wait_for(lambda: is_living(run.shim, None) is None, "the end of the shim")
        flag.touch()
        assert bed.ended(bed.start()) == 0, bed.tell()
        ends = [event["data"] for event in bed.kinds("run_ended")]
        assert [end["cause"] for end in ends] == ["killed", "finished"], bed.tell()
        assert "SIGKILL" in ends[0]["words"]
        assert len(bed.kinds("run_weighed")) == 2


def test_a_run_that_was_weighed_is_not_weighed_again(tmp_path: Path) -> None:
    """Killed between the record of the second launch and its run record: the one on disk is still the first run's."""
    body = "import os, sys\nsys.exit(0 if os.path.exists(sys.argv[1]) else 7)\n"
    flag = tmp_path / "flag"
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(flag)], level=0) as bed:
        assert bed.ended(bed.start_deadly("run_launching:2")) == -signal.SIGKILL, bed.tell()
        flag.touch()
        assert bed.ended(bed.start()) == 0, bed.tell()
        ends = [(event["data"]["number"], event["data"]["cause"]) for event in bed.kinds("run_ended")]
        assert ends == [(1, "exited"), (2, "not_started"), (3, "finished")], bed.tell()


def test_a_new_beginning_that_was_killed_is_not_finished_by_the_old_run(tmp_path: Path) -> None:
    body = "import sys\nopen(sys.argv[1], 'a').write('x')\n"
    count = tmp_path / "count"
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(count)], level=0) as bed:
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert bed.ended(bed.start_deadly("run_launching", "--new")) == -signal.SIGKILL, bed.tell()
        assert count.read_text() == "x"
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert count.read_text() == "xx", bed.tell()


def test_killed_right_after_each_kind_of_record(tmp_path: Path) -> None:
    """Also between the record of a launch and the launch: told as never started, and never two alive."""
    with counter(tmp_path / "bed", "--steps", "24", "--save-every", "6", "--delay", "0.1") as bed:
        bed.observe()
        for where in (
            "run_launching",
            "launched",
            "run_acknowledged",
            "checkpoint_verified",
            "run_ended",
            "run_weighed",
        ):
            assert bed.ended(bed.start_deadly(where)) == -signal.SIGKILL, f"{where}\n{bed.tell()}"
        assert bed.ended(bed.start()) == 0, bed.tell()
        causes = [event["data"]["cause"] for event in bed.kinds("run_ended")]
        assert causes == ["not_started", "finished"], bed.tell()
        assert len(bed.kinds("run_launching")) == 2
        assert len(bed.kinds("run_weighed")) == 2, bed.tell()
        assert len(bed.kinds("finished")) == 1
        assert value_of(bed) == final_value(24)
        assert not bed.problems(), bed.tell()


def test_killed_when_a_stop_was_recorded_and_its_term_was_not_sent(tmp_path: Path) -> None:
    """The next one sends it: the trainer saves and leaves, long before the grace is over."""
    with counter(tmp_path / "bed", "--steps", "60", "--delay", "0.03", stop={"grace": "60s"}) as bed:
        bed.observe()
        supervisor = bed.start_deadly("run_stopping")
        bed.run_at_step(7)
        supervisor.send_signal(signal.SIGTERM)
        assert bed.ended(supervisor) == -signal.SIGKILL, bed.tell()
        run = bed.living()
        assert run is not None, "its TERM must not have been sent"
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert bed.kinds("run_ended")[0]["data"]["cause"] == "drained", bed.tell()
        assert not bed.kinds("run_killing")
        assert bed.kinds("run_launching")[1]["data"]["resume_step"] >= 7
        assert value_of(bed) == final_value(60)
        assert not bed.problems(), bed.tell()


LEAVES_WITH_0 = """
import os, signal, time
from watchdog import contract
run = contract.join()
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os._exit(0)))
run.beat("train", step=1)
time.sleep(600)
"""


def test_killed_when_the_term_of_a_stall_was_sent_and_what_came_of_it_was_not_recorded(tmp_path: Path) -> None:
    """It leaves with 0 because it was asked to, at its first step of many: that is no end of the job."""
    late = {"train": "2s", "first_step": "2s"}
    with make_bed(tmp_path / "bed", script(tmp_path, LEAVES_WITH_0), level=0, deadlines=late) as bed:
        assert bed.ended(bed.start_deadly("asked")) == -signal.SIGKILL, bed.tell()
        assert [event["event"] for event in bed.kinds("signal_sending", "signal_sent")] == ["signal_sending"]
        supervisor = bed.start()
        end = bed.wait_event("run_ended")
        assert end["data"]["cause"] == "stalled", bed.tell()
        assert supervisor.poll() is None
        assert not bed.kinds("finished")


def test_no_descriptor_to_be_had_right_after_the_launch_costs_no_run(tmp_path: Path) -> None:
    """What cannot be held yet is looked at again: the supervisor says so, goes on, and sees the end."""
    body = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    flag = tmp_path / "flag"
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(flag)], level=0) as bed:
        supervisor = bed.start_deadly("starving")
        bed.run_where(lambda _run, _beat: True, "a run")
        wait_for(lambda: "Too many open files" in bed.screen, "word of it")
        bed.wait_event("verdict_changed")  # it can write again
        flag.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert len(bed.kinds("run_launching")) == len(bed.kinds("finished")) == 1, bed.tell()


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def test_no_descriptor_to_be_had_when_it_is_killed_leaves_the_supervisor_there_to_do_it_later(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", script(tmp_path, DEAF), level=0, stop={"grace": "1s"}) as bed:
        supervisor = bed.start_deadly("starving when asked")
        run = bed.run_where(lambda run, _beat: b"deaf" in (run.folder / "output.log").read_bytes(), "a deaf run")
        supervisor.send_signal(signal.SIGTERM)
        wait_for(lambda: "Too many open files" in bed.screen, "word of it")
        assert bed.ended(supervisor) == 5, bed.tell()
        assert is_living(run.trainer, None) is None
        assert "nobody was killed, and it is tried again" in bed.screen, bed.tell()


def test_killed_twelve_times_at_random_moments(tmp_path: Path) -> None:
    """Now and then the trainer dies while nobody watches; the end is the undisturbed one's."""
    chance = random.Random(SEED)
    alone = set(chance.sample(range(12), 4))
    with counter(tmp_path / "bed", "--steps", "64", "--delay", "0.05") as bed:
        bed.observe()
        for number in range(12):
            before = len(bed.kinds("supervisor_started"))
            supervisor = bed.start()
            if number % 2:  # from the start of the process, or from the moment at which it has the job
                bed.wait_event("supervisor_started", count=before + 1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                supervisor.wait(chance.uniform(0.0, 0.4))
            bed.kill_supervisor(supervisor)
            run = bed.living()
            if number in alone and run is not None:
                bed.harm(run.trainer)
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert bed.kinds("run_adopted"), "no moment was hit in which a run had to be adopted"
        numbers = [event["seq"] for event in bed.events()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert value_of(bed) == final_value(64)
        assert not bed.problems(), bed.tell()


def test_a_trainer_started_by_hand_is_waited_for(tmp_path: Path) -> None:
    """It is named, and when it has ended the launch goes on with no hand raised; no number is lost on the way."""
    with counter(tmp_path / "bed", "--steps", "6") as bed:
        control = bed.checkpoints / ".gpuhost-watchdog"
        control.mkdir(parents=True)
        with holding(control / "run.lock", exclusive=True) as by_hand:
            supervisor = bed.start()
            bed.wait_event("launch_troubled")
            assert f"pid {by_hand.pid} " in bed.kinds("launch_troubled")[0]["data"]["words"]
            assert not bed.kinds("run_launching", "hold"), bed.tell()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert [event["data"]["number"] for event in bed.kinds("run_launching")] == [1]
        assert value_of(bed) == final_value(6)
        assert not bed.problems(), bed.tell()


def test_a_trainer_started_by_hand_that_stays_is_a_hold_that_names_it(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "6", relaunch={"gate_wait": "1s"}) as bed:
        control = bed.checkpoints / ".gpuhost-watchdog"
        control.mkdir(parents=True)
        with holding(control / "run.lock", exclusive=True) as by_hand:
            assert bed.ended(bed.start()) == 3, bed.tell()
            assert f"pid {by_hand.pid} " in bed.kinds("hold")[0]["data"]["reason"]
            assert by_hand.poll() is None
        assert bed.call("relaunch").returncode == 0
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert value_of(bed) == final_value(6)
        assert not bed.problems(), bed.tell()


def test_the_lock_unlinked_under_a_supervisor_closes_its_gate(tmp_path: Path) -> None:
    """It launches no more; whoever locks the new file adopts what lives and goes on."""
    with counter(tmp_path / "bed", "--steps", "20", "--delay", "0.04", relaunch={"gate_wait": "0.5s"}) as bed:
        bed.observe()
        first = bed.start()
        run = bed.run_at_step(3)
        (bed.checkpoints / ".gpuhost-watchdog" / "supervisor.lock").unlink()
        bed.harm(run.trainer)
        assert bed.ended(first) == 3, bed.tell()
        assert "unlinked or replaced" in bed.kinds("hold")[0]["data"]["reason"]
        assert len(bed.kinds("run_launching")) == 1
        assert bed.call("relaunch").returncode == 0
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert value_of(bed) == final_value(20)
        assert not bed.problems(), bed.tell()


# --- from inside the run --------------------------------------------------------------------------------------
INSIDE = """
import os, subprocess, sys, time
flag, told = sys.argv[1:3]
while not os.path.exists(flag): time.sleep(0.02)
own = {name: value for name, value in os.environ.items() if not name.startswith("GPUHOST_WATCHDOG_")}
with open(told + "~", "wb") as out:
    done = subprocess.run(sys.argv[3:], env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    out.write(b"exit %d" % done.returncode)
os.rename(told + "~", told)
time.sleep(600)
"""


@pytest.mark.parametrize("words", [("run",), ("stop", "--now")], ids=" ".join)
def test_a_supervisor_started_inside_the_run_refuses_to_watch_it(words: tuple[str, ...], tmp_path: Path) -> None:
    """A terminal that the trainer opened: it would freeze itself with the run, lock in hand, and nobody thaws it."""
    flag, told, config = tmp_path / "flag", tmp_path / "told", tmp_path / "bed" / "watchdog.toml"
    inner = [*WATCHDOG, words[0], "--config", str(config), *words[1:]]
    with make_bed(tmp_path / "bed", [*script(tmp_path, INSIDE), str(flag), str(told), *inner], level=0) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.kill_supervisor(supervisor)
        flag.touch()
        wait_for(told.exists, "the word of the one inside", timeout_s=30)
        answer = told.read_text()
        assert f"was started inside run {run.run_id}" in answer
        assert "from a shell or terminal that the job did not open" in answer
        assert answer.endswith("exit 2")
        assert is_living(run.trainer, None) is not None
        assert not bed.kinds("run_adopted", "run_stopping", "signal_sending", "run_freezing")
        stopped = bed.call("stop", "--now")  # from outside nothing is in its way
        assert stopped.returncode in (0, 5), stopped
        assert is_living(run.trainer, None) is None


def test_a_hold_for_a_run_of_another_pid_namespace_does_not_lift_itself(tmp_path: Path) -> None:
    """Its shim was killed there, and what is left has closed its descriptors: from here its lock alone looks free."""
    with make_bed(tmp_path / "bed", EXIT_7, level=0) as bed:
        bed.start_deadly("run_launching").wait(30)
        run_id = bed.kinds("run_launching")[0]["data"]["run_id"]
        folders, here = folders_in(bed.root), this_host()
        there = dataclasses.replace(here, pid_namespace="pid:[1]")
        write_record(folders, record_of(folders, run_id=run_id, host=there))
        with contextlib.closing(Ledger(folders.ledger, folders.ballast, clock=CLOCK, boot_id=here.boot_id)) as book:
            book.record("run_stopping", "late", run_id=run_id, cause="stalled", reason="late", hold_after=False)
            book.record("hold", "HOLD: run 1 does not end", reason="run 1 does not end", until_gone=run_id)
        for _ in range(2):
            assert bed.ended(bed.start()) == 3, bed.tell()
        assert not bed.kinds("lifted"), bed.tell()
        assert "cannot be seen from here" in bed.kinds("hold")[-1]["data"]["reason"]
        assert len(bed.kinds("run_launching")) == len(bed.kinds("run_ended")) == len(bed.kinds("run_weighed")) == 1
