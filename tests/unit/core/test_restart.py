"""A supervisor that died in the middle of a plan: what the ledger kept decides as if it had never been away.

Each plan is cut after each of its records and before each of its actions, and planned again from the ledger alone.
"""

from __future__ import annotations

import pytest

from tests.unit.core.world import (
    BOOT,
    CLOSED,
    OPEN,
    TARGET,
    acknowledged,
    acknowledgement,
    chosen,
    digest_of,
    events_of,
    launching,
    make_beat,
    make_policy,
    member,
    run_record,
    said,
)
from watchdog.contract import Acknowledgement
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.facts import Absent, Fact, Unknown
from watchdog.core.history import Event, History, can_fold, fold
from watchdog.core.phase import Phase
from watchdog.core.restore import restore
from watchdog.core.runrecord import Expectation, RunRecord
from watchdog.core.seen import BeatSeen, EndSeen, Request, Seen, Shim
from watchdog.core.state import KeepStacks, Kill, Launch, Plan, Policy, Record, State, Terminate

POLICY = make_policy(leave_on_hold=False)
LEVEL_0 = make_policy(level=0, target_step=None, leave_on_hold=False)
EXIT_0 = EndSeen(cause=Cause.FINISHED, words="exit 0")
EXIT_1 = EndSeen(cause=Cause.EXITED, words="exit 1")


def alive(now_s: float, **changes: object) -> Seen:
    """A run that lives, beats and has acknowledged what it was told to restore."""
    values: dict[str, object] = {
        "beat": make_beat(now_s),
        "acknowledgement": said(acknowledgement(10)),
        "members": (member(),),
    }
    return Seen(now_s=now_s, shim=Shim.ALIVE, leader_alive=True, **(values | changes))  # type: ignore[arg-type]


def record_of(number: int = 1, policy: Policy = POLICY) -> RunRecord:
    expectation = Expectation(fresh=False, step=10, digest=digest_of(10))
    return run_record(number, f"{number}-a", 10, expectation, policy.level)


