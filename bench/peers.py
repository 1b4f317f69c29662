"""Side by side: the same trainer, the same faults, and who brings it to its end. Ours, and four peers.

One trial a tool and fault: a fresh folder, the trainer under the tool, the fault from outside at the same step, and
then nobody helps until the job is done or the time is over. Everything is measured from what the trainer itself writes
down (its starts and its steps), and survived means: done in time, with the value of an undisturbed run.
ETTR as the project defines it: unique steps x step time, over the time since the first start of the trainer. A job that
stands still, or goes on with a wrong state, is charged the whole of its time.
Refuses to run a peer that cannot be installed or started here: that is said with its error.

    python -P -m bench.peers --peers all [--faults kill,stop] [--record]
    python -P -m bench.peers --peers supervisord,circus      installs only these
    python -P -m bench.peers --light                         a quick look: the trainer does not import torch
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import record
from bench.campaign_bed import BedError, wait_for
from bench.campaign_counter import final_value
from bench.peers_tools import OURS, TOOLS, Tool, install
from bench.peers_trainer import STEP_S, STEPS
from bench.startup import CommandFailedError
from watchdog import contract

AT_STEP = 43  # between two checkpoints
LIMIT_S = 30.0  # from the fault to the end of the job; undisturbed it would take 3 s
FULL_S = 10.0
_START_LIMIT_S = 60.0
_MARK = "PEERS_TRIAL"


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
    """One trial. Times in seconds from the fault; None: it did not come to that."""

    tool: str
    fault: str
    survived: bool
    why_not: str
    detect_s: float | None
    next_step_s: float | None
    lost: int | None
    productive_s: float
    wall_s: float

    @property
    def ettr(self) -> float:
        return self.productive_s / self.wall_s


def judge(tool: str, fault: str, trace: Trace, fault_s: float, seen_s: float | None, last_words: str) -> Outcome:
    """`seen_s`: when the tool was seen to act on the worker itself, where the fault left it in its place."""
    reached = max(step for step, at_s in trace.steps if at_s <= fault_s)
    restart_s = next((at_s for _, at_s in trace.starts if at_s > fault_s), None)
    acted = [at_s for at_s in (restart_s, seen_s) if at_s is not None]
    since_s = restart_s or fault_s  # what a worker that was woken still does before its end is no recovery
    new_s = next((at_s for step, at_s in trace.steps if at_s > since_s and step > reached), None)
    again = None if restart_s is None else next((step for step, at_s in trace.steps if at_s > restart_s), None)
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
    end_s = trace.done[1] if survived and trace.done is not None else fault_s + LIMIT_S
    return Outcome(
        tool=tool,
        fault=fault,
        survived=survived,
        why_not=why_not,
        detect_s=min(acted) - fault_s if acted else None,
        next_step_s=new_s - fault_s if new_s is not None and right else None,
        lost=max(0, reached - again + 1) if again is not None and survived else None,
        productive_s=productive * STEP_S,
        wall_s=end_s - trace.starts[0][1],
    )


# --- one trial ------------------------------------------------------------------------------------------------
class Trial:
    """One tool over one folder. Use as a context manager: leaving it ends whatever it started."""

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
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(3)
        wait_for(self._gone, f"the end of everything under {self.root}", timeout_s=20, every_s=0.05)
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.checkpoints)], check=False)

    def _gone(self) -> bool:
        """Kill what carries this trial's mark, and see whether anything is left."""
        if self._process is not None:
            self._process.poll()
        mark = f"{_MARK}={self.root}".encode()
        left = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    left += 1
                    os.kill(int(name), signal.SIGKILL)
        return left == 0

    def start(self) -> None:
        trainer = [sys.executable, "-P", "-m", "bench.peers_trainer", "--folder", str(self.checkpoints)]
        trainer += ["--trace", str(self.root / "trace"), "--beats", self.tool.beats, *self.fault.trainer, *self._light]
        prepared = self.tool.prepare(self.root, trainer)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(contract.ENV_PREFIX)}
        environment |= {"XDG_STATE_HOME": str(self.root / "xdg"), "PYTHONWARNINGS": "ignore", **prepared.environment}
        environment |= {_MARK: str(self.root), "OMP_NUM_THREADS": "1"}  # torchrun would set it for its worker alone
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
        errors = [line for line in lines if re.search(r"error|held|HOLD|FATAL|memory left|No space", line)]
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
    quicker: str = "no proof that nothing of the old run lives, no checkpoint read back, no gates"


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(name="kill", make=kill),
        Fault(
            name="stop",
            make=stop,
            quicker="killed at the deadline, without a second look and without being asked to save",
        ),
        Fault(name="checkpoint truncated", make=truncate),
        Fault(name="checkpoint bit flipped", make=flip),
        Fault(name="child keeps the device", make=kill, trainer=("--helper",)),
        Fault(name="exit 0 too early", make=nothing, trainer=("--exit-zero-once", str(AT_STEP))),
        Fault(name=f"disk full for {FULL_S:g} s", make=fill, small_disk=True, quicker="tries in vain while it is full"),
    )
}


