"""The window of progress: what is a point, and what is a step's time."""

from __future__ import annotations

import math
import statistics
import time

import pytest

from watchdog.contract import Beat
from watchdog.core.facts import ProgressPoint
from watchdog.core.progress import (
    ProgressWindow,
    add,
    changed_s,
    fact,
    from_beat,
    skip,
    still_since,
    window_for,
)

FRESH = window_for(None, "run-1", "beats")


def steps(
    window: ProgressWindow, numbers: range, *, step_s: float, from_s: float, phase: str | None = "train"
) -> ProgressWindow:
    """One word a step."""
    for index, number in enumerate(numbers, 1):
        window = add(window, ProgressPoint(at_s=from_s + index * step_s, step=number, loss=1.0, phase=phase))
    return window


def test_a_point_is_what_is_new_and_the_newest_200_are_kept() -> None:
    window = add(FRESH, ProgressPoint(at_s=1.0, step=1, loss=math.nan))
    again = add(window, ProgressPoint(at_s=2.0, step=1, loss=float("nan")))
    assert len(again.points) == 1
    assert (again.heard_s, again.step_changed_s) == (2.0, 1.0)
    other_loss = add(again, ProgressPoint(at_s=3.0, step=1, loss=2.0))
    assert len(other_loss.points) == 2
    assert (other_loss.heard_s, other_loss.step_changed_s) == (3.0, 1.0)
    many = fact(steps(FRESH, range(1, 501), step_s=1.0, from_s=0.0))
    assert [point.step for point in many.points] == list(range(301, 501))
    assert (many.step_changed_s, many.heard_s) == (500.0, 500.0)


def test_the_medians_wait_until_there_is_enough() -> None:
    """Three steps are left out, one starts the watch, and a duration is complete with the word after it."""
    assert fact(steps(FRESH, range(0, 9), step_s=2.0, from_s=0.0)).recent_step_s is None
    assert fact(steps(FRESH, range(0, 10), step_s=2.0, from_s=0.0)).recent_step_s == 2.0
    assert fact(steps(FRESH, range(0, 24), step_s=2.0, from_s=0.0)).typical_step_s is None
    assert fact(steps(FRESH, range(0, 25), step_s=2.0, from_s=0.0)).typical_step_s == 2.0


def test_the_first_three_steps_are_no_measure() -> None:
    window = steps(FRESH, range(0, 4), step_s=100.0, from_s=0.0)
    window = steps(window, range(4, 40), step_s=1.0, from_s=400.0)
    assert set(window.history) == {1.0}


def test_a_run_that_slows_down_shows_in_the_recent_and_not_in_the_typical() -> None:
    window = steps(FRESH, range(0, 100), step_s=1.0, from_s=0.0)
    found = fact(steps(window, range(100, 115), step_s=3.0, from_s=100.0))
    assert (found.typical_step_s, found.recent_step_s) == (1.0, 3.0)


def test_what_lies_across_an_evaluation_is_no_steps_time() -> None:
    window = steps(FRESH, range(0, 50), step_s=1.0, from_s=0.0)
    window = add(window, ProgressPoint(at_s=51.0, step=49, phase="evaluate"))
    window = add(window, ProgressPoint(at_s=90.0, step=49, phase="train"))
    window = steps(window, range(50, 60), step_s=1.0, from_s=90.0)
    assert set(window.history) == {1.0}
    straight = add(steps(FRESH, range(0, 50), step_s=1.0, from_s=0.0), ProgressPoint(at_s=51.0, step=49, phase="save"))
    assert set(steps(straight, range(50, 60), step_s=1.0, from_s=95.0).history) == {1.0}


def test_a_gap_is_no_steps_time_and_no_silence() -> None:
    window = steps(FRESH, range(0, 50), step_s=1.0, from_s=0.0)
    window = skip(window, seconds=600.0, now_s=651.0)
    assert (fact(window).step_changed_s, fact(window).heard_s) == (650.0, 650.0)
    assert set(steps(window, range(50, 60), step_s=1.0, from_s=651.0).history) == {1.0}
    assert skip(window, seconds=1e6, now_s=700.0).heard_s == 700.0  # never later than now
    assert skip(FRESH, seconds=5.0, now_s=9.0) == FRESH


def test_a_step_back_begins_the_difference_anew() -> None:
    window = steps(FRESH, range(0, 50), step_s=1.0, from_s=0.0)
    window = steps(window, range(10, 60), step_s=2.0, from_s=100.0)
    assert set(window.history) == {1.0, 2.0}
    assert (window.step, window.step_changed_s) == (59, 200.0)


def test_many_steps_in_one_look_are_timed_from_look_to_look() -> None:
    """A log is read once a second, and ten steps are in it each time."""
    window = FRESH
    for second in range(1, 40):
        for step in range(second * 10, second * 10 + 10):
            window = add(window, ProgressPoint(at_s=float(second), step=step, loss=1.0))
    assert set(window.history) == {0.1}


