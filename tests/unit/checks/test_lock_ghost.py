"""A lock that is held by nobody who lives."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import host, lock
from watchdog.checks import lock_ghost
from watchdog.core.facts import Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


@pytest.mark.parametrize("purpose", ["supervisor", "run"])
def test_held_by_nobody_that_lives_is_critical(purpose: str) -> None:
    (finding,) = lock_ghost.check(host(locks=(lock(purpose, holders=()),)), Limits())
    assert (finding.severity, finding.remedy, finding.subject) == (Severity.CRITICAL, Remedy.LOOK, f"{purpose} lock")
    assert "no living process" in finding.reason


def test_a_living_holder_and_a_free_lock_are_fine() -> None:
    found = lock_ghost.check(host(locks=(lock(), lock("run", held=False, holders=()))), Limits())
    assert [finding.severity for finding in found] == [Severity.OK, Severity.OK]


def test_unknown_is_left_to_lock_holder() -> None:
    assert lock_ghost.check(host(locks=(Unknown("hidden"),)), Limits()) == ()
