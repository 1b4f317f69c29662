"""`watchdog relaunch` on real processes: its dry run, its following, going back, and a wait that outlives us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import HostBed, counter
from watchdog.contract import Manifest

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/relaunch.schema.json").read_text(encoding="utf-8"))
SLOW = ("--steps", "5000", "--delay", "0.02")
WAITING = {"failures": 20, "backoff": "30s", "backoff_limit": "30s"}
# What a supervisor notes of its own accord, whoever looks.
_BY_ITSELF = {"finding", "finding_over", "phase_time", "step_time", "run_steps", "checkpoint_verified", "run_beats"} | {
    "verdict_changed",
    "host_memory",
}


def tree(bed: HostBed) -> dict[str, tuple[int, int]]:
    """Every file of the job with its size and time: what a look must leave as it was."""
    found = {}
    for folder, _, names in os.walk(bed.root):
        for name in (".", *names):
            status = os.stat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (status.st_size, status.st_mtime_ns)
    return found


def plan_of(bed: HostBed, *words: str, code: int = 0) -> dict[str, Any]:
    """The plan, which is what the published schema says."""
    answer = bed.call("relaunch", "--dry-run", "--json", *words)
    assert answer.returncode == code, answer.stdout + answer.stderr
    record: dict[str, Any] = json.loads(answer.stdout)
    jsonschema.validate(record, SCHEMA)
    assert record["exit_code"] == code
    return record


def resumed_from(bed: HostBed, number: int) -> int | None:
    return {each["data"]["number"]: each["data"]["resume_step"] for each in bed.kinds("run_launching")}[number]


def verified(bed: HostBed, step: int) -> None:
    wait_for(
        lambda: any(each["data"]["step"] == step for each in bed.kinds("checkpoint_verified")), f"step {step} verified"
    )


# --- the dry run --------------------------------------------------------------------------------------------
def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """Neither beside a living run nor without anybody: not a byte, not a process."""
    with counter(tmp_path / "bed", *SLOW) as bed:
        bed.start("--on-hold", "wait")
        run = bed.run_at_step(12)
        verified(bed, 10)
        before = [each["event"] for each in bed.events()]
        record = plan_of(bed)
        assert (record["run"]["number"], record["run"]["pid"]) == (1, run.trainer)
        assert record["would_launch"] is True
        assert record["checkpoint"]["step"] >= 10
        assert [step["name"] for step in record["steps"]][:3] == ["budget", "stop", "proof"]
        assert bed.living() == run, bed.tell()
        assert not {each["event"] for each in bed.events()[len(before) :]} - _BY_ITSELF, bed.tell()
        assert bed.call("stop").returncode == 0
        files, events = tree(bed), bed.events()
        record = plan_of(bed)
        assert (record["run"], record["supervisor_pid"], record["state"]) == (None, None, "stopped")
        newest = max(map(Manifest.read, bed.checkpoints.glob("*.manifest.json")), key=lambda each: each.step)
        assert (record["checkpoint"]["step"], record["checkpoint"]["digest"]) == (newest.step, newest.digest)
        assert {gate["name"] for gate in record["gates"]} >= {"lock", "memory"}
        assert "nothing was done (dry run)" in bed.call("relaunch", "--dry-run", "--from", "5", "--force").stdout
        plan_of(bed, "--from", "6", code=2)
        assert (tree(bed), bed.events()) == (files, events)
        assert bed.ours() == []


def test_a_dry_run_says_what_would_keep_it_from_launching(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", *SLOW) as bed:
        bed.start()
        bed.run_at_step(7)
        assert bed.call("stop").returncode == 0
        config = bed.config.read_text()
        bed.config.write_text(config.replace('"16MiB"', '"60TiB"'))
        record = plan_of(bed, "--force", code=3)
        assert (record["would_launch"], record["budget"]["forgotten"]) == (False, True)
        assert any("memory" in why for why in record["why_not"])
        bed.config.write_text(config)
        for manifest in bed.checkpoints.glob("*.manifest.json"):
            manifest.unlink()
        assert "none that may be chosen is in its folder" in str(plan_of(bed, code=3)["why_not"])


# --- following ----------------------------------------------------------------------------------------------
def test_a_relaunch_is_followed_to_what_the_run_restored(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", *SLOW) as bed:
        bed.start("--on-hold", "wait")
        bed.run_at_step(12)
        answer = bed.call("relaunch")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        marks = [line.split()[:2] for line in answer.stdout.splitlines()[1:]]
        run = bed.living()
        assert run is not None
        assert run.number == 2
        order = [["·", "stop"], ["✓", "proof"], ["✓", "choose"], ["✓", "gate"], ["·", "launch"], ["✓", "restored"]]
        places = [marks.index(mark) for mark in order]
        assert places == sorted(places), answer.stdout
        assert f"✓ launched  run 2: pid {run.trainer}, shim {run.shim}" in answer.stdout
        assert f"run 2 restored step {resumed_from(bed, 2)} " in answer.stdout
        asked = bed.call("relaunch", "--no-wait")
        assert (asked.returncode, len(asked.stdout.splitlines())) == (0, 1), asked.stdout
        bed.run_at_step(1, after=2)


def test_the_following_ends_and_the_relaunch_goes_on(tmp_path: Path) -> None:
    """At the deadline with 1, by Ctrl-C with 130; the run is ended and started again all the same."""
    with counter(tmp_path / "bed", *SLOW, "--ignore-term", stop={"grace": "2s"}) as bed:
        bed.start("--on-hold", "wait")
        bed.run_at_step(7)
        late = bed.call("relaunch", "--wait", "0.2")
        assert late.returncode == 1, late.stdout
        assert "it goes on without being followed (stopping" in late.stdout
        bed.run_at_step(7, after=1)
        follower = subprocess.Popen(
            bed.command("relaunch"), env=bed.environment(), cwd="/", stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        assert "saves and ends" in follower.stdout.readline()
        assert "· stop" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        rest, _ = follower.communicate(timeout=30)
        assert follower.returncode == 130, rest
        assert "the relaunch goes on" in rest
        bed.run_at_step(7, after=2)


def test_a_relaunch_that_ends_in_a_hold_says_why(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "40", "--fail-at", "7", relaunch={"failures": 2, "backoff": 0}) as bed:
        bed.start("--on-hold", "wait")
        bed.wait_event("hold")
        answer = bed.call("relaunch")
        # It restores step 5, as it should: that it fails at step 7 again is not the relaunch's to say.
        assert answer.returncode == 0, answer.stdout
        assert "✓ lift" in answer.stdout
        bed.wait_event("hold", count=2)
        for path in bed.checkpoints.glob("count-*.json"):
            if not path.name.endswith(".manifest.json"):
                path.write_bytes(b"{}")
        answer = bed.call("relaunch")
        assert answer.returncode == 3, answer.stdout
        assert "none can be verified now" in answer.stdout
        assert plan_of(bed, code=3)["why_not"]


# --- going back ---------------------------------------------------------------------------------------------
def test_going_back_leaves_the_branch_for_good(tmp_path: Path) -> None:
    """From an earlier step, recorded with who and why; a later failure does not lead back to what was left."""
    with counter(tmp_path / "bed", "--steps", "5000", "--delay", "0.05", "--save-every", "20") as bed:
        bed.start("--on-hold", "wait")
        run = bed.run_at_step(45)
        verified(bed, 40)
        refused = bed.call("relaunch", "--from", "41", "--why", "to see")
        assert refused.returncode == 2
        assert "step 41 was never verified; verified are 0, 20, 40" in refused.stderr
        assert bed.living() == run
        answer = bed.call("relaunch", "--from", "20", "--why", "the loss jumped")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert resumed_from(bed, 2) == 20, bed.tell()
        (branch,) = bed.kinds("branched")
        assert (branch["data"]["why"], f"uid {os.getuid()}" in branch["data"]["by"]) == ("the loss jumped", True)
        second = bed.run_at_step(23, after=1)
        bed.harm(second.trainer)
        bed.run_at_step(23, after=2)
        assert resumed_from(bed, 3) in (20, 40), bed.tell()
        manifests = [Manifest.read(path) for path in bed.checkpoints.glob("*.manifest.json")]
        left = max(each.step for each in manifests if each.run_id == run.run_id)
        assert left >= 45, "what was left stays where it is"
        verified(bed, left)
        assert bed.call("relaunch", "--from", str(left)).returncode == 0, bed.tell()
        assert resumed_from(bed, 4) == left, "whoever asks for it gets it"


def test_nobody_goes_back_to_what_cannot_be_verified_now(tmp_path: Path) -> None:
    """It was verified once and is damaged since: the living run is not even asked to end."""
    with counter(tmp_path / "bed", *SLOW) as bed:
        bed.start("--on-hold", "wait")
        run = bed.run_at_step(12)
        verified(bed, 5)
        (bed.checkpoints / "count-000005.json").write_bytes(b"{}")
        answer = bed.call("relaunch", "--from", "5")
        assert answer.returncode == 3, answer.stdout
        assert "nobody goes back to step 5, and nothing was stopped: count-000005.json has 2 bytes" in answer.stdout
        assert bed.living() == run
        assert not bed.kinds("branched", "run_stopping"), bed.tell()


def test_a_supervisor_that_dies_right_after_the_branch_was_recorded(tmp_path: Path) -> None:
    """The next one owes it: the adopted run trains on a branch that was left, so it is ended."""
    with counter(tmp_path / "bed", *SLOW) as bed:
        first = bed.start_deadly("branched", "--on-hold", "wait")
        bed.run_at_step(12)
        verified(bed, 5)
        bed.call("relaunch", "--from", "5", "--no-wait")
        first.wait(30)
        assert not bed.kinds("run_stopping"), bed.tell()
        bed.start("--on-hold", "wait")
        bed.run_at_step(6, after=1)
        assert resumed_from(bed, 2) == 5, bed.tell()


def test_going_back_without_a_supervisor_is_followed_by_the_next_one(tmp_path: Path) -> None:
    """Also of a job that is finished."""
    with counter(tmp_path / "bed", "--steps", "20") as bed:
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert plan_of(bed, code=3)["state"] == "finished"
        assert bed.call("relaunch", "--from", "11").returncode == 2
        (bed.checkpoints / "count-000005.json").write_bytes(b"{}")
        damaged = bed.call("relaunch", "--from", "5")
        assert (damaged.returncode, "count-000005.json has 2 bytes" in damaged.stderr) == (3, True), damaged.stderr
        assert not bed.kinds("branched")
        answer = bed.call("relaunch", "--from", "10", "--why", "once more")
        assert (answer.returncode, "the next run goes on from step 10" in answer.stdout) == (0, True), answer.stderr
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert resumed_from(bed, 2) == 10, bed.tell()


def test_a_run_that_lost_its_supervisor_is_ended_and_followed_by_the_next_one(tmp_path: Path) -> None:
    """The dry run says so; once the wish was not put down, and the run was adopted and left as it was."""
    with counter(tmp_path / "bed", *SLOW) as bed:
        first = bed.start("--on-hold", "wait")
        run = bed.run_at_step(12)
        verified(bed, 5)
        bed.kill_supervisor(first)
        assert "stop" in [step["name"] for step in plan_of(bed)["steps"]]
        answer = bed.call("relaunch")
        assert (answer.returncode, "run 1 lives on" in answer.stdout) == (0, True), answer.stdout + answer.stderr
        (asked,) = bed.kinds("relaunch_asked")
        assert asked["data"]["run_id"] == run.run_id
        second = bed.start_deadly("run_stopping", "--on-hold", "wait")
        second.wait(30)
        bed.start("--on-hold", "wait")
        assert bed.run_at_step(13, after=1).number == 2
        assert (resumed_from(bed, 2) or 0) >= 10, bed.tell()
        stops = [event["data"]["run_id"] for event in bed.kinds("run_stopping")]
        assert set(stops) == {run.run_id}, "it is owed once, and of this run alone"


def test_there_is_nothing_to_relaunch(tmp_path: Path) -> None:
    """No ok where nothing will happen."""
    with counter(tmp_path / "bed", *SLOW) as bed:
        answer = bed.call("relaunch")
        assert (answer.returncode, "nothing was done" in answer.stdout) == (1, True)
        first = bed.start("--on-hold", "wait")
        bed.run_at_step(3)
        assert bed.call("stop").returncode == 0
        first.wait(30)
        answer = bed.call("relaunch")
        assert (answer.returncode, "nothing was done" in answer.stdout) == (1, True), answer.stdout
        bed.start("--on-hold", "wait")
        bed.run_at_step(4, after=1)
        assert len(bed.kinds("run_stopping")) == 1, "that run is nobody's wish"


def test_a_newest_step_that_is_damaged_is_promised_to_nobody(tmp_path: Path) -> None:
    """The dry run reads nothing back, so its step says what becomes of one that cannot be; and so it comes."""
    with counter(tmp_path / "bed", *SLOW) as bed:
        first = bed.start("--on-hold", "wait")
        bed.run_at_step(12)
        verified(bed, 10)
        assert bed.call("stop", "--now").returncode == 0
        first.wait(30)
        newest = plan_of(bed)["checkpoint"]["step"]
        (bed.checkpoints / f"count-{newest:06d}.json").write_bytes(b"{}")
        (choose,) = [step["words"] for step in plan_of(bed)["steps"] if step["name"] == "choose"]
        assert f"step {newest}" in choose
        assert "would be moved aside if it fails, then" in choose
        bed.start("--on-hold", "wait")
        bed.run_at_step(newest - 3, after=1)
        assert (resumed_from(bed, 2) or 0) < newest, bed.tell()
        assert bed.kinds("checkpoint_moved")
        refused = bed.call("relaunch", "--dry-run", "--from", "13")
        assert (refused.returncode, "from its beginning" in refused.stdout) == (2, False), refused.stdout
        assert "launch" not in refused.stdout.split("would not")[0]


def test_a_stop_is_rehearsed(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", *SLOW) as bed:
        assert "nothing to stop" in bed.call("stop", "--dry-run").stdout
        first = bed.start("--on-hold", "wait")
        run = bed.run_at_step(3)
        for pid in (first.pid, None):
            if pid is None:
                bed.kill_supervisor(first)
            before = len(bed.kinds("run_stopping", "supervisor_leaving", "signal_sent"))
            answer = bed.call("stop", "--dry-run")
            assert answer.returncode == 0, answer.stderr
            who = f"supervisor {pid} is asked" if pid is not None else "this command adopts run 1"
            assert who in answer.stdout
            assert f"TERM to {run.trainer}" in answer.stdout
            assert answer.stdout.endswith("nothing was done (dry run)\n")
            assert len(bed.kinds("run_stopping", "supervisor_leaving", "signal_sent")) == before
        assert "at once and without saving" in bed.call("stop", "--now", "--dry-run").stdout
        assert bed.call("stop").returncode == 0


# --- the wait before a try ----------------------------------------------------------------------------------
def test_a_wait_outlives_the_supervisor_and_a_person_cuts_it(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "40", "--fail-at", "3", relaunch=WAITING) as bed:
        first = bed.start("--on-hold", "wait")
        weighed = bed.wait_event("run_weighed", count=3)  # the first one had progress, the second retry is at once
        assert (weighed["data"]["wait_s"], 0 <= weighed["data"]["luck"] < 1) == (30.0, True)
        bed.kill_supervisor(first)
        bed.start("--on-hold", "wait")
        status = bed.wait_status(state="backoff")
        assert 0 < status["next_launch_s"] <= 30
        assert len(bed.kinds("run_launching")) == 3, "dying is no way around a wait"
        assert plan_of(bed)["backoff_left_s"] <= 30
        assert bed.call("relaunch", "--force", "--no-wait").returncode == 0
        bed.wait_event("run_launching", count=4)
        (reset,) = bed.kinds("budget_reset")
        assert (reset["data"]["failures"], len(bed.kinds("wait_cut"))) == (2, 1)
        assert bed.wait_event("run_weighed", count=4)["data"]["failures"] == 1, "a new budget"


@pytest.mark.parametrize("words", [("--json",), ("--why", "x"), ("--wait", "nan"), ("--from", "-1"), ("--from", "x")])
def test_a_command_line_that_means_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    with counter(tmp_path / "bed") as bed:
        answer = bed.call("relaunch", *words)
        assert (answer.returncode, answer.stdout) == (2, ""), answer.stderr
        assert not bed.state.exists()