class Past:
    """The ledger of a job, and what a supervisor that starts now makes of it."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.records: list[Record] = []

    def add(self, *records: Record) -> None:
        self.records += records

    @property
    def history(self) -> History:
        return fold(events_of(self.records))

    def restored(self, now_s: float = 1000.0) -> State:
        history = self.history
        living = None
        if history.open_run is not None:
            living = record_of(int(history.open_run["number"]), self.policy)
        return restore(history, living, now_s, self.policy, wall_s=now_s, boot_id="boot")

    def turn(self, seen: Seen, cut: int | None = None) -> tuple[State, Plan]:
        """One turn of a supervisor that has just started; only the first `cut` records reach the disk."""
        state, plan = decide(self.restored(seen.now_s), seen, self.policy)
        self.add(*plan.records[:cut])
        return state, plan


def after_runs(failures: int, policy: Policy = POLICY, *, proven: bool = True) -> Past:
    """So many runs have failed and been weighed; the last one is launched, alive and, if `proven`, acknowledged."""
    past = Past(policy)
    for number in range(1, failures + 1):
        past.add(launching(number, f"{number}-a", 10), acknowledged(f"{number}-a"))
        past.turn(Seen(now_s=10.0, shim=Shim.ENDED, end=EXIT_1))
        past.turn(Seen(now_s=11.0, choice=chosen(10)))
    past.add(launching(failures + 1, f"{failures + 1}-a", 10))
    if proven:
        past.add(acknowledged(f"{failures + 1}-a"))
    assert past.history.failures == failures
    return past


def ended(now_s: float = 20.0, end: EndSeen = EXIT_1) -> Seen:
    return Seen(now_s=now_s, shim=Shim.ENDED, end=end)


@pytest.mark.parametrize("cut", [0, 1])
def test_an_end_is_recorded_and_weighed_exactly_once(cut: int) -> None:
    past = after_runs(0)
    past.turn(ended(), cut)
    if cut == 0:
        assert past.restored().phase is Phase.RUNNING
        past.turn(ended())
    assert past.restored().phase is Phase.WEIGHING
    assert past.restored() == past.restored()
    past.turn(Seen(now_s=21.0, choice=chosen(10)))
    state = past.restored()
    assert (state.phase, state.failures, state.ended) == (Phase.GATING, 1, None)
    assert past.history.runs_by_cause == {"exited": 1}


def test_an_end_that_was_not_weighed_is_weighed_by_the_next_supervisor_with_all_it_knew() -> None:
    past = after_runs(1)
    state, plan = past.turn(ended(end=EndSeen(cause=Cause.EXITED, words="exit 65", permanent=True, error="no data")))
    assert [record.kind for record in plan.records] == ["run_ended"]
    again = past.restored()
    assert again.ended == state.ended
    assert again.failures == 1
    state, _ = past.turn(Seen(now_s=22.0, choice=chosen(10)))
    assert state.phase is Phase.HOLD  # permanent, although the one who saw it is dead


def weighings() -> list[tuple[str, Past, Seen, Phase]]:
    third = after_runs(2)
    third.turn(ended())
    permanent = after_runs(0)
    permanent.turn(ended(end=EndSeen(cause=Cause.EXITED, words="exit 65", permanent=True)))
    unknown_target = after_runs(0, make_policy(target_step=None, leave_on_hold=False))
    unknown_target.turn(ended(end=EXIT_0))
    finished = after_runs(0)
    finished.turn(ended(end=EXIT_0))
    command = after_runs(0, LEVEL_0)
    command.turn(ended(end=EXIT_0))
    no_target = chosen(10)
    assert no_target.chosen is not None
    return [
        ("third failure", third, Seen(now_s=30.0, choice=chosen(10)), Phase.HOLD),
        ("permanent end", permanent, Seen(now_s=30.0, choice=chosen(10)), Phase.HOLD),
        ("finished", finished, Seen(now_s=30.0, choice=chosen(TARGET)), Phase.FINISHED),
        ("command of level 0", command, Seen(now_s=30.0), Phase.FINISHED),
    ]


@pytest.mark.parametrize("case", range(4), ids=[name for name, *_ in weighings()])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_consequence_cut_off_from_its_weighing_is_drawn_all_the_same(case: int, cut: int) -> None:
    """A batch is one write, and a power cut may keep a part of it: the half must not mean another try."""
    _, past, seen, expected = weighings()[case]
    state, plan = past.turn(seen, cut)
    assert state.phase is expected
    assert len(plan.records) == 2
    launches = 0
    for now_s in (40.0, 41.0, 42.0, 43.0):
        seen = Seen(now_s=now_s, choice=seen.choice, gates=OPEN)
        state, plan = past.turn(seen)
        launches += sum(isinstance(action, Launch) for action in plan.actions)
        if state.phase in (Phase.HOLD, Phase.LEFT):
            break
    assert launches == 0, f"cut after {cut} of the records: it was launched again"
    weighed = past.history.runs_by_cause
    assert sum(weighed.values()) <= past.history.launches, "a run was weighed twice"


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_what_a_run_saved_that_restored_the_wrong_thing_stays_refused(cut: int) -> None:
    past = after_runs(0, proven=False)
    seen = Seen(
        now_s=20.0, shim=Shim.ALIVE, leader_alive=True, acknowledgement=said(acknowledgement(0, fresh=True)),
        beat=make_beat(20.0),
    )  # fmt: skip
    state, plan = past.turn(seen, cut)
    assert {record.kind for record in plan.records} == {"run_stopping", "run_refused"}
    # The next supervisor ends it, whatever was kept of the plan.
    past.turn(seen)
    killed = EndSeen(cause=Cause.SIGNALLED, words="died of SIGKILL")
    past.turn(Seen(now_s=22.0, shim=Shim.ENDED, end=killed, acknowledgement=seen.acknowledgement))
    state, _ = past.turn(Seen(now_s=23.0, choice=chosen(10)))
    assert state.phase is Phase.HOLD
    assert past.history.refused_runs == {"1-a"}


def test_a_hold_persists_through_any_number_of_restarts() -> None:
    past = after_runs(2)
    past.turn(ended())
    past.turn(Seen(now_s=30.0, choice=chosen(10)))
    for now_s in (100.0, 200.0, 300.0):
        state, plan = past.turn(Seen(now_s=now_s, choice=chosen(10), gates=OPEN))
        assert (state.phase, state.failures) == (Phase.HOLD, 3)
        assert not plan.actions
    past.turn(Seen(now_s=400.0, request=Request.RELAUNCH))
    state = past.restored()
    assert (state.phase, state.failures, state.hold) == (Phase.GATING, 0, None)


def test_a_hold_lifted_in_the_ledger_by_a_person_counts_as_lifted() -> None:
    past = after_runs(2)
    past.turn(ended())
    past.turn(Seen(now_s=30.0, choice=chosen(10)))
    past.add(Record("lifted", "a person lifted the hold, with no supervisor running"))
    state, plan = past.turn(Seen(now_s=100.0, choice=chosen(10), gates=OPEN))
    assert [type(action) for action in plan.actions] == [Launch]
    assert state.failures == 0


def test_failures_survive_a_restart_during_backoff() -> None:
    past = after_runs(1)
    past.turn(ended())
    state, _ = past.turn(Seen(now_s=30.0, choice=chosen(10)))
    assert state.phase is Phase.BACKOFF
    assert past.restored().failures == 2


def test_a_wait_survives_a_restart_and_a_person_ends_it_for_good() -> None:
    """Dying in a backoff is no way around it; cutting it short is remembered, too."""
    past = after_runs(1)
    past.turn(ended())
    state, plan = past.turn(Seen(now_s=30.0, choice=chosen(10), luck=0.5))
    assert plan.records[-1].data["luck"] == 0.5
    assert state.retry_at_s == 30.0 + plan.records[-1].data["wait_s"] == 37.5
    events = events_of(past.records, now_s=30.0)

    def begins(now_s: float, boot_id: str = BOOT, wall_s: float = 0.0) -> State:
        return restore(fold(events), None, now_s, POLICY, wall_s=wall_s, boot_id=boot_id)

    assert (begins(33.0).phase, begins(33.0).retry_at_s) == (Phase.BACKOFF, 37.5)
    assert begins(37.5).phase is Phase.GATING
    assert (begins(3.0, "other", -1e9).phase, begins(3.0, "other", -1e9).retry_at_s) == (Phase.BACKOFF, 10.5)
    again, cut = decide(begins(33.0), Seen(now_s=34.0, request=Request.RELAUNCH), POLICY)
    assert (again.phase, [record.kind for record in cut.records]) == (Phase.GATING, ["wait_cut"])
    events += events_of(cut.records, len(events), 34.0)
    assert begins(34.5).phase is Phase.GATING


def test_a_new_budget_is_remembered_with_what_it_forgot() -> None:
    past = after_runs(2, make_policy(leave_on_hold=False))
    state, plan = past.turn(alive(50.0, request=Request.RELAUNCH_AFRESH))
    assert [record.kind for record in plan.records] == ["budget_reset", "run_stopping"]
    assert (plan.records[0].data["failures"], state.failures, past.history.failures) == (2, 0, 0)
    assert state.phase is Phase.STOPPING, "the run is asked to end as by a plain relaunch"


def test_force_opens_no_gate() -> None:
    past = after_runs(1)
    past.turn(ended())
    past.turn(Seen(now_s=30.0, choice=chosen(10)))
    state, _ = decide(past.restored(31.0), Seen(now_s=31.0, request=Request.RELAUNCH_AFRESH), POLICY)
    for seen in (
        Seen(now_s=32.0, choice=chosen(10), gates=CLOSED, request=Request.RELAUNCH_AFRESH),
        Seen(now_s=32.0, choice=chosen(10), request=Request.RELAUNCH_AFRESH),
        Seen(now_s=32.0, gates=OPEN, request=Request.RELAUNCH_AFRESH),
        Seen(now_s=32.0, choice=chosen(None), gates=OPEN, request=Request.RELAUNCH_AFRESH),
    ):
        _, plan = decide(state, seen, POLICY)
        assert not any(isinstance(action, Launch) for action in plan.actions), plan


def test_a_living_run_is_never_launched_beside() -> None:
    """Launch recorded, and the supervisor died: whether the run lives is asked of the host, and both answers hold."""
    past = after_runs(0)
    state, plan = past.turn(alive(50.0, choice=chosen(10), gates=OPEN))
    assert state.phase is Phase.RUNNING
    assert not plan.actions
    starting = Seen(now_s=50.0, shim=Shim.STARTING, leader_alive=True, choice=chosen(10), gates=OPEN)
    state, plan = past.turn(starting)
    assert state.phase is Phase.RUNNING
    assert not plan.actions


def test_an_adopted_run_is_judged_by_what_it_restored_all_the_same() -> None:
    past = after_runs(0, proven=False)
    seen = Seen(
        now_s=50.0, shim=Shim.ALIVE, leader_alive=True, beat=make_beat(50.0),
        acknowledgement=said(acknowledgement(10, digest="f" * 64)),
    )  # fmt: skip
    state, plan = past.turn(seen)
    assert state.phase is Phase.STOPPING
    assert plan.actions == (Kill(),)


def test_an_adopted_run_gets_its_grace_anew() -> None:
    past = after_runs(0)
    state = past.restored(5000.0)
    for now_s in (5000.0, 5030.0, 5060.0):
        state, plan = decide(state, alive(now_s, beat=make_beat(20.0)), POLICY)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())


def begun(request: Request | None) -> Past:
    """A stop was recorded; the supervisor died before it signalled anybody."""
    past = after_runs(0)
    if request is None:  # silence, seen twice
        state = past.restored(100.0)
        for now_s in (101.0, 161.0, 164.0):
            state, plan = decide(state, alive(now_s, beat=make_beat(90.0)), POLICY)
    else:
        state, plan = decide(past.restored(100.0), alive(100.0, request=request), POLICY)
    assert state.phase is Phase.STOPPING
    assert isinstance(plan.actions[0], KeepStacks | Terminate)
    past.add(*plan.records)
    return past


def test_a_drain_that_was_recorded_and_not_carried_out_is_asked_again() -> None:
    """Else the run would train on, unasked, until KILL, and lose what it could have saved."""
    past = begun(Request.DRAIN)
    state = past.restored(200.0)
    asked = False
    for now_s in (200.0, 201.0, 210.0, 214.9, 215.0, 216.0):
        state, plan = decide(state, alive(now_s), POLICY)
        asked = asked or any(isinstance(action, Terminate) for action in plan.actions)
        assert asked or not any(isinstance(action, Kill) for action in plan.actions), "killed without being asked"
    assert asked


def test_a_run_that_beats_again_is_not_killed_for_a_stall_that_an_earlier_supervisor_saw() -> None:
    """Between the record and the signal stands one more look; a restart must not skip it."""
    past = begun(None)
    state = past.restored(200.0)
    killed = False
    for now_s in range(200, 230):
        state, plan = decide(state, alive(float(now_s), beat=make_beat(float(now_s), seq=now_s)), POLICY)
        killed = killed or any(isinstance(action, Kill) for action in plan.actions)
    assert not killed


def test_a_stop_at_once_goes_on_at_once() -> None:
    past = after_runs(0)
    past.turn(alive(100.0, request=Request.STOP))
    _, plan = past.turn(alive(200.0))
    assert plan.actions == (Kill(),)


def test_a_stop_that_was_called_off_is_forgotten() -> None:
    past = begun(None)
    past.add(Record("run_goes_on", "it beat"))
    assert past.restored().phase is Phase.RUNNING


def test_a_finished_job_stays_finished() -> None:
    past = after_runs(0)
    past.turn(ended(end=EXIT_0))
    past.turn(Seen(now_s=30.0, choice=chosen(TARGET)))
    for _ in range(3):
        assert past.restored().phase is Phase.FINISHED
    past.add(Record("archived", "what there was lies elsewhere"))
    assert past.restored().phase is Phase.GATING
    assert past.history.known == ()


def test_a_stalled_run_without_any_beat_is_stopped_after_a_restart_too() -> None:
    past = after_runs(0, proven=False)
    state = past.restored(100.0)
    for now_s in (161.0, 164.0):
        seen = Seen(now_s=now_s, shim=Shim.ALIVE, leader_alive=True, beat=Absent("no beat yet"))
        state, plan = decide(state, seen, POLICY)
    assert state.phase is Phase.STOPPING
    assert isinstance(plan.actions[0], KeepStacks)


@pytest.mark.parametrize(
    ("done", "phase"),
    [
        ((), Phase.RUNNING),
        ((Record("signal_sent", "TERM was not sent: nobody is proven to be the one to get it"),), Phase.RUNNING),
        ((Record("signal_sent", "TERM to pid 501: delivered", {"pid": 501}),), Phase.STOPPING),
        ((Record("signal_sending", "TERM is next", {"run_id": "1-a", "pid": 501, "why": "no beat"}),), Phase.STOPPING),
        ((Record("signal_sending", "TERM is next", {"run_id": "1-a", "pids": [501, 502]}),), Phase.STOPPING),
        ((Record("run_killing", "KILL to 501 python", {"pids": [501]}),), Phase.STOPPING),
        ((Record("run_freezing", "KILL is next", {"run_id": "1-a", "pids": [501]}),), Phase.STOPPING),
        (
            (
                Record("signal_sent", "TERM to pid 501: delivered", {"pid": 501}),
                Record("run_goes_on", "at the last look before the stop its beat was another: nothing was done"),
            ),
            Phase.RUNNING,
        ),
    ],
    ids=[
        "nothing done",
        "nobody asked",
        "asked",
        "to be asked",
        "the rest to be asked",
        "killed",
        "stopped for its KILL",
        "goes on",
    ],
)
def test_a_stall_on_which_something_was_done_is_no_matter_of_opinion(done: tuple[Record, ...], phase: Phase) -> None:
    """The run may end by itself with 0 for that TERM: it must not count as finished, nor get a whole deadline anew."""
    past = after_runs(0)
    data = {"run_id": "1-a", "cause": "stalled", "reason": "no beat", "kill_now": False, "hold_after": False}
    past.add(Record("run_stopping", "run 1: no beat", data), *done)
    state = past.restored(100.0)
    assert state.phase is phase
    if phase is Phase.STOPPING:
        assert state.run is not None
        assert state.run.stop is not None
        assert state.run.stop.kill_from_s == (100.0 + (0.0 if done[-1].kind.startswith("run_") else POLICY.grace_s))
        state, plan = decide(state, Seen(now_s=101.0, shim=Shim.ENDED, end=EXIT_0), POLICY)
        assert plan.records[-1].data["cause"] == "stalled"


# --- what a run has proven is remembered ------------------------------------------------------------------------
@pytest.mark.parametrize(
    "ack",
    [Unknown("torn"), Absent("gone"), said(acknowledgement(0, fresh=True)), said(acknowledgement(10, run_id="9-z"))],
    ids=["torn", "gone", "overwritten", "another's"],
)
def test_a_restored_acknowledgement_is_not_asked_for_again(ack: Fact[Acknowledgement]) -> None:
    """The file may be lost or spoiled after it was judged: the ledger knows what the run restored."""
    past = after_runs(0)
    state = past.restored(100.0)
    assert state.run is not None
    assert state.run.acknowledged
    for now_s in (100.0, 130.0, 160.0):
        state, plan = decide(state, alive(now_s, acknowledgement=ack), POLICY)
        assert (state.phase, plan.actions, plan.records) == (Phase.RUNNING, (), ())
    end = Seen(now_s=161.0, shim=Shim.ENDED, end=EXIT_0, acknowledgement=ack)
    _, plan = decide(state, end, POLICY)
    assert [record.kind for record in plan.records] == ["run_ended"]


def test_an_acknowledgement_is_restored_for_its_own_run_alone() -> None:
    past = after_runs(1, proven=False)  # run 1 acknowledged, run 2 has not
    state = past.restored()
    assert state.run is not None
    assert (state.run.run_id, state.run.acknowledged, state.run.beat_seen) == ("2-a", False, False)


@pytest.mark.parametrize("beat", [Unknown("torn"), Absent("gone")], ids=["torn", "gone"])
def test_an_adopted_run_that_has_acknowledged_may_lose_its_beat_file(beat: Fact[BeatSeen]) -> None:
    """Who acknowledged was alive and at work: a file that is not there now was removed."""
    state = after_runs(0).restored(1000.0)
    for now_s in range(1000, 5000, 50):
        state, plan = decide(state, alive(float(now_s), beat=beat), POLICY)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("own", [True, False], ids=["its own", "another run's"])
def test_that_a_run_was_heard_is_remembered_for_it_alone(level: int, own: bool) -> None:
    """At level 1 nothing is ever acknowledged: the ledger says that it beat, so a file that is gone was removed."""
    past = after_runs(0, make_policy(level=level, target_step=None), proven=False)
    past.add(Record("run_beats", "run 1 beats", {"run_id": "1-a" if own else "9-z"}))
    state = past.restored(1000.0)
    for now_s in (1000.0, 1061.0, 1064.0):
        seen = alive(now_s, beat=Absent("gone"), acknowledgement=Absent("none"))
        state, _ = decide(state, seen, past.policy)
    assert state.phase is (Phase.RUNNING if own else Phase.STOPPING)


@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize("ack", [Absent("none"), said(acknowledgement(0, fresh=True))], ids=["none", "fresh"])
def test_a_run_that_ended_unproven_while_nobody_watched_is_refused_whatever_is_cut(
    cut: int, ack: Fact[Acknowledgement]
) -> None:
    past = after_runs(0, proven=False)
    seen = Seen(now_s=20.0, shim=Shim.ENDED, end=EXIT_0, acknowledgement=ack)
    _, plan = past.turn(seen, cut)
    assert [record.kind for record in plan.records] == ["run_refused", "run_ended"]
    if cut < 2:
        assert past.restored().phase is Phase.RUNNING
        past.turn(seen)
    assert past.history.refused_runs == {"1-a"}
    state, plan = past.turn(Seen(now_s=21.0, choice=chosen(TARGET)))
    assert state.phase is Phase.HOLD
    assert past.history.finished is None


# --- a person who clears suspects ---------------------------------------------------------------------------------
def only_suspects(now_s: float) -> Seen:
    return Seen(now_s=now_s, shim=Shim.LOST, unclear=(member(900),), run_lock_free=True)


def held_for_a_suspect() -> Past:
    past = after_runs(0)
    state = past.restored(100.0)
    for now_s in (100.0, 101.0, 160.0):
        state, plan = decide(state, only_suspects(now_s), POLICY)
        past.add(*plan.records)
    assert state.phase is Phase.HOLD
    return past


def test_suspects_cleared_with_no_supervisor_running_are_cleared_for_the_next_one() -> None:
    past = held_for_a_suspect()
    state, plan = past.turn(only_suspects(200.0))
    assert (state.phase, plan.actions) == (Phase.HOLD, ()), "a restart alone clears nobody"
    past.add(Record("lifted", "a person lifted the hold, with no supervisor running"))
    state = past.restored(300.0)
    for now_s in (300.0, 301.0):
        state, plan = decide(state, only_suspects(now_s), POLICY)
        past.add(*plan.records)
    assert (state.phase, state.run) == (Phase.WEIGHING, None)
    assert past.history.open_run is None


def test_suspects_cleared_for_one_run_are_suspects_of_the_next() -> None:
    past = held_for_a_suspect()
    past.add(Record("lifted", "a person lifted the hold, with no supervisor running"))
    state = past.restored(300.0)
    for now_s in (300.0, 301.0):
        state, plan = decide(state, only_suspects(now_s), POLICY)
        past.add(*plan.records)
    past.add(launching(2, "2-a", 10), acknowledged("2-a"))
    state = past.restored(400.0)
    assert state.run is not None
    assert not state.run.cleared
    for now_s in (400.0, 401.0, 500.0):
        state, plan = decide(state, only_suspects(now_s), POLICY)
    assert state.phase is Phase.HOLD


def test_a_hold_lifted_before_a_run_clears_nobody_of_it() -> None:
    past = after_runs(0)
    past.records.insert(0, Record("lifted", "an older hold was lifted"))
    state = past.restored()
    assert state.run is not None
    assert not state.run.cleared


def test_what_the_ledger_says_of_an_end_and_of_a_stop_may_be_garbage() -> None:
    """One flipped bit in a value of a valid line: said in one way, never a traceback out of the decisions."""
    damaged = [
        Record("run_ended", "", {"number": 1, "run_id": "1-a", "cause": "exjted", "words": "", "baseline_step": 10}),
        Record("run_ended", "", {"number": 1, "run_id": "1-a", "caus": "exited", "words": "", "baseline_step": 10}),
        Record("run_stopping", "", {"run_id": "1-a", "cause": "stal|ed", "reason": "", "hold_after": False}),
        Record("run_weighed", "", {"cause": "exited", "failures": "two"}),
        Record("run_weighed", "", {"failures": 2}),
        Record("run_launching", "", {"numb": 3}),
        Record("checkpoint_verified", "", {"step": None}),
        Record("hold", ""),
    ]
    for record in damaged:
        past = after_runs(0)
        # As the ledger reads its lines: what cannot be folded is counted as a bad line, the rest must be borne.
        if not can_fold(Event(seq=1, wall_s=0.0, kind=record.kind, sentence="", data=record.data)):
            continue
        past.add(record)
        try:
            past.restored()
        except (KeyError, TypeError, ValueError) as error:
            pytest.fail(f"{record.kind} {dict(record.data)}: {type(error).__name__}: {error}")
