"""One look at a run: everything the decision needs, in an order that cannot deceive it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import BARE, CLOCK, Launched, folders_in, launched
from watchdog import contract
from watchdog.collectors.run import RunWatch
from watchdog.core.causes import Cause
from watchdog.core.facts import Absent, Known, Unknown
from watchdog.core.identity import Process
from watchdog.core.phase import Phase
from watchdog.core.restore import run_state
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import State
from watchdog.looking import RunEyes


class Eyes:
    """Eyes on one run, and what they doubted."""

    def __init__(self, run: Launched) -> None:
        self.doubts: list[str] = []
        self.run = run
        self.watch = RunWatch(run.record)
        self.eyes = RunEyes(run.folders, CLOCK, self.doubts.append)

    def look(self, phase: Phase = Phase.RUNNING, **of_run: object) -> Seen:
        now_s = CLOCK.monotonic()
        run = dataclasses.replace(run_state(self.run.record, now_s), **of_run)  # type: ignore[arg-type]
        state = State(phase=phase, since_s=now_s, run=run)
        return self.eyes.look(self.watch, state, Seen(now_s=now_s))

    def close(self) -> None:
        self.eyes.forget()
        self.watch.close()


@pytest.fixture
def seeing(tmp_path: Path) -> Iterator[Eyes]:
    with launched(folders_in(tmp_path)) as run, contextlib.closing(Eyes(run)) as eyes:
        yield eyes


def test_a_living_run(seeing: Eyes) -> None:
    seen = seeing.look()
    assert (seen.shim, seen.leader_alive, seen.end) == (Shim.ALIVE, True, None)
    assert isinstance(seen.acknowledgement, Absent)
    assert [process.id for process in seen.members] == [seeing.run.leader]
    assert (seen.unclear, seen.traced, seen.run_lock_free) == ((), (), None)
    assert isinstance(seen.beat, Absent)
    assert seeing.doubts == []


def test_a_beat_and_an_acknowledgement(seeing: Eyes) -> None:
    """What cannot be believed is doubted aloud and is no beat, no acknowledgement; a good one afterwards is."""
    folder, leader = seeing.run.folder, seeing.run.leader
    folder.beat.write_bytes(b"torn")
    folder.acknowledgement.write_bytes(b"torn")
    seen = seeing.look()
    assert isinstance(seen.beat, Unknown)
    assert isinstance(seen.acknowledgement, Unknown)
    assert len(seeing.doubts) == 2
    good = contract.Beat(
        seq=1,
        monotonic_s=CLOCK.monotonic(),
        run_id=seeing.run.record.run_id,
        pid=leader.pid,
        start_ticks=leader.start_ticks,
        phase="train",
    )
    folder.beat.write_bytes(good.to_bytes())
    said = contract.Acknowledgement(run_id=seeing.run.record.run_id, pid=leader.pid, fresh=True, step=0)
    contract.write_json_durably(folder.acknowledgement, said.to_record())
    seen = seeing.look()
    assert isinstance(seen.beat, Known)
    assert seen.beat.value.alive
    assert isinstance(seen.acknowledgement, Known)
    assert seen.acknowledgement.value == said
    assert len(seeing.doubts) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"[" * 100_000, b"\xff", None], ids=repr)
def test_an_acknowledgement_that_is_damaged_is_unknown_and_not_absent(content: bytes | None, seeing: Eyes) -> None:
    """Absent means that it never said anything; what was said and cannot be read is something else."""
    path = seeing.run.folder.acknowledgement
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert isinstance(seeing.look().acknowledgement, Unknown)
    assert len(seeing.doubts) == 1


def test_the_end_of_a_leader_and_of_the_run(seeing: Eyes) -> None:
    seeing.look()
    seeing.run.kill()
    seeing.run.wait_over()
    seen = seeing.look()
    assert (seen.shim, seen.leader_alive, seen.members) == (Shim.ENDED, False, ())
    assert seen.end is not None
    assert (seen.end.cause, seen.end.permanent) == (Cause.KILLED, False)


def test_a_shim_that_was_killed(seeing: Eyes) -> None:
    """The members are found by their marks, and the lock is asked only when none is left."""
    seeing.look()
    seeing.run.kill(seeing.run.start.shim)
    seeing.run.child.wait(20)
    seen = seeing.look()
    assert seen.shim is Shim.LOST
    assert [process.id for process in seen.members] == [seeing.run.leader]
    assert seen.run_lock_free is None
    seeing.run.kill()
    wait_for(lambda: seeing.look(Phase.STOPPING).members == (), "the end of the leader")
    assert seeing.look(Phase.STOPPING).run_lock_free is True


def test_the_notify_socket_is_heard_where_there_is_no_beat_file(tmp_path: Path) -> None:
    code = (
        "import os, socket, time\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "while True:\n    time.sleep(0.02)\n    try: s.sendto(b'WATCHDOG=1', '\\0' + os.environ['NOTIFY_SOCKET'][1:])\n"
        "    except ConnectionRefusedError: pass\n"
    )
    run_id = f"3-{os.getpid():08x}"
    with (
        launched(folders_in(tmp_path), [*BARE, "-c", code], run_id=run_id) as run,
        contextlib.closing(Eyes(run)) as seeing,
    ):
        assert isinstance(seeing.look().beat, Absent)
        seeing.eyes.listen(run_id)
        wait_for(lambda: isinstance(seeing.look().beat, Known), "a beat")
        second = RunEyes(run.folders, CLOCK, seeing.doubts.append)
        second.listen(run_id)
        assert "the notify socket cannot be had" in seeing.doubts[-1]
        second.forget()
        run.folder.beat.write_bytes(b"torn")
        assert isinstance(seeing.look().beat, Unknown), "a beat file that is there speaks first"


@pytest.mark.parametrize("doubted", [{"stale_looks": 1}, {"faking_look_s": 1.0}], ids=["late", "fakes"])
def test_who_may_be_ended_is_asked_for_a_debugger(
    seeing: Eyes, doubted: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the turn before the second look, and no sooner: it reads a file of each member."""
    asked: list[int] = []

    def traced(members: tuple[Process, ...]) -> tuple[int, ...]:
        asked.append(len(members))
        return tuple(each.id.pid for each in members)

    monkeypatch.setattr(seeing.watch, "traced", traced)
    assert seeing.look().traced == ()
    assert asked == []
    assert seeing.look(**doubted).traced == (seeing.run.leader.pid,)
