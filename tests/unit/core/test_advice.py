"""What a hold tells a person to do."""

from __future__ import annotations

from watchdog.core.advice import TO_DO, to_do
from watchdog.core.causes import Cause


def test_every_end_that_may_lead_to_a_hold_says_what_to_do() -> None:
    assert set(TO_DO) == {cause for cause in Cause if cause.is_failure} | {Cause.NOT_STARTED}
    assert all(to_do(cause).startswith("; to do: ") for cause in TO_DO)
    assert to_do(Cause.FINISHED) == ""


def test_a_dead_bridge_asks_for_the_one_thing_that_helps() -> None:
    assert "wsl --shutdown" in to_do(Cause.BRIDGE_DEAD)
