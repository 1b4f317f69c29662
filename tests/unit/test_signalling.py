"""Carrying out a stop: the last look, whom it reaches, and what is written down before."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import BARE, SLEEPER, Launched, folders_in, launched
from tests.unit.core.world import make_policy
from watchdog.collectors.processes import is_alive, read_process
from watchdog.collectors.run import Grouped, RunWatch
from watchdog.contract import Beat
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.facts import Absent, Fact, Known, Unknown
from watchdog.core.identity import Process, ProcessId
from watchdog.core.phase import Phase
from watchdog.core.runrecord import Expectation
from watchdog.core.seen import BeatSeen, Seen, Shim
from watchdog.core.state import RunState, State, Stop, Terminate, TerminateRest
from watchdog.errors import RecordingError
from watchdog.signalling import Signaller, unsent


class Book:
    """A ledger in memory that can be full."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.data: list[dict[str, Any]] = []
        self.full = False

    def write(self, kind: str, _sentence: str, **data: Any) -> None:
        if self.full:
            raise RecordingError("no room")
        self.kinds.append(kind)
        self.data.append(data)


def beat(run: Launched, seq: int) -> Fact[BeatSeen]:
    leader = run.leader
    found = Beat(
        seq=seq,
        monotonic_s=1.0,
        run_id=run.record.run_id,
        pid=leader.pid,
        start_ticks=leader.start_ticks,
        phase="train",
    )
    return Known(BeatSeen(beat=found, alive=True, stopped=False), 1.0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Launched]:
    with launched(folders_in(tmp_path), SLEEPER) as run:
        yield run


@pytest.fixture
def watch(run: Launched) -> Iterator[RunWatch]:
    with contextlib.closing(RunWatch(run.record)) as watch:
        watch.shim()
        yield watch


def signaller(run: Launched, book: Book, seen: Fact[BeatSeen] | None = None) -> Signaller:
    return Signaller(run.folders.run_lock, lambda _watch, _now: seen or Absent(), book.write, book.write)


def test_term_reaches_the_leader_or_who_is_named(run: Launched, watch: RunWatch) -> None:
    book = Book()
    os.kill(run.leader.pid, signal.SIGSTOP)
    wait_for(lambda: (read_process(run.leader.pid) or run).state == "T", "the stop")  # type: ignore[union-attr]
    assert signaller(run, book).terminate(watch, Terminate(None), 1.0)
    run.wait_over()
    assert book.kinds == ["signal_sending", "signal_sent"]
    assert book.data[0] == {"run_id": run.record.run_id, "pid": run.leader.pid, "why": ""}
    assert book.data[1] == {"pid": run.leader.pid, "outcome": "delivered"}


@pytest.mark.parametrize("rest", [False, True], ids=["one", "what is left"])
def test_nobody_is_asked_to_end_before_it_is_recorded(rest: bool, run: Launched, watch: RunWatch) -> None:
    """Whoever ends with 0 for a TERM that no record knows of would be called finished."""
    book, alive = Book(), []

    def record(kind: str, sentence: str, **data: Any) -> None:
        book.write(kind, sentence, **data)
        alive.append(is_alive(run.leader))

    stopper = Signaller(run.folders.run_lock, lambda _watch, _now: Absent(), record, book.write)

    def ask() -> None:
        if rest:
            stopper.terminate_rest(watch)
        else:
            stopper.terminate(watch, Terminate(None), 1.0, "late")

    book.full = True
    with pytest.raises(RecordingError):
        ask()
    assert (is_alive(run.leader), book.kinds, run.child.poll()) == (True, [], None)
    book.full = False
    ask()
    run.wait_over()
    assert (book.kinds, alive) == (["signal_sending", "signal_sent"], [True])
    assert book.data[0].get("pids", [book.data[0].get("pid")]) == [run.leader.pid]


STOP = Stop(cause=Cause.STALLED, reason="late", since_s=10.0, kill_from_s=20.0, give_up_s=30.0, hold_after=False)


