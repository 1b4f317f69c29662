"""A lock that is held by nobody who lives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import host, lock, processes
from watchdog.checks import lock_ghost
from watchdog.core.facts import RunProcess, Unknown
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import Limits

GHOST = lock("run", holders=())


@pytest.mark.parametrize("purpose", ["supervisor", "run"])
def test_held_by_nobody_that_lives_is_critical(purpose: str) -> None:
    (finding,) = lock_ghost.check(host(locks=(lock(purpose, holders=()),)), Limits())
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.FIND_HOLDER)
    assert finding.subject == f"{purpose} lock"
    assert "no living process" in finding.reason
    assert f"/srv/checkpoints/{purpose}.lock" in finding.evidence


@pytest.mark.parametrize(
    ("stuck_s", "changes", "remedy"),
    [(29.0, {}, Remedy.FIND_HOLDER), (30.0, {}, Remedy.REBOOT), (30.0, {"wsl": WSL}, Remedy.WSL_SHUTDOWN)],
)
def test_who_hangs_in_the_kernel_is_named(stuck_s: float, changes: dict[str, Any], remedy: Remedy) -> None:
    hung = RunProcess(pid=9, command="python", state="D", wait_channel="dxgvmb_send", stuck_s=stuck_s)
    (finding,) = lock_ghost.check(host(locks=(GHOST,), processes=processes(stuck=(hung,)), **changes), Limits())
    assert finding.remedy is remedy
    said = "pid 9 (python) is stuck in dxgvmb_send for 30 s and may hold it"
    assert (said in finding.evidence) is (stuck_s == 30.0)


def test_a_living_holder_and_a_free_lock_are_fine() -> None:
    found = lock_ghost.check(host(locks=(lock(), lock("run", held=False, holders=()))), Limits())
    assert [finding.severity for finding in found] == [Severity.OK, Severity.OK]


def test_unknown_is_left_to_lock_holder() -> None:
    assert lock_ghost.check(host(locks=(Unknown("hidden"),)), Limits()) == ()
