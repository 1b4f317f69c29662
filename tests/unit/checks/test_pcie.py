"""PCIe lanes and speed under load."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import UUID, gpu, host, sample
from watchdog.checks import pcie
from watchdog.core.facts import Absent, Device, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(device: Device) -> tuple[Finding, ...]:
    return pcie.check(host(devices=(device,)), Limits(looks=5, pcie_load_percent=50))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(pcie_generation=1), "gen 1 x16 of gen 4 x16 at 97 % busy"),
        (dict(pcie_width=4), "gen 4 x4 of gen 4 x16 at 97 % busy"),
        (dict(pcie_width=8, performance_state=Absent(), utilization_percent=50), "x8 of gen 4 x16 at 50 % busy"),
    ],
)
def test_fires_under_load(changes: dict[str, Any], words: str) -> None:
    (finding,) = judge(gpu(**changes))
    assert (finding.severity, finding.remedy, finding.device) == (Severity.WARNING, Remedy.RESEAT, UUID)
    assert words in finding.reason


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(pcie_generation=1, utilization_percent=3, performance_state=8),
        dict(pcie_generation=1, utilization_percent=49),
        dict(pcie_generation=1, performance_state=5),
        dict(pcie_generation=3, pcie_generation_max=3),
    ],
)
def test_idle_and_what_the_slot_cannot_give_are_fine(changes: dict[str, Any]) -> None:
    (finding,) = judge(gpu(**changes))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 0)


def test_a_moment_proves_nothing() -> None:
    (finding,) = judge(gpu(samples=3, pcie_generation=1))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 2)
    slow, full, idle = sample(pcie_width=4), sample(), sample(pcie_width=4, utilization_percent=2)
    for between in (full, idle, sample(pcie_width=Unknown("code 999"))):
        (finding,) = judge(gpu(recent=(slow, slow, between, slow, slow)))
        assert (finding.severity, finding.looks_wanted) == (Severity.OK, 0)


@pytest.mark.parametrize(
    "changes",
    [dict(pcie_width=Unknown("code 999")), dict(pcie_width_max=Unknown("code 999")), dict(pcie_generation=Absent())],
)
def test_what_is_not_known_is_not_fine(changes: dict[str, Any]) -> None:
    assert judge(gpu(**changes)) == ()
    assert pcie.check(host(devices=Unknown("no answer")), Limits()) == ()


@pytest.mark.parametrize("gone", [dict(missing=True), dict(lost_code=15), dict(lost_code=16), dict(lost_code=999)])
def test_what_was_read_before_a_device_was_lost_is_not_judged(gone: dict[str, Any]) -> None:
    assert judge(gpu(pcie_width=4, **gone)) == ()
