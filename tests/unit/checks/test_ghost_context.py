"""The ghost of the field, every near miss of it, and what it is called where one cannot be sure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import BUSY_IDLE, FULL, LOST_PID, NO_RUN, WSL, ghost_gpu, lost_process
from tests.unit.checks.host import (
    AT_S,
    GIB,
    TRAINER_PID,
    UUID,
    beat,
    gpu,
    host,
    points,
    process,
    processes,
    progress,
    sample,
)
from watchdog.checks import ghost_context
from watchdog.core.facts import Absent, Clocks, DeviceHolder, DeviceSample, Facts, Jump, Probe, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, calls_for_a_stop
from watchdog.core.limits import Limits

STALE: dict[str, Any] = dict(beat=beat(age_s=185.0), progress=progress(step_changed_s=AT_S - 185))
HUNG = ghost_gpu(processes=(process(),))
OUR_GHOST: dict[str, Any] = dict(processes=processes(gone=(LOST_PID,)))
SILENT_LOG: dict[str, Any] = dict(
    beat=Absent("level 0"),
    progress=progress(
        source="log (huggingface)",
        step_changed_s=AT_S - 260,
        heard_s=AT_S - 260,
        typical_step_s=None,
        recent_step_s=None,
    ),
)
CONTAINER = processes(initial_namespace=False, run=(), holders=())


OUR_DEAD: dict[str, Any] = dict(beat=beat(pid=LOST_PID, alive=False, age_s=40.0))
ANOTHER_DEAD: dict[str, Any] = dict(beat=beat(alive=False, age_s=40.0))


def holder(pid: int = TRAINER_PID, *, of_run: bool = True, command: str = "python") -> DeviceHolder:
    return DeviceHolder(pid=pid, command=command, nodes=("/dev/nvidia0",), of_run=of_run)


def judge(facts: Facts) -> tuple[Finding, ...]:
    return ghost_context.check(facts, Limits())


@pytest.mark.parametrize(
    ("facts", "severity", "remedy"),
    [
        (host(devices=(ghost_gpu(),), **NO_RUN), Severity.CRITICAL, Remedy.REBOOT),
        # each distribution of WSL counts its own pids
        (host(devices=(ghost_gpu(),), **NO_RUN, wsl=WSL), Severity.WARNING, Remedy.WSL_SHUTDOWN),
        (host(devices=(ghost_gpu(),), **NO_RUN | OUR_DEAD, wsl=WSL), Severity.CRITICAL, Remedy.WSL_SHUTDOWN),
        (host(devices=(ghost_gpu(),), **NO_RUN | ANOTHER_DEAD, wsl=WSL), Severity.WARNING, Remedy.WSL_SHUTDOWN),
        (host(devices=(ghost_gpu(),), **NO_RUN | OUR_DEAD | {"processes": CONTAINER}), Severity.WARNING, Remedy.LOOK),
        (host(devices=(ghost_gpu(processes=()),), **NO_RUN), Severity.CRITICAL, Remedy.REBOOT),
        (host(devices=(ghost_gpu(),), **STALE | OUR_GHOST), Severity.CRITICAL, Remedy.RELAUNCH),
        # somebody's: the run is not ended for what it did not leave there
        (host(devices=(ghost_gpu(),), **STALE), Severity.CRITICAL, Remedy.RESET_DEVICE),
        (host(devices=(ghost_gpu(),), **SILENT_LOG), Severity.WARNING, Remedy.LOOK),
        (host(devices=(ghost_gpu(),), **SILENT_LOG | OUR_GHOST), Severity.WARNING, Remedy.LOOK),
        (
            host(devices=(ghost_gpu(processes=(process(), lost_process(memory_bytes=GIB))),), **SILENT_LOG),
            Severity.WARNING,
            Remedy.LOOK,
        ),
        (host(devices=(ghost_gpu(),), **STALE, wsl=WSL), Severity.CRITICAL, Remedy.RELAUNCH),
        (host(devices=(HUNG,), **STALE), Severity.CRITICAL, Remedy.RELAUNCH),
        # a container: NVML names pids of the host, and our run has the node open
        (
            host(devices=(ghost_gpu(),), **STALE, processes=processes(initial_namespace=False)),
            Severity.CRITICAL,
            Remedy.RELAUNCH,
        ),
        # the owner may be out of our sight
        (host(devices=(ghost_gpu(),), **NO_RUN | {"processes": CONTAINER}), Severity.WARNING, Remedy.LOOK),
        (host(devices=(ghost_gpu(processes=()),), **NO_RUN, wsl=WSL), Severity.WARNING, Remedy.LOOK),
        # our dead run's: its beat file is still there
        (
            host(
                devices=(ghost_gpu(),),
                beat=beat(alive=False, age_s=40.0),
                progress=progress(step_changed_s=AT_S - 40),
                processes=processes(run=(), holders=()),
            ),
            Severity.CRITICAL,
            Remedy.REBOOT,
        ),
        # somebody lives there, too, and owns too little to explain it
        (
            host(devices=(ghost_gpu(processes=(lost_process(), process(99, memory_bytes=GIB // 4))),), **NO_RUN),
            Severity.CRITICAL,
            Remedy.REBOOT,
        ),
        (
            host(
                devices=(ghost_gpu(processes=()),),
                **NO_RUN | {"processes": processes(run=(), holders=(holder(1, command="nvidia-persiste"),))},
            ),
            Severity.CRITICAL,
            Remedy.REBOOT,
        ),
        # beats that repeat one word for ever
        (
            host(
                devices=(HUNG,),
                progress=progress(
                    step_changed_s=AT_S - 900,
                    points=points(1000, step=420, tokens=1, loss=2.5),
                ),
            ),
            Severity.CRITICAL,
            Remedy.RELAUNCH,
        ),
    ],
)
def test_the_ghost(facts: Facts, severity: Severity, remedy: Remedy) -> None:
    [found] = judge(facts)
    assert (found.severity, found.remedy, found.looks_wanted) == (severity, remedy, 0)
    assert found.device == UUID
    assert calls_for_a_stop(found) is (remedy is Remedy.RELAUNCH)


def test_figures_owner_probe_and_last_step() -> None:
    probe = Probe(
        device=UUID,
        name="NVIDIA GeForce RTX 3060",
        tflops=0.02,
        dtype="bfloat16",
        size=4096,
        seconds=6.8,
        correct=True,
        worst_error=0.0,
        baseline_tflops=24.1,
        baseline_count=9,
    )
    [found] = judge(host(devices=(ghost_gpu(),), **STALE | OUR_GHOST, probe=(probe,)))
    assert found.reason == (
        "100 % utilization at 61 W of 170 W for 4 s (5 of 5 samples); memory 11.8 GiB of 12.0 GiB; "
        f"held by pid {LOST_PID}, which is not in /proc"
    )
    assert found.evidence[0] == "probe 0.02 TFLOP/s (floor 2.0, this card's own baseline 24.1)"
    assert found.evidence[1] == ("run 7-abc: at step 420 for 3 min 05 s, phase train, which is allowed 2 min")
    assert found.cause == "a CUDA context outlived its process"


XWAYLAND = lost_process(kind="graphics", memory_bytes=None, command="")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(host(devices=(gpu(processes=(process(), XWAYLAND)),), wsl=WSL), id="WSLg's Xwayland alone"),
        pytest.param(
            host(devices=(gpu(processes=(lost_process(),)),), processes=processes(initial_namespace=False)),
            id="pids of other containers",
        ),
        pytest.param(
            host(devices=(ghost_gpu(processes=(process(), lost_process())),), wsl=WSL),
            id="WDDM paging while steps advance",
        ),
        pytest.param(
            host(devices=(ghost_gpu(utilization_percent=96, power_watts=20.0, processes=(process(),)),)),
            id="idle collective while steps advance",
        ),
        pytest.param(
            host(devices=(gpu(**BUSY_IDLE, memory_used_bytes=GIB // 2, processes=()),), **NO_RUN),
            id="Blackwell: busy with no memory and no process",
        ),
        pytest.param(
            host(devices=(ghost_gpu(utilization_percent=0),), **STALE),
            id="a hang at 0 %, which is beat-stale's",
        ),
        pytest.param(host(devices=(ghost_gpu(),)), id="a lost pid beside a run that advances"),
        pytest.param(
            host(devices=(ghost_gpu(),), beat=beat(age_s=90.0), progress=progress(step_changed_s=AT_S - 90)),
            id="late, and still allowed",
        ),
        pytest.param(
            host(
                devices=(ghost_gpu(),),
                beat=beat(phase="evaluate", age_s=500.0, deadline_s=900.0),
                progress=progress(step_changed_s=AT_S - 500),
            ),
            id="an evaluation",
        ),
        pytest.param(
            host(devices=(HUNG,), beat=Absent(), progress=progress(source="log", step_changed_s=1.0, heard_s=1.0)),
            id="a silent log, which may be an evaluation",
        ),
        pytest.param(host(devices=(HUNG,), beat=Absent(), progress=Absent()), id="a run that says nothing"),
        pytest.param(host(devices=(ghost_gpu(),), beat=Unknown("x"), progress=Unknown("x")), id="a run unseen"),
        pytest.param(host(devices=(ghost_gpu(processes=(process(99),)),), **NO_RUN), id="somebody else's process"),
        pytest.param(host(devices=(ghost_gpu(processes=(process(99),)),), **STALE), id="somebody else's, ours stale"),
        pytest.param(
            host(
                devices=(ghost_gpu(processes=()),),
                **NO_RUN | {"processes": processes(run=(), holders=(), unreadable=4)},
            ),
            id="open files that cannot be read",
        ),
        pytest.param(
            host(
                devices=(ghost_gpu(processes=()),),
                **NO_RUN | {"processes": processes(run=(), holders=(holder(99, of_run=False),))},
            ),
            id="somebody has the node open",
        ),
        pytest.param(
            host(
                devices=(HUNG,),
                **STALE,
                clocks=Clocks(boot_id="b", asleep_s=0.0, jumps=(Jump(kind="freeze", at_s=AT_S - 6, seconds=120.0),)),
            ),
            id="frozen with us",
        ),
        pytest.param(host(devices=(ghost_gpu(mig=True),), **NO_RUN), id="MIG"),
        pytest.param(host(devices=(ghost_gpu(encoder_percent=70),), **NO_RUN), id="encoder"),
        pytest.param(host(devices=(ghost_gpu(missing=True),), **NO_RUN), id="a device that is gone"),
    ],
)
def test_what_is_no_ghost(facts: Facts) -> None:
    for found in judge(facts):
        assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


def test_a_process_that_ends_between_two_reads_is_no_ghost() -> None:
    mine, gone = (process(99),), (lost_process(99),)
    recent = tuple(
        sample(AT_S - 4 + index, **BUSY_IDLE, **FULL, processes=each)
        for index, each in enumerate((mine, mine, mine, gone, gone))
    )
    [found] = judge(host(devices=(gpu(recent=recent),), **NO_RUN))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 1)  # a third look tells


def test_too_few_samples_ask_for_more_and_one_in_order_ends_it() -> None:
    [found] = judge(host(devices=(ghost_gpu(samples=2),), **NO_RUN))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 3)
    for changed in (dict(memory_used_bytes=5 * GIB), dict(power_watts=90.0), dict(power_watts=Unknown("no answer"))):
        recent = (*ghost_gpu(samples=4).recent, sample(**BUSY_IDLE | FULL | changed))
        assert not [each for each in judge(host(devices=(gpu(recent=recent),), **NO_RUN)) if each.severity]


def test_only_what_was_sampled_after_the_deadline_counts() -> None:
    """A frozen host wakes up with a stale beat and with samples from before: neither proves the other."""
    late = beat(age_s=121.5)
    [found] = judge(host(devices=(HUNG,), beat=late, progress=progress(step_changed_s=AT_S - 121.5)))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 3)


def test_no_looks_at_all_still_want_the_pid_three_times() -> None:
    [found] = ghost_context.check(host(devices=(ghost_gpu(samples=1),), **NO_RUN), Limits(looks=1))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 2)


def test_a_run_on_another_device_is_not_stopped_for_this_one() -> None:
    other = ghost_gpu(processes=(process(99, kind="graphics", memory_bytes=GIB // 8),))
    assert judge(host(devices=(other,), **STALE)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=Unknown("x")),
        dict(processes=Unknown("x")),
        dict(devices=(ghost_gpu(power_limit_watts=Unknown("x")),)),
        dict(devices=(ghost_gpu(power_limit_watts=Absent()),)),  # no figure says how little power is too little
        dict(devices=(ghost_gpu(memory_total_bytes=Absent()),)),
    ],
)
def test_what_is_not_known_is_not_judged(changes: dict[str, Any]) -> None:
    assert judge(host(**NO_RUN | changes)) == ()


def test_healthy_figures_are_told() -> None:
    [found] = judge(host())
    assert (found.severity, found.reason) == (
        Severity.OK,
        "97 % utilization at 151 W of 170 W; memory 10.0 GiB of 12.0 GiB",
    )


def test_in_a_container_a_run_that_hangs_is_not_called_dead() -> None:
    """NVML names it by its number on the host, which is not in this /proc."""
    [found] = judge(host(devices=(ghost_gpu(),), **STALE, processes=processes(initial_namespace=False)))
    assert f"held by pid {TRAINER_PID} of the run, which lives" in found.reason
    assert "outlived" not in found.cause


def test_on_wsl_a_run_that_hangs_is_not_called_dead_for_a_pid_of_somebody() -> None:
    [found] = judge(host(devices=(ghost_gpu(),), **STALE, wsl=WSL))
    assert f"held by pid {TRAINER_PID} of the run, which lives; pid {LOST_PID}, which is not in /proc" in found.reason
    assert "outlived" not in found.cause
    # Nothing of the run has the bridge open: what is listed may be anybody's, and the run is not ended for it.
    elsewhere = STALE | {"processes": processes(holders=())}
    assert judge(host(devices=(ghost_gpu(),), **elsewhere, wsl=WSL)) == ()


@pytest.mark.parametrize("place", [dict(), dict(wsl=WSL)])
def test_below_hidepid_nobody_is_dead_for_sure(place: dict[str, Any]) -> None:
    hidden = NO_RUN | {"processes": processes(initial_namespace=None, run=(), holders=())}
    [found] = judge(host(devices=(ghost_gpu(),), **hidden, **place))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.WSL_SHUTDOWN if place else Remedy.LOOK)


def test_a_ghost_beside_the_run_is_no_reason_to_end_the_run() -> None:
    [_, found] = judge(host(devices=(gpu(), ghost_gpu(uuid="GPU-other", index=1))))
    assert (found.severity, found.remedy, found.device) == (Severity.CRITICAL, Remedy.RESET_DEVICE, "GPU-other")


@pytest.mark.parametrize("told", [STALE, SILENT_LOG], ids=["beats are late", "a log is silent"])
def test_a_ghost_on_a_device_that_the_run_does_not_use_never_ends_it(told: dict[str, Any]) -> None:
    """Its own device is at work beside that."""
    for left in (processes(), processes(gone=(LOST_PID,))):
        facts = host(devices=(gpu(), ghost_gpu(uuid="GPU-other", index=1)), **told | {"processes": left})
        assert [each.device for each in judge(facts) if each.severity is Severity.CRITICAL] == ["GPU-other"]
        assert not any(calls_for_a_stop(each) for each in judge(facts))


def test_where_pids_cannot_be_compared_one_of_two_devices_ends_no_run() -> None:
    """Whoever computes opens the nodes of all of them."""
    two = (gpu(processes=()), ghost_gpu(uuid="GPU-other", index=1))
    contained = STALE | {"processes": processes(initial_namespace=False)}
    assert not any(calls_for_a_stop(each) for each in judge(host(devices=two, **contained)))


def after_the_kill(seconds: int) -> tuple[DeviceSample, ...]:
    """A device that trained until `seconds` ago and is a ghost's since."""
    at_work = (sample(AT_S - back) for back in range(9, seconds - 1, -1))
    held = (
        sample(AT_S - back, **BUSY_IDLE, **FULL, processes=(lost_process(),)) for back in range(seconds - 1, -1, -1)
    )
    return (*at_work, *held)


@pytest.mark.parametrize("seconds", range(1, 8))
def test_a_ghost_that_was_just_born_is_no_clean_device(seconds: int) -> None:
    """A relaunch comes at once after the kill: the gate must not open on samples from before it."""
    [found] = judge(host(devices=(gpu(recent=after_the_kill(seconds)),), **NO_RUN))
    assert found.looks_wanted == max(0, 5 - seconds)
    assert found.severity is (Severity.OK if seconds < 5 else Severity.CRITICAL)
