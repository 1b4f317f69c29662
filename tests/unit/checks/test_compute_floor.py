"""The probe against the floor and against the device's own baseline."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import UUID, gpu, host
from watchdog.checks import compute_floor
from watchdog.core.facts import Absent, NotMeasured, Probe, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, calls_for_a_stop
from watchdog.core.limits import Limits


def probe(**changes: Any) -> Probe:
    given: dict[str, Any] = dict(
        device=UUID,
        name="NVIDIA GeForce RTX 3060",
        tflops=24.0,
        dtype="bfloat16",
        size=4096,
        seconds=0.0057,
        correct=True,
        worst_error=0.001,
        baseline_tflops=24.1,
        baseline_count=9,
    )
    return Probe(**(given | changes))


def judge(*probes: Probe, **changes: Any) -> tuple[Finding, ...]:
    return compute_floor.check(host(probe=probes, **changes), Limits())


@pytest.mark.parametrize(
    ("changes", "severity", "remedy"),
    [
        (dict(), Severity.OK, Remedy.NONE),
        (dict(tflops=1.99), Severity.CRITICAL, Remedy.RESET_DEVICE),
        (dict(tflops=math.nan), Severity.CRITICAL, Remedy.RESET_DEVICE),
        (dict(tflops=12.0), Severity.WARNING, Remedy.COOL),
        (dict(tflops=12.1), Severity.OK, Remedy.NONE),
        (dict(tflops=12.0, baseline_count=2), Severity.OK, Remedy.NONE),
        (dict(tflops=2.0, baseline_tflops=None, baseline_count=0), Severity.OK, Remedy.NONE),
        (dict(device="cpu", tflops=0.05, baseline_tflops=0.09), Severity.OK, Remedy.NONE),
        (dict(device="cpu", tflops=0.04, baseline_tflops=0.09), Severity.WARNING, Remedy.PROBE),
        (dict(device="cpu", tflops=0.04, baseline_tflops=0.09, baseline_count=2), Severity.OK, Remedy.NONE),
    ],
)
def test_floor_and_baseline(changes: dict[str, Any], severity: Severity, remedy: Remedy) -> None:
    [found] = judge(probe(**changes))
    assert (found.severity, found.remedy) == (severity, remedy)
    assert not calls_for_a_stop(found)
    assert found.device == (None if changes.get("device") else UUID)


def test_figures_are_told_and_the_device_is_called_as_elsewhere() -> None:
    [found] = judge(probe(tflops=0.02))
    assert found.reason == "0.02 TFLOP/s (floor 2.0, this device's own baseline 24.10)"
    assert found.subject == gpu().label


def test_on_wsl_the_guest_is_shut_down() -> None:
    assert [found.remedy for found in judge(probe(tflops=0.02), wsl=WSL)] == [Remedy.WSL_SHUTDOWN]


def test_a_probe_that_failed_is_told_and_none_is_nothing() -> None:
    [found] = compute_floor.check(host(probe=Unknown("no answer within 60 s")), Limits())
    assert (found.severity, found.reason, found.remedy) == (Severity.UNKNOWN, "no answer within 60 s", Remedy.PROBE)
    assert compute_floor.check(host(probe=Absent()), Limits()) == ()


def test_each_device_is_judged_for_itself() -> None:
    other = NotMeasured(device="GPU-other", label="T4 (GPU-other)", why="no answer within 60 s", tried=True)
    used = NotMeasured(device="GPU-third", label="T4 (GPU-third)", why="it is in use by pid 99 (blender)", tried=False)
    found = compute_floor.check(host(probe=(other, probe(tflops=0.5), used)), Limits())
    assert [(each.severity, each.device) for each in found] == [
        (Severity.UNKNOWN, "GPU-other"),
        (Severity.CRITICAL, UUID),
        (Severity.OK, "GPU-third"),
    ]
    assert found[2].reason == "not measured: it is in use by pid 99 (blender)"
