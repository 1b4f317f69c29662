"""The newest checkpoint is spoiled or swapped: never resumed from, the one before it is used, the ledger says so."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from bench.campaign_bed import Bed, Living
from bench.campaign_damage import DAMAGES, data_file
from bench.campaign_disturbed import swap
from bench.campaign_workshop import Workshop, without_run_id
from watchdog import contract


def step_of(manifest: Path) -> int:
    return contract.Manifest.read(manifest).step


def still(bed: Bed, run: Living) -> Path:
    """Stop the trainer, so that it saves no more; returns its newest manifest, which is verified by then."""
    bed.harm(run.trainer, signal.SIGSTOP)
    newest = bed.newest_manifest()

    def verified() -> bool:
        return step_of(newest) in {event["data"]["step"] for event in bed.kinds("checkpoint_verified")}

    bed.run_where(lambda _run, _beat: verified(), f"{newest.name} to be verified")
    return newest


def test_damaged_in_four_ways(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """One after the other in one job: truncated, a bit flipped, a page zeroed, emptied; each after it was verified."""
    chance = random.Random(3)
    bed = real_bed(delay_s=0.02)
    supervisor = bed.start()
    number = 0
    refused = []
    for name, damage in DAMAGES.items():
        previous = max((event["data"]["step"] for event in bed.kinds("run_acknowledged")), default=0)
        run = bed.run_at_step(previous + 21, after=number)
        newest = still(bed, run)
        step = step_of(newest)
        damage(data_file(newest), chance)
        bed.harm(run.trainer)
        number = run.number
        bed.run_where(lambda _run, _beat: True, "the next run", after=number)
        launch = bed.kinds("run_launching")[-1]["data"]
        assert launch["resume_step"] < step, f"{name}: resumed from the damaged step {step}\n{bed.tell()}"
        assert launch["resume_step"] == step - 10, f"{name}: {launch}"
        assert bed.kinds("checkpoint_refused")[-1]["data"]["step"] == step, f"{name}\n{bed.tell()}"
        refused.append(step)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert [event["data"]["step"] for event in bed.kinds("checkpoint_refused")] == refused
    assert len(list((bed.checkpoints / "quarantine").glob("*.manifest.json*"))) == len(refused)
    ends_as_undisturbed(bed)


def test_swapped_after_it_was_verified(
    real_bed: Callable[..., Bed], workshop: Workshop, tmp_path: Path, ends_as_undisturbed: Callable[..., None]
) -> None:
    """Another run's checkpoint of the same step, consistent with its own manifest, before the next choice.

    First as another supervised job wrote it, then with a manifest that claims to be by the very run.
    """
    stranger = a_stranger(workshop, tmp_path)
    bed = real_bed(delay_s=0.03)
    supervisor = bed.start()
    run = bed.run_at_step(23)
    first = still(bed, run)
    swap(first, stranger / first.name)
    bed.harm(run.trainer)
    run = bed.run_at_step(43, after=run.number)
    second = still(bed, run)
    record = contract.read_json(stranger / second.name, "manifest")
    contract.write_json_durably(stranger / second.name, {**record, "run_id": run.run_id})
    swap(second, stranger / second.name)
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 0, bed.tell()
    starts = [event["data"]["resume_step"] for event in bed.kinds("run_launching")]
    assert starts == [None, step_of_name(first) - 10, step_of_name(second) - 10], bed.tell()
    refused = [event["data"]["step"] for event in bed.kinds("checkpoint_refused")]
    assert refused == [step_of_name(first), step_of_name(second)], bed.tell()
    ends_as_undisturbed(bed)


def test_swapped_for_one_without_a_supervisor(
    real_bed: Callable[..., Bed], workshop: Workshop, tmp_path: Path, ends_as_undisturbed: Callable[..., None]
) -> None:
    """As above, by a trainer that nobody supervised: its manifest names no run."""
    stranger = a_stranger(workshop, tmp_path)
    bed = real_bed(delay_s=0.03)
    supervisor = bed.start()
    run = bed.run_at_step(23)
    newest = still(bed, run)
    without_run_id(stranger / newest.name)
    swap(newest, stranger / newest.name)
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert bed.kinds("run_launching")[1]["data"]["resume_step"] == step_of_name(newest) - 10, bed.tell()
    assert bed.kinds("checkpoint_refused"), bed.tell()
    ends_as_undisturbed(bed)


def a_stranger(workshop: Workshop, tmp_path: Path) -> Path:
    """A copy of another job's checkpoints, to be changed."""
    stranger = tmp_path / "stranger"
    shutil.copytree(workshop.stranger(), stranger, ignore=shutil.ignore_patterns(".gpuhost-watchdog"))
    return stranger


