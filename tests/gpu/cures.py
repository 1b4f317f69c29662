"""Faults of a device, made on purpose in a supervised job, and what became of each: called what, how soon, and cured.

Responsible for making four faults from outside, and one of them once more with a cure of its own. What a cure is stands
in trial.py. Refuses to make a fault that outlives its case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.gpu.card import Card
from tests.gpu.trial import Cured, Stranger, Trial
from watchdog import contract
from watchdog.collectors.processes import is_alive, read_process
from watchdog.control import request
from watchdog.drills.bed import Bed, BedError, wait_for
from watchdog.errors import ControlError


def _also(card: Card, what: str) -> str:
    """What of a case is no proof where there is no device; "" where there is one."""
    return f"; on a stand-in: {what}" if card.stand_in else ""


def orphan(card: Card, root: Path) -> Cured:
    """Leader and shim are killed; a child in a session of its own, deaf to TERM, holds 2 GiB and the run lock."""
    with Trial(card, root, kind=card.light, mib=1024) as trial:
        trial.order("orphan-wanted", "2048")
        trial.start()
        run = trial.training()
        bed = trial.bed
        pid = int(trial.wait(lambda: trial.obeyed("orphan"), "an orphan that holds memory"))
        process = read_process(pid)
        assert process is not None, "the orphan did not live to be one"
        held = wait_for(
            lambda: [look.used_mib for look in card.eye.looks(time.time() - 0.3)][-1:], "a look", timeout_s=5
        )[0]
        problems = []
        if held - trial.before_mib < 1024 + 2048:
            problems.append(f"trainer and orphan were to hold 3072 MiB, and hold {held - trial.before_mib:.0f}")
        lock = os.path.realpath(bed.checkpoints / contract.CONTROL_FOLDER / contract.RUN_LOCK)
        if lock not in _open_files(pid):
            problems.append("the orphan does not hold the run lock")
        trial.strikes()
        bed.strike(run.shim_id)
        bed.strike(run.trainer_id)
        ended = trial.event("run_ended")
        killings = [event for event in bed.kinds("run_killing") if pid in event["data"]["pids"]]
        if not killings or killings[0]["seq"] > ended["seq"]:
            problems.append(f"no record from before the end names the orphan, pid {pid}")
        if is_alive(process.id):
            problems.append(f"the orphan, pid {pid}, lives")
        words = f"orphan pid {pid} held 2048 MiB and the run lock; its killing was recorded before it"
        words += _also(card, "no driver takes its context down")
        return trial.finish("orphan", ("shim_killed",), words="" if problems else words, problems=problems)


def _open_files(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"{folder}/{name}"))
    return found


def stopped(card: Card, root: Path) -> Cured:
    """SIGSTOP on the trainer while it computes."""
    with Trial(card, root, kind=card.light, mib=1024) as trial:
        trial.start()
        run = trial.training()
        trial.strikes()
        trial.bed.strike(run.trainer_id, signal.SIGSTOP)
        trial.silent(run)
        return trial.finish("stopped", ("stalled",), words=_also(card, "it computes nothing").removeprefix("; "))


def endless(card: Card, root: Path) -> Cured:
    """A kernel that never ends: the trainer waits for it in a call of the driver, and hears no TERM."""
    with Trial(card, root, kind=card.light, mib=1024) as trial:
        trial.start()
        run = trial.training()
        trial.strikes()
        trial.order("endless", f"{run.run_id} ")
        trial.silent(run)
        stopping = trial.event("run_stopping")
        busy = max((look.busy_percent for look in card.eye.looks(time.time() - 3.0, stopping["wall_s"])), default=-1)
        problems = [] if busy >= 95 or busy < 0 else [f"the device was busy for {busy} %, so no kernel ran endlessly"]
        words = f"utilization {'not told' if busy < 0 else f'{busy} %'}" + _also(
            card, "its kernel is a call that does not return"
        )
        return trial.finish("endless", ("stalled",), words=words, problems=problems)


def out_of_memory(card: Card, root: Path) -> Cured:
    """Another process takes the rest of the device; the trainer wants more, and is refused. Then the other leaves."""
    with Trial(card, root, kind=card.heavy, mib=1024, steps=80) as trial:
        trial.start()
        with Stranger(card) as stranger:
            stranger.ready(trial.left_s)
            run = trial.training()
            taken = stranger.take(leave_mib=96, timeout_s=trial.left_s)
            trial.strikes()
            trial.order("grow", f"{run.run_id} 4096")
            trial.event("run_weighed")
            waited = _waiting_for(trial.bed, ("took up to", "held by"), timeout_s=min(20.0, trial.left_s))
            stranger.leave()
        words = f"{_said(trial.bed)}; a stranger held {taken} MiB; " + (f"waited: {waited}" if waited else "no wait")
        words += _also(card, "the words are the driver's, not torch's")
        return trial.finish("out of memory", ("cuda_out_of_memory",), words=words)


def half_batch(card: Card, root: Path) -> Cured:
    """The rest of the device stays taken: the micro-batch is too large, and half of it is not."""
    settings = {"shrink_batch": 1}
    with (
        Stranger(card) as stranger,
        Trial(card, root, kind=card.heavy, mib=256, sample_mib=512, job_settings=settings) as trial,
    ):
        stranger.ready(trial.left_s)
        stranger.take(leave_mib=3900, timeout_s=trial.left_s)
        trial.start()
        launches = [trial.event("run_launching", count) for count in (1, 2)]
        trial.struck_by_itself(launches[0]["data"]["run_id"])
        halvings = [event["data"].get("batch_halvings") or 0 for event in launches]
        problems = [] if halvings == [0, 1] else [f"the first two runs had {halvings} halvings"]
        words = f"{_said(trial.bed)}; the next run had its micro-batch halved"
        words += _also(card, "the words are the driver's, not torch's")
        cured = trial.finish("half batch", ("cuda_out_of_memory",), words="" if problems else words, problems=problems)
        stranger.leave()
        return cured


def _said(bed: Bed) -> str:
    """The trainer's own words, as the watchdog has them."""
    ends = [event["data"].get("error") or event["data"]["words"] for event in bed.kinds("run_ended")]
    return "" if not ends else f"'{str(ends[0])[:90]}'"


def _waiting_for(bed: Bed, any_of: Sequence[str], *, timeout_s: float) -> str:
    """What the job waits for at its gates, once one of these is in it; "" when that does not come."""

    def look() -> str | None:
        with contextlib.suppress(OSError, ControlError):
            view = request(bed.state / "control.sock", {"command": "status"}, 5.0)["status"]
            said = str(view["waiting_for"] or "")
            return said if any(words in said for words in any_of) else None
        return None

    with contextlib.suppress(BedError):
        return wait_for(look, "a closed gate", timeout_s=timeout_s, every_s=0.05)
    return ""


CASES: Mapping[str, Callable[[Card, Path], Cured]] = {
    "an orphan with memory and the lock": orphan,
    "a stopped process": stopped,
    "an endless kernel": endless,
    "CUDA out of memory": out_of_memory,
    "CUDA out of memory, half the batch": half_batch,
}
