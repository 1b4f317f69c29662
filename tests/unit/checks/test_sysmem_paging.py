"""Windows pages device memory: full, contradictory, and steps that advance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import BUSY_IDLE, FULL, WSL
from tests.unit.checks.host import AT_S, GIB, beat, gpu, host, progress, sample
from watchdog.checks import sysmem_paging
from watchdog.core.facts import Absent, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

PAGED = gpu(**BUSY_IDLE, **FULL)


def judge(facts: Facts) -> tuple[Finding, ...]:
    return sysmem_paging.check(facts, Limits())


def test_figures_speed_and_next_step() -> None:
    slow = progress(recent_step_s=14.0, step_changed_s=AT_S - 30)
    [found] = judge(host(devices=(PAGED,), progress=slow, wsl=WSL))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.SMALLER)
    assert found.reason == (
        "100 % utilization at 61 W of 170 W for 4 s (5 of 5 samples); memory 11.8 GiB of 12.0 GiB; steps advance"
    )
    assert found.evidence[0] == "a step takes 14 s, usually 1.0 s"


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=(gpu(**FULL),)),  # full, at full power
        dict(devices=(gpu(**BUSY_IDLE, memory_used_bytes=11 * GIB),)),
        dict(progress=progress(step_changed_s=AT_S - 60), beat=beat(age_s=60.0)),
        dict(progress=progress(step_changed_s=AT_S - 60), beat=beat(age_s=60.0, phase="save")),
        dict(devices=(gpu(recent=(*PAGED.recent[1:], sample(**FULL))),)),
    ],
)
def test_near_misses(changes: dict[str, Any]) -> None:
    [found] = judge(host(**dict(devices=(PAGED,), wsl=WSL) | changes))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


def test_too_few_samples_ask_for_more() -> None:
    [found] = judge(host(devices=(gpu(**BUSY_IDLE, **FULL, samples=4),), wsl=WSL))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 1)


@pytest.mark.parametrize(
    "changes",
    [
        dict(wsl=Absent("this is no WSL")),
        dict(wsl=Unknown("x")),
        dict(progress=Unknown("x")),
        dict(devices=Unknown("x")),
        dict(devices=(gpu(power_watts=Unknown("x")),)),
    ],
)
def test_what_is_not_known_is_not_judged(changes: dict[str, Any]) -> None:
    assert judge(host(**dict(devices=(PAGED,), wsl=WSL) | changes)) == ()