def run_trial(root: Path, tool: Tool, fault: Fault, *, light: bool = False) -> Outcome:
    """Raises BedError when the tool never brought the trainer to the fault, CommandFailedError for a missing mount."""
    with Trial(root, tool, fault, light=light) as trial:
        if fault.small_disk:
            mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(trial.checkpoints)]
            ended = subprocess.run(mount, capture_output=True, text=True)
            if ended.returncode != 0:
                raise CommandFailedError(f"a small disk cannot be mounted: {ended.stderr.strip()}")
            trial.mounted = True
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
        return judge(tool.name, fault.name, trial.trace, fault_s, seen_s, trial.last_words())


# --- tables ---------------------------------------------------------------------------------------------------
def _figure(value: float | None) -> object:
    return "" if value is None else round(value, 2)


def detail_rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """One row a trial, and why a peer was quicker than ours."""
    ours = {outcome.fault: outcome for outcome in outcomes if outcome.tool == OURS}
    return [
        {
            "fault": each.fault,
            "tool": each.tool,
            "survived": "yes" if each.survived else "no",
            "detected after s": _figure(each.detect_s),
            "next new step after s": _figure(each.next_step_s),
            "steps lost": "" if each.lost is None else each.lost,
            "ETTR": round(each.ettr, 3),
            "why": each.why_not or _why_quicker(each, ours.get(each.fault)),
        }
        for each in outcomes
    ]


def _why_quicker(peer: Outcome, ours: Outcome | None) -> str:
    if ours is None or peer.tool == OURS:
        return ""
    pairs = (("detected", peer.detect_s, ours.detect_s), ("next step", peer.next_step_s, ours.next_step_s))
    quicker = [
        what for what, its, our in pairs if its is not None and our is not None and round(its, 2) < round(our, 2)
    ]
    return f"quicker ({', '.join(quicker)}): {FAULTS[peer.fault].quicker}" if quicker else ""


def summary_rows(outcomes: Sequence[Outcome], tools: Sequence[Tool]) -> list[dict[str, object]]:
    """One row a tool, over the whole schedule. Medians are of the faults that it survived."""
    rows: list[dict[str, object]] = []
    for tool in tools:
        mine = [outcome for outcome in outcomes if outcome.tool == tool.name]
        survived = [outcome for outcome in mine if outcome.survived]
        rows.append(
            {
                "tool": tool.name,
                "survived": f"{len(survived)} of {len(mine)}",
                "detected after s, median": _median([each.detect_s for each in survived]),
                "next new step after s, median": _median([each.next_step_s for each in survived]),
                "steps lost": sum(each.lost or 0 for each in survived),
                "ETTR": round(schedule_ettr(mine), 3),
                "configured": tool.configured,
            }
        )
    return rows


def _median(values: Sequence[float | None]) -> object:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else ""