def stopping(**changes: Any) -> State:
    run = RunState(
        number=1,
        run_id="1-a",
        level=2,
        expectation=Expectation(fresh=True),
        baseline_step=-1,
        launched_s=0.0,
        grace_from_s=0.0,
        stop=dataclasses.replace(STOP, **changes),
    )
    return State(phase=Phase.STOPPING, since_s=10.0, run=run)


@pytest.mark.parametrize("looks_again", [True, False])
def test_a_term_that_could_not_be_recorded_is_ordered_anew_with_its_last_look_and_its_grace(looks_again: bool) -> None:
    policy = make_policy()
    order = Terminate(None, look_again=looks_again)
    seen = Seen(now_s=19.0, shim=Shim.ALIVE, leader_alive=True, beat=Absent())
    state = unsent(stopping(asked=True), order, seen, policy)
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.kill_from_s == 19.0 + policy.grace_for(Cause.STALLED)
    _, plan = decide(state, dataclasses.replace(seen, now_s=19.1), policy)
    assert [(type(each), getattr(each, "look_again", None)) for each in plan.actions] == [(Terminate, looks_again)]


def test_a_term_to_the_rest_that_could_not_be_recorded_is_ordered_anew() -> None:
    policy, seen = make_policy(), Seen(now_s=11.0, shim=Shim.ALIVE, leader_alive=False, beat=Absent())
    state = unsent(stopping(asked=True, rest_asked=True), TerminateRest(), seen, policy)
    _, plan = decide(state, seen, policy)
    assert plan.actions == (TerminateRest(),)


@pytest.mark.parametrize("who", ["ourselves", "another start time", "the shim"])
def test_term_never_reaches_who_is_not_proven_a_member(who: str, run: Launched, watch: RunWatch) -> None:
    me = read_process(os.getpid())
    assert me is not None
    target = {
        "ourselves": me.id,
        "another start time": ProcessId(run.leader.pid, run.leader.start_ticks + 1),
        "the shim": run.start.shim,
    }[who]
    book = Book()
    assert signaller(run, book).terminate(watch, Terminate(target), 1.0)
    assert is_alive(run.leader)
    assert is_alive(run.start.shim)
    assert book.data == [{}]


@pytest.mark.parametrize(
    ("judged", "last"), [(7, "new beat"), (7, "unknown"), (7, "absent"), (None, "new beat"), (None, "unknown")]
)
def test_a_last_look_that_does_not_confirm_the_silence(
    judged: int | None, last: str, run: Launched, watch: RunWatch
) -> None:
    """Where no beat was ever seen, only that there still is none confirms it: not one, and not one that is torn."""
    seen = {"new beat": beat(run, 8), "unknown": Unknown("torn"), "absent": Absent()}[last]
    book = Book()
    order = Terminate(run.leader, only_if_seq=judged, look_again=True)
    assert not signaller(run, book, seen).terminate(watch, order, 1.0)
    assert book.kinds == ["run_goes_on"]
    assert is_alive(run.leader)


@pytest.mark.parametrize("judged", [7, None], ids=["the same beat", "still none"])
def test_a_last_look_that_confirms_the_silence(judged: int | None, run: Launched, watch: RunWatch) -> None:
    book = Book()
    seen = None if judged is None else beat(run, judged)
    order = Terminate(None, only_if_seq=judged, look_again=True)
    assert signaller(run, book, seen).terminate(watch, order, 1.0)
    run.wait_over()
    assert book.data[1:] == [{"pid": run.leader.pid, "outcome": "delivered"}]


def test_a_stop_that_was_asked_for_needs_no_last_look(run: Launched, watch: RunWatch) -> None:
    book = Book()
    assert signaller(run, book, beat(run, 9)).terminate(watch, Terminate(run.leader), 1.0)
    run.wait_over()
    assert book.kinds == ["signal_sending", "signal_sent"]


