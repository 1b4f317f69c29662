"""The plan of a relaunch: its order, and every reason why nothing would be launched."""

from __future__ import annotations

from typing import Any

import pytest

from watchdog.core.choice import Known, Line, back_to
from watchdog.core.relaunchplan import (
    RelaunchPlan,
    StopPlan,
    Told,
    Verified,
    Wish,
    in_folder,
    plan_relaunch,
    plan_stop,
)
from watchdog.core.view import GateView, RunView, StatusView

LOCK = GateView(name="lock", open=True, words="no run alive")
OPEN = GateView(name="memory", open=True, words="memory 4.0 ≥ 1.0 GiB")
SHORT = GateView(name="memory", open=False, words="memory 0.50 < 1.0 GiB")
FULL = GateView(name="disk of state", open=False, words="state disk 0.1 < 1.0 GiB")
RUN = RunView(number=7, run_id="7-a", alive=True, shim_pid=70, leader_pid=71, beat_pid=72)
NEWEST = Verified(step=412, digest="ab" * 32, run_id="7-a", verified_wall_s=5.0)
OLDER = Verified(step=400, digest="cd" * 32, run_id="6-a", verified_wall_s=4.0)
KNOWN = tuple(Known(step=each.step, digest=each.digest, run_id=each.run_id) for each in (OLDER, NEWEST))


def view(state: str = "running", **changes: Any) -> StatusView:
    values: dict[str, Any] = {"run": RUN, "gates": (LOCK, OPEN), "supervisor_pid": 9, "failures": 1}
    return StatusView(job="x", state=state, since_wall_s=1.0, now_wall_s=9.0, sentence="s", **(values | changes))


def plan(seen: StatusView, wish: Wish | None = None, level: int = 2, **changes: Any) -> RelaunchPlan:
    told = Told(level=level, grace_s=45.0, kill_wait_s=20.0, gate_wait_s=600.0)
    values: dict[str, Any] = {"candidates": (NEWEST, OLDER), "known": KNOWN}
    return plan_relaunch(
        seen,
        wish or Wish(),
        told,
        next_number=8,
        clock_words={4.0: "02:10:00", 5.0: "02:14:00"},
        **(values | changes),
    )


def names(made: RelaunchPlan) -> list[str]:
    return [step.name for step in made.steps]


def test_a_living_run_is_ended_proven_over_and_followed() -> None:
    made = plan(view())
    assert names(made) == ["budget", "stop", "proof", "choose", "gate", "launch"]
    assert made.why_not == ()
    words = {step.name: step.words for step in made.steps}
    assert words["stop"].startswith("run 7: TERM to 72 (it beats), 45 s and more to save and end, then KILL")
    assert words["proof"] == "shim 70 ends: nothing of run 7 lives"
    assert words["choose"] == "step 412 abababababab… (verified 02:14:00; it is read back again); " + (
        "would be moved aside if it fails, then 400"
    )
    assert words["launch"].startswith("run 8 from step 412;")
    assert (made.checkpoint, made.after_it) == (NEWEST, (OLDER,))


def test_a_hold_is_lifted_with_its_budget() -> None:
    made = plan(view("hold", hold_reason="three in a row", run=None, failures=3))
    assert names(made) == ["lift", "budget", "proof", "choose", "gate", "gate", "launch"]
    assert "forgotten" in made.steps[1].words
    assert made.why_not == ()
    stuck = plan(view("hold", hold_reason="run 7 does not end"))
    assert stuck.why_not == ("the run does not end, so nothing is launched: run 7 does not end",)


def test_force_is_a_new_budget_and_nothing_else() -> None:
    plain, forced = plan(view(gates=(LOCK, FULL))), plan(view(gates=(LOCK, FULL)), Wish(afresh=True))
    assert plain.why_not == forced.why_not != ()
    assert [step for step in plain.steps if step.name != "budget"] == [
        step for step in forced.steps if step.name != "budget"
    ]
    assert ("kept" in plain.steps[0].words, "forgotten" in forced.steps[0].words) == (True, True)


def test_a_backoff_is_cut() -> None:
    made = plan(view("backoff", run=None, next_launch_s=12.34))
    assert made.steps[1].words == "the backoff is cut: 12.3 s are left of it"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gates": (LOCK, SHORT), "run": None}, "closed: memory 0.50 < 1.0 GiB (waited for up to 600 s"),
        ({"gates": (LOCK, FULL)}, "closed: state disk 0.1 < 1.0 GiB"),
        ({"gates": ()}, "the gates have not been looked at"),
        ({"state": "finished", "run": None}, "the job is finished"),
    ],
)
def test_what_is_in_the_way(changes: dict[str, Any], why: str) -> None:
    (said,) = plan(view(**changes)).why_not
    assert said.startswith(why)


def test_what_a_living_run_holds_itself_cannot_be_told_yet() -> None:
    """Its memory comes back when it is over: no promise, and no refusal either."""
    made = plan(view(gates=(LOCK, SHORT)))
    (gate,) = [step for step in made.steps if step.name == "gate"]
    assert (gate.holds, made.why_not) == (None, ())
    assert gate.words.endswith("beside run 7, and looked at again when that is over")


def test_nothing_that_was_never_verified_is_promised() -> None:
    raw = Verified(step=420, digest="ef" * 32, run_id="7-a", verified_wall_s=None)
    assert "not verified yet" in plan(view(), candidates=(raw, NEWEST)).steps[3].words
    for candidates in ((raw,), ()):
        made = plan(view(), candidates=candidates)
        assert (made.checkpoint, len(made.why_not)) == (None, 1)
    first = plan(view(), candidates=(), known=())
    assert (first.checkpoint, first.why_not) == (None, ())
    assert first.steps[3].words == "nothing: a first start"


