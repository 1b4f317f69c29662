"""The run's progress over time: what it said last, and how long a step takes. Arithmetic on numbers passed in.

Responsible for the window of points, for two medians of seconds a step (over this job's history, and over the last
few), and for the one answer to when a run said something new. Refuses to read a clock and to judge.

A step is timed from the look that first saw one number to the look that first saw a later one, in training only: what
lies between a step and the next one across an evaluation, a save, a gap or a step back is no step's time. The first
three steps of a run (compilation, warming up) are left out.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

from msgspec.structs import replace

from watchdog.contract import Beat
from watchdog.core.facts import Progress, ProgressPoint

_POINTS = 200
_WARMING_STEPS = 3
_RECENT, _RECENT_LEAST = 10, 5
_HISTORY, _HISTORY_LEAST = 256, 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgressWindow:
    """What is remembered; `window_for` begins one.

    `timed_from` and `timed_to`: (moment, step) of the duration that is being measured; it is complete when a later look
    sees a later step, since one look may bring several steps. `history` holds every `stride`-th duration of the
    job, so that it spans all of it in bounded room; `passed_over` counts those since the last one that was taken.
    """

    run_id: str
    source: str
    points: tuple[ProgressPoint, ...] = ()
    step: int | None = None
    step_changed_s: float | None = None
    heard_s: float | None = None
    warm_step: int | None = None
    timed_from: tuple[float, int] | None = None
    timed_to: tuple[float, int] | None = None
    recent: tuple[float, ...] = ()
    history: tuple[float, ...] = ()
    stride: int = 1
    passed_over: int = 0
    watched_from_s: float | None = None


def window_for(window: ProgressWindow | None, run_id: str, source: str) -> ProgressWindow:
    """The same window for the same run. A new run begins anew, and keeps the history of this job.

    A history from another source counts other steps, perhaps, and is dropped.
    """
    if window is None or window.source != source:
        return ProgressWindow(run_id=run_id, source=source)
    if window.run_id == run_id:
        return window
    return ProgressWindow(
        run_id=run_id,
        source=source,
        history=window.history,
        stride=window.stride,
        passed_over=window.passed_over,
    )


def from_beat(beat: Beat, now_s: float) -> ProgressPoint:
    """A beat as a point, at the moment it was made, or now if it claims to be from later."""
    return ProgressPoint(
        at_s=min(beat.monotonic_s, now_s),
        step=beat.step,
        tokens=beat.tokens,
        loss=beat.loss,
        gradient_norm=beat.gradient_norm,
        phase=beat.phase,
    )


def add(window: ProgressWindow, point: ProgressPoint) -> ProgressWindow:
    """Take a word of the run in. One that says nothing new is only heard: it becomes no point."""
    if window.points and window.heard_s == point.at_s and _same(window.points[-1], point):
        return window
    if window.heard_s is not None and point.at_s < window.heard_s:
        point = replace(point, at_s=window.heard_s)
    window = _timed(window, point)
    changed = not window.points or not _same(window.points[-1], point)
    return dataclasses.replace(
        window,
        points=(*window.points[-_POINTS + 1 :], point) if changed else window.points,
        heard_s=point.at_s,
    )


def skip(window: ProgressWindow, *, seconds: float, now_s: float) -> ProgressWindow:
    """Nobody watched, or nothing ran, for `seconds` up to now: they are no step's time and no silence of the run."""

    def moved(moment_s: float | None) -> float | None:
        return None if moment_s is None else min(moment_s + seconds, now_s)

    return dataclasses.replace(
        _measured(window),
        timed_from=None,
        timed_to=None,
        step_changed_s=moved(window.step_changed_s),
        heard_s=moved(window.heard_s),
        watched_from_s=now_s if window.points else None,
    )


def fact(window: ProgressWindow, *, printed_s: float | None = None, ledger_step_s: float | None = None) -> Progress:
    """The window as a fact; when anything was printed last is said only where no step is told."""
    return Progress(
        run_id=window.run_id,
        source=window.source,
        points=window.points,
        step_changed_s=window.step_changed_s,
        heard_s=window.heard_s,
        typical_step_s=statistics.median(window.history) if len(window.history) >= _HISTORY_LEAST else None,
        recent_step_s=statistics.median(window.recent) if len(window.recent) >= _RECENT_LEAST else None,
        printed_s=printed_s if window.step_changed_s is None else None,
        watched_from_s=window.watched_from_s,
        ledger_step_s=ledger_step_s,
    )


