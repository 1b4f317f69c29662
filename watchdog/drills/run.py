"""One drill: a bed, a moment, a fault, and what comes of it, read from nothing but the job's own ledger and weights.

Responsible for the deadline of each drill and for leaving nothing behind, whatever happens in it.
Refuses to touch the user's job, its settings or its state: everything lies in a temporary folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from watchdog.control import request
from watchdog.core.causes import Cause
from watchdog.drills.bed import Bed, BedError, Living, wait_for
from watchdog.drills.faults import Fault, Need, Outcome
from watchdog.drills.interrupts import Interrupted, held_off
from watchdog.drills.leftovers import BED, make_folder
from watchdog.drills.making import Ring
from watchdog.drills.places import Disk, PlaceError
from watchdog.drills.trainers import Quick, Trained, data_in
from watchdog.errors import ControlError

DEADLINE_S = 90.0
_WRONG = (AssertionError, OSError, PlaceError, ControlError, subprocess.SubprocessError, ValueError)
_ENDS = ("run_stopping", "run_ended", "run_weighed")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "job": {"devices": []},  # a drill neither waits for GPUs nor measures them
    "relaunch": {"failures": 5, "backoff": "0.2s", "backoff_limit": "0.2s", "gate_wait": "20s"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one drill; times in seconds from the fault. `problems` empty: it ended as it should."""

    fault: str
    phase: str
    expected: str
    outcome: str
    detected_as: str | None = None
    detected_s: float | None = None
    next_step_s: float | None = None
    steps_lost: int | None = None
    took_s: float = 0.0
    problems: tuple[str, ...] = ()
    not_made: str = ""  # why this host did not let it be made, after all; then it is a problem, too

    @property
    def ok(self) -> bool:
        return not self.problems


Eyes = Callable[[Bed], contextlib.AbstractContextManager[Callable[[], Sequence[str]]]]


@contextlib.contextmanager
def _no_eyes(_bed: Bed) -> Iterator[Callable[[], Sequence[str]]]:
    yield lambda: ()


def drill(
    fault: Fault,
    phase: str,
    *,
    trained: Trained | None = None,
    make_bed: Callable[..., Bed] = Bed,
    eyes: Eyes = _no_eyes,
) -> Result:
    """Make one fault in one phase, and see it through. Never raises for what the supervisor does wrong.

    `trained`: what is harmed, the quick job if None. `make_bed` and `eyes` are for a benchmark that watches more
    closely: eyes give back a function that tells, at the end, what was wrong.
    """
    began_s = time.monotonic()
    seen = _Seen(fault=fault, phase=phase)
    left: list[str] = []
    stack, folder = contextlib.ExitStack(), None
    try:
        with contextlib.ExitStack() as outer:
            with held_off():
                folder = make_folder(f"{fault.name}, in phase {phase}", outer)
                outer.callback(_clean, stack, folder, left)
            _perform(seen, folder, stack, trained or Quick(), make_bed, eyes)
    except KeyboardInterrupt:
        if folder is not None and not left:  # it may have come before the cleaning held it off; twice does no harm
            _clean(stack, folder, left)
        raise Interrupted(tuple(left)) from None
    except _WRONG as error:
        seen.problems.append(str(error) or type(error).__name__)
        seen.not_made = str(error) if isinstance(error, PlaceError) else ""
    seen.problems += left
    return seen.result(time.monotonic() - began_s)


def _clean(stack: contextlib.ExitStack, folder: Path, left: list[str]) -> None:
    """End and remove all of it; what could not be is told in `left`, so that nothing here hides an interrupt."""
    with held_off():
        try:
            stack.close()
        except _WRONG as error:
            left.append(f"not all of the drill could be ended: {str(error) or type(error).__name__}")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # what can be
            words = f"{folder} could not be removed ({error}): see what is in it, then rm -r it"
            left += [words] if folder.exists() else []


def _perform(
    seen: _Seen,
    folder: Path,
    stack: contextlib.ExitStack,
    trained: Trained,
    make_bed: Callable[..., Bed],
    eyes: Eyes,
) -> None:
    fault = seen.fault
    command = trained.prepare(folder)
    expected = trained.expected(folder)
    root = folder / BED
    root.mkdir(exist_ok=True)
    disk = None
    if Need.DISK in fault.needs:
        disk = Disk(root / "checkpoints", stack)
    elif Need.LOG_DISK in fault.needs:
        disk = Disk(root / "state", stack)
    given = (SETTINGS, trained.settings, fault.settings)
    settings = {
        name: {key: value for each in given for key, value in each.get(name, {}).items()}
        for name in {name for each in given for name in each}
    }
    prefix = () if disk is None else disk.prefix
    cleanup = stack.enter_context(contextlib.ExitStack())
    bed = stack.enter_context(make_bed(root, [*command, *fault.options], settings=settings, prefix=prefix))
    if disk is not None and Need.DISK in fault.needs:
        bed.checkpoints = disk.seen
    elif disk is not None:
        bed.state = disk.seen / bed.name
    tell = stack.enter_context(eyes(bed))
    supervisor = bed.start()
    run = _moment(bed, supervisor, seen.phase, trained)
    ring = Ring(bed=bed, run=run, data=data_in(folder), supervisor=supervisor, cleanup=cleanup, disk=disk)
    beat = run.beat()
    seen.struck_s, seen.struck_run, seen.struck_step = time.time(), run, 0 if beat is None else beat.step or 0
    fault.make(ring)
    if ring.restart:
        supervisor = bed.start()
    code = bed.ended(supervisor, timeout_s=DEADLINE_S)
    if code == 3:
        seen.outcome = Outcome.HELD
        seen.hear(bed.events())
        if fault.mend is None:
            raise BedError(f"it is on hold, and nobody was to be needed\n{bed.tell()}")
        fault.mend(ring)
        answer = bed.call("relaunch")
        if answer.returncode != 0:
            raise BedError(f"watchdog relaunch left with {answer.returncode}: {answer.stderr}\n{bed.tell()}")
        code = bed.ended(bed.start(), timeout_s=DEADLINE_S)
    if code != 0:
        raise BedError(f"the supervisor left with {code}\n{bed.tell()}")
    seen.hear(bed.events())
    if fault.changes_data:
        expected = trained.expected(folder)
    promised = [words for promise in ring.promises for words in promise()]
    found = [*seen.judge(expected, trained.found(bed.checkpoints)), *promised, *tell()]
    if found:
        seen.problems += [*found, bed.tell()]


