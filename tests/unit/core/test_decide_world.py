"""The decisions lived through: random lives of a job, cut, refused and restarted anywhere; see world.py."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.core.world import EVENTS, World, make_policy
from watchdog.core.phase import Phase

LIVES = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)


def forget_requests_and_progress(world: World, event: str, best: int) -> int:
    """The budget begins anew with a new verified checkpoint, and when a person asks for another try."""
    newest = max(world.disk, default=-1)
    if newest > best or event in ("relaunch", "relaunch afresh", "go back", "drain", "stop"):
        world.launches_without_progress = 0
    return max(best, newest)


def live(world: World, events: list[str]) -> None:
    best = -1
    for event in events:
        best = forget_requests_and_progress(world, event, best)
        world.happen(event)


@LIVES
@given(events=st.lists(st.sampled_from(EVENTS), max_size=120), wait=st.booleans())
def test_no_life_of_a_level_2_job_breaks_an_invariant(events: list[str], wait: bool) -> None:
    live(World(make_policy(leave_on_hold=not wait)), events)


@LIVES
@given(events=st.lists(st.sampled_from(EVENTS), max_size=80), level=st.sampled_from([0, 1]))
def test_no_life_of_a_job_without_checkpoints_breaks_an_invariant(events: list[str], level: int) -> None:
    live(World(make_policy(level=level, target_step=None, leave_on_hold=False)), events)


def test_the_world_reaches_what_it_is_for() -> None:
    """Else the properties above would hold for want of anything happening."""
    world = World(make_policy())
    live(world, ["turn", "turn", "turn", "step", "step", "step", "step", "save", "die", "turn", "turn", "turn"])
    assert world.history.launches == 2
    live(world, ["step", "step", "step", "step", "finish", "turn", "turn", "turn"])
    assert world.left == 0
    assert world.state.phase is Phase.LEFT
    assert world.history.runs_by_cause == {"exited": 1, "finished": 1}


def test_a_life_that_is_faked_is_called_so_and_ends() -> None:
    """Else what is asserted of verdicts would hold for want of them."""
    world, kinds = World(make_policy()), []
    begun = ["turn", "turn", "turn", "step", "step", "step", "step", "step", "fakes", "step", "step", "stacks kept"]
    for event in [*begun, "turn", "turn", "turn", "turn", "step", "step", "step", "step"]:
        live(world, [event])
        assert world.verdict is not None
        kinds.append(world.verdict.kind.value)
    assert list(dict.fromkeys(kinds)) == ["starting", "healthy", "stalled", "dead"]
    assert kinds[-1] == "healthy", "the next run trains"
    assert world.history.runs_by_cause == {"stalled": 1}


def test_a_life_beside_a_person_who_trains_by_hand_goes_on_from_what_they_saved() -> None:
    """Between the choice and the launch, and behind a closed gate; else the properties would hold for want of it."""
    world = World(make_policy())
    live(world, ["memory short", "turn", "turn", "turn", "hand saves", "memory free", *["turn"] * 4])
    assert world.living is not None
    assert world.living.record.expectation.step == 0, "no first start over it"
    assert "choosing anew" in world.rules
    world = World(make_policy())
    live(world, ["turn", "hand saves"])
    assert world.living is None
    live(world, [*["later"] * 4])
    assert "launch troubled" in world.rules
    assert world.living is not None
    assert world.living.record.expectation.step == 0


@pytest.mark.parametrize("request_", ["drain", "stop"])
def test_a_request_in_any_phase_ends_in_leaving(request_: str) -> None:
    """With 5, or with 3 where a hold came first."""
    beginnings = (
        [],
        ["turn"],
        ["turn", "turn", "turn"],
        ["turn", "turn", "turn", "step", "step", "step", "step"],
        ["turn", "turn", "turn", "step", "step", "step", "step", "die"],
        ["turn", "turn", "turn", "die", "turn", "turn", "turn", "die", "turn", "turn"],
        ["turn", "turn", "turn", "step", "step", "shim killed"],
        ["turn", "turn", "turn", "step", "fresh start", "step", "step"],
        ["turn", "turn", "turn", "child stays", "die"],
        ["memory short", "turn", "turn"],
    )
    for beginning in beginnings:
        world = World(make_policy())
        live(world, [*beginning, request_, *["much later"] * 12])
        assert world.left in (3, 5), beginning
        assert world.living is None or not world.living.lives


def test_a_life_that_goes_back_goes_on_from_there() -> None:
    """Else the properties above would hold for want of anybody going back."""
    world = World(make_policy(leave_on_hold=False))
    begun = ["turn", "turn", "turn", "step", "step", "step", "save", "step", "save", "step", "save", "turn"]
    live(world, [*begun, "relaunch", *["turn"] * 6, "step", "step", "step", "step", "save"])
    live(world, ["relaunch", *["turn"] * 6, "step", "step", "step", "step", "save"])
    newest = world.history.newest
    assert newest is not None
    live(world, ["go back", *["turn"] * 6])
    asked = world.history.line.asked
    assert asked is not None
    assert asked.step < newest.step
    assert world.living is not None
    assert world.living.record.expectation.step == asked.step
    assert world.history.newest == asked
    live(world, ["step", "step", "die", *["turn"] * 4])
    assert world.living.record.expectation.step == asked.step, "a failure before the next save takes nobody elsewhere"