def schedule_ettr(outcomes: Sequence[Outcome]) -> float:
    """Over all trials together: productive time over all of the time."""
    wall_s = sum(outcome.wall_s for outcome in outcomes)
    return sum(outcome.productive_s for outcome in outcomes) / wall_s if wall_s else 0.0


def misses(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each peer that survived more, or reached a higher ETTR, than ours."""
    by_tool: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_tool.setdefault(outcome.tool, []).append(outcome)
    if OURS not in by_tool:
        return [f"{OURS} was not measured"]
    ours = by_tool.pop(OURS)
    survived, best = sum(each.survived for each in ours), schedule_ettr(ours)
    found = []
    for tool, its in by_tool.items():
        if (number := sum(each.survived for each in its)) > survived:
            found.append(f"{tool} survived {number} faults, ours {survived}")
        if (ettr := schedule_ettr(its)) > best:
            found.append(f"{tool} has an ETTR of {ettr:.3f}, ours {best:.3f}")
    return found


def chosen_of(words: str, known: Mapping[str, object], what: str) -> list[str]:
    """The names in a comma-separated list; `all` is all of them. A fault may be named by its beginning."""
    if words == "all":
        return list(known)
    found = []
    for word in words.split(","):
        names = [name for name in known if name == word] or [name for name in known if name.startswith(word)]
        if not names:
            raise ValueError(f"{what} {word!r} is not known; known are: {'; '.join(known)}")
        found.append(names[0])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.peers", description="ours and its peers, side by side")
    parser.add_argument("--peers", default=OURS, help="names, or all: they are installed into the cache")
    parser.add_argument("--faults", default="all", help="names, or their beginnings")
    parser.add_argument("--light", action="store_true", help="the trainer does not import torch; decides nothing")
    parser.add_argument("--record", action="store_true", help="add the result to docs/benchmarks.md")
    wishes = parser.parse_args(arguments)
    try:
        names = chosen_of(wishes.peers, TOOLS, "the peer")
        faults = [FAULTS[name] for name in chosen_of(wishes.faults, FAULTS, "the fault")]
    except ValueError as error:
        parser.error(str(error))
    if wishes.light and wishes.record:
        parser.error("--light is a quick look, and no result to record")
    tools = [TOOLS[name] for name in dict.fromkeys([OURS, *names])]
    outcomes: list[Outcome] = []
    not_run: dict[str, str] = {}
    for tool in list(tools):
        try:
            install(tool.name)
        except CommandFailedError as error:
            not_run[tool.name] = str(error)
            tools.remove(tool)
    for fault in faults:
        for tool in tools:
            with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
                try:
                    outcome = run_trial(Path(folder), tool, fault, light=wishes.light)
                except (BedError, CommandFailedError) as error:
                    not_run[f"{tool.name}: {fault.name}"] = str(error)[:300]
                    print(f"{fault.name}: {tool.name}: not run: {error}", file=sys.stderr)
                    continue
            outcomes.append(outcome)
            print(json.dumps(dataclasses.asdict(outcome)), file=sys.stderr)
    if not outcomes:
        print("nothing could be measured", file=sys.stderr)
        return 1
    summary, details = summary_rows(outcomes, tools), detail_rows(outcomes)
    print(record.table(summary))
    print(record.table(details))
    for name, why in not_run.items():
        print(f"not run: {name}: {why}")
    whole = len(faults) == len(FAULTS) and not wishes.light
    missed = misses(outcomes) if whole else []  # a part of the schedule decides nothing
    for words in missed:
        print(words, file=sys.stderr)
    if wishes.record:
        record.append("peers, the schedule of faults", summary, details={"not_run": not_run, "limit_s": LIMIT_S})
        record.append("peers, fault by fault", details, details={"at_step": AT_STEP, "steps": STEPS, "step_s": STEP_S})
        print(f"added to {record.DOCUMENT.relative_to(record.ROOT)}")
    return 1 if missed or not_run else 0


if __name__ == "__main__":
    sys.exit(main())
