"""The rules of the audit that a ledger must keep by itself: what was recorded, in which order, and on what grounds.

Each rule is a function from the records to what breaks it, and keeps its own count of things, so that no rule leans on
another. Refuses to import anything but the standard library, and to know how the product decides.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# What a person's command may write while there is no supervisor, or what opening a ledger writes.
_FIRST_WORDS = frozenset(
    {"supervisor_started", "run_ended", "lifted", "budget_reset", "wait_cut", "branch_asked", "branched"}
    | {"branch_refused", "archiving", "archived", "reclaiming", "reclaimed"}
)
_OF_THE_OPEN_RUN = frozenset(
    {"run_acknowledged", "run_beats", "run_adopted", "run_stopping", "run_steps", "run_recovered", "run_caught_up"}
    | {"run_ended", "run_refused"}
)
_SIGNALS = ("signal_sending", "signal_sent", "run_freezing", "run_killing")
_BACK_S = 0.5  # a wall clock may be set; one that is slewed never goes back
_EARLY_S = 0.01  # times are written in milliseconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One line. `line` counts from 1."""

    line: int
    seq: int
    wall_s: float
    monotonic_s: float
    boot_id: str
    kind: str
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Book:
    """A ledger. `torn`: the numbers of lines that are no record, with what they hold; `open_end`: the last is one."""

    records: tuple[Record, ...]
    torn: tuple[tuple[int, bytes], ...] = ()
    open_end: bool = False
    failure_limit: int = 3
    over: bool = False


@dataclasses.dataclass(frozen=True)
class Problem:
    rule: str
    line: int
    words: str


def read_book(content: bytes, *, failure_limit: int = 3, over: bool = False) -> Book:
    """Every line. Raises ValueError for one in which nothing is a record."""
    records, torn = [], []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _record(number, json.loads(line))
        except (ValueError, KeyError, TypeError):
            torn.append((number, line))
            continue
        records.append(record)
    if not records:
        raise ValueError("no line of it is a record")
    open_end = bool(torn) and torn[-1][0] == len(lines)
    return Book(records=tuple(records), torn=tuple(torn), open_end=open_end, failure_limit=failure_limit, over=over)


def _record(line: int, raw: Mapping[str, Any]) -> Record:
    if not isinstance(raw["data"], dict) or not isinstance(raw["event"], str):
        raise TypeError("no record")
    return Record(
        line=line,
        seq=int(raw["seq"]),
        wall_s=float(raw["wall_s"]),
        monotonic_s=float(raw["monotonic_s"]),
        boot_id=str(raw["boot_id"]),
        kind=raw["event"],
        data=raw["data"],
    )


def of_kind(book: Book, *kinds: str) -> list[Record]:
    return [record for record in book.records if record.kind in kinds]


# --- the record itself --------------------------------------------------------------------------------------------
def whole(book: Book) -> Iterator[Problem]:
    """A line that is no record stands only where its writer was killed: at the end, or before another writer's."""
    first_after = {}
    for number, _ in book.torn:
        first_after[number] = next((record for record in book.records if record.line > number), None)
    for number, content in book.torn:
        after = first_after[number]
        if not content.startswith(b"{"):
            yield Problem("whole", number, f"begins as no record does: {content[:40]!r}")
        elif after is not None and after.kind not in _FIRST_WORDS:
            yield Problem("whole", number, f"is torn, and the same writer goes on with {after.kind}")
        elif after is None and not book.open_end:
            yield Problem("whole", number, "is torn, closed, and followed by nothing")


def order(book: Book) -> Iterator[Problem]:
    """Numbers grow by one, and no clock goes back."""
    for before, record in zip(book.records, book.records[1:], strict=False):
        if record.seq != before.seq + 1:
            yield Problem("order", record.line, f"number {record.seq} follows {before.seq}")
        if record.boot_id == before.boot_id and record.monotonic_s < before.monotonic_s:
            yield Problem(
                "order", record.line, f"is {before.monotonic_s - record.monotonic_s:.3f} s older than the last"
            )
        if record.wall_s < before.wall_s - _BACK_S:
            yield Problem("order", record.line, f"the wall clock went back {before.wall_s - record.wall_s:.1f} s")


