"""A trainer that runs out of device memory until its micro-batch is small enough, under a real supervisor."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_counter import final_value
from tests.host.bed import HostBed, make_bed, script

STEPS = 20
# What torch says on a full device, word for word but for the figures. It trains again with NEEDED halvings or more.
TRAINER = """
import sys
from bench import campaign_counter
from watchdog import contract


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


NEEDED, AT, LEAVES_A_RECORD = {needed}, {at}, {record}
run = contract.join()
with open("{seen}", "a") as file:
    print(run.run_id, run.batch_halvings, *contract.shrunk_batch(8, 2, run.batch_halvings), file=file)
plain = campaign_counter.advance


def advance(value, step):
    if step >= AT and run.batch_halvings < NEEDED:
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 11.76 GiB of which "
            "203.12 MiB is free. Including non-PyTorch memory, this process has 11.55 GiB memory in use. Of the "
            "allocated memory 10.94 GiB is allocated by PyTorch, and 241.10 MiB is reserved by PyTorch but unallocated."
        )
    return plain(value, step)


campaign_counter.advance = advance
try:
    sys.exit(campaign_counter.main(["--steps", "{steps}", "--save-every", "5", "--delay", "0.005"]))
except OutOfMemoryError as error:
    if LEAVES_A_RECORD:
        run.fail(error)
    raise
