"""The driver: there, absent, or not answering."""

from __future__ import annotations

import pytest

from watchdog.checks import driver
from watchdog.core.facts import Absent, Driver, Fact, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(fact: Fact[Driver]) -> Finding:
    facts = Facts(at_s=1.0, memory=Absent(), disks=(), locks=(), driver=fact, beat=Absent())
    return driver.check(facts, Limits())


def test_absent_is_no_fault_and_no_pass() -> None:
    finding = judge(Absent("no libnvidia-ml.so.1"))
    assert finding.severity is Severity.OK
    assert finding.reason == "no NVIDIA driver: GPU checks are absent, not passed"


def test_no_answer_is_unknown_with_its_reason() -> None:
    finding = judge(Unknown("NVML did not answer within 10 s"))
    assert (finding.severity, finding.remedy) == (Severity.UNKNOWN, Remedy.CHECK_DRIVER)
    assert finding.reason == "NVML did not answer within 10 s"


@pytest.mark.parametrize(
    ("devices", "severity", "words"),
    [(0, Severity.WARNING, "0 devices"), (1, Severity.OK, "1 device"), (8, Severity.OK, "8 devices")],
)
def test_devices_are_counted(devices: int, severity: Severity, words: str) -> None:
    finding = judge(Known(Driver(version="560.35", devices=devices), 1.0))
    assert finding.severity is severity
    assert finding.reason == f"NVIDIA driver 560.35, {words}"
