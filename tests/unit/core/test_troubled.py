"""A launch that came to nothing: what passes goes back to the gates, paced and bounded; anything else is a hold."""

from __future__ import annotations

import dataclasses
import itertools

from tests.unit.core.world import CLOSED, OPEN, chosen, make_policy
from watchdog.core.decide import decide
from watchdog.core.phase import Phase
from watchdog.core.seen import Request, Seen, Trouble
from watchdog.core.state import Choose, Launch, Plan, State
from watchdog.core.troubled import LONGEST_PAUSE_S, most_tries

POLICY = make_policy(leave_on_hold=False)
FULL = Trouble(words="cannot record run 1: No space left on device", passing=True)
GATING = State(phase=Phase.GATING, since_s=0.0)


def seen(now_s: float, **changes: object) -> Seen:
    values: dict[str, object] = {"gates": OPEN, "choice": chosen(10)}
    return Seen(now_s=now_s, **(values | changes))  # type: ignore[arg-type]


def launches(plan: Plan) -> bool:
    return any(isinstance(action, Launch) for action in plan.actions)


def chooses(plan: Plan) -> bool:
    return any(isinstance(action, Choose) for action in plan.actions)


def lived(until_s: float, *, every_s: float = 0.005, trouble: Trouble = FULL) -> tuple[State, list[float], list[str]]:
    """Every launch comes to nothing: the last state, when it was tried, and what was recorded."""
    state, tries, kinds, due, now_s = GATING, [], [], None, 0.0
    while now_s < until_s and state.phase is Phase.GATING:
        state, plan = decide(state, seen(now_s, trouble=due), POLICY)
        kinds += [record.kind for record in plan.records]
        due = None
        if launches(plan):
            tries.append(now_s)
            due = trouble
        now_s += every_s
    return state, tries, kinds


def test_a_minute_of_a_full_disk_does_not_end_the_night() -> None:
    state, tries, kinds = lived(60.0)
    assert state.phase is Phase.GATING
    assert kinds == ["launch_troubled"], "told once"
    assert 4 <= len(tries) <= 8, tries
    assert state.troubled is not None
    state, plan = decide(state, seen(60.0 + LONGEST_PAUSE_S), POLICY)
    assert chooses(plan), "whoever was in the way may have saved"
    _, plan = decide(state, seen(61.0 + LONGEST_PAUSE_S), POLICY)
    assert launches(plan)


def test_it_is_not_tried_each_turn() -> None:
    _, tries, _ = lived(20.0)
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert min(gaps) >= 2.0
    assert gaps == sorted(gaps)


def test_it_is_bounded_like_a_gate_and_the_hold_says_why() -> None:
    state, tries, kinds = lived(10_000.0, every_s=0.5)
    assert state.phase is Phase.HOLD
    assert kinds == ["launch_troubled", "hold"]
    assert POLICY.gate_wait_s <= tries[-1] <= POLICY.gate_wait_s + LONGEST_PAUSE_S
    assert "No space left on device" in (state.hold or "")
    assert f"tried {len(tries)} times" in (state.hold or "")
    assert state.until_gone is None


def test_the_wait_at_a_gate_that_closes_for_it_begins_with_it() -> None:
    """The launch was tried at the end of a long wait at the gates: the disk gate that sees it now gets its own."""
    state, _ = decide(GATING, seen(299.0, gates=OPEN), POLICY)
    state, _ = decide(state, seen(299.5, trouble=FULL), POLICY)
    state, _ = decide(state, seen(310.0, gates=CLOSED), POLICY)
    assert state.phase is Phase.GATING
    state, _ = decide(state, seen(299.5 + POLICY.gate_wait_s, gates=CLOSED), POLICY)
    assert state.phase is Phase.HOLD


def test_a_gap_of_ours_begins_the_wait_anew() -> None:
    state, _ = decide(GATING, seen(1.0, trouble=FULL), POLICY)
    state, plan = decide(state, seen(4000.0, gap=True), POLICY)
    assert (state.phase, chooses(plan)) == (Phase.GATING, True), "whoever froze us may have trained meanwhile"
    state, plan = decide(state, seen(4000.1), POLICY)
    assert (state.phase, launches(plan)) == (Phase.GATING, True)
    state, _ = decide(state, seen(4001.0, trouble=FULL), POLICY)
    assert state.phase is Phase.GATING