"""


def bed_of(
    tmp_path: Path, *, needed: int, shrink: int, at: int = 12, record: bool = True, failures: int = 3
) -> HostBed:
    values = {"needed": needed, "at": at, "record": record, "steps": STEPS, "seen": tmp_path / "seen"}
    command = script(tmp_path, TRAINER.format(**values))
    job = {"shrink_batch": shrink}
    return make_bed(tmp_path / "bed", command, job=job, relaunch={"failures": failures})


def launched_with(tmp_path: Path) -> list[list[int]]:
    """Of each run: halvings, micro-batch, accumulation."""
    lines = (tmp_path / "seen").read_text().splitlines()
    return [[int(word) for word in line.split()[1:]] for line in lines]


def shrinks(bed: HostBed) -> list[dict[str, Any]]:
    return [event["data"] for event in bed.kinds("batch_shrunk")]


def ended_right(bed: HostBed) -> None:
    assert json.loads((bed.checkpoints / "count.json").read_text())["value"] == final_value(STEPS), bed.tell()
    assert not bed.problems(), bed.tell()


@pytest.mark.parametrize("record", [True, False], ids=["failure.json", "log alone"])
def test_out_of_device_memory_it_goes_on_with_half_the_micro_batch(tmp_path: Path, record: bool) -> None:
    with bed_of(tmp_path, needed=1, shrink=2, record=record) as bed:
        bed.observe()
        assert bed.ended(bed.start("--on-hold", "exit")) == 0, bed.tell()
        assert launched_with(tmp_path) == [[0, 8, 2], [1, 4, 4]], bed.tell()
        causes = [event["data"]["cause"] for event in bed.kinds("run_weighed")]
        assert causes == ["cuda_out_of_memory", "finished"], bed.tell()
        (shrunk,) = shrinks(bed)
        assert (shrunk["from"], shrunk["to"], shrunk["limit"], shrunk["number"]) == (0, 1, 2, 1)
        assert shrunk["evidence"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB")
        kinds = [event["event"] for event in bed.kinds("run_ended", "batch_shrunk", "run_weighed", "run_launching")]
        assert kinds[1:5] == ["run_ended", "batch_shrunk", "run_weighed", "run_launching"]
        assert [event["data"]["batch_halvings"] for event in bed.kinds("run_launching")] == [0, 1]
        assert bed.kinds("run_launching")[1]["data"]["resume_step"] == 10
        assert bed.status()["batch_halvings"] == 1
        assert "the run is asked to halve each micro-batch once" in bed.call("status").stdout
        shown = json.loads(bed.call("incidents", "show", "1", "--json").stdout)
        acted = [moment for moment in shown["timeline"] if moment["kind"] == "batch_shrunk"]
        assert [moment["role"] for moment in acted] == ["did"], shown
        ended_right(bed)


def test_twice_in_a_row_it_is_halved_twice_and_within_the_budget(tmp_path: Path) -> None:
    with bed_of(tmp_path, needed=2, shrink=4) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 0, bed.tell()
        assert launched_with(tmp_path) == [[0, 8, 2], [1, 4, 4], [2, 2, 8]], bed.tell()
        # The first had saved; the second had not.
        assert [event["data"]["failures"] for event in bed.kinds("run_weighed")] == [0, 1, 0], bed.tell()
        ended_right(bed)


def test_where_it_is_not_allowed_it_is_as_before_and_the_hold_says_what_would_help(tmp_path: Path) -> None:
    with bed_of(tmp_path, needed=1, shrink=0, failures=2) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)] == [0, 0, 0], bed.tell()
        assert not shrinks(bed), bed.tell()
        (hold,) = bed.kinds("hold")
        assert "CUDA out of memory" in hold["data"]["reason"]
        assert "[job] shrink_batch" in hold["data"]["reason"]
        assert bed.status()["batch_halvings"] == 0


def test_where_half_is_too_much_as_well_it_holds_and_never_tries_more_than_it_may(tmp_path: Path) -> None:
    """And a person who says relaunch goes on with the small one; with --force it begins with the whole batch."""
    with bed_of(tmp_path, needed=9, shrink=1, failures=3) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)] == [0, 1, 1, 1], bed.tell()
        reason = bed.kinds("hold")[0]["data"]["reason"]
        assert "halved once already, and [job] shrink_batch = 1 allows no more" in reason, reason
        assert bed.call("relaunch", "--no-wait").returncode == 0
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)[4:]] == [1, 1, 1], bed.tell()
        said = bed.call("relaunch", "--force", "--no-wait")
        assert "the micro-batch is whole again" in said.stdout, said.stdout
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)[7:]] == [0, 1, 1], bed.tell()


@pytest.mark.parametrize("where", ["run_ended", "batch_shrunk", "run_weighed", "run_launching:2"])
def test_a_supervisor_that_dies_meanwhile_decides_the_same(tmp_path: Path, where: str) -> None:
    """Each time between the end of the run and the start of the next one; nobody halves twice for one end."""
    with bed_of(tmp_path, needed=1, shrink=4) as bed:
        bed.observe()
        deadly = bed.start_deadly(where, "--on-hold", "exit")
        assert bed.ended(deadly) == -signal.SIGKILL, bed.tell()
        assert bed.ended(bed.start("--on-hold", "exit")) == 0, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)] == [0, 1], bed.tell()
        assert {(each["from"], each["to"]) for each in shrinks(bed)} == {(0, 1)}, bed.tell()
        ended_right(bed)


def test_another_command_begins_with_the_whole_batch(tmp_path: Path) -> None:
    with bed_of(tmp_path, needed=9, shrink=4, failures=1) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)] == [0, 1], bed.tell()
        (hold,) = bed.kinds("hold")
        assert "halve its micro-batch twice" in hold["data"]["reason"], "what a relaunch of this command would do"
        assert bed.call("relaunch", "--no-wait").returncode == 0
        (tmp_path / "trainer_of_test.py").rename(tmp_path / "other.py")
        bed.config.write_text(bed.config.read_text().replace("trainer_of_test.py", "other.py"))
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)] == [0, 1, 0], bed.tell()


def test_a_limit_that_was_lowered_since_holds_for_the_next_launch(tmp_path: Path) -> None:
    with bed_of(tmp_path, needed=2, shrink=4, failures=1) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert bed.call("relaunch", "--no-wait").returncode == 0
        bed.config.write_text(bed.config.read_text().replace("shrink_batch = 4", "shrink_batch = 1"))
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [each[0] for each in launched_with(tmp_path)] == [0, 1, 1], bed.tell()
