"""Busy for too little power: said once, and never more than a warning."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import BUSY_IDLE, FULL, NO_RUN, WSL, ghost_gpu, lost_process
from tests.unit.checks.host import AT_S, GIB, beat, gpu, host, points, process, processes, progress, sample
from watchdog.checks import utilization_power
from watchdog.core.facts import Absent, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

LATE = dict(beat=beat(age_s=60.0), progress=progress(step_changed_s=AT_S - 60))


def judge(facts: Facts) -> tuple[Finding, ...]:
    return utilization_power.check(facts, Limits())


def test_figures_and_next_step() -> None:
    [found] = judge(host(devices=(gpu(**BUSY_IDLE),), **LATE))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.PROBE)
    assert found.reason.startswith("100 % utilization at 61 W of 170 W for 4 s (5 of 5 samples)")
    assert "allowed 2 min" in found.evidence[0]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (host(), "97 % utilization at 151 W of 170 W"),
        (host(devices=(gpu(**BUSY_IDLE),)), "small kernels, or paging"),
        (host(devices=(gpu(**BUSY_IDLE),), **LATE | {"beat": beat(age_s=60.0, phase="evaluate")}), "no steps in this"),
        (host(devices=(gpu(utilization_percent=0, power_watts=14.0),), **NO_RUN), "0 % utilization at 14 W"),
        (host(devices=(gpu(**BUSY_IDLE, processes=(process(99),)),), **NO_RUN), "somebody else"),
    ],
)
def test_near_misses(facts: Facts, words: str) -> None:
    [found] = judge(facts)
    assert found.severity is Severity.OK
    assert not found.looks_wanted
    assert words in found.reason


@pytest.mark.parametrize(
    ("listed", "severity"),
    [
        ((), Severity.OK),
        ((process(25, kind="graphics", here=False),), Severity.OK),  # WSLg's
        ((lost_process(memory_bytes=None),), Severity.WARNING),
    ],
)
def test_a_game_of_windows_is_no_ghost(listed: Any, severity: Severity) -> None:
    device = gpu(utilization_percent=96, power_watts=70.0, memory_used_bytes=4 * GIB, processes=listed)
    assert [each.severity for each in judge(host(devices=(device,), **NO_RUN, wsl=WSL))] == [severity]
    assert [each.severity for each in judge(host(devices=(device,), **LATE, wsl=WSL))] == [Severity.WARNING]


def test_busy_with_no_memory_and_no_process_is_no_more_than_a_warning() -> None:
    device = gpu(**BUSY_IDLE, memory_used_bytes=GIB // 2, processes=())
    assert [each.severity for each in judge(host(devices=(device,), **NO_RUN))] == [Severity.WARNING]


def test_too_few_samples_ask_for_more_and_one_in_order_ends_it() -> None:
    [found] = judge(host(devices=(gpu(**BUSY_IDLE, samples=2),), **LATE))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 3)
    mixed = (*gpu(**BUSY_IDLE, samples=4).recent, sample())
    [found] = judge(host(devices=(gpu(recent=mixed),), **LATE))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


def test_one_fault_is_told_once() -> None:
    assert judge(host(devices=(ghost_gpu(),), **NO_RUN)) == ()
    assert judge(host(devices=(gpu(**BUSY_IDLE, **FULL),), wsl=WSL)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=Unknown("x")),
        dict(devices=(gpu(power_watts=Unknown("x")),)),
        dict(devices=(gpu(utilization_percent=Absent()),)),
        dict(devices=(gpu(missing=True),)),
        dict(devices=(gpu(lost_code=15),)),
    ],
)
def test_what_is_not_known_is_not_judged(changes: dict[str, Any]) -> None:
    assert judge(host(**changes)) == ()


SILENT = dict(beat=Absent("no beat yet"), progress=Absent("no word"), processes=processes())
READY = dict(beat=beat(deadline_s=math.inf, step=None, age_s=900.0))
PINGS = dict(beat=beat(step=None, age_s=60.0), progress=progress(points=points(1, step=None), step_changed_s=None))
PRINTS = dict(beat=Absent(""), progress=progress(source="log (x)", step_changed_s=AT_S - 200, heard_s=AT_S - 200))


@pytest.mark.parametrize("run", [SILENT, SILENT | READY, PINGS, SILENT | PRINTS])
def test_a_small_model_whose_steps_are_not_seen_is_healthy(run: dict[str, Any]) -> None:
    [found] = judge(host(devices=(gpu(**BUSY_IDLE),), **run))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)
    assert "steps are not seen" in found.reason or "a log does not tell" in found.reason


def test_a_log_that_speaks_seldom_is_not_late() -> None:
    """A word each hundredth step of a second: 3 words are 300 s, not 3 s."""
    seldom = dict(beat=Absent(""), progress=progress(points=points(9, every_s=100.0), source="log (x)"))
    seldom["progress"] = replace(seldom["progress"], step_changed_s=AT_S - 90, heard_s=AT_S - 90)
    [found] = judge(host(devices=(gpu(**BUSY_IDLE),), **seldom))
    assert "steps advance" in found.reason


def test_unknown_steps_are_told_elsewhere() -> None:
    unseen = dict(beat=Unknown("x"), progress=Unknown("x"), processes=processes())
    assert judge(host(devices=(gpu(**BUSY_IDLE),), **unseen)) == ()


def test_without_a_power_limit_it_is_said_that_nothing_can_be_said() -> None:
    [found] = judge(host(devices=(gpu(**BUSY_IDLE, power_limit_watts=Absent()),), **NO_RUN))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)
    assert found.reason.startswith("100 % utilization at 61 W; no power limit is told")
