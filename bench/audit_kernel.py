"""The rules of the audit that hold a ledger against the kernel's view: who lived when, and who died of what.

Only what is proven breaks a rule: a process is said to have lived from the moment at which the kernel says that it was
born (in hundredths of a second) until the last one at which it was seen alive. Refuses to import anything but the
standard library, and to take the ledger's word for a death.
"""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

from bench.audit_rules import Book, Problem, lifts_itself, of_kind

_TICK_S = 0.011  # a birth is told in hundredths of a second
_NEAR_S = 0.005  # between a death and the moment at which two observers hear of it
_LEAST_LOOKS = 10
_LATE_S = 10.0  # after the death of the last of a run, under a supervisor that is well
_LONGEST_GAP_S = 2.0


@dataclasses.dataclass(kw_only=True)
class Process:
    """One life. `born_s` is the earliest it can be, `dead_s` None while it was not seen dead."""

    pid: int
    role: str
    run_id: str | None
    words: str
    born_s: float
    alive_s: float
    dead_s: float | None = None
    signal: int | None = None


@dataclasses.dataclass(kw_only=True)
class View:
    """What the eye saw. `struck`: (pid, signal, when) of what was done from outside."""

    boot_id: str
    processes: list[Process] = dataclasses.field(default_factory=list)
    struck: list[tuple[int, int, float]] = dataclasses.field(default_factory=list)
    looks: int = 0
    longest_gap_s: float = 0.0

    def of_runs(self) -> list[Process]:
        return [process for process in self.processes if process.run_id is not None]

    def was_struck(self, process: Process) -> bool:
        """By that very signal, from outside, in its life."""
        dead_s = float("inf") if process.dead_s is None else process.dead_s
        return any(
            pid == process.pid and number == process.signal and process.born_s <= at_s <= dead_s + _NEAR_S
            for pid, number, at_s in self.struck
        )


