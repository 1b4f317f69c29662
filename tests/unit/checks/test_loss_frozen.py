"""A loss that never changes, told from one that is rounded."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.checks.host import host, points, progress
from watchdog.checks import loss_frozen
from watchdog.core.facts import Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

LOG = "log (huggingface)"


def judge(count: int = 60, *, source: str = "beats", **changes: Any) -> tuple[Finding, ...]:
    found = loss_frozen.check(host(progress=progress(points=points(count, **changes), source=source)), Limits())
    return found if isinstance(found, tuple) else (found,)


def test_the_same_bits_over_fifty_steps() -> None:
    (finding,) = judge(50, loss=10.825)
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.LOOK_AT_TRAINING)
    assert finding.reason == "10.825 at each of the last 50 steps told, 371 to 420"


def test_a_flat_loss_that_moves_is_fine() -> None:
    (finding,) = judge()
    assert finding.severity is Severity.OK


def test_too_few_steps_say_nothing() -> None:
    assert judge(49, loss=10.825) == ()
    assert judge(60, loss=10.825, step=7) == ()
    assert judge(60, loss=10.825, step=None) == ()


@pytest.mark.parametrize(
    ("count", "loss", "severity"),
    [
        (100, 10.8251, Severity.WARNING),
        (99, 10.8251, None),
        (100, 10.82, Severity.OK),  # rounded: it proves nothing
        (100, 3.0, Severity.OK),
        (100, 0.0, Severity.WARNING),  # what Hugging Face writes for nan
    ],
)
def test_a_log_rounds(count: int, loss: float, severity: Severity | None) -> None:
    assert [one.severity for one in judge(count, source=LOG, loss=loss)] == ([] if severity is None else [severity])


def test_nan_is_another_checks() -> None:
    assert [one.severity for one in judge(60, loss=math.nan)] == [Severity.OK]
    assert [one.severity for one in judge(60, loss=math.inf)] == [Severity.OK]


def test_unknown_is_left_to_steps_frozen() -> None:
    assert loss_frozen.check(host(progress=Unknown("no log")), Limits()) == ()
