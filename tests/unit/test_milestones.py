"""What is written down for autopsies and ETTR: the first new step, the catching up, the time of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.unit.core.ledgers import HandLedger
from watchdog.core.ettr import Account
from watchdog.core.facts import Progress, ProgressPoint
from watchdog.core.runrecord import Expectation
from watchdog.core.state import Record, RunState
from watchdog.errors import RecordingError
from watchdog.milestones import Milestones

RUN = RunState(
    number=2,
    run_id="2-a",
    level=2,
    expectation=Expectation(fresh=False, step=200, digest="d"),
    baseline_step=200,
    launched_s=0.0,
    grace_from_s=0.0,
    acknowledged=True,
)


class Bench:
    """A recovery as a ledger knows it up to the launch of run 2, and what Milestones adds."""

    def __init__(self) -> None:
        self.ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0)
        self.ledger.at(100).ended(1, step=214, died=100.0).weighed(1, repeated=14).at(105).launch(2, 200)
        self.account = Account()
        for event in self.ledger.events:
            self.account.add(event)
        self.records: list[Record] = []
        self.troubles: list[str] = []
        self.full = False
        self.milestones = Milestones(self.account, self.record, self.troubles.append)

    def record(self, records: Sequence[Record]) -> None:
        if self.full:
            raise RecordingError("no space")
        self.records += records
        for each in records:
            self.account.add(self.ledger.write(each.kind, each.sentence, **each.data).events[-1])

    def look(
        self,
        after_s: float,
        *steps: int | None,
        run: RunState = RUN,
        phase: str = "train",
        over: bool = False,
        **more: float,
    ) -> None:
        """At `after_s` the run has said these steps, a second apart, the last one now."""
        self.ledger.at(after_s)
        now_s = self.ledger.monotonic(after_s)
        points = tuple(
            ProgressPoint(at_s=now_s - len(steps) + number, step=step, phase=phase)
            for number, step in enumerate(steps, start=1)
        )
        progress = Progress(run_id=run.run_id, source="beats", points=points, heard_s=now_s, **more)
        self.milestones.look(run, progress, now_s, over=over)

    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]


def test_the_first_step_after_the_restored_one_is_the_recovery_and_is_told_once() -> None:
    bench = Bench()
    bench.look(110.0, None, 200)
    assert bench.records == []
    bench.look(112.0, 200, 201, 202)
    bench.look(113.0, 202, 203)
    [record] = bench.records
    assert (record.kind, record.data["step"], record.data["made_s"]) == ("run_recovered", 201, 611.0)
    assert "training again at step 201, 11 s after the last sign of life: watchdog incidents show 1" in record.sentence


def test_a_run_without_checkpoints_that_begins_anew_has_started_over() -> None:
    bench = Bench()
    bench.look(112.0, 1, 2, run=dataclasses.replace(RUN, level=1, expectation=Expectation(fresh=False)))
    assert "started over at step 1, where step 214 was reached before, " in bench.records[0].sentence


def test_what_was_trained_before_is_over_at_the_first_step_beyond_it() -> None:
    bench = Bench()
    bench.look(112.0, 201)
    bench.look(120.0, 213, 214)
    assert bench.kinds() == ["run_recovered"]
    bench.look(122.0, 214, 215, 216)
    bench.look(123.0, 217)
    assert bench.kinds() == ["run_recovered", "run_caught_up"]
    assert bench.records[1].data["step"] == 215
    assert bench.account.span is None


def test_a_run_that_is_seen_late_has_both_at_once() -> None:
    bench = Bench()
    bench.look(122.0, 201, 215)
    assert bench.kinds() == ["run_recovered", "run_caught_up"]
    assert bench.account.span is None


def test_an_unproven_run_and_another_runs_words_are_not_believed() -> None:
    bench = Bench()
    bench.look(112.0, 201, run=dataclasses.replace(RUN, acknowledged=False))
    bench.look(112.0, 201, run=dataclasses.replace(RUN, run_id="1-a"))
    assert bench.records == []


def test_without_an_incident_it_is_quiet() -> None:
    bench = Bench()
    bench.look(112.0, 201, 215)
    bench.account.add(bench.ledger.at(150).ended(2, "stopped", step=300, died=150.0).events[-1])
    bench.account.add(bench.ledger.weighed(2, "stopped").events[-1])
    bench.account.add(bench.ledger.launch(3, 300).events[-1])
    bench.look(160.0, 301, run=dataclasses.replace(RUN, run_id="3-a", expectation=Expectation(fresh=False, step=300)))
    assert bench.kinds()[-1] == "run_steps"


def test_what_could_not_be_recorded_is_tried_again_but_not_at_once() -> None:
    bench = Bench()
    bench.full = True
    bench.look(112.0, 201)
    bench.full = False
    bench.look(113.0, 202)
    assert (bench.records, bench.troubles) == ([], ["no space"])
    bench.look(143.0, 202)
    assert bench.kinds() == ["run_recovered"]


def test_the_time_of_a_step_is_written_when_it_is_known_and_when_it_is_news() -> None:
    bench = Bench()
    bench.look(112.0, 201, recent_step_s=0.5)
    bench.look(113.0, 202, recent_step_s=0.9)
    bench.look(800.0, 300, typical_step_s=0.52, recent_step_s=0.9)
    assert [record.data["step_s"] for record in bench.records if record.kind == "step_time"] == [0.5]
    bench.look(1500.0, 400, typical_step_s=0.6)
    assert bench.account.step_s == 0.6


def test_the_time_of_saving_is_kept_with_it() -> None:
    bench = Bench()
    bench.look(112.0, 201, recent_step_s=0.5)
    bench.look(120.0, 201, 201, phase="save")
    bench.look(800.0, 202, typical_step_s=0.5)
    assert bench.account.saving_s == 1.0


def test_a_short_job_is_timed_by_its_own_steps_when_it_is_over() -> None:
    bench = Bench()
    bench.look(112.0, 201, 203, 205)
    assert "step_time" not in bench.kinds()
    bench.look(113.0, 203, 205, 209, over=True)
    assert [record.data["step_s"] for record in bench.records if record.kind == "step_time"] == [0.375]
    bench.look(114.0, 205, 209, over=True)
    assert bench.kinds().count("step_time") == 1


def test_one_word_times_no_step() -> None:
    bench = Bench()
    bench.look(112.0, 201, over=True)
    assert "step_time" not in bench.kinds()


def test_the_steps_of_the_incident_are_told_and_then_all_that_were_trained_before() -> None:
    bench = Bench()
    bench.look(107.0, 201)
    for event in (
        *bench.ledger.at(108).ended(2, step=205, died=108.0).events[-1:],
        *bench.ledger.weighed(2, repeated=5).events[-1:],
        *bench.ledger.at(109).launch(3, 200).events[-1:],
    ):
        bench.account.add(event)
    run = dataclasses.replace(RUN, number=3, run_id="3-a")
    bench.look(112.0, 201, run=run)
    bench.look(116.0, 204, 205, 206, run=run)
    assert bench.account.span is None
    bench.look(124.0, 213, 214, run=run)
    bench.look(126.0, 215, 216, run=run)
    told = [(record.kind, record.data["step"]) for record in bench.records[1:]]
    assert told == [("run_recovered", 201), ("run_caught_up", 206), ("run_caught_up", 215)]
