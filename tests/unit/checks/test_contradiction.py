"""Do steps advance? Every answer, and what must not be taken for a stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import AT_S, TRAINER_PID, beat, gpu, host, points, process, processes, progress, sample
from watchdog.checks.contradiction import Steps, allowed_still_s, contradiction, figures, pace_of
from watchdog.collectors.nvml_questions import FAST, GLANCE, OF_WORK
from watchdog.core.facts import Absent, Clocks, Device, DeviceHolder, Facts, Jump, ProgressPoint, Unknown
from watchdog.core.limits import Limits

FROZEN_S = 900.0  # far beyond twice the deadline of 120 s


def pace(**changes: Any) -> Steps:
    return pace_of(host(**changes), Limits()).steps


def still(for_s: float, **changes: Any) -> Any:
    return progress(step_changed_s=AT_S - for_s, **changes)


def liar(**changes: Any) -> tuple[ProgressPoint, ...]:
    """Beats of phase train each second, all with the same word."""
    return points(1000, **(dict(step=420, tokens=1, loss=2.5) | changes))


@pytest.mark.parametrize(
    ("facts", "steps"),
    [
        (host(), Steps.ADVANCE),
        (host(progress=still(14.0)), Steps.ADVANCE),
        (host(progress=still(100.0, typical_step_s=40.0)), Steps.ADVANCE),
        (host(progress=still(100.0, recent_step_s=40.0)), Steps.ADVANCE),  # slower than ever, and moving
        (host(progress=still(16.0), beat=beat(age_s=16.0)), Steps.LATE),
        (host(progress=still(300.0), beat=beat(age_s=300.0, phase="save", deadline_s=600.0)), Steps.PHASE),
        (host(progress=still(300.0), beat=beat(age_s=300.0, phase="finished")), Steps.PHASE),
        (host(progress=still(121.0), beat=beat(age_s=121.0)), Steps.STOPPED),
        (host(progress=Absent(), beat=beat(age_s=121.0)), Steps.STOPPED),
        (host(progress=Unknown("gone"), beat=beat(age_s=121.0)), Steps.STOPPED),
        # one look, at a young beat: the contract makes it of a step
        (host(progress=progress(points=points(1), step_changed_s=AT_S)), Steps.PHASE),
        (host(progress=progress(points=points(1), step_changed_s=AT_S), beat=beat(age_s=121.0)), Steps.STOPPED),
        # beats that keep coming and tell nothing new
        (host(progress=still(FROZEN_S, points=liar())), Steps.STOPPED),
        (host(progress=still(100.0, points=liar()), beat=beat(age_s=0.8)), Steps.PHASE),
        # steps that are known to take long: twice what this phase is allowed, 1,200 s
        (host(progress=still(FROZEN_S, points=liar()), beat=beat(deadline_s=600.0)), Steps.PHASE),
        (host(progress=Absent(), beat=Absent(), processes=processes(run=())), Steps.NO_RUN),
        (host(beat=beat(alive=False, age_s=30.0), progress=still(30.0), processes=processes(run=())), Steps.NO_RUN),
        (host(progress=Absent(), beat=Absent()), Steps.UNSEEN),  # a run that says nothing
        (host(progress=Absent(), beat=beat(deadline_s=math.inf, step=None, age_s=9e4)), Steps.UNSEEN),  # READY alone
        (host(beat=Absent(), progress=still(FROZEN_S, heard_s=AT_S - 900)), Steps.UNSEEN),  # to its supervisor alone
        (host(progress=Absent(), beat=beat(step=None, age_s=60.0)), Steps.UNSEEN),  # pings
        (host(progress=Absent(), beat=beat(step=None, age_s=121.0)), Steps.STOPPED),
        (host(progress=Absent(), beat=beat(step=None, age_s=900.0, deadline_s=3600.0)), Steps.UNSEEN),
        (host(progress=Unknown("x"), beat=Unknown("x")), Steps.UNSEEN),
        (host(progress=Unknown("x"), beat=Unknown("x"), processes=Unknown("x")), Steps.UNSEEN),
        (host(beat=Unknown("x"), progress=still(FROZEN_S)), Steps.UNSEEN),
    ],
)
def test_every_answer(facts: Facts, steps: Steps) -> None:
    assert pace_of(facts, Limits()).steps is steps


def test_micro_batches_repeat_the_step_and_live() -> None:
    said = tuple(
        ProgressPoint(at_s=AT_S - back, step=7, tokens=5000 - back, phase="train") for back in reversed(range(1000))
    )
    assert pace(progress=still(FROZEN_S, points=said)) is Steps.ADVANCE
    hung = tuple(replace(point, tokens=min(point.tokens or 0, 4600)) for point in said)
    assert pace(progress=still(FROZEN_S, points=hung)) is Steps.STOPPED, "400 s ago the last of them"


@pytest.mark.parametrize(
    ("changes", "allowed_s"),
    [
        pytest.param(dict(typical_step_s=1.0), 240.0, id="twice what a step may take"),
        pytest.param(dict(typical_step_s=30.0), 600.0, id="twenty of its own steps"),
        pytest.param(dict(typical_step_s=None), 1200.0, id="not known yet: twice what the first one may take"),
        pytest.param(dict(typical_step_s=None, ledger_step_s=1.0), 1200.0, id="the ledger allows no less"),
        pytest.param(
            dict(typical_step_s=None, ledger_step_s=100.0), 2000.0, id="and more where it knows of long steps"
        ),
        pytest.param(dict(typical_step_s=1.0, ledger_step_s=100.0), 240.0, id="what is seen counts more"),
    ],
)
def test_for_how_long_it_may_say_the_same(changes: dict[str, Any], allowed_s: float) -> None:
    assert allowed_still_s(progress(**changes), Limits()) == allowed_s


def test_a_long_evaluation_is_not_held_against_the_train_stretch_after_it() -> None:
    steps = (
        ProgressPoint(at_s=AT_S - 900, step=419, phase="train"),
        ProgressPoint(at_s=AT_S - 890, step=420, phase="train"),
    )
    evaluated = ProgressPoint(at_s=AT_S - 880, step=420, phase="evaluate")
    back = ProgressPoint(at_s=AT_S - 5, step=420, phase="train")
    told = still(890.0, points=(*steps, evaluated, back))
    assert pace(progress=told, beat=beat(age_s=5.0)) is Steps.LATE
    assert pace(progress=still(890.0, points=steps), beat=beat(age_s=5.0)) is Steps.STOPPED


def test_what_was_frozen_with_us_is_not_late() -> None:
    frozen = Clocks(boot_id="b", asleep_s=0.0, jumps=(Jump(kind="freeze", at_s=AT_S - 5, seconds=290.0),))
    asleep = Clocks(boot_id="b", asleep_s=0.0, jumps=(Jump(kind="step", at_s=AT_S - 5, seconds=290.0),))
    late = dict(beat=beat(age_s=300.0), progress=still(300.0))
    assert pace(clocks=frozen, **late) is Steps.LATE
    assert pace(clocks=asleep, **late) is Steps.STOPPED
    assert pace(clocks=frozen, beat=beat(age_s=411.0), progress=still(411.0)) is Steps.STOPPED


def test_a_log_is_silent_for_twice_the_deadline() -> None:
    quiet = dict(source="log (huggingface)", heard_s=AT_S - 241)
    assert pace(beat=Absent(), progress=still(241.0, **quiet)) is Steps.STOPPED
    assert pace(beat=Absent(), progress=still(239.0, **quiet | {"heard_s": AT_S - 239})) is Steps.LATE
    assert pace(beat=Absent(), progress=still(241.0, **quiet | {"heard_s": AT_S - 3})) is Steps.LATE


OTHER = gpu(uuid="GPU-other", index=1, minor=0, processes=(process(8123, here=False),))
UNNUMBERED = gpu(uuid="GPU-other", index=1, processes=(process(8123, here=False),))
NOWHERE = gpu(processes=(), minor=1)
ELSEWHERE = (DeviceHolder(pid=TRAINER_PID, command="python", nodes=("/dev/nvidia1",), of_run=True),)


@pytest.mark.parametrize(
    ("device", "devices", "changes", "steps"),
    [
        # NVML names the run on the first device, so an open node of the second says nothing
        (OTHER, (gpu(), OTHER), {}, Steps.NO_RUN),
        (gpu(), (gpu(), OTHER), {}, Steps.ADVANCE),
        # it names the run nowhere: the node decides, by its minor number, or any where that is not told
        (OTHER, (NOWHERE, OTHER), dict(processes=processes(holders=ELSEWHERE)), Steps.NO_RUN),
        (NOWHERE, (NOWHERE, OTHER), dict(processes=processes(holders=ELSEWHERE)), Steps.ADVANCE),
        (UNNUMBERED, (NOWHERE, UNNUMBERED), dict(processes=processes(holders=ELSEWHERE)), Steps.ADVANCE),
        (OTHER, (OTHER,), dict(processes=processes(holders=())), Steps.NO_RUN),
        # its numbers cannot be compared, or there is none
        (OTHER, (gpu(), OTHER), dict(processes=processes(initial_namespace=False)), Steps.ADVANCE),
        (OTHER, (gpu(), OTHER), dict(processes=processes(initial_namespace=None)), Steps.ADVANCE),
        (OTHER, (gpu(), OTHER), dict(wsl=WSL), Steps.ADVANCE),
        (OTHER, (gpu(), OTHER), dict(processes=processes(run=())), Steps.ADVANCE),
        (gpu(processes=Unknown("x")), (gpu(processes=Unknown("x")), OTHER), {}, Steps.ADVANCE),
        # a run that stopped is as little on a device that it does not use
        (OTHER, (gpu(), OTHER), dict(beat=beat(age_s=900.0), progress=still(900.0)), Steps.NO_RUN),
        (gpu(), (gpu(), OTHER), dict(beat=beat(age_s=900.0), progress=still(900.0)), Steps.STOPPED),
    ],
)
def test_steps_excuse_only_the_devices_of_the_run(
    device: Device, devices: tuple[Device, ...], changes: dict[str, Any], steps: Steps
) -> None:
    assert pace_of(host(devices=devices, **changes), Limits(), device).steps is steps


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (dict(), 0),
        (dict(samples=9), 0),
        (dict(samples=2), 3),
        (dict(utilization_percent=89), None),
        (dict(power_watts=76.5), None),  # 0.45 of 170 W
        (dict(power_watts=76.4), 0),
        (dict(encoder_percent=72), None),
        (dict(decoder_percent=11), None),
        (dict(decoder_percent=10), 0),
        (dict(encoder_percent=Absent()), 0),
        (dict(mig=True), None),
        (dict(mig=False), 0),
        (dict(power_watts=Unknown("no answer")), None),
        (dict(utilization_percent=Absent()), None),
        (dict(power_limit_watts=Unknown("no answer")), None),
    ],
)
def test_the_contradiction(changes: dict[str, Any], wanted: int | None) -> None:
    device = gpu(**(dict(utilization_percent=100, power_watts=61.0) | changes))
    assert contradiction(device, Limits()) == wanted


def test_what_is_counted_by_samples_is_read_anew_in_each() -> None:
    """Some readings may stand as they were: these must not, or one would prove itself five times."""
    assert {"utilization_percent", "power_watts", "memory_used_bytes"} <= set(list(FAST)[:GLANCE])
    assert "processes" not in OF_WORK  # at a glance it is seen whether memory has changed, and whether all are there


def test_figures_are_the_least_busy_and_the_most_power() -> None:
    recent = (
        sample(AT_S - 1, utilization_percent=100, power_watts=40.0),
        sample(utilization_percent=91, power_watts=70),
    )
    assert figures(gpu(recent=recent), Limits()) == "91 % utilization at 70 W of 170 W for 1 s (2 of 2 samples)"
