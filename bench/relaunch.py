"""How long a relaunch takes the supervisor: from the death of the worker to the first instruction of the next one.

A real `watchdog run` at its default period over a job of level 2; the worker is killed at random moments, and every
gate and proof is held each time. The moments in between come from the ledger, from the shim's record and from the times
of the files (those step with the kernel's tick, 4 ms), so the parts of one relaunch add up to the whole of it. The
worker's start is an upper bound: it is taken by an interpreter that has come up (`python -I -S`, given beside it).
The checkpoints are tiny: for large ones the time of reading them back (sha256) is to be added.
With `--device` there is a GPU to be seen well, too: the stand-in for NVML.

Also how late a stall is called: SIGSTOP, until `run_stopping` is recorded, less the deadline that counted.

Refuses to time a relaunch that waited for a backoff, that resumed from anything but a verified checkpoint, or that no
gate stood before. What was not measured is a limit that was not held, and a stall called too early is no stall.

    python -P -m bench.relaunch [--rounds 20] [--stalls 5] [--seed 1] [--device] [--record]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import record
from bench.campaign_bed import Bed, BedError, Living, wait_for
from bench.overhead_sampling import StandIn
from bench.startup import CommandFailedError, measure
from watchdog import contract

LIMIT_S = 0.25
STALL_LIMIT_S = 1.0
EARLY_S = 0.05  # a stall's reason tells its deadline rounded
DEADLINE_S = 2.0
ROUNDS, STALLS = 20, 5
KEPT = 3  # checkpoints that the trainer's retention would keep
STAMP = """
import time
began_s = time.monotonic()
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(fd, f"{os.environ['GPUHOST_WATCHDOG_RUN_ID']} {began_s:.6f}\\n".encode())
os.close(fd)
os.execv(sys.argv[2], sys.argv[2:])
"""
PYTHON = "python -I -S alone, for comparison"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """One relaunch: seconds on the monotonic clock, in the order in which they come."""

    killed_s: float
    reaped_s: float  # by its shim
    ended_s: float  # the record `run_ended` is made
    weighed_s: float
    launching_s: float
    recorded_s: float  # the record of the run is on disk
    shim_s: float  # the shim made its exit record
    began_s: float  # the worker's first instruction

    @property
    def all_s(self) -> float:
        return self.began_s - self.killed_s


PARTS = (
    "reaped by its shim",
    "its end known: shim gone, last words, kernel log; shim's records",
    "end recorded; checkpoint chosen and read back",
    "weighed and recorded; gates",
    "launch recorded in ledger, lineage, run record",
    "shim executed",
    "shim's records; worker executed, interpreter up",
)


def parts(moments: Moments) -> dict[str, float]:
    """Seconds of each part; they add up to the whole."""
    order = dataclasses.astuple(moments)
    return {part: after - before for part, (before, after) in zip(PARTS, itertools.pairwise(order), strict=True)}


def rows(relaunches: Sequence[Moments], python_s: float) -> list[dict[str, object]]:
    """One row a part: median and worst in milliseconds."""

    def row(what: str, seconds: Sequence[float]) -> dict[str, object]:
        return {"part": what, "median ms": ms(statistics.median(seconds)), "worst ms": ms(max(seconds))}

    split = [parts(moments) for moments in relaunches]
    return [
        row("all", [moments.all_s for moments in relaunches]),
        *(row(part, [each[part] for each in split]) for part in PARTS),
        {"part": PYTHON, "median ms": ms(python_s), "worst ms": ""},
    ]


def ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def misses(relaunches: Sequence[Moments], late_s: Sequence[float]) -> list[str]:
    """A sentence for each limit that was not held."""
    found = []
    if not relaunches:
        found.append("no relaunch was measured")
    elif not 0 < (median_s := statistics.median(moments.all_s for moments in relaunches)) < LIMIT_S:
        found.append(f"a relaunch took {median_s:.3f} s (median), the limit is {LIMIT_S:g} s")
    if not late_s:
        found.append("no stall was measured")
    for late in late_s:
        if not -EARLY_S <= late <= STALL_LIMIT_S:
            found.append(f"a stall was called {late:.3f} s after its deadline, the limit is {STALL_LIMIT_S:g} s")
    return found


def allowed_s(reason: str) -> float:
    """The deadline that a stall's reason tells. Raises ValueError."""
    found = re.search(r"allowed are ([0-9.]+) s", reason)
    if found is None:
        raise ValueError(f"a run was stopped, and not for a stall: {reason}")
    return float(found[1])