def _moment(bed: Bed, supervisor: subprocess.Popen[bytes], phase: str, trained: Trained) -> Living:
    """The living run, at a moment of that phase; in a phase that comes again, after the second checkpoint."""

    def wait(phase: str) -> Living:
        least = {"train": trained.strike_step, "save": 10, "evaluate": 10}.get(phase, 0)

        def look() -> Living | None:
            if supervisor.poll() is not None:
                raise BedError(f"the supervisor left with {supervisor.returncode} before the fault\n{bed.tell()}")
            run = bed.living()
            beat = None if run is None else run.beat()
            there = beat is not None and beat.phase == phase and (beat.step or 0) >= least
            return run if there else None

        return wait_for(look, f"phase {phase}", timeout_s=30 * trained.slower, every_s=0.002)

    if phase == "drain":
        wait("train")
        # As `watchdog relaunch` does, without the time that its start takes.
        request(bed.state / "control.sock", {"command": "relaunch"}, 5.0)
    return wait(phase)


@dataclasses.dataclass
class _Seen:
    """What is known of a drill so far."""

    fault: Fault
    phase: str
    outcome: Outcome | None = None
    struck_s: float = 0.0
    struck_step: int = 0
    struck_run: Living | None = None
    cause: str | None = None
    causes: list[str] = dataclasses.field(default_factory=list)
    hold: str = ""
    detected_s: float | None = None
    next_step_s: float | None = None
    lost: int | None = None
    refused: bool = False
    problems: list[str] = dataclasses.field(default_factory=list)
    not_made: str = ""

    def hear(self, events: Sequence[Mapping[str, Any]]) -> None:
        """What the ledger tells of the time since the fault."""
        after = [event for event in events if event["wall_s"] >= self.struck_s]
        failed = [each for each in after if each["event"] in _ENDS and each["data"]["cause"] != Cause.FINISHED.value]
        ends = [event for event in failed if event["event"] == "run_weighed"]
        self.causes = [event["data"]["cause"] for event in ends]
        self.cause = next(iter(self.causes), None)
        self.lost = sum(event["data"].get("repeated", 0) for event in ends)
        self.refused = any(event["event"] in ("checkpoint_refused", "run_refused") for event in after)
        told = [
            event for event in after if event["event"] == "finding" and event["data"]["check"] == self.fault.finding
        ]
        noticed = [each for each in after if each["event"] in ("run_adopted", "hold") or each in failed or each in told]
        if noticed:
            self.detected_s = round(noticed[0]["wall_s"] - self.struck_s, 2)
            if not ends:
                self.cause = "adopted" if noticed[0]["event"] == "run_adopted" else self.fault.finding or None
        holds = [event for event in after if event["event"] == "hold"]
        if holds:
            self.hold = holds[-1]["data"]["reason"]
        for event in after:
            steps = event["event"] in ("run_steps", "run_recovered", "run_caught_up")
            if self.next_step_s is None and steps and event["data"]["step"] > self.struck_step:
                self.next_step_s = round(event["wall_s"] - self.struck_s, 2)
        if self.outcome is None and any(event["event"] == "finished" for event in after):
            self.outcome = Outcome.RECOVERED if ends else Outcome.UNHARMED

    def judge(self, expected: Mapping[str, Any], weights: Mapping[str, Any]) -> list[str]:
        """What did not come as it should."""
        fault, found = self.fault, []
        if self.outcome is not fault.outcome and (self.outcome is None or self.outcome is not fault.or_else):
            was = "unknown" if self.outcome is None else self.outcome.value
            found.append(f"the outcome is {was}, should be {fault.outcome.value}")
        allowed = {cause.value for cause in fault.causes_in(self.phase)}
        if allowed and self.outcome is not Outcome.UNHARMED and self.cause not in allowed:
            found.append(f"called {self.cause or 'nothing'}, should be {' or '.join(sorted(allowed))}")
        if fault.finding and self.detected_s is None:
            found.append(f"nobody told of {fault.finding}")
        missing = [cause.value for cause in fault.later if cause.value not in self.causes[1:]]
        if missing:
            found.append(f"later ends are {self.causes[1:]}, {' and '.join(missing)} should be among them")
        if fault.hold and fault.hold not in self.hold:
            found.append(f"the hold says {self.hold!r}, should tell of {fault.hold!r}")
        if fault.refused and not self.refused:
            found.append("no checkpoint was refused")
        if dict(weights) != dict(expected):
            found.append(f"the weights are {dict(weights)}, undisturbed they are {dict(expected)}")
        return found

    def result(self, took_s: float) -> Result:
        return Result(
            fault=self.fault.name,
            phase=self.phase,
            expected=self.fault.outcome.value,
            outcome="failed" if self.outcome is None else self.outcome.value,
            detected_as=self.cause,
            detected_s=self.detected_s,
            next_step_s=self.next_step_s,
            steps_lost=self.lost,
            took_s=round(took_s, 1),
            problems=tuple(self.problems),
            not_made=self.not_made,
        )
