"""The trainer dies or freezes, at every kind of moment: exactly one run goes on and ends as if nothing had been."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from bench.campaign_bed import Bed, Living
from watchdog.contract import Beat


def in_phase(*phases: str) -> Callable[[Living, Beat | None], bool]:
    return lambda _run, beat: beat is not None and beat.phase in phases


def test_killed_at_every_kind_of_moment(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """Before its first checkpoint, twice within an epoch, while its data is being written, between data and manifest,
    and after its last step."""
    bed = real_bed(disturbed=("--slow-sync", 0.03))
    supervisor = bed.start()
    run = bed.run_where(in_phase("import", "prepare", "load"), "the time before the first checkpoint")
    assert not list(bed.checkpoints.glob("step-*.manifest.json"))
    bed.harm(run.trainer)
    run = bed.run_at_step(13, after=run.number)
    bed.harm(run.trainer)
    run = bed.run_at_step(17, after=run.number)
    bed.harm(run.trainer)
    run = bed.run_where(
        lambda _run, _beat: list(bed.checkpoints.glob(".step-00000030*.tmp")), "step 30 half written", after=run.number
    )
    bed.harm(run.trainer)
    run = bed.run_where(
        lambda _run, _beat: (bed.checkpoints / "step-00000050.pt").exists(), "data without manifest", after=run.number
    )
    bed.harm(run.trainer)
    assert not (bed.checkpoints / "step-00000050.manifest.json").exists()
    run = bed.run_where(
        lambda _run, beat: beat is not None and beat.phase == "evaluate", "the last evaluation", after=run.number
    )
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 0, bed.tell()
    starts = [event["data"]["resume_step"] for event in bed.kinds("run_launching")]
    assert starts[0] is None
    assert starts[2:] in ([10, 10, 20, 40, 80], [10, 10, 20, 40, 70]), starts
    ends_as_undisturbed(bed)


@pytest.mark.campaign
def test_the_other_model_too(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    bed = real_bed(preset="bitmamba-test")
    supervisor = bed.start()
    run = bed.run_at_step(35)
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert len(bed.kinds("run_launching")) == 2
    ends_as_undisturbed(bed, preset="bitmamba-test")


def test_stopped_and_deaf_to_term(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """SIGSTOP is a stall; TERM is ignored; the KILL is recorded before it is sent."""
    bed = real_bed(disturbed=("--ignore-term",), delay_s=0.05, settings={"deadlines": {"train": "2s"}})
    supervisor = bed.start()
    run = bed.run_at_step(25)
    bed.harm(run.trainer, signal.SIGSTOP)
    stopping = bed.wait_event("run_stopping")
    assert stopping["data"]["cause"] == "stalled"
    assert bed.ended(supervisor) == 0, bed.tell()
    killing = bed.kinds("run_killing")
    assert killing, bed.tell()
    assert run.trainer in killing[0]["data"]["pids"]
    ends_as_undisturbed(bed)


def test_stopped_and_obedient(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """A stopped trainer that wakes for its TERM saves where it stood: nothing is repeated."""
    bed = real_bed(delay_s=0.03, settings={"deadlines": {"train": "2s"}, "stop": {"grace": "10s"}})
    supervisor = bed.start()
    run = bed.run_at_step(25)
    bed.harm(run.trainer, signal.SIGSTOP)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert not bed.kinds("run_killing"), bed.tell()
    assert bed.kinds("run_launching")[1]["data"]["resume_step"] >= 25
    ends_as_undisturbed(bed)


def test_wrapped_in_a_shell(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """A shell that does not exec: what beats is its child. Killed once, then drained: the save is not lost."""
    bed = real_bed(delay_s=0.03)
    text = bed.config.read_text()
    bed.config.write_text(text.replace("command = [", 'command = ["sh", "-c", "\\"$@\\"; exit $?", "sh", ', 1))
    supervisor = bed.start()
    run = bed.run_at_step(15)
    beat = run.beat()
    assert beat is not None
    assert beat.pid != run.trainer, "the shell was to be the leader"
    bed.harm(beat.pid)
    run = bed.run_at_step(25, after=run.number)
    supervisor.send_signal(signal.SIGINT)
    assert bed.ended(supervisor) == 5, bed.tell()
    assert not bed.kinds("run_killing"), bed.tell()
    assert bed.ended(bed.start()) == 0, bed.tell()
    launches = bed.kinds("run_launching")
    assert launches[2]["data"]["resume_step"] >= 25
    ends_as_undisturbed(bed)


def test_a_child_that_escaped(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """Its own session, no descriptors, no environment: it is ended before the next run is launched, each time."""
    bed = real_bed(disturbed=("--escapee",), delay_s=0.02)
    supervisor = bed.start()
    run = bed.run_at_step(15)
    bed.harm(run.trainer)
    run = bed.run_at_step(25, after=run.number)
    assert bed.ended(supervisor) == 0, bed.tell()
    launches = bed.kinds("run_launching")
    killings = bed.kinds("run_killing")
    assert len(launches) == 2
    assert len(killings) == 2, "once after the death, once after the end"
    assert killings[0]["wall_s"] <= launches[1]["wall_s"]
    ends_as_undisturbed(bed)
