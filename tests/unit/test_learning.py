"""A job's runs, learned from turn by turn: what follows from the ledger, and what a replay of it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.world import events_of, make_beat, make_policy, make_run
from watchdog.contract import PHASES
from watchdog.core.deadlines import Rule
from watchdog.core.decide import beat_deadline, decide, resumed
from watchdog.core.history import Event, History, fold
from watchdog.core.phase import Phase
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import Record, State
from watchdog.errors import RecordingError
from watchdog.learning import Learner, rule_of
from watchdog.settings import Deadlines

CEILINGS_S = {phase: 600.0 for phase in ("start", *PHASES)} | {"train": 120.0}
RULE = Rule(learn=True, factor=3.0, ceilings_s=CEILINGS_S, step_floor_s=10.0)
POLICY = make_policy(deadlines_s=CEILINGS_S, period_s=1.0)


class Job:
    """Runs one after the other under one supervisor: as supervisor.py has it, learn, then decide, then record."""

    def __init__(self, rule: Rule = RULE) -> None:
        self.events: list[Event] = []
        self.history = History()
        self.full = False
        self.troubles: list[str] = []
        self.rule = rule
        self.now_s, self.seq, self.step, self.number = 1000.0, 0, 0, 0
        self.spoken_s, self.phase = self.now_s, "load"
        self.gap = False
        self.supervise()
        self.launch()

    def supervise(self) -> None:
        self.learner = Learner(self.rule, self.record, self.troubles.append)
        self.policy = self.learner.taught(POLICY, self.history)

    def launch(self, step: int = 0) -> None:
        self.number, self.step, self.seq = self.number + 1, step, 0
        run = make_run(number=self.number, run_id=f"{self.number}-a", launched_s=self.now_s, grace_from_s=self.now_s)
        self.state = State(phase=Phase.RUNNING, since_s=self.now_s, run=run)
        self.say("load")

    def record(self, records: Sequence[Record]) -> None:
        if self.full:
            raise RecordingError("the disk is full")
        events = events_of(list(records), seq=len(self.events))
        self.events += events
        self.history = fold(events, self.history)

    def say(self, phase: str = "train", *, steps: int = 0) -> None:
        """A beat, and a turn of the loop."""
        self.seq, self.step, self.phase, self.spoken_s = self.seq + 1, self.step + steps, phase, self.now_s
        self.turn()

    def turn(self) -> None:
        run_id = "none" if self.state.run is None else self.state.run.run_id
        beat = make_beat(self.spoken_s, run_id=run_id, seq=self.seq, step=self.step, phase=self.phase, target_step=None)
        seen = Seen(now_s=self.now_s, gap=self.gap, shim=Shim.ALIVE, leader_alive=True, beat=beat)
        self.gap = False
        self.learner.look(self.state, seen, self.history)
        self.policy = self.learner.taught(self.policy, self.history)
        state, plan = decide(self.state, seen, self.policy)
        try:
            self.record(plan.records)
        except RecordingError:
            return
        self.state = state

    def steps(self, count: int, each_s: float) -> None:
        for _ in range(count):
            self.now_s += each_s
            self.say(steps=1)

    def save(self, took_s: float, phase: str = "save") -> None:
        self.say(phase)
        self.silent(took_s)
        self.say()

    def silent(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s + 1.0 < until_s:
            self.now_s += 1.0
            self.turn()
        self.now_s = until_s

    def freeze(self) -> None:
        """Everything stands still for an hour, and the loop sees that."""
        self.now_s, self.gap = self.now_s + 3600.0, True
        self.turn()

    def trained(self) -> None:
        """Long enough that everything is known."""
        for _ in range(3):
            self.steps(20, 0.2)
            self.save(2.0)

    @property
    def allowed_s(self) -> float:
        assert self.state.run is not None
        beat = make_beat(self.spoken_s, seq=self.seq, step=self.step, phase=self.phase).value
        return beat_deadline(self.state.run, beat, self.policy)[1]

    def stopping(self) -> bool:
        return self.state.phase is not Phase.RUNNING


@pytest.fixture
def job() -> Job:
    return Job()


def test_the_deadline_of_a_step_shrinks_to_its_floor(job: Job) -> None:
    assert job.allowed_s == 600.0  # load
    job.steps(1, 30.0)
    assert job.allowed_s == 120.0
    job.trained()
    assert job.allowed_s == 10.0
    assert job.policy.learned_grace_s == pytest.approx(3 * (2.0 + 0.2), abs=0.01)
    job.silent(10.0)
    assert not job.stopping()
    job.silent(3.0)
    assert job.stopping()


def test_slower_steps_within_the_deadline_make_it_longer(job: Job) -> None:
    job.trained()
    job.steps(3, 8.0)
    assert job.allowed_s == 24.0
    job.steps(3, 20.0)
    assert job.allowed_s == 60.0
    assert not job.stopping()


def test_a_long_evaluation_or_save_is_no_stall_of_a_step(job: Job) -> None:
    job.trained()
    job.save(110.0, "evaluate")
    job.save(110.0)
    assert not job.stopping()
    assert job.allowed_s == 10.0


def test_a_stall_teaches_nothing_and_is_given_the_whole_time_once(job: Job) -> None:
    job.trained()
    job.steps(10, 0.2)
    known, stalled_at = dict(job.history.phase_times_s), job.step
    job.silent(15.0)
    assert job.stopping()
    assert "allowed are 10 s (learned, phase train" in job.events[-2].sentence
    job.say("save")  # it wakes when TERM comes
    assert job.history.phase_times_s == known
    assert job.history.doubted == {"train": stalled_at}
    job.launch(step=stalled_at - 40)
    job.steps(40, 0.2)
    assert job.allowed_s == 120.0  # settled, but not past the place
    job.steps(1, 0.2)
    assert job.history.doubted == {}
    assert job.history.phase_times_s == known
    assert job.allowed_s == 10.0


def test_a_silence_that_comes_seldom_stops_one_run_and_not_the_next(job: Job) -> None:
    """An evaluation of a minute within a step, which no phase announces."""
    job.trained()
    place = job.step
    job.silent(60.0)
    assert job.stopping()
    job.launch(step=place - 30)
    job.steps(30, 0.2)
    job.silent(60.0)
    job.steps(1, 0.2)
    assert not job.stopping()
    assert job.history.phase_times_s["train"] == pytest.approx(60.2)
    assert job.allowed_s == 120.0


def test_a_phase_in_doubt_is_trusted_again_when_a_run_has_left_it(job: Job) -> None:
    for _ in range(4):
        job.steps(10, 0.2)
        job.save(1.0, "evaluate")
    assert job.policy.learned_s["evaluate"] == 120.0
    job.say("evaluate")
    job.silent(130.0)
    assert job.stopping()
    assert job.history.doubted == {"evaluate": -1}
    job.launch()
    job.say("evaluate")
    job.now_s += 1.0
    job.say("evaluate")  # a part of it
    assert job.history.doubted == {"evaluate": -1}
    job.save(1.0, "evaluate")
    assert job.history.doubted == {}


def test_a_freeze_longer_than_the_deadline_is_neither_a_stall_nor_learned(job: Job) -> None:
    job.trained()
    known = dict(job.history.phase_times_s)
    job.freeze()
    job.silent(8.0)
    assert not job.stopping()
    job.steps(5, 0.2)
    assert job.history.phase_times_s == known


def test_a_second_supervisor_learns_nothing_new_from_the_same_habits(job: Job) -> None:
    job.trained()
    count = len(job.events)
    job.supervise()
    assert job.allowed_s == 10.0
    job.trained()
    assert len(job.events) == count


def test_what_could_not_be_recorded_changes_nothing_and_is_recorded_later(job: Job) -> None:
    job.full = True
    job.trained()
    assert job.troubles == ["the disk is full"]  # seldom: each try may wait for a disk that hangs
    assert job.policy.learned_s == {}
    job.full = False
    job.steps(150, 0.2)
    job.steps(30, 1.0)
    assert job.allowed_s == 10.0


def test_switched_off_it_records_nothing() -> None:
    job = Job(dataclasses.replace(RULE, learn=False))
    job.trained()
    assert job.allowed_s == 120.0
    assert [event.kind for event in job.events] == ["run_beats"]


def test_a_chosen_deadline_is_taken_as_it_is() -> None:
    job = Job(dataclasses.replace(RULE, stated=frozenset({"train"})))
    job.trained()
    assert job.allowed_s == 120.0


def test_the_settings_that_differ_from_their_defaults_are_chosen_ones() -> None:
    class Configured:
        deadlines = Deadlines(train_s=121.0, save_s=600.0, floor_s=7.0, factor=2.0)

    rule: Any = rule_of(Configured())  # type: ignore[arg-type]
    assert rule.stated == {"train"}
    assert (rule.learn, rule.factor, rule.step_floor_s) == (True, 2.0, 7.0)
    assert rule.ceilings_s["train"] == 121.0


LIVES = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 40), st.floats(0.01, 60)),
        st.tuples(st.sampled_from(["save", "evaluate", "compile"]), st.integers(0, 1), st.floats(0.01, 700)),
        st.tuples(st.sampled_from(["freeze", "restart", "launch", "full", "free", "resumed"]), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(LIVES)
def test_whatever_happens_a_replay_says_the_same_and_no_stall_is_learned(life: list[tuple[str, int, float]]) -> None:
    job = Job()
    longest_s = 0.0  # of all silences that the run itself ended
    for what, count, seconds in life:
        match what:
            case "steps":
                job.steps(count, seconds)
                longest_s = max(longest_s, seconds if not job.stopping() else 0.0)
            case "save" | "evaluate" | "compile":
                job.say(what)
                if count:
                    job.freeze()
                job.silent(seconds)
                longest_s = max(longest_s, seconds if not job.stopping() else 0.0)
                job.say()
            case "freeze":
                job.freeze()
            case "restart":
                job.supervise()
            case "launch":
                job.launch(step=max(0, job.step - 50))
            case "full" | "free":
                job.full = what == "full"
            case "resumed" if job.state.phase is Phase.STOPPING:
                job.state = resumed(job.state, job.now_s)
        replayed = fold(job.events)
        assert replayed.phase_times_s == job.history.phase_times_s
        assert replayed.doubted == job.history.doubted
        assert Learner(RULE, job.record, print).taught(POLICY, replayed) == job.learner.taught(POLICY, job.history)
        for phase, allowed_s in job.learner.taught(POLICY, job.history).learned_s.items():
            assert allowed_s < CEILINGS_S[phase]
            assert allowed_s >= 10.0
        for taken_s in job.history.phase_times_s.values():
            assert taken_s <= longest_s + 0.02, "what was learned is longer than any silence that a run ended"