class Trial:
    """One supervisor and its job, relaunched again and again."""

    def __init__(self, root: Path, dice: random.Random, *, device: bool = False) -> None:
        self._dice = dice
        self._device = device
        self._starts = root / "starts"
        counter = [sys.executable, "-P", "-m", "bench.campaign_counter"]
        counter += ["--steps", "1000000", "--save-every", "20", "--delay", "0.02"]
        command = [sys.executable, "-I", "-S", "-c", STAMP, str(self._starts), *counter]
        settings: dict[str, dict[str, str | int]] = {
            "loop": {"period": "1s"},  # the default
            "deadlines": {"train": f"{DEADLINE_S:g}s", "save": f"{DEADLINE_S:g}s"},  # it may be hit in either
            "relaunch": {"failures": 3, "backoff": "10s", "backoff_limit": "10m"},  # the defaults: a wait would show
            "stop": {"grace": "1s", "kill_wait": "10s"},
        }
        self.bed = Bed(root, command, settings=settings)

    def settled(self, after: int) -> Living:
        """The run after number `after`, once a checkpoint of its own is verified: its end has no backoff to wait for.

        Then a random moment later.
        """
        run = self.bed.run_where(lambda _run, beat: beat is not None and beat.phase == "train", "a step", after=after)

        def progressed() -> bool:
            return any(event["data"]["run_id"] == run.run_id for event in self.bed.kinds("checkpoint_verified"))

        wait_for(progressed, f"a verified checkpoint of run {run.number}", every_s=0.02)
        self._prune()
        time.sleep(self._dice.uniform(0.0, 1.5))  # a random moment, between steps, saves and looks
        return run

    def _prune(self) -> None:
        """What the trainer's own retention would do; manifests first."""
        manifests = sorted(self.bed.checkpoints.glob("count-*" + contract.MANIFEST_SUFFIX))
        for manifest in manifests[:-KEPT]:
            manifest.unlink()
            manifest.with_name(manifest.name.removesuffix(contract.MANIFEST_SUFFIX) + ".json").unlink(missing_ok=True)

    def killed(self, run: Living) -> tuple[Moments, Living]:
        """Kill the worker and watch the relaunch. Raises BedError when it was not what is to be measured."""
        killed_s = time.monotonic()
        self.bed.harm(run.trainer)
        began_s, after = self._began(run)
        wall_s = time.time() - time.monotonic()  # to bring the times of files to the monotonic clock
        if not began_s > killed_s:
            raise BedError(f"run {after.number} began {killed_s - began_s:.3f} s before the death that it came after")
        control = self.bed.checkpoints / contract.CONTROL_FOLDER
        exit_record = json.loads((run.folder / "exit.json").read_bytes())
        moments = Moments(
            killed_s=killed_s,
            reaped_s=exit_record["leader"]["monotonic_s"],
            ended_s=self._event("run_ended", run.run_id)["monotonic_s"],
            weighed_s=self._weighed(run),
            launching_s=self._launching(after)["monotonic_s"],
            recorded_s=(control / contract.RUN_RECORD).stat().st_mtime - wall_s,
            shim_s=(after.folder / "exit.json").stat().st_mtime - wall_s,
            began_s=began_s,
        )
        return moments, after

    def stalled(self, run: Living) -> float:
        """Stop the worker; how long after its deadline that was called, s."""
        self.bed.harm(run.trainer, signal.SIGSTOP)
        state = Path(f"/proc/{run.trainer}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "a stopped worker")
        beat = run.beat()  # its last for now: whoever is asked to end is woken, and may beat again
        try:
            event = wait_for(lambda: self._find("run_stopping", run.run_id), "a stall that is called", timeout_s=30)
        except BedError as error:
            raise BedError(f"{error}\n{self.bed.tell()}") from None
        assert beat is not None
        return float(event["monotonic_s"]) - beat.monotonic_s - allowed_s(event["data"]["reason"])

    def _began(self, run: Living) -> tuple[float, Living]:
        after = self.bed.run_where(lambda _run, _beat: self._stamp(_run.run_id), "the next run", after=run.number)
        began_s = self._stamp(after.run_id)
        if began_s is None:
            raise BedError(f"run {after.number} has no first instruction on record\n{self.bed.tell()}")
        return began_s, after

    def _stamp(self, run_id: str) -> float | None:
        for line in self._starts.read_text().splitlines():
            name, _, began_s = line.partition(" ")
            if name == run_id:
                return float(began_s)
        return None

    def _find(self, kind: str, run_id: str) -> dict[str, Any] | None:
        return next((event for event in self.bed.kinds(kind) if event["data"].get("run_id") == run_id), None)

    def _event(self, kind: str, run_id: str) -> dict[str, Any]:
        event = self._find(kind, run_id)
        if event is None:
            raise BedError(f"no {kind} of run {run_id}\n{self.bed.tell()}")
        return event

    def _weighed(self, run: Living) -> float:
        event = self._event("run_weighed", run.run_id)
        if event["data"]["wait_s"] != 0:
            raise BedError(f"run {run.number} had made progress, and a backoff came after it\n{self.bed.tell()}")
        return float(event["monotonic_s"])

    def _launching(self, run: Living) -> dict[str, Any]:
        event = self._event("run_launching", run.run_id)
        verified = {(each["data"]["step"], each["data"]["digest"]) for each in self.bed.kinds("checkpoint_verified")}
        if (event["data"]["resume_step"], event["data"]["digest"]) not in verified:
            raise BedError(f"run {run.number} does not resume from a verified checkpoint\n{self.bed.tell()}")
        gates = event["data"]["gates"]
        if not gates or (self._device and not any("devices NVIDIA" in gate for gate in gates)):
            raise BedError(f"run {run.number} was launched and only these gates were held: {gates}\n{self.bed.tell()}")
        return event


def run_trial(
    root: Path, *, rounds: int, stalls: int, seed: int, device: bool = False
) -> tuple[list[Moments], list[float]]:
    """So many relaunches and stalls. Raises BedError."""
    trial = Trial(root, random.Random(seed), device=device)
    relaunches: list[Moments] = []
    late_s: list[float] = []
    with trial.bed as bed:
        bed.start()
        number = 0
        for _ in range(rounds):
            run = trial.settled(number)
            number = run.number
            relaunches.append(trial.killed(run)[0])
        for _ in range(stalls):
            run = trial.settled(number)
            number = run.number
            late_s.append(trial.stalled(run))
        if problems := bed.kill_problems(bed.events()):
            raise BedError("\n".join(problems))
    return relaunches, late_s


def python_s() -> float:
    """The interpreter alone, median of a few."""
    bare = [sys.executable, "-I", "-S", "-c", "pass"]
    return statistics.median(measure(bare, os.environ, accept=frozenset({0})).wall_s for _ in range(9))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -P -m bench.relaunch", description="time of a relaunch, and its parts"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"workers that are killed (default {ROUNDS})")
    parser.add_argument("--stalls", type=int, default=STALLS, help=f"workers that are stopped (default {STALLS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", action="store_true", help="with a GPU to prove: the stand-in for NVML")
    parser.add_argument("--record", action="store_true", help="add the result to docs/benchmarks.md")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or chosen.stalls < 1:
        parser.error(f"--rounds is {chosen.rounds} and --stalls is {chosen.stalls}, each must be at least 1")
    if chosen.record and (chosen.rounds < ROUNDS or chosen.stalls < STALLS):
        parser.error(f"a result to record has at least {ROUNDS} rounds and {STALLS} stalls")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if chosen.device:
            (root / "nvml").mkdir()
            standin = StandIn(root / "nvml").environment()
            os.environ.update({name: value for name, value in standin.items() if name not in ("PATH", "HOME", "TERM")})
        try:
            relaunches, late_s = run_trial(
                root, rounds=chosen.rounds, stalls=chosen.stalls, seed=chosen.seed, device=chosen.device
            )
        except (BedError, CommandFailedError) as error:
            print(f"not measured: {error}", file=sys.stderr)
            return 1
    result = rows(relaunches, python_s())
    details: Mapping[str, Any] = {
        "rounds": chosen.rounds,
        "device": chosen.device,
        "all_ms": [ms(moments.all_s) for moments in relaunches],
        "stall_late_ms": [ms(seconds) for seconds in late_s],
    }
    print(record.table(result))
    print(json.dumps(details))
    missed = misses(relaunches, late_s)
    for words in missed:
        print(words, file=sys.stderr)
    if chosen.record:
        what = "relaunch, one device" if chosen.device else "relaunch"
        record.append(what, result, seed=chosen.seed, details=details)
        print(f"added to {record.DOCUMENT.relative_to(record.ROOT)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
