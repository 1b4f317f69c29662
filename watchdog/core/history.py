"""What the ledger remembers, folded by a pure function: the same events give the same history, always."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from watchdog.core.budgets import Wait, wait_from
from watchdog.core.causes import Cause
from watchdog.core.choice import Known, Line, back_to
from watchdog.core.deadlines import time_from
from watchdog.core.gpumemory import GpuMemory, after
from watchdog.core.memoryneed import HostMemory
from watchdog.core.memoryneed import after as needing
from watchdog.core.retention import HIDDEN
from watchdog.core.smaller import remembered


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the ledger. `sentence` is for people; `data` is what is folded.

    `monotonic_s` measures what lies between two records of one `boot_id`, however the wall clock was set meanwhile.
    """

    seq: int
    wall_s: float
    kind: str
    sentence: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    monotonic_s: float | None = dataclasses.field(default=None, compare=False)
    boot_id: str | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """The newest attempt to tell a person of one event. `outcome` None: it was begun, and nobody recorded its end."""

    episode: str
    attempt: int
    outcome: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ordeal:
    """The newest failure or hold: its event, its words, and the step that must be passed for all to be as before."""

    seq: int
    words: str
    step: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Everything a restart needs to decide as if it had never been away.

    `open_run` was launched and has no recorded end; `unweighed` has ended and its consequence is not drawn yet.
    """

    last_number: int = 0
    last_run_id: str | None = None
    launches: int = 0
    first_launch_wall_s: float | None = None
    open_run: Mapping[str, Any] | None = None
    acknowledged: str | None = None  # id of the newest run that restored what it should have
    beats: str | None = None  # id of the newest run that was heard
    gpus: frozenset[str] | None = None  # UUIDs of those that runs were seen on; empty: which ones was not told
    gpu: GpuMemory = dataclasses.field(default_factory=GpuMemory)
    host_memory: HostMemory = dataclasses.field(default_factory=HostMemory)  # of the newest run, and what follows
    stopping: Mapping[str, Any] | None = None  # a stop of the open run that was begun
    owed: str | None = None  # the run that a person asked to have ended and followed while nobody supervised it
    unweighed: Mapping[str, Any] | None = None
    failures: int = 0  # of the trainer, in a row without progress
    host_failures: int = 0  # of the host, the same
    fault: str | None = None  # what failed last, where and at which step, if it was the program's own error
    batch_halvings: int = 0  # of the micro-batch, in the newest run or the one after it
    wait: Wait | None = None  # the backoff that was begun and not cut short; it may be over by now
    line: Line = dataclasses.field(default_factory=Line)  # what is gone on from since a person went back to a step
    runs_by_cause: Mapping[str, int] = dataclasses.field(default_factory=dict)
    steps_repeated: int = 0
    pruned: int = 0  # checkpoints that were deleted by us
    pruned_bytes: int = 0  # what that and the deletion of leftovers gave back
    hold: str | None = None
    until_gone: str | None = None  # the run whose proven end ends the hold
    hold_seq: int | None = None  # the event that began it
    ordeal: Ordeal | None = None
    blind_seq: int | None = None  # the event with which a blindness began that is not over
    told: Mapping[str, Told] = dataclasses.field(default_factory=dict)  # by event
    notifications: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)  # event, outcome: number
    command: str | None = None  # digest of the newest run's: of another one nothing that was learned is kept
    phase_times_s: Mapping[str, float] = dataclasses.field(default_factory=dict)  # longest without a beat, by phase
    # Phases in which a learned deadline ended a run, until one is past it: train with the step, the others with -1.
    doubted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    left: str | None = None  # why the last supervisor left a job that is not finished, if it said so
    last_error: str | None = None
    finished: Mapping[str, Any] | None = None
    known: tuple[Known, ...] = ()
    newest: Known | None = None  # the newest that was verified and not refused since; of two versions the later one
    newest_wall_s: float | None = None  # when that was
    run_ids: tuple[str, ...] = ()  # all that were ever launched, oldest first
    ended: frozenset[str] = frozenset()  # those of them whose end is on record
    cleared: str | None = None  # a run whose suspects a person has cleared
    refused_runs: frozenset[str] = frozenset()
    deleting: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by manifest: its digest
    moved: frozenset[str] = frozenset()  # names of the manifests that were moved to quarantine/
    moving: Mapping[str, float] = dataclasses.field(default_factory=dict)  # begun and not ended: when, wall clock
    last_sentence: str = ""
    last_wall_s: float = 0.0

    @property
    def restarts(self) -> int:
        return max(0, self.launches - 1)

    @property
    def knew_checkpoint(self) -> bool:
        return bool(self.known)


def fold(events: Iterable[Event], history: History | None = None) -> History:
    """Replay events, oldest first. Linear: what grows with the job (the verified checkpoints) is gathered aside."""
    history = History() if history is None else history
    known, run_ids, ended = dict.fromkeys(history.known), dict.fromkeys(history.run_ids), set(history.ended)
    newest, newest_wall_s = history.newest, history.newest_wall_s
    deleting, moved, moving = dict(history.deleting), set(history.moved), dict(history.moving)
    for event in events:
        history = _after(history, event)
        if event.kind == "checkpoint_refused" and event.data.get("movable"):
            moving[str(event.data.get("manifest")).rpartition("/")[2]] = event.wall_s
        if event.kind == "checkpoint_verified":
            entry = _verified(event.data)
            abandoned = history.line.abandons(entry)
            if entry != newest and not abandoned and (newest is None or entry.step >= newest.step):
                newest, newest_wall_s = entry, event.wall_s
            known[entry] = None
        elif event.kind == "checkpoint_refused" and newest is not None and event.data.get("step") == newest.step:
            older = [entry for entry in known if entry.step < newest.step and not history.line.abandons(entry)]
            newest, newest_wall_s = max(reversed(older), key=lambda entry: entry.step, default=None), None
        elif event.kind == "checkpoint_vanished":
            if newest is not None and (newest.step, newest.digest) == (event.data["step"], event.data["digest"]):
                newest, newest_wall_s = _still(event.data.get("still")), None
        elif event.kind == "prune_planned" and event.data.get("digest"):
            deleting[str(event.data.get("name")).removeprefix(HIDDEN)] = str(event.data["digest"])
        elif event.kind == "pruned" and event.data.get("freed_bytes") is not None:
            name = str(event.data.get("name"))
            deleting.pop(name.removeprefix(HIDDEN), None)
            if name.startswith("quarantine/"):  # what a person lays there under that name later is not ours
                moved.discard(name.rpartition("/")[2])
                moving.pop(name.rpartition("/")[2], None)
        elif event.kind == "checkpoint_moved":
            moved.add(str(event.data.get("place")).rpartition("/")[2])
            moving.pop(str(event.data.get("manifest")).rpartition("/")[2], None)
        elif event.kind == "checkpoint_stays":
            moving.pop(str(event.data.get("manifest")).rpartition("/")[2], None)
        elif event.kind == "run_launching":
            run_ids[str(event.data["run_id"])] = None
        elif event.kind == "run_ended":
            ended.add(str(event.data.get("run_id")))
        elif event.kind == "branched":
            newest, newest_wall_s = _verified(event.data), event.wall_s
            words = f"{event.data['by']}: {event.data['why']}"
            history = dataclasses.replace(history, line=back_to(history.line, newest, run_ids, words))
        elif event.kind == "archived":
            known.clear()
            deleting.clear()
            moved.clear()
            moving.clear()
            newest, newest_wall_s = None, None
    return dataclasses.replace(
        history,
        known=tuple(known),
        run_ids=tuple(run_ids),
        ended=frozenset(ended),
        newest=newest,
        newest_wall_s=newest_wall_s,
        deleting=deleting,
        moved=frozenset(moved),
        moving=moving,
    )


# No decision about the job.
_OF_THE_HOST = frozenset(
    {
        "finding",
        "finding_over",
        "uses_gpu",
        "gpu_memory",
        "host_memory",
        "device_probing",
        "device_probed",
        "notifying",
        "notified",
        "run_steps",
        "run_caught_up",
        "step_time",
        "phase_time",
        "deadline_doubted",
        "cgroup_missing",
        "cgroup_stays",
        "prune_planned",
        "pruned",
        "stacks_kept",
        "verdict_changed",
    }
)
_BLIND = "blind"  # the check of that name
_NO_FAILURE = ("finished", "drained", "stopped")  # as in causes.py, whose words these are


def _verified(data: Mapping[str, Any]) -> Known:
    run_id = data.get("run_id")
    return Known(step=int(data["step"]), digest=str(data["digest"]), run_id=None if run_id is None else str(run_id))


def _still(data: object) -> Known | None:
    """The newest that stands after another one vanished; None for none, and for what cannot be read as one."""
    if isinstance(data, list) and len(data) == 3 and isinstance(data[0], int) and isinstance(data[1], str):
        return Known(step=data[0], digest=data[1], run_id=data[2] if isinstance(data[2], str) else None)
    return None


# What each kind must carry to be folded, and what it may carry: name, type, whether it must be there.
_NEEDS: Mapping[str, tuple[tuple[str, type, bool], ...]] = {
    "relaunch_asked": (("run_id", str, True),),
    "run_launching": (
        ("number", int, True),
        ("run_id", str, True),
        ("baseline_step", int, True),
        ("device_memory", dict, False),
        ("batch_halvings", int, False),
    ),
    "run_acknowledged": (("run_id", str, True),),
    "run_beats": (("run_id", str, True),),
    "run_steps": (("run_id", str, True), ("step", int, True)),
    "run_recovered": (("run_id", str, True), ("step", int, True)),
    "run_caught_up": (("run_id", str, True), ("step", int, True)),
    "uses_gpu": (("uuids", list, True),),
    "gpu_memory": (("run_id", str, True), ("devices", dict, True)),
    "host_memory": (("run_id", str, True), ("peak_bytes", int, True), ("before_bytes", int, False)),
    "device_probed": (("device", str, True), ("passed", bool, True)),
    "phase_time": (("run_id", str, True), ("phase", str, True), ("settled", bool, False)),
    "deadline_doubted": (("run_id", str, True), ("phase", str, True), ("step", int, False)),
    "run_stopping": (
        ("run_id", str, True),
        ("cause", str, True),
        ("reason", str, True),
        ("hold_after", bool, True),
        ("kill_now", bool, False),
    ),
    "run_ended": (
        ("number", int, True),
        ("run_id", str, True),
        ("cause", str, True),
        ("words", str, True),
        ("baseline_step", int, True),
        ("last_step", int, False),
        ("target_step", int, False),
        ("permanent", bool, False),
        ("hold_after", bool, False),
        ("error", str, False),
        ("confidence", str, False),
        ("fault", str, False),
    ),
    "run_weighed": (
        ("cause", str, True),
        ("failures", int, True),
        ("host_failures", int, False),
        ("fault", str, False),
        ("repeated", int, False),
        ("batch_halvings", int, False),
    ),
    "run_refused": (("run_id", str, True),),
    "branched": (
        ("step", int, True),
        ("digest", str, True),
        ("run_id", str, False),
        ("by", str, True),
        ("why", str, True),
    ),
    "checkpoint_verified": (("step", int, True), ("digest", str, True), ("run_id", str, False)),
    "pruned": (("freed_bytes", int, False), ("step", int, False)),
    "checkpoint_vanished": (("step", int, True), ("digest", str, True), ("still", list, False)),
    "hold": (("reason", str, True), ("until_gone", str, False)),
    "lifted": (("by", str, False), ("run_id", str, False)),
    "notifying": (("event", str, True), ("episode", str, True), ("attempt", int, True)),
    "notified": (("event", str, True), ("episode", str, True), ("attempt", int, True), ("outcome", str, True)),
}


def can_fold(event: Event) -> bool:
    """Whether the event carries what its kind needs: a line that does not is no record, whoever wrote it."""
    for name, kind, needed in _NEEDS.get(event.kind, ()):
        value = event.data.get(name)
        if value is None and not needed:
            continue
        if not isinstance(value, kind):
            return False
        if isinstance(value, int) and kind is int and (isinstance(value, bool) or not -(2**63) < value < 2**63):
            return False
    return True


def _is_failure(cause: str) -> bool:
    """A word that is no cause (another version's) is one: better told once too often."""
    try:
        return Cause(cause).is_failure
    except ValueError:
        return True


def _ordeal(history: History, event: Event, words: str, step: int | None = None) -> Ordeal:
    """Of several in a row the furthest step counts: what is trained anew up to there is no progress yet."""
    before = -1 if history.ordeal is None else history.ordeal.step
    return Ordeal(seq=event.seq, words=words, step=before if step is None else max(before, step))


def _after(history: History, event: Event) -> History:
    data = event.data
    gpu = after(history.gpu, event.kind, data, event.seq, event.sentence)
    halvings = remembered(history.batch_halvings, event.kind, data)
    changes: dict[str, Any] = {"last_wall_s": event.wall_s, "gpu": gpu, "batch_halvings": halvings}
    changes["host_memory"] = needing(history.host_memory, event.kind, data)
    if halvings > history.batch_halvings:  # its steps will take longer than those that were learned from
        changes |= {"phase_times_s": {}, "doubted": {}}
    if event.kind not in _OF_THE_HOST:
        changes["last_sentence"] = event.sentence
    match event.kind:
        case "run_launching":
            command = data.get("command_sha256")
            if command != history.command:
                changes |= {"command": command, "phase_times_s": {}, "doubted": {}}
            changes |= {
                "last_number": int(data["number"]),
                "last_run_id": str(data["run_id"]),
                "launches": history.launches + 1,
                "open_run": data,
                "stopping": None,
                "wait": None,
                "first_launch_wall_s": history.first_launch_wall_s or event.wall_s,
            }
        case "run_ended":
            changes |= {
                "open_run": None,
                "stopping": None,
                "unweighed": data,
                "last_error": None if data.get("cause") in _NO_FAILURE else data.get("error") or history.last_error,
            }
        case "run_acknowledged":
            changes["acknowledged"] = str(data["run_id"])
        case "run_beats":
            changes["beats"] = str(data["run_id"])
        case "relaunch_asked":
            changes["owed"] = str(data["run_id"])
        case "uses_gpu":
            changes["gpus"] = (history.gpus or frozenset()) | {str(uuid) for uuid in data["uuids"]}
        case "run_stopping":
            changes["stopping"] = data
            if data["run_id"] == history.owed:  # it is being ended: nobody is owed that any more
                changes["owed"] = None
        case "run_goes_on":
            changes["stopping"] = None
        case "signal_sending" | "signal_sent" | "run_freezing" | "run_killing":
            # A stop that has done something to the run is no matter of opinion any more, whatever beats come after; nor
            # one that was about to: whether that TERM was sent is not known, and an exit with 0 after it is no success.
            kills = event.kind.startswith("run_")  # what was stopped for its KILL is killed, by whoever comes next
            if history.stopping is not None and (kills or "pid" in data or "pids" in data):
                killing = {"kill_now": True} if kills else {}
                changes["stopping"] = {**history.stopping, "sent": True, **killing}
        case "run_weighed":
            cause = str(data["cause"])
            changes |= {
                "unweighed": None,
                "failures": int(data["failures"]),
                "host_failures": int(data.get("host_failures") or 0),
                "fault": data.get("fault"),
                "wait": wait_from(data, wall_s=event.wall_s, monotonic_s=event.monotonic_s, boot_id=event.boot_id),
                "steps_repeated": history.steps_repeated + int(data.get("repeated") or 0),
                "runs_by_cause": {**history.runs_by_cause, cause: history.runs_by_cause.get(cause, 0) + 1},
            }
            if _is_failure(cause):
                ended = history.unweighed or {}
                words = f"run {ended.get('number', '?')} {ended['words']}" if "words" in ended else event.sentence
                changes["ordeal"] = _ordeal(history, event, words, ended.get("last_step"))
        case "pruned" if data.get("freed_bytes") is not None:
            whole = data.get("step") is not None
            changes |= {"pruned": history.pruned + whole, "pruned_bytes": history.pruned_bytes + data["freed_bytes"]}
        case "run_refused":
            changes["refused_runs"] = history.refused_runs | {str(data["run_id"])}
        case "hold":
            reason = str(data["reason"])
            changes |= {"hold": reason, "hold_seq": event.seq, "ordeal": _ordeal(history, event, reason)}
            changes["until_gone"] = data.get("until_gone")
        case "finding" if data.get("check") == _BLIND:
            changes["blind_seq"] = event.seq if history.blind_seq is None else history.blind_seq
        case "finding_over" if data.get("check") == _BLIND:
            changes["blind_seq"] = None
        case "phase_time":
            changes |= _timed(history, data)
        case "deadline_doubted":
            step = data.get("step")
            changes["doubted"] = {**history.doubted, str(data["phase"]): -1 if step is None else int(step)}
        case "notifying" | "notified":
            told = Told(
                episode=str(data["episode"]),
                attempt=int(data["attempt"]),
                outcome=str(data["outcome"]) if event.kind == "notified" else None,
            )
            changes["told"] = {**history.told, str(data["event"]): told}
            if told.outcome is not None:
                counts = history.notifications.get(str(data["event"]), {})
                counts = {**counts, told.outcome: counts.get(told.outcome, 0) + 1}
                changes["notifications"] = {**history.notifications, str(data["event"]): counts}
        case "supervisor_started":
            changes["left"] = None
        case "supervisor_leaving":
            changes["left"] = event.sentence
        case "lifted" if data.get("by") == "end":  # by itself: no person has looked, so what was counted stays
            changes |= {"hold": None, "hold_seq": None, "until_gone": None}
        case "lifted":
            changes["until_gone"] = None
            changes |= {"hold": None, "hold_seq": None, "failures": 0, "unweighed": None}
            changes |= {"host_failures": 0, "fault": None, "wait": None}
            changes["cleared"] = str(history.open_run["run_id"]) if history.open_run is not None else None
        case "budget_reset":
            changes |= {"failures": 0, "host_failures": 0, "fault": None}
        case "wait_cut":
            changes["wait"] = None
        case "branched":
            changes["finished"] = None
        case "finished":
            changes["finished"] = data
        case "archived":
            changes |= {
                "phase_times_s": {},
                "doubted": {},
                "launches": 0,
                "first_launch_wall_s": None,
                "failures": 0,
                "host_failures": 0,
                "fault": None,
                "hold": None,
                "hold_seq": None,
                "until_gone": None,
                "wait": None,
                "line": Line(),
                "ordeal": None,
                "finished": None,
                "runs_by_cause": {},
                "steps_repeated": 0,
                "pruned": 0,
                "pruned_bytes": 0,
                "last_error": None,
                "unweighed": None,
            }
    return dataclasses.replace(history, **changes)


def _timed(history: History, data: Mapping[str, Any]) -> dict[str, Any]:
    timed = time_from(data)
    if timed is None:
        return {}
    phase, longest_s = timed
    changes: dict[str, Any] = {
        "phase_times_s": {
            **history.phase_times_s,
            phase: max(longest_s, history.phase_times_s.get(phase, 0.0)),
        }
    }
    if data.get("settled"):
        changes["doubted"] = {each: step for each, step in history.doubted.items() if each != phase}
    return changes
