"""The learning rate: its shape, its purity, and what may be changed about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import CheckpointRefused, UsageError
from trainer.schedule import SHAPES, Schedule

PLAN = Schedule.plan(peak=1e-2, warm_up=10, steps=100, decay_share=0.3)


def test_warm_up_flat_decay() -> None:
    assert PLAN.rate(1) == pytest.approx(1e-3)
    assert PLAN.rate(10) == PLAN.rate(50) == PLAN.rate(70) == 1e-2
    assert PLAN.rate(71) < 1e-2
    assert 0 < PLAN.rate(100) < 1e-3
    assert (PLAN.decay_start, PLAN.decay_length, PLAN.target) == (70, 30, 100)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_falls_from_peak_towards_the_floor(shape: str) -> None:
    plan = Schedule(peak=1.0, warm_up=0, decay_start=10, decay_length=20, shape=shape, floor=0.1)
    rates = [plan.rate(step) for step in range(10, 31)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert plan.rate(31) == pytest.approx(0.1)
    assert min(rates) > 0.1


@given(step=st.integers(1, 300), steps=st.integers(1, 200))
def test_the_rate_is_positive_and_never_above_the_peak(step: int, steps: int) -> None:
    plan = Schedule.plan(peak=1e-2, warm_up=10, steps=steps, decay_share=0.3)
    assert plan.target == steps
    assert 0 < plan.rate(step) <= 1e-2


def test_the_record_gives_the_same_schedule_back() -> None:
    changed = PLAN.retarget(20, 150)
    assert Schedule.from_record(changed.to_record()) == changed


def test_before_the_decay_the_horizon_may_move_either_way() -> None:
    longer = PLAN.retarget(50, 150)
    assert (longer.decay_start, longer.decay_length) == (120, 30)
    assert longer.retargets == ((50, 100, 150),)
    assert [longer.rate(step) for step in range(1, 71)] == [PLAN.rate(step) for step in range(1, 71)]
    shorter = longer.retarget(55, 90)
    assert shorter.target == 90
    assert shorter.retargets == ((50, 100, 150), (55, 150, 90))


def test_inside_the_decay_it_may_not() -> None:
    with pytest.raises(UsageError, match="inside the decay"):
        PLAN.retarget(71, 150)
    with pytest.raises(UsageError, match="least target from here is 90"):
        PLAN.retarget(60, 80)
    assert PLAN.retarget(71, 100) is PLAN


@pytest.mark.parametrize("record", [{}, {**PLAN.to_record(), "shape": "stairs"}, {**PLAN.to_record(), "more": 1}])
def test_a_broken_record_is_a_refused_checkpoint(record: dict[str, object]) -> None:
    with pytest.raises(CheckpointRefused):
        Schedule.from_record(record)
