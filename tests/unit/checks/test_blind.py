"""Blindness that lasts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import disk, host
from watchdog.checks import blind
from watchdog.core.facts import Absent, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

HANGS = Unknown("does not answer")


def test_what_and_for_how_long() -> None:
    finding = blind.check(host(driver=HANGS, disks=(disk(), HANGS), blind_s=605.0), Limits())
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.LOOK)
    assert finding.reason == "for 10 min 05 s it could not see: disks, driver (the longest of them)"
    assert finding.evidence == ("disks: does not answer", "driver: does not answer")


def test_a_short_one_is_left_to_the_facts_own_checks() -> None:
    assert blind.check(host(driver=HANGS, blind_s=599.0), Limits()) == ()


@pytest.mark.parametrize(
    "changes", [{}, {"driver": Absent("none"), "kernel": Absent("none")}, {"progress": HANGS, "probe": HANGS}]
)
def test_absent_facts_and_a_silent_run_are_not_blindness(changes: dict[str, Any]) -> None:
    finding = blind.check(host(blind_s=9000.0, **changes), Limits())
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.OK
