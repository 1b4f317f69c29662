"""The proof by endurance: hundreds of random faults in a row, the supervisor killed in the middle of many of them.

    python -P -m bench.endurance [--faults 500] [--seed S] [--minutes M] [--record]

Jobs of the small model (watchdog/drills/job.py) run under the real supervisor; each gets its faults one after the
other, at moments that chance chose, with copies of its trainer's command line beside it. An eye in a process of its own
writes down who lived and who died of what (bench/audit_eye.py). At the end of each job its weights are compared with
the undisturbed ones, and a separate program, which has nothing of the product in it, looks for broken invariants in
nothing but the ledger and what the eye saw (bench/audit.py). Where a hold is the right end it must be the one expected;
then the cause is mended, the hold is lifted by `watchdog relaunch`, and it goes on.
Exit 0: every fault was made in time, and nothing was broken. The order of the faults follows the seed; the moments also
depend on the machine.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import record
from bench.endurance_faults import (
    BUDGET_WORDS,
    FAULTS,
    Lessons,
    Ring,
    Tail,
    WatchedBed,
    Watching,
    ambush,
    await_moment,
    draw,
    newest_step,
)
from watchdog.core.identity import ProcessId
from watchdog.drills import job as small
from watchdog.drills.bed import BedError, Living
from watchdog.drills.places import Disk, PlaceError, why_no_disk
from watchdog.errors import ControlError

FAULTS_A_JOB = 25
STEPS_A_FAULT, STEPS_MORE = 16, 30
FAILURES = 5
# Asked before it listens it just ends; while `watchdog stop` itself ends what is left the job is taken (4).
_LEFT = (5, 4, 130, -signal.SIGINT, -signal.SIGTERM)
_NOBODY = ProcessId(0, 0)
SUPERVISORS = 0.35  # of the faults that do not kill the supervisor anyway get its death on top
_HOLD_S, _END_S = 30.0, 90.0
_BLIND_S = 3.0
_BYSTANDER = "import time\nwhile True: time.sleep(0.2)"
_PHASES = ("import", "prepare", "load", "compile", "first_step", "train", "evaluate", "save", "drain")
SETTINGS: dict[str, dict[str, Any]] = {
    "job": {"devices": []},
    "deadlines": {phase: "1.5s" for phase in _PHASES} | {"start": "20s", "finished": "5s"},
    # Between two faults the job says that it trains, and waits for its data: by every sign there is that is a fake.
    "checks": {"off": ["steps-frozen"]},
    "relaunch": {"failures": FAILURES, "backoff": "0.1s", "backoff_limit": "0.2s", "gate_wait": "3s"},
}
_WRONG = (AssertionError, OSError, PlaceError, ControlError, subprocess.TimeoutExpired, ValueError)


@dataclasses.dataclass
class Tally:
    """What is counted over all jobs; for use from several threads."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    jobs: int = 0
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    moments: Counter[str] = dataclasses.field(default_factory=Counter)
    supervisors: int = 0  # killed
    ambushes: Counter[str] = dataclasses.field(default_factory=Counter)  # when, on top of another fault
    holds: Counter[str] = dataclasses.field(default_factory=Counter)
    broken: Counter[str] = dataclasses.field(default_factory=Counter)  # by rule
    figures: Counter[str] = dataclasses.field(default_factory=Counter)
    longest_gap_s: float = 0.0
    wrong_weights: int = 0
    unfinished: int = 0

    @property
    def made(self) -> int:
        return sum(self.faults.values())

    @property
    def failed(self) -> bool:
        return bool(self.broken or self.wrong_weights or self.unfinished)

    def row(self) -> dict[str, Any]:
        return {
            "faults": self.made,
            "supervisor killed": self.supervisors,
            "jobs": self.jobs,
            "runs": self.figures["runs"],
            "adoptions": self.figures["adoptions"],
            "holds lifted": sum(self.holds.values()),
            "broken invariants": sum(self.broken.values()),
            "wrong final weights": self.wrong_weights,
            "unfinished jobs": self.unfinished,
        }


