"""A product that is wrong."""

from __future__ import annotations

import math

import pytest

from tests.unit.checks.host import UUID, gpu, host
from watchdog.checks import wrong_product
from watchdog.core.facts import Absent, Fact, Probe, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, calls_for_a_stop
from watchdog.core.limits import Limits


def judge(*, correct: bool, worst_error: float, device: str = UUID) -> Finding:
    probe = Probe(
        device=device,
        name="NVIDIA GeForce RTX 3060",
        tflops=24.0,
        dtype="bfloat16",
        size=4096,
        seconds=0.0057,
        correct=correct,
        worst_error=worst_error,
        baseline_tflops=None,
        baseline_count=0,
    )
    [found] = wrong_product.check(host(probe=(probe,)), Limits())
    return found


@pytest.mark.parametrize(("error", "said"), [(0.37, "worst error 0.37"), (math.nan, "worst error nan")])
def test_wrong_is_critical_and_takes_the_device_out_of_use(error: float, said: str) -> None:
    found = judge(correct=False, worst_error=error)
    assert (found.severity, found.remedy, found.device) == (Severity.CRITICAL, Remedy.REPLACE, UUID)
    assert found.reason.startswith(said)
    assert found.subject == gpu().label
    assert not calls_for_a_stop(found)


def test_right_is_fine_and_a_cpu_is_no_device() -> None:
    assert judge(correct=True, worst_error=0.001).severity is Severity.OK
    assert judge(correct=False, worst_error=1.0, device="cpu").device is None


@pytest.mark.parametrize("fact", [Unknown("x"), Absent()])
def test_no_probe_is_nothing_to_judge(fact: Fact[tuple[Probe, ...]]) -> None:
    assert wrong_product.check(host(probe=fact), Limits()) == ()
