"""Clocks that heat lowers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, UUID, gpu, host, sample
from watchdog.checks import thermal_slowdown
from watchdog.core.facts import Device, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(device: Device) -> tuple[Finding, ...]:
    return thermal_slowdown.check(host(devices=(device,)), Limits(looks=5))


def recent(*reasons: object) -> Device:
    return gpu(recent=tuple(sample(AT_S + i, clocks_event_reasons=bits) for i, bits in enumerate(reasons)))


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x40, "hardware thermal slowdown"),
        (0x48, "hardware thermal slowdown"),
        (0x24, "software thermal slowdown"),
        (0x8, "hardware slowdown"),
        (0xC8, "hardware thermal slowdown"),
    ],
)
def test_fires_with_temperature_and_clocks(bits: int, words: str) -> None:
    (finding,) = judge(gpu(clocks_event_reasons=bits, temperature_celsius=93, sm_clock_mhz=900))
    assert (finding.severity, finding.remedy, finding.device) == (Severity.WARNING, Remedy.COOL, UUID)
    assert finding.reason == f"93 °C, 900 of 2100 MHz, {words} in 5 of 5 samples"


@pytest.mark.parametrize("bits", [0, 0x1, 0x2, 0x4, 0x10, 0x100, 0x80, 0x88])
def test_caps_settings_and_the_power_brake_are_no_heat(bits: int) -> None:
    (finding,) = judge(gpu(clocks_event_reasons=bits))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 0)


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        (recent(0x40), 4),
        (recent(0x40, 0x40, 0x40), 2),
        (recent(0x40, 0x40, 0x4, 0x40, 0x40), 0),
        (recent(0x40, Unknown("code 999"), 0x40, 0x40, 0x40), 0),
        (recent(0x40, 0x40, 0x40, 0x40, 0x4), 0),
    ],
)
def test_a_moment_proves_nothing(device: Device, wanted: int) -> None:
    (finding,) = judge(device)
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, wanted)


def test_older_samples_do_not_excuse() -> None:
    assert judge(recent(0x4, *[0x40] * 5))[0].severity is Severity.WARNING


def test_unknown_is_not_fine() -> None:
    assert judge(recent(0x40, Unknown("code 999"))) == ()
    assert thermal_slowdown.check(host(devices=Unknown("no answer")), Limits()) == ()


@pytest.mark.parametrize("gone", [dict(missing=True), dict(lost_code=15), dict(lost_code=16), dict(lost_code=999)])
def test_what_was_read_before_a_device_was_lost_is_not_judged(gone: dict[str, Any]) -> None:
    assert judge(gpu(clocks_event_reasons=0x40, **gone)) == ()
