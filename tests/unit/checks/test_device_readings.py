"""Readings that fail, readings that cannot be true, and the figures when all is well."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import UUID, gpu, host, sample
from watchdog.checks import device_readings
from watchdog.core.facts import Absent, Driver, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(*devices: Any, **changes: Any) -> tuple[Finding, ...]:
    return device_readings.check(host(devices=devices, **changes), Limits())


def test_in_order_gives_the_figures() -> None:
    (finding,) = judge(gpu())
    assert (finding.severity, finding.device) == (Severity.OK, UUID)
    assert finding.reason.startswith("10.0 GiB of 12.0 GiB, 151 of 170 W, 97 % busy, 71 °C, ")
    assert "readings do not exist here" in finding.reason


def test_absent_readings_are_no_fault() -> None:
    (finding,) = judge(gpu(power_watts=Absent(), memory_total_bytes=Absent(), utilization_percent=Absent()))
    assert finding.severity is Severity.OK
    assert finding.reason.startswith("10.0 GiB, 71 °C, ")


def test_failed_readings_are_told_by_their_reason() -> None:
    failed = Unknown("code 999")
    (finding,) = judge(
        gpu(
            power_watts=failed,
            ecc_corrected=failed,
            processes=Unknown("code 1"),
            clocks_event_counters_us={"thermal": Unknown("code 2")},
        )
    )
    assert (finding.severity, finding.remedy) == (Severity.UNKNOWN, Remedy.CHECK_DRIVER)
    assert finding.reason.startswith("4 of ")
    for words in ("ecc corrected, power (code 999)", "processes (code 1)", "counter thermal (code 2)"):
        assert words in finding.reason


def test_only_the_newest_sample_counts() -> None:
    (finding,) = judge(gpu(recent=(sample(power_watts=Unknown("code 999")), sample())))
    assert finding.severity is Severity.OK


def test_what_cannot_be_true_is_told_once_and_apart() -> None:
    said = "utilization 37100 %"
    impossible = gpu(utilization_percent=Unknown(f"{said} cannot be true"), implausible=(said,))
    (finding,) = judge(impossible)
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.CHECK_DRIVER)
    assert finding.reason == "readings that cannot be true: utilization 37100 %"
    assert "535.43" in finding.cause
    both = judge(gpu(power_watts=Unknown("code 999"), implausible=(said,)))
    assert [finding.severity for finding in both] == [Severity.WARNING, Severity.UNKNOWN]


def test_devices_that_could_not_be_read_are_told_here() -> None:
    (finding,) = device_readings.check(host(devices=Unknown("no list")), Limits())
    assert (finding.severity, finding.reason) == (Severity.UNKNOWN, "no list")


@pytest.mark.parametrize("fact", [Driver(code=9), Driver(version="560", devices=1, silent_s=3.0), Driver(crashes=1)])
def test_a_driver_that_does_not_answer_is_told_elsewhere(fact: Driver) -> None:
    assert device_readings.check(host(devices=Unknown("no answer"), driver=fact), Limits()) == ()
    assert judge(gpu(), driver=fact) == ()


def test_lost_devices_are_told_elsewhere_other_codes_here() -> None:
    failed = Unknown("lost")
    for told in ({"lost_code": 15}, {"lost_code": 16}, {"lost_code": 999}, {"missing": True}):
        assert judge(gpu(power_watts=failed, **told)) == ()
    (finding,) = judge(gpu(power_watts=failed, lost_code=10))
    assert finding.severity is Severity.UNKNOWN
    assert "code 10" in finding.reason
