"""Autopsies of real deaths: what `watchdog incidents` says agrees with the clock of who killed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.campaign_bed import Bed

PERIOD_S = 0.1  # of the bed's loop: nothing is seen quicker


def listed(bed: Bed) -> list[dict[str, Any]]:
    answer = bed.call("incidents", "list", "--json")
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_killed_and_recovered_in_figures(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "120", "--save-every", "20", "--delay", "0.05")
    supervisor = bed.start()
    run = bed.run_at_step(33)
    beat = run.beat()
    assert beat is not None
    assert beat.step is not None
    killed_s = time.time()
    bed.harm(run.trainer, signal.SIGKILL)
    bed.run_at_step(beat.step + 10, after=run.number)
    status = bed.call("status")
    assert re.search(r"^time +ETTR (0\.\d\d|1\.00|unknown: .+) · down ", status.stdout, re.MULTILINE), status.stdout
    assert bed.ended(supervisor) == 0, bed.tell()

    [incident] = listed(bed)
    events = {event["event"]: event for event in bed.kinds("run_recovered", "run_caught_up")}
    relaunch = bed.kinds("run_launching")[1]
    ended = bed.kinds("run_ended")[0]
    assert (incident["id"], incident["outcome"], incident["runs"], incident["next_run"]) == (1, "recovered", [1], 2)
    assert "SIGKILL" in incident["words"]
    assert incident["checkpoint_step"] == 20
    assert incident["last_step"] == pytest.approx(beat.step, abs=2)
    assert incident["steps_repeated"] == incident["last_step"] - 20
    assert incident["unknown"] == []
    # The moment of the death is the kernel's word, handed on by the shim; ours is taken just before.
    assert incident["began_wall_s"] == pytest.approx(killed_s, abs=0.1)
    lost = incident["lost_s"]
    assert lost["detection"] <= 3 * PERIOD_S
    assert "wait" not in lost  # it had a new checkpoint, so there is no backoff
    assert lost["proof"] == pytest.approx(relaunch["monotonic_s"] - ended["monotonic_s"], abs=0.02)
    assert lost["load"] == pytest.approx(events["run_recovered"]["data"]["made_s"] - relaunch["monotonic_s"], abs=0.02)
    made = [events[kind]["data"]["made_s"] for kind in ("run_recovered", "run_caught_up")]
    assert lost["replay"] == pytest.approx(made[1] - made[0], abs=0.02)
    # 13 steps of 0.05 s and the saves among them, seen to the period.
    assert lost["replay"] >= (incident["steps_repeated"] - 3) * 0.05
    assert sum(lost.values()) == pytest.approx(incident["lost_total_s"], abs=0.01)
    whole_s = made[1] - ended["monotonic_s"] + (ended["wall_s"] - incident["began_wall_s"])
    assert incident["lost_total_s"] == pytest.approx(whole_s, abs=0.1)

    shown = bed.call("incidents", "show", "1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("incident 1 · recovered · run 1 ")
    assert f"run 2 resumed step 20 {incident['checkpoint_digest'][:12]}…" in shown.stdout
    assert bed.call("incidents", "export").stdout.strip() == shown.stdout.strip()
    assert "training again at step" in bed.screen
    assert bed.call("incidents", "show", "2").returncode == 2


def test_a_stall_is_told_from_its_last_beat(counter_bed: Callable[..., Bed]) -> None:
    """Stopped by a signal: the deadline, and the period, are what the detection may take."""
    bed = counter_bed("--steps", "60", "--delay", "0.05", settings={"deadlines": {"train": "2s"}})
    supervisor = bed.start()
    run = bed.run_at_step(12)
    bed.harm(run.trainer, signal.SIGSTOP)
    assert bed.ended(supervisor) == 0, bed.tell()
    [incident] = listed(bed)
    assert (incident["outcome"], incident["cause"]) == ("recovered", "stalled")
    assert 2.0 <= incident["lost_s"]["detection"] <= 3.0
    assert incident["lost_s"]["detection"] == pytest.approx(incident["noticed_after_s"], abs=0.01)
    [stopping] = bed.kinds("run_stopping")
    assert stopping["sentence"] in [moment["sentence"] for moment in incident["timeline"] if moment["role"] == "did"]


def test_one_that_is_held_says_so_and_stays_open(counter_bed: Callable[..., Bed]) -> None:
    """Its evidence is in the ledger: the folders of the runs may be gone, and with them what they left."""
    bed = counter_bed("--steps", "40", "--fail-at", "7", settings={"relaunch": {"failures": 2, "backoff": "0.1s"}})
    assert bed.ended(bed.start()) == 3, bed.tell()
    for folder in bed.state.glob("**/runs/*"):
        shutil.rmtree(folder)
    incidents = listed(bed)
    last = incidents[-1]
    assert last["outcome"] == "held"
    assert last["hold"] is not None
    evidence = bed.call("incidents", "show", str(last["id"])).stdout
    assert "illegal memory access, made on purpose" in evidence
    assert "end of its output" in evidence
    assert re.search(r"last facts\n +seen: .*\n +memory: [\d.]+ of [\d.]+ GiB available", evidence), evidence
    first = bed.call("incidents", "show", "1").stdout
    assert "did    run 1 counts as " in first
    assert "proof  gates held: " in first
    time_line = re.search(r"^time .*$", bed.call("status").stdout, re.MULTILINE)
    assert time_line is not None
    assert f"incident {last['id']} is open: watchdog incidents show {last['id']}" in time_line.group()
    again = listed(bed)[-1]
    assert again["lost_s"]["hold"] > last["lost_s"]["hold"], "it grows while it is held"
    assert again["ettr"]["lost_s"]["hold"] == pytest.approx(again["lost_s"]["hold"], abs=0.05)
    assert (again["job"] != "", again["version"] != "") == (True, True)