# --- runs ---------------------------------------------------------------------------------------------------------
def alternation(book: Book) -> Iterator[Problem]:
    """Launches and ends alternate, run by run, and the number of runs grows by one."""
    open_run: str | None = None
    number, known = 0, set()
    for record in of_kind(book, "run_launching", "run_ended"):
        run_id = record.data["run_id"]
        if record.kind == "run_launching":
            if open_run is not None:
                yield Problem("alternation", record.line, f"run {run_id} is launched while {open_run} has no end")
            if record.data["number"] != number + 1 or run_id in known:
                yield Problem("alternation", record.line, f"run {run_id} is number {record.data['number']}")
            number, open_run = record.data["number"], run_id
            known.add(run_id)
        elif run_id != open_run:
            yield Problem("alternation", record.line, f"run {run_id} ended, the open run is {open_run}")
        else:
            open_run = None
    if book.over and open_run is not None:
        yield Problem("alternation", book.records[-1].line, f"run {open_run} never ended")


def open_run(book: Book) -> Iterator[Problem]:
    """What is told of a run is told of the open one, and nobody is signalled before a stop of it is on record.

    Nor is TERM sent to anybody before it is on record that it will be.
    """
    current: str | None = None
    asked = False
    announced: set[int] = set()
    for record in book.records:
        if record.kind == "signal_sending":
            announced |= {int(pid) for pid in (*record.data.get("pids", ()), record.data.get("pid", 0))}
        elif record.kind == "signal_sent" and record.data.get("pid", 0) not in {0, *announced}:
            yield Problem("open run", record.line, f"TERM to pid {record.data['pid']} was not recorded before")
        if record.kind == "run_launching":
            current, asked = record.data["run_id"], False
            announced.clear()
        elif record.kind in _OF_THE_OPEN_RUN and record.data["run_id"] != current and record.kind != "run_ended":
            yield Problem("open run", record.line, f"{record.kind} of {record.data['run_id']}, open is {current}")
        elif record.kind == "run_stopping":
            asked = True
        elif record.kind == "run_goes_on":
            asked = False
        elif record.kind in _SIGNALS and not (asked and current is not None):
            yield Problem("open run", record.line, f"{record.kind} without a stop of the open run before it")
        elif record.kind == "run_ended":
            current, asked = None, False


def weighed(book: Book) -> Iterator[Problem]:
    """Each end is weighed once, and before the next launch."""
    due: str | None = None
    for record in of_kind(book, "run_ended", "run_weighed", "run_launching"):
        if record.kind == "run_ended":
            due = record.data["run_id"]
        elif record.kind == "run_weighed":
            if record.data["run_id"] != due:
                yield Problem("weighed", record.line, f"run {record.data['run_id']} is weighed, {due} was due")
            due = None
        elif due is not None:
            yield Problem("weighed", record.line, f"a launch before the end of run {due} was weighed")
    if book.over and due is not None:
        yield Problem("weighed", book.records[-1].line, f"the end of run {due} was never weighed")


def adoption(book: Book) -> Iterator[Problem]:
    """A supervisor that finds an open run adopts it, or has recorded its end, before it does anything about a run."""
    current: str | None = None
    owed: str | None = None
    on_duty = False
    for record in book.records:
        kind = record.kind
        if kind == "supervisor_started":
            owed, on_duty = current, True
        elif kind == "supervisor_leaving":
            on_duty = False
        elif kind == "run_adopted":
            if record.data["run_id"] != owed:
                yield Problem("adoption", record.line, f"run {record.data['run_id']} is adopted, there is {owed}")
            owed = None
        elif kind.startswith("run_"):
            if owed is not None:
                yield Problem("adoption", record.line, f"{kind} although run {owed} was there and not adopted")
                owed = None
            if not on_duty and kind not in _FIRST_WORDS and kind != "run_weighed":
                yield Problem("adoption", record.line, f"{kind} by a supervisor that has not started")
        if kind == "run_launching":
            current = record.data["run_id"]
        elif kind == "run_ended":
            current = None


