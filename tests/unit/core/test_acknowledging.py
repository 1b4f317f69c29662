"""What a run restored is judged whenever it ends: before it was asked to, while it is ended, and after an adoption."""

from __future__ import annotations

import pytest

from tests.unit.core.world import (
    BEATER,
    TARGET,
    acknowledgement,
    chosen,
    digest_of,
    make_beat,
    make_policy,
    make_run,
    said,
)
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.facts import Absent, Unknown
from watchdog.core.phase import Phase
from watchdog.core.runrecord import Expectation
from watchdog.core.seen import EndSeen, Request, Seen, Shim
from watchdog.core.state import Kill, Plan, State, Stop, Terminate

POLICY = make_policy(leave_on_hold=False)
EXIT_0 = EndSeen(cause=Cause.FINISHED, words="exit 0")
EXIT_1 = EndSeen(cause=Cause.EXITED, words="exit 1")
RIGHT = said(acknowledgement(10))
FRESH = said(acknowledgement(0, fresh=True))
OTHER_BYTES = said(acknowledgement(10, digest="f" * 64))
OTHER_STEP = said(acknowledgement(9, digest=digest_of(9)))
OTHER_RUN = said(acknowledgement(10, run_id="9-z"))
SILENT = Absent("no acknowledgement yet")
TORN = Unknown("it is torn")

WRONG = [
    (FRESH, Cause.FRESH_START),
    (OTHER_BYTES, Cause.WRONG_RESTORE),
    (OTHER_STEP, Cause.WRONG_RESTORE),
    (OTHER_RUN, Cause.WRONG_RESTORE),
]
UNPROVEN = [*WRONG, (SILENT, Cause.NOT_ACKNOWLEDGED), (TORN, Cause.NOT_ACKNOWLEDGED)]
HOLDS_AT_ONCE = {Cause.FRESH_START, Cause.NOT_ACKNOWLEDGED}


def running(**changes: object) -> State:
    return State(phase=Phase.RUNNING, since_s=0.0, run=make_run(acknowledged=False, **changes))


def stopping(cause: Cause, **changes: object) -> State:
    stop = Stop(cause=cause, reason="a reason", since_s=0.0, kill_from_s=15.0, give_up_s=35.0, asked_of=BEATER)
    return State(phase=Phase.STOPPING, since_s=0.0, run=make_run(acknowledged=False, stop=stop, **changes))


def at_its_end(state: State, ack: object, end: EndSeen = EXIT_0, beat: object = None) -> tuple[State, Plan]:
    seen = Seen(
        now_s=1.0,
        shim=Shim.ENDED,
        end=end,
        acknowledgement=ack,  # type: ignore[arg-type]
        beat=make_beat(0.5, phase="finished", alive=False) if beat is None else beat,  # type: ignore[arg-type]
    )
    return decide(state, seen, POLICY)


def kinds(plan: Plan) -> list[str]:
    return [record.kind for record in plan.records]


def weighed_with_the_target_reached(state: State) -> State:
    """The worst case: what it left looks like a finished job."""
    after, _ = decide(state, Seen(now_s=2.0, choice=chosen(TARGET)), POLICY)
    return after


# --- a run that ended before anybody judged it -----------------------------------------------------------------
@pytest.mark.parametrize(("ack", "cause"), UNPROVEN)
@pytest.mark.parametrize("beat", [None, Absent("gone"), Unknown("torn")], ids=["last beat", "no beat", "torn beat"])
def test_a_run_that_ends_unproven_is_refused_and_does_not_count_as_finished(
    ack: object, cause: Cause, beat: object
) -> None:
    state, plan = at_its_end(running(), ack, beat=beat)
    assert state.phase is Phase.WEIGHING
    assert state.ended is not None
    assert (state.ended.cause, state.ended.hold_after) == (cause, cause in HOLDS_AT_ONCE)
    assert kinds(plan) == ["run_refused", "run_ended"], "refused first: a batch that is cut keeps its beginning"
    assert plan.records[0].data["run_id"] == plan.records[1].data["run_id"] == "1-a"
    assert plan.records[1].data["cause"] == cause.value
    after = weighed_with_the_target_reached(state)
    assert after.phase is (Phase.HOLD if cause in HOLDS_AT_ONCE else Phase.GATING)
    # Progress clears the count, and a verified step 100 is progress; but it was a failure, not the end of the job.
    assert cause.is_failure


