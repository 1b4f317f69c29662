"""Where a person sees that a run was made smaller: status, metrics, the plan of a relaunch, its telling, settings."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.core.test_relaunchplan import plan, view
from tests.unit.core.world import events_of
from watchdog.core import smaller
from watchdog.core.following import Following, heard
from watchdog.core.relaunchplan import Wish
from watchdog.core.state import Record
from watchdog.metrics import Metrics
from watchdog.render import status_lines, status_record, view_from_record

SHRUNK = Record(*smaller.shrunk(3, "3-c", "OutOfMemoryError: CUDA out of memory.", 0, 1, limit=2))
WHOLE = Record(*smaller.whole(2))


@pytest.mark.parametrize(("halvings", "words"), [(1, "once"), (2, "twice"), (3, "3 times")])
def test_status_says_how_often_and_how_it_is_undone(halvings: int, words: str) -> None:
    seen = view(batch_halvings=halvings)
    (line,) = [line for line in status_lines(seen) if line.startswith("batch")]
    assert f"the run is asked to halve each micro-batch {words} (GPUHOST_WATCHDOG_BATCH_HALVINGS={halvings})" in line
    assert "if its trainer heeds it" in line
    assert "relaunch --force" in line
    assert view_from_record(status_record(seen)).batch_halvings == halvings


def test_status_of_a_whole_batch_says_nothing() -> None:
    assert not [line for line in status_lines(view()) if line.startswith("batch")]


def test_a_gauge_has_it_from_the_start() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, states=("running",), version="1")
    for halvings in (0, 2):
        metrics.publish(view(batch_halvings=halvings))
        assert registry.get_sample_value("watchdog_batch_halvings") == halvings


def test_the_plan_of_a_forced_relaunch_says_that_the_batch_is_whole_again() -> None:
    forced = plan(view(batch_halvings=1), Wish(afresh=True))
    assert [step.words for step in forced.steps if "micro-batch" in step.words]
    for made in (plan(view(batch_halvings=1)), plan(view(), Wish(afresh=True))):
        assert not [step for step in made.steps if "micro-batch" in step.words]


def test_who_follows_a_relaunch_is_told_both() -> None:
    following = Following(level=2)
    for record, proven in ((SHRUNK, False), (WHOLE, True)):
        (event,) = events_of([record])
        following, (told,) = heard(following, event)
        assert (told.label, told.words, told.proven) == ("batch", record.sentence, proven)


def test_the_evidence_is_no_longer_than_a_line() -> None:
    *_, data = smaller.shrunk(1, "1-a", "x" * 10_000, 0, 1, limit=1)
    assert len(data["evidence"]) == 200