# --- checkpoints --------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class _Shelf:
    """What is verified and not refused since: step -> (digest, who saved it)."""

    steps: dict[int, tuple[str, str | None]] = dataclasses.field(default_factory=dict)
    ever: bool = False

    def hear(self, record: Record) -> None:
        data = record.data
        match record.kind:
            case "checkpoint_verified":
                self.steps[int(data["step"])] = str(data["digest"]), data.get("run_id")
                self.ever = True
            case "checkpoint_refused":
                self.steps.pop(_refused_step(data), None)
            case "checkpoint_vanished":  # what lies there no more, down to the newest that does
                still = -1 if data["still"] is None else int(data["still"][0])
                self.steps = {step: held for step, held in self.steps.items() if step <= still}
            case "run_refused":
                self.steps = {step: held for step, held in self.steps.items() if held[1] != data["run_id"]}
            case "branched":
                self.steps = {step: held for step, held in self.steps.items() if step <= int(data["step"])}
            case "archived":
                self.steps, self.ever = {}, False


def _refused_step(data: Mapping[str, Any]) -> int:
    """A manifest that cannot be read has its step in its name only."""
    if data["step"] is not None and data["step"] >= 0:
        return int(data["step"])
    digits = re.findall(r"\d+", str(data["manifest"]).rpartition("/")[2])
    return int(digits[0]) if digits else -1


def resume(book: Book) -> Iterator[Problem]:
    """Each launch is from the newest checkpoint that is verified and not refused since, with its digest."""
    shelf = _Shelf()
    for record in book.records:
        shelf.hear(record)
        if record.kind != "run_launching" or record.data["resume_step"] is None:
            continue
        step, digest = record.data["resume_step"], record.data["digest"]
        newest = max(shelf.steps, default=None)
        if newest is None or step != newest:
            yield Problem("resume", record.line, f"is launched from step {step}, the newest verified is {newest}")
        elif digest != shelf.steps[newest][0]:
            was = shelf.steps[newest][0][:12]
            yield Problem("resume", record.line, f"is launched from {digest[:12]}, step {step} was verified as {was}")


def fresh(book: Book) -> Iterator[Problem]:
    """Nothing begins anew once a checkpoint was known."""
    shelf = _Shelf()
    for record in book.records:
        shelf.hear(record)
        if record.kind == "run_launching" and record.data["resume_step"] is None and shelf.ever:
            yield Problem("fresh", record.line, "is launched from nothing, and a checkpoint was verified before")


def acknowledged(book: Book) -> Iterator[Problem]:
    """What a run said it restored is what it was launched from; a run that took another step was refused."""
    orders: dict[str, Mapping[str, Any]] = {}
    for record in of_kind(book, "run_launching", "run_acknowledged"):
        data = record.data
        if record.kind == "run_launching":
            orders[data["run_id"]] = data
            continue
        due = orders.get(data["run_id"])
        if due is None:
            continue  # told by another rule
        wanted = (True, 0) if due["resume_step"] is None else (False, due["resume_step"])
        same = due["resume_step"] is None or data["digest"] == due["digest"]
        if (data["fresh"], data["step"]) != wanted or not same:
            yield Problem("acknowledged", record.line, f"restored step {data['step']}, due was {due['resume_step']}")


# --- grounds ------------------------------------------------------------------------------------------------------
_GATES = ("no run alive", "memory ", "disk ")


def gates(book: Book) -> Iterator[Problem]:
    """Every launch has its gates on record, each of them open."""
    for record in of_kind(book, "run_launching"):
        words = record.data.get("gates") or []
        missing = [gate for gate in _GATES if not any(gate in each for each in words)]
        if missing:
            yield Problem("gates", record.line, f"is launched with {words}: nothing of {', '.join(missing)}")
        closed = [each for each in words if re.search(r"\d < \d|cannot be read|mounted read-only|unlinked", each)]
        if closed:
            yield Problem("gates", record.line, f"is launched with a gate that is not open: {'; '.join(closed)}")