def test_a_person_cuts_the_pause_and_can_stop_it() -> None:
    state, _ = decide(GATING, seen(1.0, trouble=FULL), POLICY)
    _, plan = decide(state, seen(1.1), POLICY)
    assert not launches(plan)
    _, plan = decide(state, seen(1.1, request=Request.RELAUNCH), POLICY)
    assert launches(plan)
    left, _ = decide(state, seen(1.1, request=Request.DRAIN), POLICY)
    assert left.phase is Phase.LEFT


def test_other_words_are_told_and_what_stays_is_a_hold() -> None:
    state, _ = decide(GATING, seen(1.0, trouble=FULL), POLICY)
    state, plan = decide(state, seen(5.0, trouble=dataclasses.replace(FULL, words="the run lock is held")), POLICY)
    assert [record.kind for record in plan.records] == ["launch_troubled"]
    state, _ = decide(state, seen(9.0, trouble=Trouble(words="no such folder")), POLICY)
    assert state.phase is Phase.HOLD


def test_a_launch_that_came_to_nothing_orders_a_new_choice_at_once_and_after_the_pause() -> None:
    """The holder of the run lock is exactly who saves meanwhile; then what was chosen before is stale, or a fresh start
    over checkpoints that exist.
    """
    first = chosen(None, first_start=True)
    state, plan = decide(GATING, seen(1.0, choice=first), POLICY)
    assert launches(plan)
    state, plan = decide(state, seen(2.0, choice=first, trouble=FULL), POLICY)
    assert chooses(plan)
    state, plan = decide(state, seen(2.1, choice=first), POLICY)
    assert not launches(plan)
    state, plan = decide(state, seen(4.1, choice=first), POLICY)
    assert (launches(plan), chooses(plan)) == (False, True), "it may have saved during the pause"
    state, plan = decide(state, seen(4.2, choice=None), POLICY)
    assert plan.rule == "choosing"
    _, plan = decide(state, seen(4.3, choice=chosen(15)), POLICY)
    (launch,) = [action for action in plan.actions if isinstance(action, Launch)]
    assert launch.checkpoint is not None
    assert launch.checkpoint.step == 15


def test_reading_the_checkpoints_may_be_troubled_by_the_same_and_passes_as_well() -> None:
    """No descriptor is left for the launch, and none for who reads the folder: a hold would end the night."""
    state, _ = decide(GATING, seen(1.0, trouble=FULL), POLICY)
    error = {"choice": None, "choice_error": "too many open files"}
    state, plan = decide(state, seen(1.1, **error), POLICY)
    assert (state.phase, plan.actions) == (Phase.GATING, ()), "paced"
    state, plan = decide(state, seen(3.1, **error), POLICY)
    assert (state.phase, chooses(plan)) == (Phase.GATING, True)
    assert [record.kind for record in plan.records] == ["launch_troubled"]
    now_s = 3.1
    while state.phase is Phase.GATING and now_s < 10_000.0:
        now_s += 1.0
        state, _ = decide(state, seen(now_s, **error), POLICY)
    assert state.phase is Phase.HOLD
    assert POLICY.gate_wait_s <= now_s <= POLICY.gate_wait_s + 2 * LONGEST_PAUSE_S
    assert "the checkpoints cannot be read: too many open files" in (state.hold or "")


def test_gaps_of_ours_do_not_renew_it_for_ever() -> None:
    state, tries, due, now_s = GATING, 0, None, 0.0
    for turn in range(4000):
        now_s += 20.0
        state, plan = decide(state, seen(now_s, gap=turn % 10 == 0, trouble=due), POLICY)
        due = FULL if launches(plan) else None
        tries += due is not None
        if state.phase is Phase.HOLD:
            break
    assert state.phase is Phase.HOLD
    assert tries == most_tries(POLICY)
    assert f"tried {tries} times" in (state.hold or "")


def test_a_relaunch_asked_in_the_turn_of_a_trouble_cuts_the_pause() -> None:
    state, _ = decide(GATING, seen(1.0, trouble=FULL, request=Request.RELAUNCH), POLICY)
    _, plan = decide(state, seen(1.1), POLICY)
    assert launches(plan)