def test_a_run_that_ends_right_after_it_said_the_right_thing_is_finished() -> None:
    """Between its word and our look it was done: its word still counts."""
    state, plan = at_its_end(running(), RIGHT)
    assert kinds(plan) == ["run_ended"]
    assert weighed_with_the_target_reached(state).phase is Phase.FINISHED


@pytest.mark.parametrize("ack", [FRESH, OTHER_BYTES, SILENT, TORN])
def test_what_was_proven_before_is_not_judged_again(ack: object) -> None:
    """Recorded as right while it lived, or by the supervisor before us: a damaged file afterwards says nothing."""
    state, plan = at_its_end(State(phase=Phase.RUNNING, since_s=0.0, run=make_run(acknowledged=True)), ack)
    assert kinds(plan) == ["run_ended"]
    assert state.ended is not None
    assert state.ended.cause is Cause.FINISHED


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("ack", [FRESH, OTHER_RUN, SILENT, TORN])
def test_who_promised_no_acknowledgement_owes_none(level: int, ack: object) -> None:
    _, plan = at_its_end(running(level=level), ack)
    assert kinds(plan) == ["run_ended"]


@pytest.mark.parametrize("ack", [SILENT, TORN])
def test_a_failure_before_the_acknowledgement_stays_that_failure(ack: object) -> None:
    """It died while loading: tried again, though nothing that it may have saved is resumed from."""
    state, plan = at_its_end(running(), ack, EXIT_1, beat=make_beat(0.5, phase="load", step=None, alive=False))
    assert kinds(plan) == ["run_refused", "run_ended"]
    assert state.ended is not None
    assert (state.ended.cause, state.ended.hold_after) == (Cause.EXITED, False)


@pytest.mark.parametrize("end", [EXIT_0, EXIT_1], ids=["exit 0", "exit 1"])
def test_a_failure_after_a_first_step_without_a_word_is_a_missing_word(end: EndSeen) -> None:
    state, _ = at_its_end(running(), SILENT, end, beat=make_beat(0.5, phase="train", alive=False))
    assert state.ended is not None
    assert (state.ended.cause, state.ended.hold_after) == (Cause.NOT_ACKNOWLEDGED, True)


@pytest.mark.parametrize(("ack", "refused"), [(FRESH, False), (RIGHT, True)])
def test_where_a_fresh_start_was_due_only_a_fresh_start_is_right(ack: object, refused: bool) -> None:
    state = running(expectation=Expectation(fresh=True), baseline_step=-1)
    after, plan = at_its_end(state, ack)
    assert ("run_refused" in kinds(plan)) is refused
    assert after.ended is not None
    assert after.ended.cause is (Cause.WRONG_RESTORE if refused else Cause.FINISHED)


# --- a run that is being stopped ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("ack", "cause"), WRONG)
@pytest.mark.parametrize("stop", [Cause.DRAINED, Cause.STALLED, Cause.STOPPED, Cause.SHIM_KILLED])
def test_a_run_that_says_the_wrong_thing_while_it_is_stopped_is_killed_and_refused(
    stop: Cause, ack: object, cause: Cause
) -> None:
    """Ctrl-C while it loads, and then it saves over what it should have resumed from: no grace for that."""
    lost = stop is Cause.SHIM_KILLED
    seen = Seen(
        now_s=1.0,
        shim=Shim.LOST if lost else Shim.ALIVE,
        leader_alive=not lost,
        beat=make_beat(1.0, phase="drain"),
        acknowledgement=ack,  # type: ignore[arg-type]
    )
    state, plan = decide(stopping(stop), seen, POLICY)
    assert kinds(plan) == ["run_refused", "run_stopping"]
    assert plan.actions == (Kill(),)
    assert state.run is not None
    assert state.run.stop is not None
    assert state.run.stop.cause is cause
    again, plan = decide(state, seen, POLICY)
    assert (again.phase, plan.records, plan.actions) == (Phase.STOPPING, (), (Kill(),)), "said once"


