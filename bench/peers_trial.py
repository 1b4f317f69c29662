"""One trial of the side-by-side: one tool over one folder, one fault from outside, and what came of it.

Everything is measured from what the trainer itself writes down (its starts and its steps), and survived means: done in
time, with the value of an undisturbed run. How ours spent its time is read from its ledger.
ETTR as the project defines it: unique steps x step time, over the time since the first start of the trainer. A job that
stands still, or goes on with a wrong state, is charged the whole of its time.
Refuses to help: after the fault nothing is done until the job is over or the patience is, the same for every tool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.campaign_bed import BedError, wait_for
from bench.campaign_counter import final_value
from bench.peers_ending import end_all
from bench.peers_tools import OURS, Tool
from bench.peers_trainer import STEP_S, STEPS
from bench.startup import CommandFailedError
from watchdog import contract

AT_STEP = 43  # between two checkpoints
LIMIT_S = 22.0  # from the fault to the end of the job; undisturbed it takes 3 s, and the slowest fault takes 10 s more
FULL_S = 10.0
_START_LIMIT_S = 60.0
MARK = "PEERS_TRIAL"  # in the environment of all that a trial starts, for who looks for what is left


# --- what the trainer wrote down ------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The trainer's own words: when it was started (with its pid), each step, and its last value."""

    starts: tuple[tuple[int, float], ...] = ()
    steps: tuple[tuple[int, float], ...] = ()
    done: tuple[str, float] | None = None