class Bout:
    """One job with its faults, to its end."""

    def __init__(
        self, root: Path, seed: int, faults: int, watching: Watching, tally: Tally, over: Callable[[], bool]
    ) -> None:
        self._chance = random.Random(seed)
        self._faults, self._tally, self._over = faults, tally, over
        self._root, self._watching = root, watching
        self._child = self._chance.random() < 0.2
        self._deaf = self._chance.random() < 0.2
        self._disk = self._chance.random() < 0.2 and not why_no_disk()
        self._expected: list[str] = []
        self._mend: Any = None
        self._unheard: set[str] = set()  # runs whose beats were taken away
        self._blind_since_s = float("inf")
        self.log: list[str] = []
        self._began_s = time.monotonic()

    def play(self) -> list[str]:
        """Returns what went wrong."""
        steps = self._faults * STEPS_A_FAULT + STEPS_MORE
        self._root.mkdir()
        lessons = Lessons(self._root / "lessons.gz", steps)
        command = [sys.executable, "-P", "-m", "watchdog.drills.job", "--data", str(lessons.path)]
        command += ["--steps", str(steps), "--pause", "0.05", "--delay", "0.01"]
        command += ["--child"] * self._child + ["--deaf"] * self._deaf
        found: list[str] = []
        with contextlib.ExitStack() as stack:
            disk = Disk(self._root / "checkpoints", stack) if self._disk else None
            cleanup = stack.enter_context(contextlib.ExitStack())
            settings = SETTINGS | ({"disk": {"need": "3MiB"}} if disk else {})
            prefix = () if disk is None else disk.prefix
            bed = stack.enter_context(WatchedBed(self._root, command, settings=settings, prefix=prefix))
            bed.watching = self._watching
            if disk is not None:
                bed.checkpoints = disk.seen
            self._watching.begin(self._root.name)
            stack.enter_context(_bystanders(command[1:]))
            ring = Ring(
                bed=bed,
                run=Living("", 0, self._root, _NOBODY, _NOBODY),
                data=lessons.path,
                supervisor=bed.start(),
                cleanup=cleanup,
                disk=disk,
                chance=self._chance,
                tail=Tail(bed.state / "ledger.jsonl"),
            )
            try:
                for number in range(self._faults):
                    if self._over():
                        break
                    self._one(ring, lessons, STEPS_MORE + number * STEPS_A_FAULT)
                lessons.reach(steps)
                self._finish(ring)
            except _WRONG as error:
                found.append(f"unfinished: {type(error).__name__}: {error}")
                with self._tally.lock:
                    self._tally.unfinished += 1
            self._watching.end(self._root.name)
            found += self._audit(bed, over=not found)
            if not found or "unfinished" not in found[0]:
                found += self._compare(bed, lessons, steps)
        return found

    def _say(self, words: str) -> None:
        self.log.append(f"{time.monotonic() - self._began_s:>6.1f} s  {words}")

    # --- one fault ----------------------------------------------------------------------------------------------
    def _one(self, ring: Ring, lessons: Lessons, planned: int) -> None:
        lessons.reach(planned)
        moment = await_moment(ring)
        self._settle(ring)
        name = draw(self._chance, child=self._child, disk=self._disk)
        fault = FAULTS[name]
        ring.run = self._living(ring)
        if (fault.beats or fault.hold) and ring.run.beat() is None and ring.run.run_id in self._unheard:
            name, fault = "relaunch", FAULTS["relaunch"]  # what a person does who is told that it is blind
        self._say(f"{name}, {moment}, run {ring.run.number}")
        self._expected = [fault.hold] if fault.hold else []
        self._mend, ring.restart = fault.mend, False
        if fault.hold:  # a job that waits for data would not come to it
            lessons.reach(max(planned, 15 + newest_step(ring)))
        if name.startswith("beats"):
            self._unheard.add(ring.run.run_id)
        ring.tail.new()
        fault.make(ring)
        with self._tally.lock:
            self._tally.faults[name] += 1
            self._tally.moments[moment] += 1
        killed = ring.restart
        if fault.spots and self._chance.random() < SUPERVISORS:
            when = ambush(ring, fault.spots)
            self._say(f"  and the supervisor {when}" if when else "  the supervisor had left")
            killed = bool(when)
            with self._tally.lock:
                self._tally.ambushes.update([when] if when else [])
        if killed:
            with self._tally.lock:
                self._tally.supervisors += 1
            if self._chance.random() < 0.3:  # and the next one as well, while it starts or soon after
                ring.supervisor = ring.bed.start()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ring.supervisor.wait(self._chance.uniform(0.1, 0.7))
                if ring.supervisor.poll() is None:
                    self._say("  and the one after it")
                    ring.bed.kill_supervisor(ring.supervisor)
        self._settle(ring)
        if fault.hold:
            self._await_hold(ring)

    def _living(self, ring: Ring) -> Living:
        """The run to be harmed; one that is on its way is waited for."""
        deadline_s = time.monotonic() + _HOLD_S
        while time.monotonic() < deadline_s:
            self._settle(ring)
            run = ring.bed.living()
            if run is not None:
                return run
            time.sleep(0.005)
        raise BedError(f"no run lives, for {_HOLD_S:g} s\n{ring.bed.tell()}")

    def _settle(self, ring: Ring) -> None:
        """See to it that a supervisor is there: whoever left for a reason that was to be expected is followed."""
        code = ring.supervisor.poll()
        if code is None:
            return
        if code == 3:
            self._lift(ring)
        elif code != -signal.SIGKILL and not (
            self._may_leave(ring, code) and time.monotonic() < ring.may_leave_until_s
        ):
            raise BedError(f"the supervisor left with {code}, and nobody had asked for it\n{ring.bed.tell()}")
        ring.supervisor = ring.bed.start()

    def _may_leave(self, ring: Ring, code: int) -> bool:
        """One that is interrupted while Python itself still starts ends with 1."""
        started = (event["data"]["pid"] for event in ring.bed.kinds("supervisor_started"))
        return code in _LEFT or (code == 1 and ring.supervisor.pid not in started)

    def _lift(self, ring: Ring) -> None:
        ring.tail.new()
        reason = ring.tail.last_hold
        words = next((each for each in (*self._expected, BUDGET_WORDS) if each in reason), None)
        if words is None:
            raise BedError(f"a hold that nothing led to: {reason}\n{ring.bed.tell()}")
        self._say(f"  hold: {reason[:150]}")
        if words != BUDGET_WORDS:
            self._mended(ring)
        answer = ring.bed.call("relaunch")
        # A relaunch that was asked for before may have come so late that it has lifted the hold already.
        if answer.returncode != 0 and ring.bed.kinds("hold", "lifted")[-1]["event"] != "lifted":
            raise BedError(f"watchdog relaunch left with {answer.returncode}: {answer.stderr}\n{ring.bed.tell()}")
        with self._tally.lock:
            self._tally.holds[words] += 1

    def _mended(self, ring: Ring) -> None:
        if self._mend is not None:
            self._mend(ring)
        self._mend, self._expected = None, []

    def _await_hold(self, ring: Ring) -> None:
        """Until the hold that must come was there and is lifted; budgets may be used up on the way."""
        deadline_s, self._blind_since_s = time.monotonic() + _HOLD_S, float("inf")
        while self._mend is not None:
            if time.monotonic() > deadline_s:
                raise BedError(f"no hold came that says {self._expected}\n{ring.bed.tell()}")
            self._settle(ring)
            self._help_the_blind(ring)
            time.sleep(0.01)

    def _help_the_blind(self, ring: Ring) -> None:
        """A run whose beats cannot be read is not ended for that: a person who was told asks for another one."""
        run, now_s = ring.bed.living(), time.monotonic()
        if run is None or run.beat() is not None or self._blind_since_s == float("inf"):
            self._blind_since_s = now_s
        elif now_s - self._blind_since_s > _BLIND_S:
            self._blind_since_s = now_s
            self._say(f"  run {run.number} cannot be heard: relaunch")
            ring.bed.call("relaunch", "--no-wait")

    # --- the end ------------------------------------------------------------------------------------------------
    def _finish(self, ring: Ring) -> None:
        deadline_s, self._blind_since_s = time.monotonic() + _END_S, float("inf")
        while (code := ring.supervisor.poll()) != 0:
            if code is not None:
                self._settle(ring)
            self._help_the_blind(ring)
            if time.monotonic() > deadline_s:
                raise BedError(f"the job is not finished after {_END_S:g} s\n{ring.bed.tell()}")
            time.sleep(0.01)

    def _audit(self, bed: WatchedBed, *, over: bool) -> list[str]:
        """By a program of its own."""
        words = [str(bed.state / "ledger.jsonl"), "--kernel", f"{self._root}.kernel", "--failures", str(FAILURES)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bench.audit", *words, "--json", *(["--over"] if over else [])],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=record.ROOT,
        )
        if done.returncode not in (0, 1):
            with self._tally.lock:
                self._tally.broken["audit"] += 1
            return [f"the audit left with {done.returncode}: {done.stderr[-2000:]}"]
        report = json.loads(done.stdout)
        gap_s = report["figures"].pop("s longest gap")
        with self._tally.lock:
            self._tally.figures.update(report["figures"])
            self._tally.longest_gap_s = max(self._tally.longest_gap_s, gap_s)
            self._tally.broken.update(each["rule"] for each in report["problems"])
        return [f"{each['rule']}, line {each['line']}: {each['words']}" for each in report["problems"]]

    def _compare(self, bed: WatchedBed, lessons: Lessons, steps: int) -> list[str]:
        expected = small.final_weights(lessons.whole, steps)
        weights = json.loads((bed.checkpoints / "weights.json").read_bytes())
        if weights == expected:
            return []
        with self._tally.lock:
            self._tally.wrong_weights += 1
        return [f"the weights are {weights}, undisturbed they are {expected}"]


