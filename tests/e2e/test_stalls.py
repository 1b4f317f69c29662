"""A run that stands still is ended, and what it stood in is known afterwards."""

from __future__ import annotations

import json
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.campaign_bed import Bed
from watchdog.core.ending import STACKS_S

PERIOD_S = 0.1  # of the bed's loop
LATE_S = 0.7  # what a busy host may add


def test_where_it_stood_is_kept_before_it_is_asked_to_end(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "40", "--silent-at", "8", settings={"deadlines": {"train": "1s"}})
    supervisor = bed.start()
    kept = bed.wait_event("stacks_kept", timeout_s=30)
    bed.wait_event("signal_sent", timeout_s=10)
    stopping, asked = bed.kinds("run_stopping")[0], bed.kinds("signal_sent")[0]
    assert stopping["data"]["cause"] == "stalled"
    assert stopping["seq"] < kept["seq"] < asked["seq"], bed.tell()
    assert asked["monotonic_s"] - stopping["monotonic_s"] < STACKS_S + LATE_S
    assert "stood in main (campaign_counter.py:" in kept["sentence"], bed.tell()
    data = kept["data"]
    assert (data["processes"], data["number"]) == (1, 1)
    path = Path(data["path"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "Current thread" in path.read_text()
    assert "answered SIGUSR2" in path.read_text()

    shown = bed.call("incidents", "show", "1").stdout
    assert "stood in main (campaign_counter.py:" in shown
    assert "run 1: where it stood" in shown
    assert str(path) in shown
    bed.call("stop", "--now")
    bed.ended(supervisor)


def test_one_that_is_stopped_is_not_waited_for(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "40", "--delay", "0.05", settings={"deadlines": {"train": "1s"}})
    supervisor = bed.start()
    bed.harm(bed.run_at_step(8).trainer, signal.SIGSTOP)
    assert bed.ended(supervisor) == 0, bed.tell()
    [stopping], [kept] = bed.kinds("run_stopping"), bed.kinds("stacks_kept")
    assert "is stopped by a signal" in kept["sentence"]
    assert bed.kinds("signal_sent")[0]["monotonic_s"] - stopping["monotonic_s"] < 0.4 + LATE_S


DEAF = """
import time
from watchdog import contract
run = contract.join()
import signal
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
run.beat("train", step=1)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("obstacle", [False, True], ids=["kept", "cannot be kept"])
def test_without_a_handler_and_without_a_place_it_ends_all_the_same(
    tmp_path: Path, beds: list[Bed], obstacle: bool
) -> None:
    root = tmp_path / "bed"
    root.mkdir()
    (root / "deaf.py").write_text(DEAF)
    command = [sys.executable, "-P", str(root / "deaf.py")]
    bed = Bed(root, command, settings={"job": {"level": 1}, "deadlines": {"train": "1s"}, "relaunch": {"failures": 1}})
    beds.append(bed)
    supervisor = bed.start()
    beats = bed.wait_event("run_beats", timeout_s=30)
    if obstacle:
        folder = bed.state / "runs" / beats["data"]["run_id"]
        (folder / "stacks.txt" / "in the way").mkdir(parents=True)
    assert bed.ended(supervisor) == 3, bed.tell()
    [kept] = bed.kinds("stacks_kept")
    place = kept["data"]["place"]
    assert " sleeps" in place or " stood in <module> (deaf.py:" in place, "py-spy may be installed here"
    assert "no handler" in kept["data"]["asked"][0][2]
    assert (kept["data"]["path"] is None) is obstacle
    assert ("not written to" in kept["sentence"]) is obstacle
    [end] = bed.kinds("run_ended")
    assert end["data"]["cause"] == "stalled"
    assert "SIGUSR2" not in json.dumps(end)
