"""Host memory below need, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import GIB, beat, gpu, host, memory, processes
from watchdog.checks import memory as check_memory
from watchdog.core.facts import Absent, RunProcess, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

STATED = Limits(memory_need_bytes=3 * GIB)


def judge(available: int, limits: Limits = STATED, *, running: bool = False, **changes: Any) -> Finding:
    given = (
        memory(available_bytes=available, host_available_bytes=8 * GIB, total_bytes=16 * GIB)
        if ("memory" not in changes)
        else changes.pop("memory")
    )
    gone = {} if running else {"processes": processes(run=(), holders=())}
    found = check_memory.check(host(**{"memory": given, "beat": beat(alive=running)} | gone | changes), limits)
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(
    ("available", "severity"),
    [(3 * GIB, Severity.OK), (3 * GIB - 1, Severity.WARNING), (0, Severity.WARNING)],
)
def test_the_need_is_the_line(available: int, severity: Severity) -> None:
    finding = judge(available)
    assert finding.severity is severity
    assert (finding.remedy is Remedy.FREE_MEMORY) is (severity is Severity.WARNING)


def test_figures_come_with_their_units_and_the_limit_is_named() -> None:
    short = memory(
        available_bytes=int(2.1 * GIB),
        host_available_bytes=8 * GIB,
        total_bytes=16 * GIB,
        limit_bytes=4 * GIB,
        limit_cgroup="/user.slice",
    )
    finding = judge(0, memory=short)
    assert finding.reason == "2.1 GiB available, the job states 3.0 GiB"
    assert finding.evidence == ("MemAvailable 8.0 GiB of 16.0 GiB", "tightest cgroup limit 4.0 GiB, at /user.slice")
    assert "cgroup" in finding.cause


@pytest.mark.parametrize(
    ("devices", "limits", "words"),
    [
        ((gpu(),), Limits(), "a GPU job is taken to need 3.0 GiB"),
        ((gpu(),), Limits(devices=("7",)), "a job is taken to need 1.0 GiB"),
        (Absent("no driver"), Limits(), "a job is taken to need 1.0 GiB"),
        ((gpu(),), Limits(memory_need_bytes=2 * GIB), "the job states 2.0 GiB"),
    ],
)
def test_who_says_what_is_needed(devices: Any, limits: Limits, words: str) -> None:
    assert words in judge(4 * GIB, limits, devices=devices).reason


def test_a_living_run_has_its_part_already() -> None:
    assert judge(GIB, running=True).severity is Severity.OK
    assert judge(GIB, running=False).severity is Severity.WARNING


def test_a_run_that_makes_no_beats_lives_by_its_processes() -> None:
    silent = Absent("the run makes no beats")
    assert judge(GIB, beat=silent, processes=processes()).severity is Severity.OK
    defunct = RunProcess(pid=4711, command="python", state="Z")
    for seen in (processes(run=()), processes(run=(defunct,)), Unknown("x")):
        assert judge(GIB, beat=silent, processes=seen).severity is Severity.WARNING


def test_unknown_memory_is_told() -> None:
    finding = judge(0, memory=Unknown("no /proc/meminfo"))
    assert (finding.severity, finding.reason) == (Severity.UNKNOWN, "no /proc/meminfo")
