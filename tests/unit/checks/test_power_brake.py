"""Clocks that the power supply lowers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import UUID, gpu, host, sample
from watchdog.checks import power_brake
from watchdog.core.facts import Absent, Device, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(device: Device) -> tuple[Finding, ...]:
    return power_brake.check(host(devices=(device,)), Limits(looks=5))


@pytest.mark.parametrize("bits", [0x80, 0x88, 0x84])
def test_fires(bits: int) -> None:
    (finding,) = judge(gpu(clocks_event_reasons=bits))
    assert (finding.severity, finding.remedy, finding.device) == (Severity.WARNING, Remedy.COOL, UUID)
    assert finding.reason == "power brake in 5 of 5 samples, 151 of 170 W"


@pytest.mark.parametrize("bits", [0, 0x4, 0x8, 0x40, 0x20])
def test_a_power_cap_and_heat_are_no_brake(bits: int) -> None:
    (finding,) = judge(gpu(clocks_event_reasons=bits))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 0)


def test_a_moment_proves_nothing() -> None:
    (finding,) = judge(gpu(samples=2, clocks_event_reasons=0x80))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 3)
    braked, free = sample(clocks_event_reasons=0x80), sample()
    (finding,) = judge(gpu(recent=(braked, braked, free, braked, braked)))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 0)


def test_unknown_is_not_fine() -> None:
    assert judge(gpu(clocks_event_reasons=Unknown("code 999"))) == ()
    assert judge(gpu(clocks_event_reasons=Absent())) == ()
    assert power_brake.check(host(devices=Unknown("no answer")), Limits()) == ()


@pytest.mark.parametrize("gone", [dict(missing=True), dict(lost_code=15), dict(lost_code=16), dict(lost_code=999)])
def test_what_was_read_before_a_device_was_lost_is_not_judged(gone: dict[str, Any]) -> None:
    assert judge(gpu(clocks_event_reasons=0x80, **gone)) == ()
