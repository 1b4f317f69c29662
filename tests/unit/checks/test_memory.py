"""Host memory below need, and what only looks like it."""

from __future__ import annotations

import pytest

from watchdog.checks import memory
from watchdog.core.facts import Absent, BeatFact, Fact, Facts, Known, Memory
from watchdog.core.findings import Remedy, Severity
from watchdog.core.limits import GIB, Limits

LIMITS = Limits(memory_need_bytes=3 * GIB)


def facts(available: int, beat: Fact[BeatFact] | None = None, limit: int | None = None) -> Facts:
    figures = Memory(
        total_bytes=16 * GIB,
        available_bytes=available,
        host_available_bytes=8 * GIB,
        limit_bytes=limit,
        limit_cgroup=None if limit is None else "/user.slice",
    )
    return Facts(at_s=1.0, memory=Known(figures, 1.0), disks=(), locks=(), driver=Absent(), beat=beat or Absent())


def running(alive: bool) -> Fact[BeatFact]:
    beat = BeatFact(run_id="r", pid=7, phase="train", age_s=1.0, deadline_s=60.0, step=5, target_step=9, alive=alive)
    return Known(beat, 1.0)


@pytest.mark.parametrize(
    ("available", "severity"),
    [(3 * GIB, Severity.OK), (3 * GIB - 1, Severity.WARNING), (0, Severity.WARNING)],
)
def test_the_need_is_the_line(available: int, severity: Severity) -> None:
    finding = memory.check(facts(available), LIMITS)
    assert finding.severity is severity
    assert (finding.remedy is Remedy.FREE_MEMORY) is (severity is Severity.WARNING)


def test_figures_come_with_their_units_and_the_limit_is_named() -> None:
    finding = memory.check(facts(int(2.1 * GIB), limit=4 * GIB), LIMITS)
    assert finding.reason == "2.1 GiB available, the job states 3.0 GiB"
    assert finding.evidence == (
        "MemAvailable 8.0 GiB of 16.0 GiB",
        "tightest cgroup limit 4.0 GiB, at /user.slice",
    )


def test_a_living_run_has_its_part_already() -> None:
    assert memory.check(facts(GIB, running(alive=True)), LIMITS).severity is Severity.OK
    assert memory.check(facts(GIB, running(alive=False)), LIMITS).severity is Severity.WARNING