def changed_s(progress: Progress) -> float | None:
    """When step, tokens, loss or gradient norm last changed; None where no change was seen, or no step was told.

    A step of many micro-batches repeats its number, with other tokens.
    """
    since_s, changed = _alike_since(progress)
    return since_s if changed else None


def still_since(progress: Progress) -> float | None:
    """Since when the run says the same of step and figures in training; None where no step was told.

    It did other things before that: an evaluation is not held against the training after it. By a log, which tells no
    phase, all is training. What it said or did while nobody could read it is not known either.
    """
    since_s, _ = _alike_since(progress, training=True)
    return since_s if since_s is None else max(since_s, progress.watched_from_s or since_s)


def _alike_since(progress: Progress, *, training: bool = False) -> tuple[float | None, bool]:
    """(the first word of the newest ones that say the same, whether there was another before it), newest to oldest."""
    step_s, points = progress.step_changed_s, progress.points
    newest = next((point for point in reversed(points) if point.step is not None), None)
    if step_s is None or newest is None:
        return step_s, False
    since_s = points[-1].at_s
    for point in reversed(points):
        if training and point.phase != "train" and (progress.source == "beats" or point.phase is not None):
            return max(since_s, step_s), True
        if point.step is not None and point.step != newest.step:
            return step_s, True
        if point.step is not None and not _repeats(point, newest):
            return max(since_s, step_s), True
        since_s = point.at_s
    return step_s, False


def _repeats(one: ProgressPoint, other: ProgressPoint) -> bool:
    """Of one step they tell the same; what one of them does not tell is no difference."""
    return all(
        mine is None or theirs is None or _equal(mine, theirs)
        for mine, theirs in (
            (one.tokens, other.tokens),
            (one.loss, other.loss),
            (one.gradient_norm, other.gradient_norm),
        )
    )


def _timed(window: ProgressWindow, point: ProgressPoint) -> ProgressWindow:
    """The window after looking at the point's step and phase."""
    step, before, warm = point.step, window.step, window.warm_step
    if step is not None and (before is None or warm is None or step < before):  # the first of a run, or it went back
        return dataclasses.replace(
            window,
            step=step,
            step_changed_s=point.at_s,
            warm_step=step + _WARMING_STEPS,
            timed_from=None,
            timed_to=None,
        )
    if step is not None and step != before:
        window = dataclasses.replace(window, step=step, step_changed_s=point.at_s)
    if point.phase not in (None, "train"):
        return dataclasses.replace(_measured(window), timed_from=None, timed_to=None)
    if step is None or warm is None or step < warm:
        return window
    here, since, until = (point.at_s, step), window.timed_from, window.timed_to
    if since is None or (until is None and since[0] == point.at_s):
        return dataclasses.replace(window, timed_from=here)
    newest = until or since
    if step == newest[1]:
        return window
    if until is not None and until[0] != point.at_s:
        window = dataclasses.replace(_measured(window), timed_from=until)
    return dataclasses.replace(window, timed_to=here)


def _measured(window: ProgressWindow) -> ProgressWindow:
    """The window with the duration that is complete, if there is one."""
    if window.timed_from is None or window.timed_to is None:
        return window
    (since_s, since_step), (until_s, until_step) = window.timed_from, window.timed_to
    step_s = (until_s - since_s) / (until_step - since_step)
    window = dataclasses.replace(window, recent=(*window.recent[-_RECENT + 1 :], step_s))
    if window.passed_over + 1 < window.stride:
        return dataclasses.replace(window, passed_over=window.passed_over + 1)
    history, stride = (*window.history, step_s), window.stride
    if len(history) > _HISTORY:
        history, stride = history[::2], 2 * stride
    return dataclasses.replace(window, history=history, stride=stride, passed_over=0)


def _same(one: ProgressPoint, other: ProgressPoint) -> bool:
    """They say the same, whenever they said it; a loss that is no number is equal to itself here."""
    return (
        (one.step, one.tokens, one.phase) == (other.step, other.tokens, other.phase)
        and _equal(one.loss, other.loss)
        and _equal(one.gradient_norm, other.gradient_norm)
    )


def _equal(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))