def test_a_job_without_checkpoints() -> None:
    made = plan(view(), level=1, candidates=(), known=())
    assert made.why_not == ()
    assert made.steps[-1].words == "run 8 from its beginning"
    assert plan(view(), Wish(step=4), level=1, known=(Known(step=4, digest="a", run_id=None),)).why_not


def test_going_back() -> None:
    made = plan(view(), Wish(step=400), candidates=(OLDER,))
    assert names(made)[0] == "back"
    assert made.checkpoint == OLDER
    refused = plan(view(), Wish(step=401), candidates=(), refused="--from 401: why")
    assert refused.why_not[0] == "--from 401: why"
    assert names(refused) == [], "no launch, least of all from the beginning"


def test_a_refused_wish_is_no_plan() -> None:
    """What was seen: `--from 13` of a step never verified, and below it a launch from the beginning."""
    for seen, wish, changes in (
        (view(run=None), Wish(step=13), {"candidates": (), "refused": "--from 13: step 13 was never verified"}),
        (view("finished", run=None), Wish(), {}),
        (view("hold", hold_reason="run 7 does not end"), Wish(), {}),
        (view("stopping", leaving=True), Wish(), {}),
    ):
        made = plan(seen, wish, **changes)
        assert (names(made), len(made.why_not), made.checkpoint) == ([], 1, None)


def test_what_is_not_whole_is_told_with_what_follows() -> None:
    """A dry run reads nothing back: the step says what becomes of one that cannot be."""
    words = {step.name: step.words for step in plan(view(), candidates=(NEWEST,)).steps}
    assert words["choose"].endswith("would be moved aside if it fails, and then the job is held: no other is there")
    words = {step.name: step.words for step in plan(view(), Wish(step=400), candidates=(OLDER,)).steps}
    assert words["choose"].endswith("if it fails, nothing is stopped and nobody goes back")


def test_other_bytes_than_were_verified_are_told_of_the_step_that_was_asked_for() -> None:
    raw = Verified(step=400, digest="ef" * 32, run_id="7-a", verified_wall_s=None)
    made = plan(view(), Wish(step=400), candidates=(raw,))
    assert made.why_not == ("--from 400: what lies in the folder as step 400 is not what was verified",)
    assert "launch" not in names(made)


def test_nothing_verified_is_no_launch() -> None:
    assert "launch" not in names(plan(view(), candidates=()))
    assert "launch" in names(plan(view(gates=(LOCK, FULL)))), "a gate is waited for"


def test_the_folder_is_read_along_the_line_that_was_chosen() -> None:
    claims = tuple(reversed(KNOWN))
    times = {KNOWN[0]: 4.0, KNOWN[1]: 5.0}
    assert in_folder(claims, times, Line(), Wish()) == (NEWEST, OLDER)
    line = back_to(Line(), KNOWN[0], ["6-a", "7-a"], "w")
    assert in_folder(claims, times, line, Wish()) == (OLDER,)
    assert in_folder(claims, times, line, Wish(step=412)) == (NEWEST,), "whoever asks for it gets it"
    older = Known(step=390, digest="12" * 32, run_id="6-a")
    assert in_folder((*claims, older), {}, line, Wish())[-1].step == 400
    changed = Known(step=412, digest="ff" * 32, run_id="7-a")
    assert in_folder((changed,), times, Line(), Wish())[0].verified_wall_s is None, "other bytes than were verified"


# --- a stop -------------------------------------------------------------------------------------------------
def stopped(seen: StatusView, *, now: bool = False, level: int = 2) -> StopPlan:
    return plan_stop(seen, Told(level=level, grace_s=45.0, kill_wait_s=20.0, gate_wait_s=600.0), now=now)


def words_of(made: StopPlan) -> dict[str, str]:
    return {step.name: step.words for step in made.steps}


def test_a_stop_says_who_is_asked_who_is_ended_and_what_is_kept() -> None:
    made = stopped(view(checkpoint_step=412))
    assert [step.name for step in made.steps] == ["ask", "stop", "proof", "leave", "keep"]
    words = words_of(made)
    assert words["ask"].startswith("supervisor 9 is asked")
    assert words["stop"].startswith("run 7: TERM to 72 (it beats), 45 s and more to save and end, then KILL")
    assert words["keep"].startswith("step 412, verified, and what the run saves at its end; ledger")
    words = words_of(stopped(view(checkpoint_step=412), now=True))
    assert words["stop"].startswith("run 7: KILL of everything that is proven its own, at once and without saving")
    assert words["keep"].startswith("step 412, verified; what was trained since is lost; ledger")
    assert "no checkpoints are demanded" in words_of(stopped(view(), level=0))["keep"]


def test_a_stop_without_a_supervisor_adopts_the_run() -> None:
    made = stopped(view("unsupervised", supervisor_pid=None))
    assert words_of(made)["ask"] == "no supervisor runs: this command adopts run 7, ends it, and leaves"
    waiting = stopped(view("backoff", run=None))
    assert words_of(waiting)["proof"] == "nobody is ended: no run is alive"
    assert stopped(view("stopped", supervisor_pid=None, run=None)) == StopPlan(steps=())


@pytest.mark.parametrize("pid", [9, None])
def test_a_run_that_does_not_end_is_not_promised_to(pid: int | None) -> None:
    made = stopped(view("hold", hold_reason="run 7 is stuck in the kernel", supervisor_pid=pid))
    assert made.steps == ()
    assert "nobody is ended: run 7 is stuck in the kernel" in made.why_not[0]
    assert made.why_not[0].endswith("run 7 stays")