def budget(book: Book) -> Iterator[Problem]:
    """Failures without progress are counted, by trainer and host apart, and never reach the limit before a launch."""
    counts = {"trainer": 0, "host": 0}
    baseline: dict[str, int] = {}
    for record in book.records:
        data = record.data
        if record.kind == "budget_reset" or (record.kind == "lifted" and not lifts_itself(record)):
            counts = {"trainer": 0, "host": 0}
        elif record.kind == "run_launching":
            baseline[data["run_id"]] = data["baseline_step"]
            if max(counts.values()) >= book.failure_limit:
                yield Problem("budget", record.line, f"a launch after {max(counts.values())} failures without progress")
        elif record.kind == "run_weighed":
            if "spends" in data:
                progressed = data["step"] > baseline.get(data["run_id"], -1)
                for ledger in counts:
                    counts[ledger] = 0 if progressed else counts[ledger] + (data["spends"] == ledger)
            told = {"trainer": data["failures"], "host": data["host_failures"]}
            if told != counts:
                yield Problem("budget", record.line, f"counts {told}, they are {counts}")
                counts = told


def backoff(book: Book) -> Iterator[Problem]:
    """A wait that was begun is kept, also by a supervisor that came later, unless a person cut it short."""
    ended_s, until_s, boot_id = 0.0, 0.0, ""
    for record in book.records:
        if record.kind == "run_ended":
            ended_s = record.monotonic_s
        elif record.kind == "run_weighed":
            # It is counted from the look before the record, which was after the end was recorded.
            until_s, boot_id = ended_s + float(record.data.get("wait_s") or 0.0), record.boot_id
        elif record.kind in ("wait_cut", "lifted"):
            until_s = 0.0
        elif record.kind == "run_launching" and boot_id == record.boot_id:
            early_s = until_s - record.monotonic_s
            if early_s > _EARLY_S:
                yield Problem("backoff", record.line, f"is launched {early_s:.3f} s before the wait is over")


def lifts_itself(record: Record) -> bool:
    """A hold that was for nothing but a run that would not end is over with that run."""
    return bool(record.data.get("by") == "end")


def hold(book: Book) -> Iterator[Problem]:
    """Nothing is launched while there is a hold; one that lifts itself was for a run whose end is on record by then."""
    held: Record | None = None
    ended = set()
    for record in book.records:
        if record.kind == "run_ended":
            ended.add(record.data["run_id"])
        elif record.kind == "hold":
            held = record
        elif record.kind == "lifted":
            if held is None:
                yield Problem("hold", record.line, "is lifted, and there was none")
            elif lifts_itself(record) and held.data.get("until_gone") not in ended:
                yield Problem("hold", record.line, f"lifts itself, and was for {held.data.get('until_gone')}")
            held = None
        elif record.kind == "run_launching" and held is not None:
            yield Problem("hold", record.line, f"a launch during the hold: {held.data['reason']}")


def finished(book: Book) -> Iterator[Problem]:
    """A job is finished at its target, by a checkpoint that is verified, and then nothing is launched any more."""
    shelf = _Shelf()
    done = False
    for record in book.records:
        shelf.hear(record)
        if record.kind == "finished":
            done = True
            step, target = record.data["step"], record.data.get("target_step", record.data["step"])
            if step not in shelf.steps or step != target:
                yield Problem(
                    "finished", record.line, f"at step {step} of {target}, verified: {max(shelf.steps, default=None)}"
                )
        elif record.kind in ("branched", "archived"):
            done = False
        elif record.kind == "run_launching" and done:
            yield Problem("finished", record.line, "a launch of a job that is finished")
    if book.over and not done:
        yield Problem("finished", book.records[-1].line, "the job is over and not finished")


RULES: dict[str, Callable[[Book], Iterator[Problem]]] = {
    "whole": whole,
    "order": order,
    "alternation": alternation,
    "open run": open_run,
    "weighed": weighed,
    "adoption": adoption,
    "resume": resume,
    "fresh": fresh,
    "acknowledged": acknowledged,
    "gates": gates,
    "budget": budget,
    "backoff": backoff,
    "hold": hold,
    "finished": finished,
}


def figures(book: Book) -> dict[str, int]:
    """How much there was to look at."""
    return {
        "records": len(book.records),
        "runs": len(of_kind(book, "run_launching")),
        "supervisors": len(of_kind(book, "supervisor_started")),
        "adoptions": len(of_kind(book, "run_adopted")),
        "kills": len(of_kind(book, "run_killing")),
        "refusals": len(of_kind(book, "checkpoint_refused")),
        "holds": len(of_kind(book, "hold")),
    }