def test_kill_is_recorded_before_and_after_and_once(run: Launched, watch: RunWatch) -> None:
    book = Book()
    stopper = signaller(run, book)
    stopper.kill(watch)
    run.wait_over()
    stopper.kill(watch)
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"]
    assert book.data[0] == {"run_id": run.record.run_id, "pids": [run.leader.pid]}
    assert book.data[1] == {"pids": [run.leader.pid]}


def test_nobody_is_killed_unrecorded(run: Launched, watch: RunWatch) -> None:
    book = Book()
    book.full = True
    stopper = signaller(run, book)
    with pytest.raises(RecordingError):
        stopper.kill(watch)
    assert is_alive(run.leader)
    assert (read_process(run.leader.pid) or run).state != "T"  # type: ignore[union-attr]
    book.full = False
    stopper.kill(watch)
    run.wait_over()
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"]


# --- processes that appear while a round looks ---------------------------------------------------------------------
class Answering:
    """A process that answers as long as it runs."""

    CODE = "import sys\nprint('here', flush=True)\nfor line in sys.stdin: print('here', flush=True)"

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [*BARE, "-c", self.CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self.answers()
        process = read_process(self.child.pid)
        assert process is not None
        self.process = process

    def answers(self, patience_s: float = 20.0) -> bool:
        assert self.child.stdout is not None
        ready, _, _ = select.select([self.child.stdout], [], [], patience_s)
        return bool(ready) and self.child.stdout.readline() == b"here\n"

    def ask(self) -> bool:
        assert self.child.stdin is not None
        self.child.stdin.write(b"\n")
        return self.answers()

    def close(self) -> None:
        self.child.kill()
        self.child.communicate(timeout=20)


@pytest.fixture
def three() -> Iterator[list[Answering]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Answering())) for _ in range(3)]


class Appearing:
    """A run of which each look shows one member more."""

    record = SimpleNamespace(run_id="7-a", cgroup=None)

    def __init__(self, *members: Process, fails_at: int = 0) -> None:
        self.all = members
        self.shown = self.looks = 0
        self.fails_at = fails_at

    def shim(self) -> Shim:
        return Shim.ALIVE

    def in_cgroup(self, _run_lock: Path) -> None:
        return None

    def members(self) -> tuple[Process, ...]:
        self.looks += 1
        if self.looks == self.fails_at:
            raise OSError(errno.EMFILE, "Too many open files")
        self.shown = min(self.shown + 1, len(self.all))
        return tuple(now for each in self.all[: self.shown] if (now := read_process(each.id.pid)) is not None)


def stopper_of(book: Book) -> Signaller:
    return Signaller(Path("/nowhere"), lambda _watch, _now: Absent(), book.write, book.write)


def state_of(process: Process) -> str:
    found = read_process(process.id.pid)
    return "gone" if found is None or not found.living else found.state


def test_who_is_found_in_a_later_look_of_a_round_is_recorded_before_anybody_is_killed(
    three: list[Answering],
) -> None:
    members = [each.process for each in three]
    book, alive_when_recorded = Book(), []

    def record(kind: str, sentence: str, **data: Any) -> None:
        alive_when_recorded.append([state_of(process) for process in members])
        book.write(kind, sentence, **data)

    stopper = Signaller(Path("/nowhere"), lambda _watch, _now: Absent(), record, book.write)
    stopper.kill(cast(RunWatch, Appearing(*members)))
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"]
    assert book.data[1] == {"pids": sorted(process.id.pid for process in members)}
    first, states = alive_when_recorded
    assert "T" not in first, "stopped before that was recorded"
    assert "gone" not in states, "killed before it was recorded"
    wait_for(lambda: {state_of(process) for process in members} == {"gone"}, "the end of all")


