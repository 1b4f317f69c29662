"""A loss that is no number."""

from __future__ import annotations

import math

import pytest

from tests.unit.checks.host import AT_S, host, progress
from watchdog.checks import loss_nan
from watchdog.core.facts import ProgressPoint, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAN, INF = math.nan, math.inf


def judge(*losses: float | None, steps: bool = True, stride: int = 1) -> Finding:
    points = tuple(
        ProgressPoint(at_s=AT_S - 100 + number, step=number // stride if steps else None, loss=loss)
        for number, loss in enumerate(losses)
    )
    found = loss_nan.check(host(progress=progress(points=points)), Limits())
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        ((3.0, 2.9, 2.8), Severity.OK),
        ((3.0, 2.9, INF), Severity.WARNING),  # a skipped step of a loss scaler
        ((3.0, INF, 2.9), Severity.OK),
        ((3.0, NAN, NAN), Severity.WARNING),
        ((3.0, NAN, NAN, None, NAN), Severity.CRITICAL),
        ((NAN, -INF, INF), Severity.CRITICAL),
        ((NAN,), Severity.WARNING),
    ],
)
@pytest.mark.parametrize("steps", [True, False])
def test_one_two_three_in_a_row(losses: tuple[float | None, ...], severity: Severity, steps: bool) -> None:
    finding = judge(*losses, steps=steps)
    assert finding.severity is severity
    assert (finding.remedy is Remedy.LOOK_AT_TRAINING) is (severity is not Severity.OK)


def test_words_that_repeat_a_step_count_once() -> None:
    assert judge(2.0, 2.0, NAN, NAN, stride=2).severity is Severity.WARNING


def test_figures_are_told() -> None:
    assert judge(2.0, NAN, NAN, NAN).reason == "nan at step 3, 3 steps in a row"
    assert judge(2.34567).reason == "2.346 at step 0"


def test_without_a_loss_there_is_nothing_to_say() -> None:
    silent = progress(points=(ProgressPoint(at_s=AT_S, step=1),))
    assert loss_nan.check(host(progress=silent), Limits()) == ()
    assert loss_nan.check(host(progress=Unknown("told by steps-frozen")), Limits()) == ()
