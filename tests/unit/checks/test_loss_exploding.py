"""A loss that climbs to a multiple, gradients that explode; spikes, warm-ups and small losses do not fire."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.unit.checks.host import AT_S, host, progress
from watchdog.checks import loss_exploding
from watchdog.core.facts import ProgressPoint, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

BEFORE = [3.0] * 20


def judge(losses: Sequence[float], norms: Sequence[float] = ()) -> tuple[Finding, ...]:
    padded = [*[None] * (len(losses) - len(norms)), *norms] if norms else [None] * len(losses)
    points = tuple(
        ProgressPoint(at_s=AT_S - 100 + number, step=number, loss=loss, gradient_norm=norm, phase="train")
        for number, (loss, norm) in enumerate(zip(losses, padded, strict=True))
    )
    found = loss_exploding.check(host(progress=progress(points=points)), Limits())
    return found if isinstance(found, tuple) else (found,)


def test_a_multiple_that_rises() -> None:
    (finding,) = judge([*BEFORE, 8.0, 9.0, 9.5, 10.0, 11.0])
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.LOOK_AT_TRAINING)
    assert finding.reason == "median loss 9.5 over the last 5 steps told, 3 before"


@pytest.mark.parametrize(
    "losses",
    [
        [*BEFORE, 12.0, 11.0, 10.5, 10.0, 9.5],  # a spike that falls again
        [*BEFORE, 3.0, 3.0, 99.0, 3.0, 3.0],
        [*BEFORE, 3.1, 3.2, 3.3, 3.35, 3.4],  # warmed up anew
        [*[0.01] * 20, 0.04, 0.05, 0.06, 0.07, 0.08],  # near zero
        [*[-2.0] * 20, -1.0, 0.2, 0.3, 0.35, 0.4],  # no loss of which multiples speak
        [*BEFORE, math.nan, math.inf, math.nan, math.inf, math.nan],  # loss-nan's
        [10.8, 9.0, 8.0, *BEFORE, 2.9, 2.9, 2.9, 2.9, 2.9],
    ],
)
def test_near_misses(losses: list[float]) -> None:
    assert all(one.severity is Severity.OK for one in judge(losses))


def test_too_few_points_say_nothing() -> None:
    assert judge([*BEFORE[1:], 8.0, 9.0, 9.5, 10.0, 11.0]) == ()


@pytest.mark.parametrize(
    ("norms", "severity"),
    [
        ([1e18, 1e18, 2e18], Severity.WARNING),
        ([1.0, 1e18, 2e18], Severity.OK),
        ([1e18, 2e18], Severity.OK),
        ([1e6, 1e6, 1e6], Severity.OK),
        ([math.inf] * 3, Severity.OK),  # a loss scaler looks for its scale
        ([math.nan] * 3, Severity.OK),
    ],
)
def test_gradients(norms: list[float], severity: Severity) -> None:
    (finding,) = judge([3.0] * 3, norms)
    assert finding.severity is severity
    assert severity is Severity.OK or "gradient norms 1e+18, 1e+18, 2e+18, above 1e+06 each" in finding.reason


def test_unknown_is_left_to_steps_frozen() -> None:
    assert loss_exploding.check(host(progress=Unknown("no log")), Limits()) == ()