def step_of_name(manifest: Path) -> int:
    return int(manifest.name.split(".")[0].removeprefix("step-"))


def test_swapped_between_choice_and_load(
    real_bed: Callable[..., Bed], workshop: Workshop, tmp_path: Path, ends_as_undisturbed: Callable[..., None]
) -> None:
    """The command itself swaps what was chosen, manifest included, then loads it: echoing the manifest would pass."""
    marker = tmp_path / "swapped"
    bed = real_bed(disturbed=("--swap-once", workshop.stranger(), marker), delay_s=0.03)
    supervisor = bed.start()
    run = bed.run_at_step(23)
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert marker.exists()
    swapped = step_of_name(bed.checkpoints / marker.read_text())
    ended = bed.kinds("run_ended")[1]["data"]
    assert ended["cause"] == "wrong_restore", bed.tell()
    wrong = ended["run_id"]
    assert [event["data"]["run_id"] for event in bed.kinds("run_refused")] == [wrong]
    launches = [event["data"]["resume_step"] for event in bed.kinds("run_launching")]
    assert launches == [None, swapped, swapped - 10], bed.tell()
    assert swapped in {event["data"]["step"] for event in bed.kinds("checkpoint_refused")}
    ends_as_undisturbed(bed, refused_runs=frozenset({wrong}))


def test_all_checkpoints_spoiled_is_a_hold(counter_bed: Callable[..., Bed]) -> None:
    """What had checkpoints is never begun anew by itself."""
    bed = counter_bed("--steps", "60", "--delay", "0.03")
    supervisor = bed.start()
    run = bed.run_at_step(8)
    bed.harm(run.trainer, signal.SIGSTOP)
    for manifest in bed.checkpoints.glob("count-*.manifest.json"):
        os.truncate(data_file(manifest), 3)
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 3, bed.tell()
    assert len(bed.kinds("run_launching")) == 1
    assert "none can be verified" in bed.screen
    assert len(list((bed.checkpoints / "quarantine").glob("*.manifest.json"))) == 2


def test_the_newest_removed_and_then_renamed_by_somebody(
    real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]
) -> None:
    """Once before the run died, once with no supervisor: told each time, and gone on from the newest that is left."""
    bed = real_bed(delay_s=0.02)
    supervisor = bed.start()
    run = bed.run_at_step(21)
    newest = still(bed, run)
    first = step_of(newest)
    newest.unlink()
    vanished = bed.wait_event("checkpoint_vanished")["data"]
    assert (vanished["step"], vanished["manifest"]) == (first, str(newest)), bed.tell()
    assert vanished["still"][0] == first - 10
    bed.harm(run.trainer)
    run = bed.run_at_step(first + 11, after=run.number)
    assert bed.kinds("run_launching")[-1]["data"]["resume_step"] == first - 10
    newest = still(bed, run)
    second = step_of(newest)
    bed.kill_supervisor(supervisor)
    newest.rename(newest.with_suffix(".bak"))
    bed.harm(run.trainer)
    supervisor = bed.start()
    assert bed.ended(supervisor) == 0, bed.tell()
    assert [event["data"]["step"] for event in bed.kinds("checkpoint_vanished")] == [first, second], bed.tell()
    assert [event["data"]["resume_step"] for event in bed.kinds("run_launching")] == [None, first - 10, second - 10]
    assert f"step {second}" in bed.screen
    assert "was verified and is gone (not by us): removed, renamed" in bed.screen
    ends_as_undisturbed(bed)
