"""Files that are cleaned away or damaged under a living run: it goes on, and no second one is started beside it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.campaign_bed import Living, wait_for
from bench.campaign_counter import final_value
from bench.campaign_observer import is_living
from tests.host.bed import HostBed, counter, holding, make_bed, script
from watchdog import contract

# Lives until its flag is there, and ends well then.
_UNTIL_FLAG = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
_SHORT_WAIT = {"gate_wait": "3s"}  # a launch in trouble is tried again for so long


def control_of(bed: HostBed) -> Path:
    return bed.checkpoints / contract.CONTROL_FOLDER


def left_alone(bed: HostBed) -> Living:
    """A run whose supervisor was killed."""
    supervisor = bed.start()
    run = bed.run_where(lambda _run, _beat: True, "a run")
    bed.kill_supervisor(supervisor)
    return run


def pass_by(bed: HostBed, how_long_s: float, *never: str) -> None:
    """Look on for a while; over at once when one of these events is there, which the caller then finds."""
    since_s = time.monotonic()
    wait_for(lambda: time.monotonic() - since_s > how_long_s or bed.kinds(*never), "that the time is over")


# --- locks and records --------------------------------------------------------------------------------------
def _control_folder(bed: HostBed) -> None:
    shutil.rmtree(control_of(bed))


def _run_record(bed: HostBed) -> None:
    (control_of(bed) / contract.RUN_RECORD).unlink()


def _run_record_and_start_record(bed: HostBed) -> None:
    """Nothing names the shim any more; what lives still carries the run id."""
    _control_folder(bed)
    for path in (bed.state / "runs").glob("*/start.json"):
        path.write_bytes(b"{")


@pytest.mark.parametrize("remove", [_control_folder, _run_record, _run_record_and_start_record])
def test_control_files_removed_under_a_run_that_nobody_supervises(
    remove: Callable[[HostBed], None], tmp_path: Path
) -> None:
    """Somebody cleans "stale locks": the run is named, and nothing is started beside it; after its end all goes on."""
    flag = tmp_path / "flag"
    with make_bed(tmp_path / "bed", [*script(tmp_path, _UNTIL_FLAG), str(flag)], level=0) as bed:
        bed.observe()
        run = left_alone(bed)
        remove(bed)
        for _ in range(2):  # the first refusal must leave nothing behind that makes the second try forget
            answer = bed.call("run")
            assert answer.returncode == 2, answer
            assert "Traceback" not in answer.stderr
            assert str(run.trainer) in answer.stderr or str(run.shim) in answer.stderr, answer.stderr
            assert run.run_id in answer.stderr
        assert is_living(run.trainer, None) is not None
        assert len(bed.kinds("run_launching")) == 1, bed.tell()
        assert not bed.kinds("run_ended", "signal_sent", "run_killing"), bed.tell()
        bed.harm(run.trainer)
        wait_for(lambda: is_living(run.shim, None) is None, "the end of the shim")
        flag.touch()
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert [event["data"]["number"] for event in bed.kinds("run_launching")] == [1, 2]
        assert not bed.problems(), bed.tell()


def test_the_run_lock_removed_under_a_run_that_the_ledger_knows(tmp_path: Path) -> None:
    """It is adopted, and its end is what the shim says."""
    flag = tmp_path / "flag"
    with make_bed(tmp_path / "bed", [*script(tmp_path, _UNTIL_FLAG), str(flag)], level=0) as bed:
        run = left_alone(bed)
        (control_of(bed) / contract.RUN_LOCK).unlink()
        supervisor = bed.start()
        bed.wait_event("run_adopted")
        assert is_living(run.trainer, None) is not None
        flag.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert len(bed.kinds("run_launching")) == 1, bed.tell()


def test_the_run_lock_removed_under_a_run_that_no_record_knows(tmp_path: Path) -> None:
    """The ledger is lost as well: the lock that is held and has no name any more is all there is."""
    flag = tmp_path / "flag"
    command = [*script(tmp_path, _UNTIL_FLAG), str(flag)]
    with make_bed(tmp_path / "bed", command, level=0, relaunch=_SHORT_WAIT) as bed:
        run = left_alone(bed)
        _control_folder(bed)
        (bed.state / "ledger.jsonl").unlink()
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert "back to the gates, for up to 3 s" in bed.kinds("launch_troubled")[0]["sentence"]
        reason = bed.kinds("hold")[0]["data"]["reason"]
        assert reason.startswith("no run could be started for 3 s, tried"), reason
        assert "was removed while pid" in reason
        assert str(run.shim) in reason
        assert str(run.trainer) in reason
        assert is_living(run.trainer, None) is not None
        assert not bed.kinds("run_launching", "signal_sent", "run_killing"), bed.tell()
        flag.touch()
        wait_for(lambda: is_living(run.shim, None) is None, "the end of the shim")
        assert bed.call("relaunch").returncode == 0
        assert bed.ended(bed.start()) == 0, bed.tell()


def test_the_run_lock_removed_under_a_trainer_that_was_started_by_hand(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "6", relaunch=_SHORT_WAIT) as bed:
        control_of(bed).mkdir(parents=True)
        with holding(control_of(bed) / contract.RUN_LOCK, exclusive=True) as by_hand:
            (control_of(bed) / contract.RUN_LOCK).unlink()
            supervisor = bed.start()
            bed.wait_event("launch_troubled")
            waits = bed.status()["waiting_for"]
            assert f"was removed while pid {by_hand.pid} holds it" in waits
            assert "next try in" in waits
            assert bed.ended(supervisor) == 3, bed.tell()
            reason = bed.kinds("hold")[0]["data"]["reason"]
            assert reason.startswith("no run could be started for 3 s, tried"), reason
            assert f"was removed while pid {by_hand.pid} holds it" in reason
            assert not bed.kinds("run_launching"), bed.tell()
            assert by_hand.poll() is None
        assert bed.call("relaunch").returncode == 0
        assert bed.ended(bed.start()) == 0, bed.tell()


# --- the acknowledgement ------------------------------------------------------------------------------------
_NOT_OURS = json.dumps({"run_id": "9-another", "pid": 1, "fresh": True, "step": 0, "files": []}).encode()


@pytest.mark.parametrize("content", [b"{}", b"", None, _NOT_OURS], ids=["no fields", "empty", "removed", "another's"])
def test_an_acknowledgement_damaged_after_it_was_judged(content: bytes | None, tmp_path: Path) -> None:
    """The ledger has it: the run is adopted and goes on, and what it saved stays what it was."""
    with counter(tmp_path / "bed", "--steps", "40", "--delay", "0.04") as bed:
        supervisor = bed.start()
        bed.wait_event("run_acknowledged")
        run = bed.run_at_step(7)
        bed.kill_supervisor(supervisor)
        path = run.folder / "acknowledgement.json"
        assert path.exists()
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        second = bed.start()
        bed.wait_event("run_adopted")
        assert bed.ended(second) == 0, bed.tell()
        assert len(bed.kinds("run_launching")) == 1, bed.tell()
        assert not bed.kinds("run_refused", "run_stopping", "signal_sent"), bed.tell()
        assert json.loads((bed.checkpoints / "count.json").read_bytes())["value"] == final_value(40)
        assert not bed.problems(), bed.tell()


# --- the beat -----------------------------------------------------------------------------------------------
# One beat of a long step, and no other before its flag is there.
_LONG_STEP = """
import os, sys, time
from watchdog import contract
run = contract.join()
run.beat("train", step=1, target_step=2)
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
run.beat("finished")
"""
_DEADLINES = {"start": "1s", "train": "60s"}


def _removed(path: Path) -> None:
    path.unlink()


def _truncated(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("spoil", [_removed, _truncated])
@pytest.mark.parametrize("adopted", [False, True], ids=["watched", "adopted"])
def test_a_beat_file_that_is_gone_again(spoil: Callable[[Path], None], adopted: bool, tmp_path: Path) -> None:
    """Blind, and no reason to stop anybody: not even when a deadline of a run that never beat is long over."""
    flag = tmp_path / "flag"
    command = [*script(tmp_path, _LONG_STEP), str(flag)]
    with make_bed(tmp_path / "bed", command, level=1, deadlines=_DEADLINES) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, beat: beat is not None and beat.step == 1, "a beat")
        bed.wait_status(run_phase="train")
        if adopted:
            bed.kill_supervisor(supervisor)
        spoil(run.folder / "beat.json")
        if adopted:
            supervisor = bed.start()
            bed.wait_event("run_adopted")
        pass_by(bed, 2.0, "run_stopping", "signal_sent")
        assert not bed.kinds("run_stopping", "signal_sent"), bed.tell()
        assert is_living(run.trainer, None) is not None
        flag.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert len(bed.kinds("run_launching")) == 1, bed.tell()


def test_a_run_that_never_beats_is_stopped_all_the_same(tmp_path: Path) -> None:
    """The other side: what is never there was not swept away."""
    with make_bed(tmp_path / "bed", script(tmp_path, "import time\ntime.sleep(600)\n"), 1, deadlines=_DEADLINES) as bed:
        supervisor = bed.start()
        assert bed.wait_event("run_stopping", timeout_s=20)["data"]["cause"] == "stalled"
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()
