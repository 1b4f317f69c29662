"""Old checkpoints of the real trainer go by policy, on a real small disk: the job goes on, and ends as undisturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import Bed, wait_for
from bench.campaign_workshop import Workshop, differences
from tests.e2e.test_full_disk import Disk, disk  # noqa: F401  (a fixture)

MIB = 1024**2


def free_bytes(disk: Disk) -> int:  # noqa: F811
    room = os.statvfs(disk.seen)
    return room.f_bavail * room.f_frsize


def steps(bed: Bed) -> list[int]:
    return sorted(json.loads(path.read_text())["step"] for path in bed.checkpoints.glob("*.manifest.json"))


def pruned(bed: Bed) -> list[dict[str, Any]]:
    return [event["data"] for event in bed.events() if event["event"] == "pruned"]


@pytest.mark.parametrize("disk", ["5m"], indirect=True)
def test_a_job_whose_checkpoints_do_not_fit_on_its_disk_ends_nevertheless(
    disk: Disk,  # noqa: F811
    workshop: Workshop,
) -> None:
    """Nine of them take 4 MiB, the ballast one more: without pruning there is no room for the last ones."""
    settings = {"retention": {"keep_last": 2}}
    bed = Bed(disk.path, workshop.command(delay_s=0.02), prefix=disk.prefix, seen_root=disk.seen, settings=settings)
    with bed:
        bed.observe()
        supervisor = bed.start()
        run = bed.run_at_step(45)
        bed.harm(run.trainer, signal.SIGKILL)
        assert bed.ended(supervisor) == 0, bed.tell()
        gone = [data["step"] for data in pruned(bed)]
        assert gone, bed.tell()
        assert gone == sorted(gone), "the oldest first"
        assert all(data["freed_bytes"] > 100_000 for data in pruned(bed))
        assert {70, 80} <= set(steps(bed))
        found = [*bed.problems(), *differences(bed.outcome(), workshop.reference())]
        assert not found, "\n".join([*found, bed.tell()])


def test_a_launch_that_lacks_room_on_the_disk_gets_it_from_old_checkpoints(
    disk: Disk,  # noqa: F811
    workshop: Workshop,
) -> None:
    """No more goes than the gate needs, all of it before the launch, and each is recorded before and after."""
    settings = {"retention": {"keep_last": 2}, "disk": {"need": "4MiB"}}
    bed = Bed(disk.path, workshop.command(delay_s=0.02), prefix=disk.prefix, seen_root=disk.seen, settings=settings)
    with bed:
        bed.observe()
        supervisor = bed.start()
        bed.run_at_step(52)
        assert bed.call("stop").returncode in (0, 5)
        assert supervisor.wait(timeout=30) == 5
        before = steps(bed)
        (disk.seen / "filling").write_bytes(b"x" * (free_bytes(disk) - 3 * MIB))
        assert bed.ended(bed.start()) == 0, bed.tell()
        kinds = [event["event"] for event in bed.events()]
        second = len(kinds) - 1 - kinds[::-1].index("run_launching")
        told = [kind for kind in kinds[:second] if kind in ("prune_planned", "pruned")]
        assert told[:6] == ["prune_planned", "pruned"] * 3, "a MiB is three checkpoints"
        assert [data["step"] for data in pruned(bed)][:3] == before[:3]
        assert not any(path.name.startswith(".deleting-") for path in bed.checkpoints.iterdir())
        found = [*bed.problems(), *differences(bed.outcome(), workshop.reference())]
        assert not found, "\n".join([*found, bed.tell()])


def test_what_pruning_cannot_give_is_a_hold_that_says_so(disk: Disk, workshop: Workshop) -> None:  # noqa: F811
    """Milestones are kept for good, also when the disk needs their room; and what would be in vain stays."""
    settings = {
        "retention": {"keep_last": 2, "keep_every": 10},
        "disk": {"need": "6MiB"},
        "relaunch": {"gate_wait": "0.5s"},
    }
    bed = Bed(disk.path, workshop.command(delay_s=0.02), prefix=disk.prefix, seen_root=disk.seen, settings=settings)
    with bed:
        supervisor = bed.start()
        bed.run_at_step(32)
        assert bed.call("stop").returncode in (0, 5)
        assert supervisor.wait(timeout=30) == 5
        (disk.seen / "filling").write_bytes(b"x" * (free_bytes(disk) - 2 * MIB))
        before = steps(bed)
        assert bed.ended(bed.start()) == 3, bed.tell()
        assert steps(bed) == before
        assert not pruned(bed)
        assert "all that may go would give 0." in bed.screen, bed.tell()
        assert "the disk lacks 4." in bed.screen, bed.tell()
        assert "no checkpoint is deleted" in bed.screen, bed.tell()


# --- by hand ------------------------------------------------------------------------------------------------
COUNTED = {"retention": {"when": "never"}}


def test_by_hand_nothing_goes_beside_a_supervisor_and_all_that_may_when_it_has_left(
    counter_bed: Callable[..., Bed],
) -> None:
    bed = counter_bed("--steps", "400", "--delay", "0.02", settings=COUNTED)
    supervisor = bed.start()
    bed.run_at_step(30)
    wait_for(lambda: len(bed.kinds("checkpoint_verified")) >= 5, "five verified checkpoints")
    there = steps(bed)
    answer = bed.call("prune")
    assert answer.returncode == 4, answer.stdout + answer.stderr
    assert answer.stdout.startswith("nothing was done (")
    assert f"pid {supervisor.pid}" in answer.stdout.partition("what would stay and go:")[0]
    assert "delete" in answer.stdout
    assert set(there) <= set(steps(bed))
    assert not bed.kinds("prune_planned")
    assert bed.call("stop").returncode in (0, 5)
    supervisor.wait(timeout=30)
    there = steps(bed)
    planned = json.loads(bed.call("prune", "--dry-run", "--json").stdout)
    assert steps(bed) == there
    assert [each["step"] for each in planned["deletions"]] == there[:-3]
    assert all(each["why"] for each in planned["deletions"])
    answer = bed.call("prune")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert steps(bed) == there[-3:]
    assert [data["step"] for data in pruned(bed)] == there[:-3]
    assert len(bed.kinds("prune_planned")) == len(there[:-3])
    again = bed.call("prune")
    assert again.returncode == 0
    assert "nothing" in again.stdout
    bed.start()
    bed.run_at_step(there[-1] + 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a file immutable")
def test_by_hand_one_that_cannot_be_deleted_stays_whole_and_nothing_more_goes(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "30", settings=COUNTED)
    assert bed.ended(bed.start()) == 0
    before = steps(bed)
    assert len(before) >= 5
    manifest = min(bed.checkpoints.glob("*.manifest.json"))
    held = bed.checkpoints / json.loads(manifest.read_text())["files"][0]["name"]
    made = subprocess.run(["chattr", "+i", str(held)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no immutable files here: {made.stderr}")
    try:
        answer = bed.call("prune")
    finally:
        subprocess.run(["chattr", "-i", str(held)], check=True)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "it is immutable or append-only (chattr -i -a); it is whole and stays" in answer.stdout
    assert "freed     nothing\nnothing more is deleted until that is mended" in answer.stdout
    assert " 0 B" not in answer.stdout
    assert steps(bed) == before
    assert len(bed.kinds("prune_planned")) == len(pruned(bed)) == 1
    assert bed.call("prune").returncode == 0
    assert steps(bed) == before[-3:]


def test_by_hand_nothing_goes_beside_a_run_that_nobody_supervises(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "400", "--delay", "0.02", settings=COUNTED)
    supervisor = bed.start()
    bed.run_at_step(40)
    wait_for(lambda: len(bed.kinds("checkpoint_verified")) >= 6, "six verified checkpoints")
    supervisor.kill()
    supervisor.wait(timeout=10)
    answer = bed.call("prune")
    assert answer.returncode == 4, answer.stdout + answer.stderr
    assert "a run of this job is alive" in answer.stdout
    assert not bed.kinds("prune_planned")
    assert 0 in steps(bed)


def test_what_else_takes_space_is_named_and_left_alone(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "20", settings=COUNTED)
    assert bed.ended(bed.start()) == 0
    notes = bed.checkpoints / "notes.txt"
    notes.write_text("mine")
    half = bed.state / ".ledger.4711.tmp"
    half.write_text("x")
    old = bed.checkpoints / "archive" / "20260101T000000Z" / "count-000000.json"
    old.parent.mkdir(parents=True)
    old.write_text("x" * 5000)
    answer = bed.call("prune")
    assert answer.returncode == 0, answer.stderr
    for path in (notes, half, bed.checkpoints / "archive"):
        assert str(path) in answer.stdout, answer.stdout
    assert notes.exists()
    assert half.exists()
    assert old.exists()


def test_a_job_that_never_ran_has_nothing_to_prune(tmp_path: Path) -> None:
    bed = Bed(tmp_path, [sys.executable, "-c", "pass"])
    before = sorted(tmp_path.rglob("*"))
    for options in (("--dry-run",), ()):
        answer = bed.call("prune", *options)
        assert answer.returncode == 0, answer.stderr
        assert "never ran" in answer.stdout
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("mount_point", [False, True], ids=["no folder", "empty folder"])
def test_where_no_checkpoint_of_the_ledger_is_seen_nothing_is_made_and_it_is_asked_for_the_disk(
    counter_bed: Callable[..., Bed], mount_point: bool
) -> None:
    bed = counter_bed("--steps", "20", settings=COUNTED)
    assert bed.ended(bed.start()) == 0
    number = len({(event["data"]["step"]) for event in bed.events() if event["event"] == "checkpoint_verified"})
    moved = bed.checkpoints.rename(bed.checkpoints.with_name("elsewhere"))
    if mount_point:
        bed.checkpoints.mkdir()
    events = bed.events()
    for options in (("--dry-run",), ()):
        answer = bed.call("prune", *options)
        assert answer.returncode == 1, answer.stdout + answer.stderr
        words = f"{number} verified checkpoints of the ledger are not in {bed.checkpoints}: is its disk mounted?"
        assert words in answer.stdout
        assert bed.checkpoints.exists() == mount_point
        assert not mount_point or not list(bed.checkpoints.iterdir())
        assert bed.events() == events
    if mount_point:
        bed.checkpoints.rmdir()
    moved.rename(bed.checkpoints)
    assert bed.call("prune").returncode == 0


@pytest.mark.parametrize("finished", [True, False])
def test_where_a_person_deleted_every_checkpoint_that_is_told_and_no_failure(
    counter_bed: Callable[..., Bed], finished: bool
) -> None:
    """The job's own records lie there, so it is no empty mount point."""
    bed = counter_bed("--steps", "20" if finished else "4000", settings=COUNTED)
    supervisor = bed.start()
    if not finished:
        bed.run_at_step(20)
        wait_for(lambda: bed.kinds("checkpoint_verified"), "a verified checkpoint")
        assert bed.call("stop").returncode in (0, 5)
    bed.ended(supervisor)
    for path in bed.checkpoints.glob("count-*"):
        path.unlink()
    events = bed.events()
    means = "the job is finished, and what it trained is not there" if finished else "the next launch holds for it"
    for options in (("--dry-run",), ()):
        answer = bed.call("prune", *options)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "the watchdog did not delete them; the job's own records are there" in answer.stdout
        assert f"warning   {means}" in answer.stdout
        assert bed.events() == events
    assert bed.ended(bed.start()) == (0 if finished else 3), "what is told of the next launch is true"
