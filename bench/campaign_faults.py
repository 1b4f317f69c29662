"""The faults of the campaign: one mechanism each, done to a living run from outside, at a moment that chance chose.

Responsible for doing the fault and for telling what must follow from it. Refuses to wait for the consequence and to
touch anything but the processes and files of its own bed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.campaign_bed import Bed, Living, wait_for
from bench.campaign_damage import DAMAGES, data_file
from bench.campaign_disturbed import swap
from watchdog import contract

# Where in the life of a run a fault may strike; the last is any step between here and the end.
PHASES = ("import", "prepare", "load", "first_step", "train", "save", "evaluate")


@dataclasses.dataclass
class Ring:
    """What a fault has to work with."""

    bed: Bed
    chance: random.Random
    stranger: Path
    supervisor: object  # the living subprocess; a fault that kills it sets `restart`
    restart: bool = False

    def strike(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.bed.harm(pid, number)


def _beating(run: Living) -> int:
    beat = run.beat()
    return run.trainer if beat is None else beat.pid


def kill_trainer(ring: Ring, run: Living) -> None:
    ring.strike(_beating(run))


def kill_leader(ring: Ring, run: Living) -> None:
    ring.strike(run.trainer)


def stop_trainer(ring: Ring, run: Living) -> None:
    ring.strike(_beating(run), signal.SIGSTOP)


def kill_shim(ring: Ring, run: Living) -> None:
    ring.strike(run.shim)


def kill_shim_and_trainer(ring: Ring, run: Living) -> None:
    for pid in ring.chance.sample([run.shim, run.trainer], 2):
        ring.strike(pid)


def kill_supervisor(ring: Ring, _run: Living) -> None:
    ring.bed.kill_supervisor(ring.supervisor)  # type: ignore[arg-type]
    ring.restart = True


def kill_supervisor_and_trainer(ring: Ring, run: Living) -> None:
    kill_supervisor(ring, run)
    ring.strike(_beating(run))


def kill_supervisor_and_shim(ring: Ring, run: Living) -> None:
    kill_supervisor(ring, run)
    ring.strike(run.shim)


def freeze(ring: Ring, run: Living) -> None:
    """All three longer than the deadline, woken in any order."""
    order = [ring.supervisor.pid, run.shim, run.trainer]  # type: ignore[attr-defined]
    for pid in order:
        ring.strike(pid, signal.SIGSTOP)
    time.sleep(ring.chance.uniform(2.5, 4.0))  # the time itself is the fault
    for pid in ring.chance.sample(order, 3):
        ring.strike(pid, signal.SIGCONT)
        time.sleep(ring.chance.uniform(0.0, 0.2))


def interrupt(ring: Ring, _run: Living) -> None:
    """A person stops the job, and starts it again."""
    ring.supervisor.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
    if ring.bed.ended(ring.supervisor) not in (0, 5):  # type: ignore[arg-type]
        raise AssertionError(f"an interrupted supervisor left otherwise\n{ring.bed.tell()}")
    ring.restart = True


def relaunch(ring: Ring, _run: Living) -> None:
    ring.bed.call("relaunch", "--no-wait")


def _still(ring: Ring, run: Living) -> Path | None:
    """Stop the trainer so that it saves no more; its newest manifest, None when there is none older than it."""
    ring.strike(_beating(run), signal.SIGSTOP)
    wait_for(lambda: _is_stopped(_beating(run)), "the trainer to stand still", timeout_s=5)
    manifests = sorted(ring.bed.checkpoints.glob("step-*" + contract.MANIFEST_SUFFIX))
    return manifests[-1] if len(manifests) > 1 else None


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3] in b"TtZX"


def damage(ring: Ring, run: Living) -> None:
    """The newest checkpoint, in one of the ways, and the death of the trainer."""
    newest = _still(ring, run)
    if newest is not None:
        name = ring.chance.choice(sorted(DAMAGES))
        with contextlib.suppress(FileNotFoundError):
            DAMAGES[name](data_file(newest), ring.chance)
    ring.strike(_beating(run))


def swap_newest(ring: Ring, run: Living) -> None:
    """The newest checkpoint for another job's of the same step, consistent in itself."""
    newest = _still(ring, run)
    if newest is not None and (ring.stranger / newest.name).exists():
        known = {event["data"]["step"] for event in ring.bed.kinds("checkpoint_verified")}
        if contract.Manifest.read(newest).step in known:
            swap(newest, ring.stranger / newest.name)
    ring.strike(_beating(run))


def second_supervisor(ring: Ring, _run: Living) -> None:
    """Must leave with 4, saying who is there."""
    code = ring.bed.ended(ring.bed.start())
    if code != 4:
        raise AssertionError(f"a second supervisor left with {code}, not with 4\n{ring.bed.tell()}")


FAULTS: dict[str, Callable[[Ring, Living], None]] = {
    "kill trainer": kill_trainer,
    "kill leader": kill_leader,
    "stop trainer": stop_trainer,
    "kill shim": kill_shim,
    "kill shim and trainer": kill_shim_and_trainer,
    "kill supervisor": kill_supervisor,
    "kill supervisor and trainer": kill_supervisor_and_trainer,
    "kill supervisor and shim": kill_supervisor_and_shim,
    "freeze all": freeze,
    "interrupt": interrupt,
    "relaunch": relaunch,
    "damage newest": damage,
    "swap newest": swap_newest,
    "second supervisor": second_supervisor,
}
# How the trainer is started.
COMPANIES: dict[str, tuple[object, ...]] = {
    "plain": (),
    "slow to sync": ("--slow-sync", 0.03),
    "deaf to TERM": ("--ignore-term",),
    "with an escapee": ("--escapee",),
}


def possible(company: str) -> list[str]:
    """The faults that a job must survive by itself: an escapee that outlives its shim may be a hold, by design."""
    return [name for name in sorted(FAULTS) if company != "with an escapee" or "shim" not in name]


SHELL = ["sh", "-c", '"$@"; exit $?', "sh"]


def clear(folder: Path) -> None:
    """Remove a bed's folder; a campaign makes many."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
