"""A lock whose file has lost its name."""

from __future__ import annotations

from tests.unit.checks.host import host, lock
from watchdog.checks import lock_unlinked
from watchdog.core.facts import Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits


def test_unlinked_while_held_is_critical() -> None:
    (finding,) = lock_unlinked.check(host(locks=(lock(unlinked=True),)), Limits())
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.ASK_HOLDER)
    assert "pid 4700" in finding.reason
    assert finding.evidence == ("/srv/checkpoints/supervisor.lock", "pid 4700 (watchdog run)")


def test_a_lock_in_its_place_is_fine_and_a_free_one_no_matter() -> None:
    (finding,) = lock_unlinked.check(host(locks=(lock(), lock("run", held=False, holders=()))), Limits())
    assert finding.severity is Severity.OK


def test_unknown_is_left_to_lock_holder() -> None:
    assert lock_unlinked.check(host(locks=(Unknown("hidden"),)), Limits()) == ()