@pytest.mark.parametrize(("ack", "cause"), WRONG)
@pytest.mark.parametrize("stop", [Cause.DRAINED, Cause.STALLED, Cause.STOPPED])
def test_a_run_that_ends_wrong_while_it_is_stopped_is_refused(stop: Cause, ack: object, cause: Cause) -> None:
    state, plan = at_its_end(stopping(stop), ack)
    assert kinds(plan) == ["run_refused", "run_ended"]
    assert state.ended is not None
    assert (state.ended.cause, state.ended.hold_after) == (cause, cause in HOLDS_AT_ONCE)
    assert weighed_with_the_target_reached(state).phase is not Phase.FINISHED


@pytest.mark.parametrize("stop", [Cause.STALLED, Cause.UNKNOWN])
@pytest.mark.parametrize("ack", [SILENT, TORN])
def test_a_run_that_is_stopped_by_us_and_exits_with_0_unacknowledged_is_refused(stop: Cause, ack: object) -> None:
    state, plan = at_its_end(stopping(stop), ack, beat=Absent("gone"))
    assert kinds(plan) == ["run_refused", "run_ended"]
    assert state.ended is not None
    assert state.ended.cause is Cause.NOT_ACKNOWLEDGED


@pytest.mark.parametrize("ack", [SILENT, TORN])
def test_a_drain_before_the_acknowledgement_is_a_drain_of_which_nothing_is_kept(ack: object) -> None:
    """SIGTERM while it loads: it left as it was asked to, so no hold; it proved nothing, so nothing of it is used."""
    beat = make_beat(0.5, phase="drain", step=None, alive=False)
    state, plan = at_its_end(stopping(Cause.DRAINED), ack, beat=beat)
    assert kinds(plan) == ["run_refused", "run_ended"]
    assert state.ended is not None
    assert (state.ended.cause, state.ended.hold_after) == (Cause.DRAINED, False)


def test_steps_without_a_word_while_it_is_stopped_end_it_at_once() -> None:
    seen = Seen(now_s=1.0, shim=Shim.ALIVE, leader_alive=True, beat=make_beat(1.0), acknowledgement=SILENT)
    state, plan = decide(stopping(Cause.DRAINED), seen, POLICY)
    assert plan.actions == (Kill(),)
    assert state.run is not None
    assert state.run.stop is not None
    assert (state.run.stop.cause, state.run.stop.hold_after) == (Cause.NOT_ACKNOWLEDGED, True)


# --- one that cannot be read ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", ["load", "first_step", "train", "evaluate", "save", "finished"])
def test_an_acknowledgement_that_cannot_be_read_never_stops_a_run(phase: str) -> None:
    state = running()
    for now_s in range(0, 5000, 50):
        seen = Seen(
            now_s=float(now_s), shim=Shim.ALIVE, leader_alive=True, beat=make_beat(float(now_s), phase=phase),
            acknowledgement=TORN,
        )  # fmt: skip
        state, plan = decide(state, seen, POLICY)
        assert (state.phase, plan.actions) == (Phase.RUNNING, ())
        assert set(kinds(plan)) <= {"run_beats"}
    seen = Seen(now_s=6000.0, shim=Shim.ALIVE, leader_alive=True, beat=make_beat(6000.0), acknowledgement=RIGHT)
    state, plan = decide(state, seen, POLICY)
    assert kinds(plan) == ["run_acknowledged"], "it is judged as soon as it can be read"


@pytest.mark.parametrize("request_", [Request.DRAIN, Request.RELAUNCH])
def test_a_request_is_carried_out_beside_an_acknowledgement_that_cannot_be_read(request_: Request) -> None:
    seen = Seen(
        now_s=1.0, shim=Shim.ALIVE, leader_alive=True, beat=make_beat(1.0), acknowledgement=TORN, request=request_
    )
    _, plan = decide(running(), seen, POLICY)
    assert plan.actions == (Terminate(BEATER),)
    assert kinds(plan) == ["run_stopping"]
