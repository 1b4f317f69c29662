"""Healthy runs that look like fakes: of all that the checks say of them, nothing may be a reason to end one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import ghost_gpu, lost_process
from tests.unit.checks.host import AT_S, GIB, RUN_ID, beat, gpu, host, process, progress
from tests.unit.checks.standstill import IDLE
from tests.unit.core.test_watching import after, alive
from watchdog.checks import catalogue
from watchdog.core.facts import Absent, Facts, Progress, ProgressPoint
from watchdog.core.findings import Finding, Severity, calls_for_a_stop
from watchdog.core.limits import Limits
from watchdog.core.phase import Phase
from watchdog.core.progress import ProgressWindow, add, fact

AT_WORK = gpu()
SMALL = ghost_gpu(processes=(process(),))  # a small model: 100 % at 61 of 170 W, listed as ours
GHOST = ghost_gpu(uuid="GPU-other", index=1)


def stops(facts: Facts) -> list[Finding]:
    return [each for each in catalogue.judge(facts, Limits()) if calls_for_a_stop(each)]


def word(age_s: float, step: int = 420, **changes: Any) -> ProgressPoint:
    given = dict(phase="train", tokens=430_080, loss=3.1, gradient_norm=1.0) | changes
    return ProgressPoint(at_s=AT_S - age_s, step=step, **given)  # type: ignore[arg-type]


def told(*words: ProgressPoint) -> Progress:
    window = ProgressWindow(run_id=RUN_ID, source="beats")
    for each in words:
        window = add(window, each)
    return fact(window)


def trains(*words: ProgressPoint, deadline_s: float = 120.0, **changes: Any) -> Facts:
    said, newest = told(*words), words[-1]
    last = beat(step=newest.step, phase=newest.phase, age_s=AT_S - newest.at_s, deadline_s=deadline_s)
    return host(**IDLE | dict(progress=said, beat=last, devices=(AT_WORK,)) | changes)


def by_log(silent_s: float, *, words: int = 1, every_s: float = 500.0) -> Progress:
    points = tuple(
        ProgressPoint(at_s=AT_S - silent_s - every_s * back, step=500 * (words - back), loss=3.0 - 0.1 * back)
        for back in reversed(range(words))
    )
    return progress(
        source="log (hf)", points=points, step_changed_s=AT_S - silent_s, heard_s=AT_S - silent_s,
        typical_step_s=None, recent_step_s=None,
    )  # fmt: skip


FIRST_STEP = [word(640.0 - 10 * number, step=0, tokens=0, loss=None) for number in range(65)]
EVALUATED = [word(530.0 - number, step=410 + number, tokens=1000 * number) for number in range(11)]
WARM = [word(6000.0 - 10 * number, step=number, tokens=number) for number in range(570)]


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(trains(*FIRST_STEP), id="64 micro-batches of 10 s before tokens are told"),
        pytest.param(trains(*FIRST_STEP, devices=(SMALL,)), id="the same by a small model at little power"),
        pytest.param(trains(*FIRST_STEP, devices=Absent("no GPU")), id="the same on a CPU, before its pace is known"),
        pytest.param(
            trains(*(replace(each, gradient_norm=each.at_s) for each in FIRST_STEP)), id="each tells its gradient norm"
        ),
        pytest.param(trains(*EVALUATED, replace(EVALUATED[-1], at_s=AT_S - 1.0)), id="a word long after the others"),
        pytest.param(
            trains(*WARM, *(replace(WARM[-1], at_s=AT_S - 300.0 + 10 * number) for number in range(30))),
            id="its step hangs or is long, its device is at full power",
        ),
        pytest.param(trains(word(3000.0), word(2999.0), devices=(SMALL,), deadline_s=3600.0), id="a step of an hour"),
        pytest.param(
            trains(*(word(100.0 - number, step=number, tokens=number) for number in range(100)), devices=(SMALL,)),
            id="a small model that advances",
        ),
        *(
            pytest.param(
                trains(
                    word(900.0),
                    word(890.0, phase=phase),
                    word(5.0, phase=phase, loss=2.0),
                    devices=(SMALL,),
                    deadline_s=1800.0,
                ),
                id=f"in phase {phase}",
            )
            for phase in ("evaluate", "save", "compile", "first_step", "load")
        ),
        pytest.param(
            host(progress=by_log(260.0), beat=Absent("level 0"), devices=(AT_WORK, GHOST)),
            id="a log that tells each 500 steps, and a ghost on a device that is not its own",
        ),
        pytest.param(
            host(
                progress=by_log(260.0, words=5, every_s=50.0),
                beat=Absent("level 0"),
                devices=(ghost_gpu(processes=(process(), lost_process(memory_bytes=GIB))),),
            ),
            id="a small model that evaluates in silence beside a leaked context",
        ),
        pytest.param(
            trains(
                *(replace(WARM[-1], at_s=AT_S - 1500.0 + 10 * number) for number in range(151)),
                devices=(AT_WORK, ghost_gpu(uuid="GPU-other", index=1, processes=(process(),))),
            ),
            id="one rank evaluates, the other one waits for it in a collective",
        ),
    ],
)
def test_a_healthy_run_is_not_ended(facts: Facts) -> None:
    assert stops(facts) == []


def test_a_ghost_elsewhere_ends_no_run_of_level_0() -> None:
    facts = host(progress=by_log(260.0), beat=Absent("level 0"), devices=(AT_WORK, GHOST))
    found = catalogue.judge(facts, Limits())
    assert [each.check for each in found if each.severity >= Severity.WARNING] == ["ghost-context"], "it is told"
    turns = (
        alive(at_s, Absent("none"), findings=found, judged_s=at_s, stacks_over=True) for at_s in (10.0, 11.0, 12.0)
    )
    state, plan = after(*turns, level=0)
    assert (state.phase, plan.actions) == (Phase.RUNNING, ())