def parse_trace(text: str) -> Trace:
    """A last line that is being written is passed over."""
    starts, steps, done = [], [], None
    for line in text[: text.rfind("\n") + 1].splitlines():
        what, word, at_s = line.split(" ")
        match what:
            case "start":
                starts.append((int(word), float(at_s)))
            case "step":
                steps.append((int(word), float(at_s)))
            case "done":
                done = done or (word, float(at_s))
    return Trace(starts=tuple(starts), steps=tuple(steps), done=done)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One trial. Times in seconds from the fault; None: it did not come to that.

    `next_step_s`: to the first new step that was kept; one that had to be made again was none. `lost`: steps that were
    made more than once. `before_s`: from the first start to the fault. `restart_s`: to the start of the worker that
    made the new step. `parts`: the way there by our own ledger, each until the next; empty for a peer, which has no
    such record.
    """

    tool: str
    fault: str
    survived: bool
    why_not: str
    detect_s: float | None
    next_step_s: float | None
    lost: int | None
    productive_s: float
    wall_s: float
    before_s: float = 0.0
    restart_s: float | None = None
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def ettr(self) -> float:
        return self.productive_s / self.wall_s


_PARTS = {
    "run_stopping": "its end called for",
    "run_ended": "proven that nothing of it lives",
    "run_weighed": "weighed",
    "run_launching": "checkpoint read back, gates held",
}


def parts_of(events: Sequence[dict[str, Any]], fault_s: float, start_s: float) -> tuple[tuple[str, float], ...]:
    """How ours came from the fault to the start at `start_s`: the last of each record in between, in their order."""
    last: dict[str, float] = {}
    for event in events:
        if event["event"] in _PARTS and fault_s < event["monotonic_s"] <= start_s:
            last[event["event"]] = event["monotonic_s"]
    moments = [*sorted((at_s, _PARTS[kind]) for kind, at_s in last.items()), (start_s, "worker started")]
    found, before_s = [], fault_s
    for at_s, words in moments:
        found.append((words, at_s - before_s))
        before_s = at_s
    return tuple(found)


def judge(
    tool: str,
    fault: str,
    trace: Trace,
    fault_s: float,
    seen_s: float | None,
    last_words: str,
    events: Sequence[dict[str, Any]] = (),
) -> Outcome:
    """`seen_s`: when the tool was seen to act on the worker itself, where the fault left it in its place.

    `events`: of our ledger, where there is one.
    """
    reached = max(step for step, at_s in trace.steps if at_s <= fault_s)
    restart_s = next((at_s for _, at_s in trace.starts if at_s > fault_s), None)
    acted = [at_s for at_s in (restart_s, seen_s) if at_s is not None]
    since_s = restart_s or fault_s  # what a worker that was woken still does before its end is no recovery
    beyond = [(step, at_s) for step, at_s in trace.steps if at_s > since_s and step > reached]
    new_s = max((at_s for step, at_s in beyond if step == min(beyond)[0]), default=None)
    right = trace.done is not None and trace.done[0] == final_value(STEPS)
    survived = right and trace.done is not None and trace.done[1] <= fault_s + LIMIT_S
    if trace.done is not None and not right:
        productive, why_not = reached, "done, with a wrong result"
    elif survived:
        productive, why_not = STEPS, ""
    else:
        productive = max(step for step, _ in trace.steps)
        starts = sum(1 for _, at_s in trace.starts if at_s > fault_s)
        why_not = f"not done in {LIMIT_S:g} s, started {starts} times; {last_words}"
    came_s = None if new_s is None else max((at_s for _, at_s in trace.starts if fault_s < at_s < new_s), default=None)
    end_s = trace.done[1] if survived and trace.done is not None else fault_s + LIMIT_S
    return Outcome(
        tool=tool,
        fault=fault,
        survived=survived,
        why_not=why_not,
        detect_s=min(acted) - fault_s if acted else None,
        next_step_s=new_s - fault_s if new_s is not None and right else None,
        lost=len(trace.steps) - len({step for step, _ in trace.steps}) if survived else None,
        productive_s=productive * STEP_S,
        wall_s=end_s - trace.starts[0][1],
        before_s=fault_s - trace.starts[0][1],
        restart_s=came_s - fault_s if came_s is not None and right else None,
        parts=parts_of(events, fault_s, came_s) if events and came_s is not None and right else (),
    )


# --- one trial ------------------------------------------------------------------------------------------------
class Trial:
    """One tool over one folder. A context manager within `peers_ending.tidy`: leaving it ends all that was started."""

    def __init__(self, root: Path, tool: Tool, fault: Fault, *, light: bool = False) -> None:
        self.root, self.tool, self.fault = root, tool, fault
        self._light = ["--light"] if light else []
        self.checkpoints = root / "checkpoints"
        self.checkpoints.mkdir()
        self.mounted = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._process is not None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(3 if self.tool.name == OURS else 1)  # ours has a cgroup to take away
            end_all()  # the tool, and whatever it has started or left behind
        finally:
            if self.mounted:
                subprocess.run(["umount", "--lazy", str(self.checkpoints)], check=False, capture_output=True)

    def start(self) -> None:
        trainer = [sys.executable, "-P", "-m", "bench.peers_trainer", "--folder", str(self.checkpoints)]
        trainer += ["--trace", str(self.root / "trace"), "--beats", self.tool.beats, *self.fault.trainer, *self._light]
        prepared = self.tool.prepare(self.root, trainer)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(contract.ENV_PREFIX)}
        environment |= {"XDG_STATE_HOME": str(self.root / "xdg"), "PYTHONWARNINGS": "ignore", **prepared.environment}
        environment |= {MARK: str(self.root), "OMP_NUM_THREADS": "1"}  # torchrun would set it for its worker alone
        with open(self.root / "screen", "wb") as screen:
            self._process = subprocess.Popen(
                prepared.command,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env=environment,
                cwd=self.root,
                start_new_session=True,
            )

    @property
    def trace(self) -> Trace:
        with contextlib.suppress(FileNotFoundError):
            return parse_trace((self.root / "trace").read_text())
        return Trace()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The ledger of ours, but for a last line that is being written; nothing under a peer."""
        found: list[dict[str, Any]] = []
        for path in self.root.glob("state/*/ledger.jsonl"):
            text = path.read_text()
            found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return found

    @property
    def trainer(self) -> int:
        return self.trace.starts[-1][0]

    @property
    def left(self) -> bool:
        """The tool itself has ended."""
        return self._process is not None and self._process.poll() is not None

    def last_words(self) -> str:
        """The end of what the tool and the trainer said."""
        said = [self.root / "screen", self.root / "output.log", *self.root.glob("state/*/runs/*/output.log")]
        texts = [path.read_bytes()[-4000:].decode(errors="replace") for path in said if path.exists()]
        lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"[Ee]rror|held|HOLD|FATAL|memory left|No space", line)]
        ended = f"it ended ({self._process.returncode}): " if self._process is not None and self.left else ""
        return ended + (errors or lines or ["it said nothing"])[-1][-120:]


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