@contextlib.contextmanager
def _bystanders(words: Sequence[str]) -> Iterator[None]:
    """Two with the words of the trainer, in sessions of their own; the eye sees to whether they are harmed."""
    started = [
        subprocess.Popen([sys.executable, "-c", _BYSTANDER, *words], start_new_session=True, cwd="/") for _ in range(2)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def play_all(
    faults: int, seed: int, minutes: float, *, at_a_time: int, keep: Path, a_job: int = FAULTS_A_JOB, tell: bool = False
) -> Tally:
    """All of them, or as many as go into that time. What a job that went wrong has left is copied to `keep`."""
    tally, seeds = Tally(), random.Random(seed)
    sizes = [a_job] * (faults // a_job) + [faults % a_job] * bool(faults % a_job)
    until_s, interrupted = time.monotonic() + minutes * 60, threading.Event()

    def over() -> bool:
        return interrupted.is_set() or time.monotonic() > until_s

    with tempfile.TemporaryDirectory(prefix="gpuhost-watchdog-endurance-") as name:
        top = Path(name).resolve()
        eye = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.audit_eye", str(top)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=record.ROOT,
        )
        assert eye.stdin is not None
        assert eye.stdout is not None
        watching = Watching(eye.stdin, eye.stdout)

        def one(number: int, size: int, own: int) -> None:
            if over():
                return
            root = top / f"job{number}"
            began_s = time.monotonic()
            bout = Bout(root, own, size, watching, tally, over)
            found = bout.play()
            with tally.lock:
                tally.jobs += 1
                verdict = "nothing broken" if not found else "BROKEN"
                print(f"job {number:<3} seed {own:<11} {time.monotonic() - began_s:>5.1f} s  {verdict}", flush=True)
                if found or tell:
                    print("\n".join([*bout.log, *found]), flush=True)
                if found:
                    _keep(root, keep, [*bout.log, *found])
            shutil.rmtree(root, ignore_errors=True)

        try:
            with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
                started = [pool.submit(one, number, size, seeds.randrange(2**31)) for number, size in enumerate(sizes)]
                try:
                    for each in started:
                        each.result()
                finally:
                    interrupted.set()  # what has begun goes on to its end, so that nothing is left behind
        finally:
            eye.stdin.close()
            eye.wait(20)
            eye.stdout.close()
    return tally


def _keep(root: Path, keep: Path, words: Sequence[str]) -> None:
    """For a person who looks into it: the ledger, the kernel's view, the screen, and what was done."""
    keep.mkdir(parents=True, exist_ok=True)
    for path in (root / "state" / "bed" / "ledger.jsonl", root.with_suffix(".kernel"), root / "screen.txt"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(path, keep / f"{root.name}-{path.name}")
    (keep / f"{root.name}-faults.txt").write_text("\n".join(words) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.endurance", description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=500, help="how many (500)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    parser.add_argument("--minutes", type=float, default=14.0, help="no fault is made after that (14)")
    parser.add_argument("--at-a-time", type=int, default=3, help="jobs beside each other (3)")
    parser.add_argument("--keep", type=Path, help="where what went wrong is kept (a new temporary folder)")
    parser.add_argument("--tell", action="store_true", help="also name the faults of the jobs in which nothing broke")
    parser.add_argument("--record", action="store_true", help="add the result to docs/benchmarks.md")
    wishes = parser.parse_args(argv)
    keep = wishes.keep or Path(tempfile.gettempdir()) / f"gpuhost-watchdog-endurance-kept-{time.time():.0f}"
    began_s = time.monotonic()
    tally = play_all(
        wishes.faults, wishes.seed, wishes.minutes, at_a_time=wishes.at_a_time, keep=keep, tell=wishes.tell
    )
    row = tally.row()
    details = {
        "minutes": round((time.monotonic() - began_s) / 60, 1),
        "faults": dict(sorted(tally.faults.items())),
        "moments": dict(sorted(tally.moments.items())),
        "supervisor on top": dict(sorted(tally.ambushes.items())),
        "holds": dict(tally.holds),
        "looked at": dict(tally.figures) | {"longest gap, s": round(tally.longest_gap_s, 3)},
    }
    if tally.broken:
        details["broken"] = dict(tally.broken)
    print("\n".join(f"{key}: {value}" for key, value in {**row, **details}.items()))
    short = tally.made < wishes.faults
    if short:
        print(f"fell short: {tally.made} of {wishes.faults} faults in {wishes.minutes:g} minutes", file=sys.stderr)
    if tally.failed:
        print(f"what went wrong is kept in {keep}", file=sys.stderr)
    if wishes.record:
        record.append("endurance", [row], seed=wishes.seed, details=details)
    return 1 if short or tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
