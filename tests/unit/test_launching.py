"""Carrying out a launch: recorded first, cut and masked where it is shown, and told when it came to nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import CLOCK, SLEEPER, folders_in, holding
from watchdog.cgrouping import RunCgroups
from watchdog.collectors.processes import this_host
from watchdog.collectors.run import RunWatch
from watchdog.core.choice import Checkpoint
from watchdog.core.history import History
from watchdog.core.phase import Phase
from watchdog.core.seen import Shim, Trouble
from watchdog.core.state import Record, State
from watchdog.drills import places
from watchdog.errors import RecordingError, StateError
from watchdog.launching import command_digest, command_of, launch_run, passes, shown_command
from watchdog.opening import OpenJob, open_ledger, take
from watchdog.settings import Settings, load

STATE = State(phase=Phase.GATING, since_s=0.0, failures=1)


def settings(tmp_path: Path, command: list[str], **overrides: object) -> Settings:
    return load(environ={}, home=tmp_path, cwd=tmp_path, command=command, job="bed", overrides=overrides)


class World:
    """A job that is taken, and what was recorded and heard in which order."""

    def __init__(self, tmp_path: Path, command: list[str], **overrides: object) -> None:
        self.settings = settings(tmp_path, command, **overrides)
        folders = folders_in(tmp_path)
        self.job = OpenJob(
            folders=folders,
            lock=take(folders, CLOCK, ["test"]),
            ledger=open_ledger(folders, CLOCK, this_host()),
            history=History(),
            host=this_host(),
            watch=None,
        )
        self.cgroups = RunCgroups(lambda *_words, **_data: None)
        self.done: list[str] = []
        self.data: list[dict[str, Any]] = []
        self.full = False

    def record(self, records: list[Record]) -> None:
        if self.full:
            raise RecordingError("no room")
        self.done += [record.kind for record in records]
        self.data += [dict(record.data) for record in records]

    def launch(
        self, checkpoint: Checkpoint | None = None, *, stale: Sequence[str | None] = ()
    ) -> tuple[RunWatch, State] | Trouble:
        """`stale`: what is said of the choice, one look after the other."""
        looks = iter(stale)

        def listen(_run_id: str) -> None:
            self.done.append("listening")

        return launch_run(
            *(self.settings, self.job, History(), checkpoint, STATE, CLOCK, self.record, listen, self.cgroups),
            why_stale=lambda: next(looks, None),
        )

    def close(self) -> None:
        self.job.ledger.close()
        self.job.lock.close()


def end(watch: RunWatch) -> None:
    wait_for(lambda: watch.shim() is not Shim.STARTING and watch.start is not None and watch.start.leader, "the start")
    for process in watch.members():
        os.kill(process.id.pid, 9)
    wait_for(lambda: watch.shim() is Shim.ENDED, "the end")
    watch.close()


def test_a_launch(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path, SLEEPER)) as world:
        found = world.launch()
        assert not isinstance(found, Trouble)
        watch, state = found
        assert world.done == ["run_launching", "listening"]
        assert state.phase is Phase.RUNNING
        assert state.run is not None
        assert state.run.run_id == watch.record.run_id == world.data[0]["run_id"]
        assert (state.run.number, state.run.baseline_step, state.failures) == (1, -1, 1)
        on_disk = json.loads(world.job.folders.run_record.read_bytes())
        assert on_disk["run_id"] == watch.record.run_id
        assert watch.record.run_id in world.job.folders.lineage.read_text().split()
        end(watch)


def test_from_a_checkpoint(tmp_path: Path) -> None:
    """What the run must acknowledge stands in its record, and the way to it in its environment."""
    code = "import os; p = 'GPUHOST_WATCHDOG_RESUME'; print(os.environ[p], os.environ[p + '_MANIFEST'])"
    command = [sys.executable, "-I", "-S", "-c", code]
    with contextlib.closing(World(tmp_path, command, **{"job.level": 2})) as world:
        found = world.launch(Checkpoint(step=7, digest="d" * 64, manifest="/some/where"))
        assert not isinstance(found, Trouble)
        watch, state = found
        assert state.run is not None
        expected = state.run.expectation
        assert (expected.fresh, expected.step, expected.digest, state.run.baseline_step) == (False, 7, "d" * 64, 7)
        wait_for(lambda: watch.shim() is Shim.ENDED, "the end")
        assert watch.folder.log.read_text() == "require /some/where\n"
        watch.close()


def test_what_cannot_be_recorded_is_not_started(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path, SLEEPER)) as world:
        world.full = True
        trouble = world.launch()
        assert isinstance(trouble, Trouble)
        assert trouble.passing
        assert world.done == []
        assert not world.job.folders.run_record.exists()


def test_a_launch_that_comes_to_nothing_is_recorded_as_over(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path, SLEEPER)) as world:
        with holding(world.job.folders.run_lock) as holder:
            trouble = world.launch()
            assert isinstance(trouble, Trouble)
            assert f"pid {holder.pid}" in trouble.words
            assert trouble.passing, "its holder may end"
            assert world.done == [], "no number is given to a run that cannot begin"
        gone = dataclasses.replace(world.job, folders=world.job.folders)
        world.settings = settings(tmp_path, SLEEPER, **{"job.directory": str(tmp_path / "gone")})
        world.job = gone
        trouble = world.launch()
        assert isinstance(trouble, Trouble)
        assert str(tmp_path / "gone") in trouble.words
        assert not trouble.passing, "no folder comes by waiting"
        kinds = [kind for kind in world.done if kind != "listening"]
        assert kinds == ["run_launching", "run_ended", "run_weighed"]
        assert {data["cause"] for data in world.data if "cause" in data} == {"not_started"}
        assert [data["failures"] for data in world.data if "failures" in data] == [1], "no failure of the trainer"


def test_what_was_saved_since_the_choice_is_not_launched_over(tmp_path: Path) -> None:
    """Seen before a number is given to the run; what comes after that look is seen under the lock."""
    with contextlib.closing(World(tmp_path, SLEEPER)) as world:
        trouble = world.launch(stale=["step 15 was saved since"])
        assert isinstance(trouble, Trouble)
        assert (trouble.words, trouble.passing) == ("step 15 was saved since; it is chosen anew", True)
        assert world.done == []
        trouble = world.launch(stale=[None, "step 15 was saved since"])
        assert isinstance(trouble, Trouble)
        assert (trouble.words, trouble.passing) == ("step 15 was saved since", True)
        assert world.done == ["run_launching", "listening", "run_ended", "run_weighed"]
        assert not world.job.folders.run_record.exists()


@pytest.mark.parametrize("lock", ["run_lock", "supervisor_lock"])
def test_a_lock_file_that_was_removed_under_its_holder_closes_the_launch(lock: str, tmp_path: Path) -> None:
    """Whoever makes a new file of that name would not meet the one that holds the old one."""
    with contextlib.closing(World(tmp_path, SLEEPER)) as world:
        path = getattr(world.job.folders, lock)
        holder = holding(path) if lock == "run_lock" else contextlib.nullcontext(None)
        with holder as process:
            os.unlink(path)
            trouble = world.launch()
            assert isinstance(trouble, Trouble)
            assert f"{path} was removed" in trouble.words
            assert f"pid {os.getpid() if process is None else process.pid}" in trouble.words
            assert world.done == [], "nothing was recorded, and nothing was started"
            assert trouble.passing == (lock == "run_lock"), "our own is not put back by waiting"


def test_a_full_disk_passes_and_the_next_launch_goes_through(tmp_path: Path) -> None:
    """A real one, to the last byte: between the gates and the record of the run."""
    with contextlib.ExitStack() as cleanup:
        try:
            disk = places.Disk(tmp_path / "disk", cleanup)
        except places.PlaceError as why:
            pytest.skip(str(why))
        with contextlib.closing(World(tmp_path, SLEEPER)) as world:
            world.job.folders = dataclasses.replace(world.job.folders, control=disk.seen / "control")
            world.job.folders.control.mkdir()
            disk.fill()
            assert disk.is_full()
            trouble = world.launch()
            assert isinstance(trouble, Trouble)
            assert "No space left on device" in trouble.words
            assert trouble.passing
            assert world.done[-2:] == ["run_ended", "run_weighed"]
            disk.free()
            found = world.launch()
            assert not isinstance(found, Trouble), found
            end(found[0])


@pytest.mark.parametrize(
    ("number", "passing"),
    [(each, True) for each in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)]
    + [(errno.EIO, True), (errno.EBUSY, True)]
    + [(each, False) for each in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.ENOEXEC)],
)
def test_which_troubles_pass_is_a_closed_list(number: int, passing: bool) -> None:
    inner = OSError(number, os.strerror(number))
    assert passes(inner) is passing
    outer = StateError("cannot record run 1")
    outer.__cause__ = inner
    assert passes(outer) is passing
    assert not passes(StateError("the lock is no regular file"))


def test_a_launch_says_where_and_what_it_is(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path, SLEEPER)) as world:
        found = world.launch()
        assert not isinstance(found, Trouble)
        assert world.data[0]["directory"] == str(tmp_path)
        assert world.data[0]["command_sha256"] == command_digest(SLEEPER)
        end(found[0])


def test_the_digest_of_a_command_tells_its_parts_apart() -> None:
    commands = (["a", "b"], ["a b"], ["a", "b", ""], ["a", "c"], ["a"], ["\udce9"], ["\udcea"])
    assert len({command_digest(command) for command in commands}) == len(commands)


def test_the_command_that_is_shown_is_short_and_holds_no_secret(tmp_path: Path) -> None:
    shown = shown_command(["python", "--api-key=hunter2hunter", "x" * 5000, *(["y"] * 5000)])
    assert "hunter2hunter" not in " ".join(shown)
    assert len(" ".join(shown)) < 5000
    assert shown_command(["python", "train.py"]) == ["python", "train.py"]
    assert command_of(settings(tmp_path, ["python", "x" * 5000])) == ("python", "x" * 5000)
    assert command_of(load(environ={}, home=tmp_path, cwd=tmp_path))[1:] == ("-P", "-m", "trainer", "train")
