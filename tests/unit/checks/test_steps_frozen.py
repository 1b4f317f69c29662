"""A step that stands still while the run speaks; and every reason for which it may."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.host import AT_S, gpu, host, processes, progress
from tests.unit.checks.standstill import IDLE, cpu
from watchdog.checks import steps_frozen
from watchdog.core.facts import Absent, Clocks, Jump, ProgressPoint, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, calls_for_a_stop
from watchdog.core.limits import Limits


def points(*, since_s: float = 400.0, phase: str | None = "train", every_s: float = 10.0) -> tuple[ProgressPoint, ...]:
    """Words about step 420, the first `since_s` seconds ago, the newest now."""
    count = int(since_s / every_s)
    return tuple(
        ProgressPoint(at_s=AT_S - every_s * back, step=420, phase=phase) for back in reversed(range(count + 1))
    )


def judge(*, clocks: Any = None, at_deadline_s: float = 120.0, **changes: Any) -> tuple[Finding, ...]:
    given = dict(points=points(), step_changed_s=AT_S - 300.0, heard_s=AT_S - 0.8) | changes
    at_rest = IDLE | {name: given.pop(name) for name in ("devices", "processes", "beat") if name in given}
    facts = host(progress=progress(**given), **at_rest, **({} if clocks is None else {"clocks": clocks}))
    found = steps_frozen.check(facts, Limits(train_deadline_s=at_deadline_s))
    return found if isinstance(found, tuple) else (found,)


def test_beats_about_the_same_step_are_a_reason_to_stop_the_run() -> None:
    (finding,) = judge()
    assert calls_for_a_stop(finding)
    assert finding.reason == (
        "at step 420 for 5 min, heard 0.8 s ago; it says that it trains, and 4 min are allowed; "
        "no device works for it, its processes used 0.3 s of CPU in 5 min"
    )


@pytest.mark.parametrize(
    ("frozen_s", "typical_s", "severity"),
    [
        (240.0, 1.0, Severity.OK),
        (240.1, 1.0, Severity.CRITICAL),
        (240.1, None, Severity.OK),
        (390.0, 20.0, Severity.OK),  # 20 of its own steps are 400 s
        (350.0, 17.0, Severity.CRITICAL),
    ],
)
def test_both_limits_count(frozen_s: float, typical_s: float | None, severity: Severity) -> None:
    (finding,) = judge(step_changed_s=AT_S - frozen_s, typical_step_s=typical_s)
    assert finding.severity is severity


def test_by_a_log_it_is_a_warning() -> None:
    (finding,) = judge(source="log (nanogpt)", points=points(phase=None))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.LOOK)


CONTRADICTS = gpu(utilization_percent=100, power_watts=61.0)


@pytest.mark.parametrize(
    ("changes", "severity", "remedy"),
    [
        pytest.param(dict(devices=Absent("no GPU")), Severity.CRITICAL, Remedy.RELAUNCH, id="no GPU, and no CPU time"),
        pytest.param(dict(devices=(CONTRADICTS,)), Severity.CRITICAL, Remedy.RELAUNCH, id="busy for too little power"),
        pytest.param(dict(devices=(gpu(),)), Severity.WARNING, Remedy.LOOK, id="its device is at full power"),
        pytest.param(
            dict(devices=(gpu(utilization_percent=40, power_watts=40.0),)),
            Severity.WARNING,
            Remedy.LOOK,
            id="half busy",
        ),
        pytest.param(dict(devices=Unknown("the driver hangs")), Severity.WARNING, Remedy.LOOK, id="devices unseen"),
        pytest.param(
            dict(processes=processes(cpu=cpu(1.0))), Severity.CRITICAL, Remedy.LOOK, id="a loop on the CPU, for ever?"
        ),
        pytest.param(dict(processes=processes()), Severity.WARNING, Remedy.LOOK, id="CPU time not told"),
        pytest.param(
            dict(processes=processes(cpu=cpu(for_s=120.0))), Severity.WARNING, Remedy.LOOK, id="adopted just now"
        ),
        pytest.param(dict(processes=Unknown("x")), Severity.WARNING, Remedy.LOOK, id="processes unseen"),
        pytest.param(dict(beat=Unknown("x")), Severity.WARNING, Remedy.LOOK, id="who beats is unseen"),
    ],
)
def test_only_what_is_seen_to_be_nobodys_work_ends_a_run(
    changes: dict[str, Any], severity: Severity, remedy: Remedy
) -> None:
    (finding,) = judge(**changes)
    assert (finding.severity, finding.remedy) == (severity, remedy)


def test_a_gradient_norm_that_changes_is_progress() -> None:
    told = tuple(replace(point, gradient_norm=point.at_s) for point in points())
    (finding,) = judge(points=told)
    assert finding.severity is Severity.OK


@pytest.mark.parametrize(
    "phase", ["import", "prepare", "load", "compile", "first_step", "evaluate", "save", "drain", "finished", None]
)
def test_other_phases_take_no_step(phase: str | None) -> None:
    (finding,) = judge(points=points(phase=phase))
    assert finding.severity is Severity.OK


def test_the_time_of_an_evaluation_does_not_count() -> None:
    evaluated = points(since_s=400.0, phase="evaluate")[:-10]
    (finding,) = judge(points=(*evaluated, *points(since_s=90.0)), step_changed_s=AT_S - 390.0)
    assert finding.severity is Severity.OK
    (finding,) = judge(points=(*evaluated[:5], *points(since_s=350.0)), step_changed_s=AT_S - 390.0)
    assert finding.severity is Severity.CRITICAL


def test_what_was_not_seen_all_along_is_a_warning() -> None:
    """The words since the step moved are not all kept: it may have evaluated in between."""
    (finding,) = judge(points=points(since_s=50.0))
    assert finding.severity is Severity.WARNING


def test_a_silent_run_is_another_checks() -> None:
    assert judge(heard_s=AT_S - 121.0) == ()


@pytest.mark.parametrize(
    ("kind", "severity"), [("freeze", Severity.OK), ("suspend", Severity.OK), ("step", Severity.CRITICAL)]
)
def test_after_a_sleep_the_time_begins_anew(kind: str, severity: Severity) -> None:
    clocks = Clocks(boot_id="b", asleep_s=0.0, jumps=(Jump(kind=kind, at_s=AT_S - 20.0, seconds=280.0),))
    (finding,) = judge(clocks=clocks)
    assert finding.severity is severity


def test_of_a_run_without_steps_the_last_output_is_told() -> None:
    """Never more: who prints once an hour is silent for as long."""
    (finding,) = judge(points=(), step_changed_s=None, heard_s=None, printed_s=AT_S - 7800.0)
    assert finding.severity is Severity.OK
    assert finding.reason == "run 7-abc says nothing of its steps; its last output was 2 h 10 min ago"
    (finding,) = judge(points=())
    assert finding.reason == "run 7-abc says nothing of its steps"


def micro_batches(until_s: float) -> tuple[ProgressPoint, ...]:
    """Ten minutes at step 420: other tokens each ten seconds, the last time `until_s` ago."""
    return tuple(
        ProgressPoint(at_s=AT_S - back, step=420, tokens=9000 - max(back, int(until_s)), phase="train")
        for back in range(600, -1, -10)
    )


def test_micro_batches_of_one_step_are_training() -> None:
    (finding,) = judge(points=micro_batches(0.0), step_changed_s=AT_S - 600.0)
    assert finding.severity is Severity.OK
    (finding,) = judge(points=micro_batches(250.0), step_changed_s=AT_S - 600.0)
    assert calls_for_a_stop(finding)
    assert finding.reason.startswith("at step 420 for 4 min 10 s")


@pytest.mark.parametrize("given", [{"step_changed_s": None}, {"heard_s": None}])
def test_without_a_step_there_is_nothing_to_judge(given: dict[str, Any]) -> None:
    assert judge(**given) == ()


def test_unknown_progress_is_told_here() -> None:
    finding = steps_frozen.check(host(progress=Unknown("the log is gone")), Limits())
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.reason) == (Severity.UNKNOWN, "the log is gone")
    assert steps_frozen.check(host(progress=Absent("no run")), Limits()) == ()


def test_a_healthy_run_is_fine() -> None:
    finding = steps_frozen.check(host(), Limits())
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.reason) == (Severity.OK, "at step 420 for 0.8 s, heard 0.8 s ago")
