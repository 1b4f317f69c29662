"""Memory pressure, by PSI or by page faults."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import host
from watchdog.checks import memory_pressure
from watchdog.core.facts import Absent, Pressure, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(pressure: Pressure | Unknown) -> Finding:
    found = memory_pressure.check(host(pressure=pressure), Limits())
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(
    ("avg10", "avg60", "severity"),
    [
        (10.0, 5.0, Severity.WARNING),
        (90.0, 4.9, Severity.OK),  # a burst
        (9.9, 80.0, Severity.OK),  # over
    ],
)
def test_now_and_for_a_minute(avg10: float, avg60: float, severity: Severity) -> None:
    finding = judge(
        Pressure(from_psi=True, some_avg10_percent=99.0, full_avg10_percent=avg10, full_avg60_percent=avg60)
    )
    assert finding.severity is severity
    assert f"{avg10} % of the last 10 s and {avg60} % of the last minute" in finding.reason
    assert (finding.remedy is Remedy.FREE_MEMORY) is (severity is Severity.WARNING)


@pytest.mark.parametrize(
    ("faults", "swapped", "severity"),
    [
        (500.0, 1.0, Severity.WARNING),
        (5000.0, 0.0, Severity.OK),  # a model is read for the first time
        (499.0, 400.0, Severity.OK),
    ],
)
def test_without_psi_faults_and_swap_together(faults: float, swapped: float, severity: Severity) -> None:
    finding = judge(Pressure(from_psi=False, major_faults_per_s=faults, swapped_in_per_s=swapped))
    assert finding.severity is severity
    assert f"{faults:,.0f} major faults/s" in finding.reason


def test_one_look_without_psi_wants_another() -> None:
    finding = judge(Pressure(from_psi=False))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 1)


def test_one_look_is_enough_where_nothing_was_ever_swapped_in() -> None:
    finding = judge(Pressure(from_psi=False, swapped_in_per_s=0.0))
    assert (finding.severity, finding.looks_wanted) == (Severity.OK, 0)
    assert finding.reason == "no page was ever read back from swap (no PSI here)"


def test_unknown_is_told_and_absent_is_no_fault() -> None:
    assert judge(Unknown("EOPNOTSUPP")).severity is Severity.UNKNOWN
    assert memory_pressure.check(host(pressure=Absent()), Limits()) == ()
