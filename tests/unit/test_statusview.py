"""The view of one turn of the loop, made from what was gathered before."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from watchdog.core.history import Event, fold
from watchdog.core.phase import Phase
from watchdog.core.state import State
from watchdog.opening import OpenJob
from watchdog.places import folders_of
from watchdog.settings import load
from watchdog.statusview import label_of, make_view


class Clock:
    def monotonic(self) -> float:
        return 50.0

    def wall(self) -> float:
        return 1000.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


@pytest.mark.parametrize(
    ("kind", "data", "label"),
    [
        ("gap", {}, "watchdog"),
        ("hold", {}, "HOLD"),
        ("run_ended", {"number": 4}, "run 4"),
        ("run_stopping", {}, "run 9"),
    ],
)
def test_the_label_of_a_line(kind: str, data: dict[str, int], label: str) -> None:
    launch = {"number": 9, "run_id": "9-a", "baseline_step": -1}
    history = fold([Event(seq=1, wall_s=1.0, kind="run_launching", sentence="", data=launch)])
    assert label_of(kind, data, history) == label


def test_a_view_without_a_run() -> None:
    """In backoff: when the next launch is due; what nobody measured is not made up."""
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    job = cast(OpenJob, SimpleNamespace(folders=folders_of(settings)))
    entry = {"step": 5, "digest": "d", "run_id": "1-a"}
    verified = Event(seq=1, wall_s=980.0, kind="checkpoint_verified", sentence="step 5", data=entry)
    history = fold([verified, dataclasses.replace(verified, seq=2, wall_s=995.0)])  # at a relaunch it is verified anew
    state = State(phase=Phase.BACKOFF, since_s=40.0, retry_at_s=53.0, failures=2)
    view = make_view(settings, job, state, history, Clock())
    assert (view.state, view.since_wall_s, view.next_launch_s, view.failures) == ("backoff", 990.0, 3.0, 2)
    assert (view.checkpoint_step, view.checkpoint_age_s) == (5, 20.0)
    assert view.supervisor_pid == os.getpid()
    assert view.run is None
    assert (view.memory_available_bytes, view.metrics_url, dict(view.collectors)) == (None, None, {})
    view = make_view(settings, job, State(phase=Phase.HOLD, since_s=40.0, hold="why"), history, Clock())
    assert (view.hold_reason, view.next_launch_s, view.checkpoint_age_s) == ("why", None, 20.0)
    early = dataclasses.replace(verified, wall_s=2000.0)  # the clock was set back since
    assert make_view(settings, job, state, fold([early]), Clock()).checkpoint_age_s == 0.0
    nothing = make_view(settings, job, state, fold([]), Clock())
    assert (nothing.checkpoint_step, nothing.checkpoint_age_s) == (None, None)