def read_view(text: str) -> View:
    """Raises ValueError, KeyError for what no eye has written."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not lines or lines[0]["kind"] != "eye":
        raise ValueError("the kernel's view does not begin with its eye")
    view = View(boot_id=lines[0]["boot_id"])
    per_s, ahead_s = lines[0]["ticks_per_s"], lines[0]["boottime_ahead_s"]
    lives: dict[tuple[int, int], Process] = {}
    for line in lines[1:]:
        match line["kind"]:
            case "born" | "is":
                key = line["pid"], line["ticks"]
                more = {name: line[name] for name in ("role", "run_id", "words")}
                if key in lives:
                    lives[key] = dataclasses.replace(lives[key], **more)
                else:
                    born_s = line["ticks"] / per_s - ahead_s
                    lives[key] = Process(pid=line["pid"], born_s=born_s, alive_s=line["at_s"], **more)
            case "dead":
                life = lives[line["pid"], line["ticks"]]
                life.alive_s, life.dead_s, life.signal = line["alive_s"], line["dead_s"], line["signal"] or None
            case "alive":
                lives[line["pid"], line["ticks"]].alive_s = line["alive_s"]
            case "struck":
                view.struck.append((line["pid"], line["signal"], line["at_s"]))
            case "end":
                view.looks, view.longest_gap_s = line["looks"], line["longest_gap_s"]
    view.processes = list(lives.values())
    return view


def watched(book: Book, view: View) -> Iterator[Problem]:
    """The eye was awake, on the same boot, and saw every run that said what it had restored."""
    if view.looks < _LEAST_LOOKS or view.longest_gap_s > _LONGEST_GAP_S:
        yield Problem("watched", 0, f"{view.looks} looks, the longest gap is {view.longest_gap_s:.2f} s")
    seen = {process.run_id for process in view.of_runs()}
    for record in book.records:
        if record.boot_id != view.boot_id:
            yield Problem("watched", record.line, "is of another boot")
            return
        if record.kind == "run_acknowledged" and record.data["run_id"] not in seen:
            yield Problem("watched", record.line, f"run {record.data['run_id']} was never seen")


def one_run(_book: Book, view: View) -> Iterator[Problem]:
    """Never do processes of two runs live at the same moment; a shim is of its run."""
    lives = sorted(view.of_runs(), key=lambda process: process.born_s)
    latest: list[Process] = []
    for process in lives:
        for other in latest:
            if other.run_id != process.run_id and other.alive_s > process.born_s + _TICK_S:
                at_s = other.alive_s - process.born_s
                yield Problem(
                    "one run",
                    0,
                    f"pid {process.pid} of run {process.run_id} was born {at_s:.3f} s before pid {other.pid} "
                    f"({other.role}) of run {other.run_id} was seen alive",
                )
        latest = [other for other in latest if other.alive_s > process.born_s] + [process]


def proof(book: Book, view: View) -> Iterator[Problem]:
    """When the end of a run is recorded, nothing of it lives, its shim included."""
    ends = {record.data["run_id"]: record for record in of_kind(book, "run_ended")}
    for process in view.of_runs():
        record = ends.get(str(process.run_id))
        if record is not None and process.alive_s > record.monotonic_s + _NEAR_S:
            late_s = process.alive_s - record.monotonic_s
            words = f"{process.role} {process.pid} of run {process.run_id} lived {late_s:.3f} s after its recorded end"
            yield Problem("proof", record.line, words)


def on_record(book: Book, view: View) -> Iterator[Problem]:
    """Nothing of a run is born before its launch is on record."""
    launches = {record.data["run_id"]: record for record in of_kind(book, "run_launching")}
    for process in view.of_runs():
        record = launches.get(str(process.run_id))
        if record is None:
            yield Problem("on record", 0, f"pid {process.pid} is of run {process.run_id}, which is on no record")
        elif process.born_s + _TICK_S < record.monotonic_s:
            early_s = record.monotonic_s - process.born_s
            yield Problem("on record", record.line, f"pid {process.pid} was born {early_s:.3f} s before it")


def killed(book: Book, view: View) -> Iterator[Problem]:
    """Who of a run died of KILL or TERM was named before (or its stop, for TERM), or was struck from outside."""
    killings = of_kind(book, "run_killing")
    stops = of_kind(book, "run_stopping")
    for process in view.of_runs():
        if process.signal not in (signal.SIGKILL, signal.SIGTERM) or view.was_struck(process):
            continue
        dead_s = process.dead_s or process.alive_s
        what = f"{process.role} {process.pid} of run {process.run_id} died of {signal.Signals(process.signal).name}"
        if process.role == "shim":
            yield Problem("killed", 0, f"{what}: nobody ends a shim")
        elif process.signal == signal.SIGKILL:
            named = [each for each in killings if process.pid in each.data["pids"]]
            if not any(process.born_s <= each.monotonic_s <= dead_s + _NEAR_S for each in named):
                yield Problem("killed", 0, f"{what}, and no record before says so")
        elif not any(each.data["run_id"] == process.run_id and each.monotonic_s <= dead_s + _NEAR_S for each in stops):
            yield Problem("killed", 0, f"{what}, and no stop of that run is on record")


def named(book: Book, view: View) -> Iterator[Problem]:
    """Whoever is named in a KILL is of the open run, and no shim."""
    current: str | None = None
    for record in book.records:
        if record.kind == "run_launching":
            current = record.data["run_id"]
        elif record.kind == "run_killing":
            for process in view.processes:
                then = process.born_s <= record.monotonic_s <= (process.dead_s or process.alive_s)
                if not then or process.pid not in record.data["pids"]:
                    continue
                if process.run_id != current or process.role == "shim":
                    words = f"names pid {process.pid}, {process.role} of {process.run_id}; the open run is {current}"
                    yield Problem("named", record.line, words)


def innocent(_book: Book, view: View) -> Iterator[Problem]:
    """Nobody else died of a signal: no supervisor, no command, no process that only looks like the trainer."""
    for process in view.processes:
        if process.run_id is None and process.role != "left" and process.signal and not view.was_struck(process):
            name = signal.Signals(process.signal).name
            yield Problem("innocent", 0, f"{process.role} {process.pid} died of {name}, which nobody sent from outside")


def one_supervisor(book: Book, view: View) -> Iterator[Problem]:
    """The supervisor before is dead when the next one has the job, and each was seen."""
    before: Process | None = None
    for record in of_kind(book, "supervisor_started"):
        now = next((each for each in view.processes if _is(each, record.data["pid"], record.monotonic_s)), None)
        if now is None:
            yield Problem("supervisors", record.line, f"pid {record.data['pid']} was never seen as one")
        elif before is not None and before.alive_s > record.monotonic_s:
            yield Problem("supervisors", record.line, f"pid {now.pid} has the job, and pid {before.pid} lives")
        before = now


def _is(process: Process, pid: Any, at_s: float) -> bool:
    """`watchdog stop` takes the job as well, where a run lives and nobody supervises it."""
    may = process.role == "supervisor" or (process.role == "command" and process.words == "stop")
    return process.pid == pid and may and process.born_s <= at_s <= (process.dead_s or process.alive_s)


def by_a_person(book: Book, view: View) -> Iterator[Problem]:
    """A hold is lifted, a budget begun anew, a wait cut short by a command that somebody ran."""
    asked = [each for each in view.processes if each.role == "command" and each.words == "relaunch"]
    since_s = 0.0
    for record in book.records:
        if record.kind in ("hold", "run_weighed"):
            since_s = record.monotonic_s
        elif lifts_itself(record):
            continue
        elif record.kind in ("lifted", "budget_reset", "wait_cut") and not any(
            each.born_s <= record.monotonic_s and each.alive_s >= since_s for each in asked
        ):
            yield Problem("by a person", record.line, f"{record.kind}, and nobody ran a command for it")


def left(book: Book, view: View) -> Iterator[Problem]:
    """Of a job that is over nothing lives; a supervisor that lives records the end of a run before long."""
    last = book.records[-1]
    living = [process for process in view.processes if process.dead_s is None]
    of_runs = {str(process.run_id) for process in living if process.run_id is not None}
    if book.over and of_runs:
        yield Problem("left", last.line, f"the job is over, and of {', '.join(sorted(of_runs))} something lives")
    launches = of_kind(book, "run_launching")
    ended = {record.data["run_id"] for record in of_kind(book, "run_ended")}
    watchers = [process for process in living if process.role == "supervisor"]
    if launches and watchers and (run_id := launches[-1].data["run_id"]) not in ended | of_runs:
        now_s = max(process.alive_s for process in watchers)
        gone_s = max((each.dead_s or 0.0 for each in view.of_runs() if each.run_id == run_id), default=now_s)
        if now_s - max(gone_s, min(each.born_s for each in watchers)) > _LATE_S:
            yield Problem(
                "left", last.line, f"nothing of run {run_id} lives for {now_s - gone_s:.1f} s, and no end of it"
            )


RULES: dict[str, Callable[[Book, View], Iterator[Problem]]] = {
    "watched": watched,
    "one run": one_run,
    "proof": proof,
    "on record": on_record,
    "killed": killed,
    "named": named,
    "innocent": innocent,
    "supervisors": one_supervisor,
    "by a person": by_a_person,
    "left": left,
}


def figures(view: View) -> dict[str, float]:
    """How closely it was watched."""
    return {
        "processes": len(view.processes),
        "deaths by signal": sum(process.signal is not None for process in view.processes),
        "looks": view.looks,
        "s longest gap": view.longest_gap_s,
    }