def test_another_run_begins_anew_and_keeps_the_history_of_the_job() -> None:
    window = steps(FRESH, range(0, 50), step_s=1.0, from_s=0.0)
    assert window_for(window, "run-1", "beats") is window
    after = fact(window_for(window, "run-2", "beats"))
    assert (after.run_id, after.points, after.step_changed_s, after.heard_s) == ("run-2", (), None, None)
    assert (after.typical_step_s, after.recent_step_s) == (1.0, None)
    assert fact(window_for(window, "run-2", "log (nanogpt)")).typical_step_s is None


def test_the_history_spans_the_whole_run_in_bounded_room() -> None:
    window = steps(FRESH, range(0, 6000), step_s=1.0, from_s=0.0)
    window = steps(window, range(6000, 10000), step_s=2.0, from_s=6000.0)
    assert 100 < len(window.history) <= 257
    assert sum(step_s == 1.0 for step_s in window.history) / len(window.history) == pytest.approx(0.6, abs=0.05)
    assert statistics.median(window.history) == fact(window).typical_step_s == 1.0


def beat(seq: int, at_s: float, step: int | None, phase: str = "train") -> Beat:
    return Beat(seq=seq, monotonic_s=at_s, run_id="run-1", pid=1, start_ticks=1, phase=phase, step=step, loss=0.5)


def test_a_beat_counts_at_the_moment_it_was_made_and_once() -> None:
    window = add(FRESH, from_beat(beat(1, 10.0, 7), now_s=10.4))
    assert fact(window).points == (ProgressPoint(at_s=10.0, step=7, loss=0.5, phase="train"),)
    assert add(window, from_beat(beat(1, 10.0, 7), now_s=60.0)) is window
    assert from_beat(beat(2, 1e9, 8), now_s=61.0).at_s == 61.0
    assert add(window, from_beat(beat(2, 3.0, 8), now_s=62.0)).heard_s == 10.0  # time does not go back


def test_without_steps_there_is_only_hearing() -> None:
    window = add(FRESH, from_beat(beat(1, 10.0, None, "load"), now_s=10.0))
    assert (fact(window).step_changed_s, fact(window).heard_s, len(fact(window).points)) == (None, 10.0, 1)


def test_a_look_costs_next_to_nothing() -> None:
    """Measured: 26 us for `add` and `fact` together on a full window; it happens once a second."""
    window = steps(FRESH, range(0, 20000), step_s=1.0, from_s=0.0)
    started = time.process_time()
    for index in range(1000):
        window = add(window, ProgressPoint(at_s=30000.0 + index, step=30000 + index, loss=1.0))
        fact(window)
    assert time.process_time() - started < 1.0


def said(
    *words: tuple[float, int | None, int | None, float | None, str | None], source: str = "beats"
) -> ProgressWindow:
    """(moment, step, tokens, loss, phase), heard again until the last moment."""
    window = window_for(None, "run-1", source)
    for at_s, step, tokens, loss, phase in words:
        window = add(window, ProgressPoint(at_s=at_s, step=step, tokens=tokens, loss=loss, phase=phase))
    return window


@pytest.mark.parametrize(
    ("window", "changed", "still"),
    [
        (said(), None, None),
        (said((1, None, None, None, "load")), None, None),
        (said((1, None, None, None, "load"), (2, 7, 1, 2.0, "train")), None, 2),  # one step seen is no change
        (said((1, 6, 1, 2.0, "train"), (2, 7, 1, 2.0, "train")), 2, 2),
        (said((1, 7, 1, 2.0, "train"), (2, 7, 2, 2.0, "train"), (9, 7, 2, 2.0, "train")), 2, 2),  # tokens
        (said((1, 7, 1, 2.0, "train"), (2, 7, 1, 1.9, "train"), (9, 7, None, 1.9, "train")), 2, 2),  # loss
        (said((1, 7, 1, math.nan, "train"), (2, 7, None, None, "train"), (3, 7, 1, math.nan, "train")), None, 1),
        (said((1, 6, 1, 2.0, "train"), (2, 7, 1, 2.0, "train"), (5, 7, 1, 2.0, "save"), (9, 7, 1, 2.0, "train")), 2, 9),
        (said((1, 6, 1, 2.0, None), (2, 7, 1, 2.0, None), source="log (x)"), 2, 2),
    ],
)  # fmt: skip
def test_when_it_last_said_something_new(window: ProgressWindow, changed: float | None, still: float | None) -> None:
    assert (changed_s(fact(window)), still_since(fact(window))) == (changed, still)


def test_what_nobody_watched_is_no_standstill() -> None:
    window = said((1, 6, 1, 2.0, "train"), (2, 7, 1, 2.0, "train"))
    later = fact(skip(window, seconds=100.0, now_s=200.0))
    assert (changed_s(later), still_since(later)) == (102.0, 200.0)