def test_a_later_round_records_whom_it_meets_for_the_first_time_and_nobody_twice(three: list[Answering]) -> None:
    first, second, _ = (each.process for each in three)
    book = Book()
    stopper = stopper_of(book)
    alone = {"shim": lambda: Shim.ALIVE, "in_cgroup": lambda _lock: None, "record": SimpleNamespace(run_id="7-a")}
    stopper.kill(cast(RunWatch, SimpleNamespace(**alone, members=lambda: (first,))))
    # The first is still listed, as one that waits in the kernel would be.
    stopper.kill(cast(RunWatch, SimpleNamespace(**alone, members=lambda: (first, second))))
    assert book.kinds == ["run_freezing", *["run_killing", "run_killed"] * 2]
    assert [data["pids"] for data in book.data[1:] if "pids" in data] == [[first.id.pid], [second.id.pid]]
    wait_for(lambda: state_of(second) == "gone", "the end of the second")


def test_a_record_that_fails_thaws_everybody_that_was_frozen(three: list[Answering]) -> None:
    book = Book()
    book.full = True
    with pytest.raises(RecordingError):
        stopper_of(book).kill(cast(RunWatch, Appearing(*(each.process for each in three))))
    assert [each.ask() for each in three] == [True, True, True]
    assert book.kinds == []


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_look_that_fails_leaves_nobody_stopped(fails_at: int, three: list[Answering]) -> None:
    """In the first look of the round, and in each after one was stopped."""
    book = Book()
    run = Appearing(*(each.process for each in three), fails_at=fails_at)
    with pytest.raises(OSError, match="Too many open files"):
        stopper_of(book).kill(cast(RunWatch, run))
    assert [each.ask() for each in three] == [True, True, True]
    assert "run_killing" not in book.kinds


@pytest.mark.parametrize("failure", [ValueError("a figure"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_whatever_fails_between_the_stop_and_the_kill_leaves_nobody_stopped(
    failure: BaseException, three: list[Answering]
) -> None:
    def record(kind: str, _sentence: str, **_data: Any) -> None:
        if kind == "run_killing":
            raise failure

    stopper = Signaller(Path("/nowhere"), lambda _watch, _now: Absent(), record, record)
    with pytest.raises(type(failure)):
        stopper.kill(cast(RunWatch, Appearing(*(each.process for each in three))))
    assert [each.ask() for each in three] == [True, True, True]


def test_a_supervisor_killed_between_the_stop_and_the_kill_left_word_of_it(
    run: Launched, watch: RunWatch, tmp_path: Path
) -> None:
    """A real one, by SIGKILL: the run stands still, and who comes next ends it by what was recorded."""
    told = tmp_path / "told"
    child = os.fork()
    if child == 0:

        def record(kind: str, _sentence: str, **_data: Any) -> None:
            with open(told, "a") as file:
                file.write(kind + "\n")
            if kind == "run_killing":
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            Signaller(run.folders.run_lock, lambda _watch, _now: Absent(), record, record).kill(watch)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert told.read_text().split() == ["run_freezing", "run_killing"]
    assert (read_process(run.leader.pid) or run).state == "T"  # type: ignore[union-attr]
    book = Book()
    signaller(run, book).kill(watch)
    run.wait_over()
    assert book.kinds == ["run_freezing", "run_killing", "run_killed"]


@pytest.mark.parametrize("who", ["ourselves", "who started us"])
def test_a_cgroup_with_ourselves_in_it_is_neither_frozen_nor_killed(who: str, three: list[Answering]) -> None:
    """Frozen with it, this process would never let anybody go on again."""
    pid = os.getpid() if who == "ourselves" else os.getppid()
    member = three[0].process
    book = Book()
    run = SimpleNamespace(
        record=SimpleNamespace(run_id="7-a", cgroup=None),  # whoever went on with it would fail here
        shim=lambda: Shim.ALIVE,
        in_cgroup=lambda _lock: Grouped(frozenset({member.id.pid, pid}), frozenset()),
        traced_pids=lambda _pids: (),
        members=lambda: tuple(now for now in (read_process(member.id.pid),) if now is not None),
    )
    stopper_of(book).kill(cast(RunWatch, run))
    wait_for(lambda: state_of(member) == "gone", "the end of the member alone")
    assert [data["pids"] for data in book.data if "pids" in data] == [[member.id.pid]] * 2
