"""`[memory] reclaim = false`: a launch that lacks memory waits and holds, and nothing is asked of the kernel."""

from __future__ import annotations

from collections.abc import Callable

from bench.campaign_bed import Bed


def test_a_person_who_keeps_their_page_cache_is_told_the_command_and_nothing_is_dropped(
    counter_bed: Callable[..., Bed],
) -> None:
    settings = {"memory": {"need": "32TiB", "reclaim": False}, "relaunch": {"gate_wait": "2s"}}
    bed = counter_bed("--steps", "10", settings=settings)
    assert bed.ended(bed.start()) == 3, bed.tell()
    kinds = {event["event"] for event in bed.events()}
    assert "hold" in kinds
    assert not kinds & {"reclaiming", "reclaimed", "run_launching"}, bed.tell()
    (hold,) = bed.kinds("hold")
    assert "[memory] reclaim is false" in hold["data"]["reason"]
    assert "by hand: watchdog reclaim --config" in hold["data"]["reason"]