# --- the faults -----------------------------------------------------------------------------------------------
def newest(trial: Trial) -> Path:
    manifest = max(trial.checkpoints.glob("count-*" + contract.MANIFEST_SUFFIX))
    return manifest.with_name(manifest.name.removesuffix(contract.MANIFEST_SUFFIX) + ".json")


def kill(trial: Trial) -> None:
    os.kill(trial.trainer, signal.SIGKILL)


def stop(trial: Trial) -> None:
    os.kill(trial.trainer, signal.SIGSTOP)


def truncate(trial: Trial) -> None:
    path = newest(trial)
    os.truncate(path, path.stat().st_size // 2)
    kill(trial)


def flip(trial: Trial) -> None:
    """One bit, in a place where the file can still be loaded; then the worker is killed."""
    path = newest(trial)
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    kill(trial)


def fill(trial: Trial) -> None:
    """The disk of the checkpoints is full for FULL_S."""
    block = trial.checkpoints / "filler"
    with open(block, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def nothing(_trial: Trial) -> None:
    """The trainer does it by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """`make` is called at AT_STEP. `trainer`: words for a trainer that does it, or has something to be left behind."""

    name: str
    make: Callable[[Trial], None]
    trainer: tuple[str, ...] = ()
    small_disk: bool = False


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(name="kill", make=kill),
        Fault(name="stop", make=stop),
        Fault(name="checkpoint truncated", make=truncate),
        Fault(name="checkpoint bit flipped", make=flip),
        Fault(name="child keeps the device", make=kill, trainer=("--helper",)),
        Fault(name="exit 0 too early", make=nothing, trainer=("--exit-zero-once", str(AT_STEP))),
        Fault(name=f"disk full for {FULL_S:g} s", make=fill, small_disk=True),
    )
}


def run_trial(root: Path, tool: Tool, fault: Fault, *, light: bool = False) -> Outcome:
    """Raises BedError when the tool never brought the trainer to the fault, CommandFailedError for a missing mount."""
    with Trial(root, tool, fault, light=light) as trial:
        if fault.small_disk:
            mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(trial.checkpoints)]
            trial.mounted = True  # before it is: a signal may come in between
            ended = subprocess.run(mount, capture_output=True, text=True)
            if ended.returncode != 0:
                raise CommandFailedError(f"a small disk cannot be mounted: {ended.stderr.strip()}")
        trial.start()

        def at_step() -> bool:
            if trial.left and not trial.trace.starts:
                raise BedError(f"{tool.name} ended: {trial.last_words()}")
            return any(step >= AT_STEP for step, _ in trial.trace.steps)

        wait_for(at_step, f"step {AT_STEP} under {tool.name}; {trial.last_words()}", timeout_s=_START_LIMIT_S)
        worker = trial.trainer
        if fault.make is nothing:
            wait_for(lambda: is_gone(worker), "the trainer's own end", timeout_s=5)
        fault.make(trial)
        if fault.make is stop:
            wait_for(lambda: is_stopped(worker), "a stopped trainer", timeout_s=5)
        fault_s = time.monotonic()
        seen_s: float | None = None
        while (now_s := time.monotonic()) < fault_s + LIMIT_S and (trace := trial.trace).done is None:
            if fault.make is stop and seen_s is None and not is_stopped(worker):
                seen_s = now_s
            if fault.small_disk and now_s > fault_s + FULL_S:
                (trial.checkpoints / "filler").unlink(missing_ok=True)
            if trial.left and all(is_gone(pid) for pid, _ in trace.starts):
                break  # nobody is there who could still do something
            time.sleep(0.005)
        return judge(tool.name, fault.name, trial.trace, fault_s, seen_s, trial.last_words(), trial.events)
