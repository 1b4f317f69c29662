"""What ends in a hold, what it says, and how it is lifted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.campaign_bed import Bed
from bench.campaign_counter import final_value
from bench.campaign_workshop import Workshop

THREE = {"relaunch": {"failures": 3}}


def value_of(bed: Bed) -> object:
    return json.loads((bed.checkpoints / "count.json").read_bytes())["value"]


def mend(bed: Bed, *flags: str) -> None:
    """Take flags with their values out of the command, as a person does who removes the reason."""
    text = bed.config.read_text()
    for flag in flags:
        assert flag in text
        text = text.replace(f"{json.dumps(flag)}, ", "", 1)
    bed.config.write_text(text)


def test_three_failures_are_a_hold(counter_bed: Callable[..., Bed]) -> None:
    """Exit 3, with the reason and the last error on the screen; a second `run` says it again and starts nothing."""
    bed = counter_bed("--fail-at", "8", settings=THREE)
    assert bed.ended(bed.start()) == 3, bed.tell()
    assert "3 runs in a row ended without a new checkpoint" in bed.screen
    assert "RuntimeError: CUDA error: an illegal memory access, made on purpose at step 8" in bed.screen
    assert "watchdog relaunch" in bed.screen
    launches = len(bed.kinds("run_launching"))
    assert launches == 4, "the first made a checkpoint (step 5), three without one followed"
    assert bed.ended(bed.start()) == 3, bed.tell()
    assert len(bed.kinds("run_launching")) == launches
    status = json.loads(bed.call("status", "--json").stdout)
    assert status["state"] == "hold"
    assert "3 runs in a row" in status["hold_reason"]
    lifted = bed.call("relaunch")
    assert lifted.returncode == 0
    assert "watchdog run" in lifted.stdout, "it must say what to start"
    config = bed.config.read_text()
    bed.config.write_text(config.replace('"--fail-at", "8"', '"--delay", "0.01"', 1))
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert value_of(bed) == final_value(40)
    assert not bed.problems()


def test_on_hold_wait_and_relaunch_through_the_socket(counter_bed: Callable[..., Bed], tmp_path: Path) -> None:
    bed = counter_bed("--fail-at", "3", settings=THREE)
    supervisor = bed.start("--on-hold", "wait")
    bed.wait_event("hold")
    assert json.loads(bed.call("status", "--json").stdout)["state"] == "hold"
    assert supervisor.poll() is None
    before = len(bed.kinds("run_launching"))
    answer = bed.call("relaunch")
    assert answer.returncode == 0, answer.stderr
    assert "lifted" in answer.stdout
    bed.wait_event("hold", count=2)
    assert len(bed.kinds("run_launching")) == before + 3, bed.tell()
    assert bed.call("stop").returncode == 0
    assert bed.ended(supervisor) == 3, bed.tell()
    assert not bed.problems()


def test_a_fresh_start_where_a_resume_was_due(counter_bed: Callable[..., Bed]) -> None:
    """Stopped at once, nothing it saved is resumed from, and a hold."""
    bed = counter_bed("--forget-resume", "--steps", "200", "--delay", "0.02")
    supervisor = bed.start()
    run = bed.run_at_step(12)
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 3, bed.tell()
    causes = [event["data"]["cause"] for event in bed.kinds("run_ended")]
    assert causes == ["killed", "fresh_start"], bed.tell()
    assert bed.kinds("run_refused")
    assert "began anew where step" in bed.screen
    mend(bed, "--forget-resume")
    assert bed.call("relaunch").returncode == 0
    config = bed.config.read_text()
    bed.config.write_text(config.replace('"0.02"', '"0.0"', 1))
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert value_of(bed) == final_value(200)


def test_exit_0_before_the_target_is_a_failure(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--exit-zero-at", "8", settings=THREE)
    assert bed.ended(bed.start()) == 3, bed.tell()
    causes = {event["data"]["cause"] for event in bed.kinds("run_weighed")}
    assert causes == {"exit_too_early"}, bed.tell()
    assert not bed.kinds("finished")


def test_a_command_that_does_not_exist(tmp_path: Path, beds: list[Bed]) -> None:
    """Exit 2, one line, and nothing was made."""
    bed = Bed(tmp_path, ["/nowhere/trainer"])
    beds.append(bed)
    assert bed.ended(bed.start()) == 2
    assert "'/nowhere/trainer' does not exist" in bed.screen
    assert len(bed.screen.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("kind", ["empty", "binary"])
def test_data_that_cannot_be_used(kind: str, tmp_path: Path, workshop: Workshop, beds: list[Bed]) -> None:
    """The bundled trainer says why, and trying again would not help: a hold after one run."""
    data = tmp_path / "data"
    data.mkdir()
    if kind == "binary":
        (data / "weights.bin").write_bytes(os.urandom(50_000))
    bed = workshop.bed(tmp_path / "bed")
    beds.append(bed)
    bed.config.write_text(bed.config.read_text().replace(json.dumps(str(workshop.text)), json.dumps(str(data))))
    assert bed.ended(bed.start()) == 3, bed.tell()
    assert len(bed.kinds("run_launching")) == 1
    error = bed.kinds("run_ended")[0]["data"]["error"]
    assert str(data) in error, error
    assert str(data) in bed.screen


def test_level_0_command(tmp_path: Path, beds: list[Bed]) -> None:
    """Any command: exit 0 is the end, a death is a relaunch, and no resume is demanded."""
    flag = tmp_path / "second"
    script = f"test -e {flag} && exit 0; touch {flag}; echo first; sleep 600"
    bed = Bed(tmp_path, ["sh", "-c", script], level=0)
    beds.append(bed)
    supervisor = bed.start()
    run = bed.run_where(lambda _run, _beat: flag.exists(), "the first run")
    bed.harm(run.trainer)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert len(bed.kinds("run_launching")) == 2
    assert bed.kinds("finished")
    assert not bed.problems()


def test_a_finished_job_says_so_and_new_archives_it(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--delay", "0.0")
    assert bed.ended(bed.start()) == 0, bed.tell()
    (bed.root / "screen.txt").unlink()
    assert bed.ended(bed.start()) == 0
    assert "finished before" in bed.screen
    assert len(bed.kinds("run_launching")) == 1
    assert bed.ended(bed.start("--new")) == 0, bed.tell()
    launches = bed.kinds("run_launching")
    assert [event["data"]["resume_step"] for event in launches] == [None, None]
    archive = list((bed.checkpoints / "archive").iterdir())
    assert len(archive) == 1
    assert (archive[0] / "count.json").exists()
    assert not bed.problems()


def test_a_broken_configuration(counter_bed: Callable[..., Bed]) -> None:
    """Half edited: one clear error, exit 2; the job and its ledger are as they were."""
    bed = counter_bed("--delay", "0.0")
    assert bed.ended(bed.start()) == 0, bed.tell()
    ledger = (bed.state / "ledger.jsonl").read_bytes()
    bed.config.write_text(bed.config.read_text() + "\n[stop\ngrace = ")
    (bed.root / "screen.txt").unlink()
    assert bed.ended(bed.start()) == 2
    assert "watchdog.toml" in bed.screen
    assert (bed.state / "ledger.jsonl").read_bytes() == ledger


def test_garbage_in_the_ledger_and_a_torn_end(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "60", "--delay", "0.03")
    supervisor = bed.start()
    run = bed.run_at_step(12)
    bed.kill_supervisor(supervisor)
    bed.harm(run.trainer)
    path = bed.state / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    spoiled = b"\x00\xff garbage {{{\n"
    path.write_bytes(b"".join([*lines[:2], spoiled, *lines[2:], b'{"seq": 99, "ev']))
    assert bed.ended(bed.start()) == 0
    content = path.read_bytes()
    assert spoiled in content, "what is there is never removed"
    good = [json.loads(line) for line in content.splitlines() if line.startswith(b'{"seq": ') and line.endswith(b"}")]
    assert len(good) == len(content.splitlines()) - 2
    assert "lines of the ledger are no records" in bed.screen
    assert value_of(bed) == final_value(60)


def test_a_folder_of_the_user_is_not_taken_for_ours(counter_bed: Callable[..., Bed], tmp_path: Path) -> None:
    """A folder `bench/` or `watchdog/` where the user stands is never picked up."""
    trap = tmp_path / "trap"
    for name in ("bench", "watchdog"):
        (trap / name).mkdir(parents=True)
        (trap / name / "__init__.py").write_text("raise SystemExit('the trap was run')")
    bed = counter_bed("--delay", "0.0", settings={"job": {"directory": str(trap)}})
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert value_of(bed) == final_value(40)
