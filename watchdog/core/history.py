"""What the ledger remembers, folded by a pure function: the same events give the same history, always."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from watchdog.core.choice import Known


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the ledger. `sentence` is for people; `data` is what is folded."""

    seq: int
    wall_s: float
    kind: str
    sentence: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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
    stopping: Mapping[str, Any] | None = None  # a stop of the open run that was begun
    unweighed: Mapping[str, Any] | None = None
    failures: int = 0
    runs_by_cause: Mapping[str, int] = dataclasses.field(default_factory=dict)
    steps_repeated: int = 0
    hold: str | None = None
    last_error: str | None = None
    finished: Mapping[str, Any] | None = None
    known: tuple[Known, ...] = ()
    refused_runs: frozenset[str] = frozenset()
    last_sentence: str = ""
    last_wall_s: float = 0.0

    @property
    def restarts(self) -> int:
        return max(0, self.launches - 1)

    @property
    def knew_checkpoint(self) -> bool:
        return bool(self.known)

    @property
    def newest(self) -> Known | None:
        return max(self.known, key=lambda entry: entry.step, default=None)


def fold(events: Iterable[Event], history: History | None = None) -> History:
    """Replay events, oldest first."""
    history = History() if history is None else history
    for event in events:
        history = _after(history, event)
    return history


def can_fold(event: Event) -> bool:
    """Whether the event carries what its kind needs: a line that does not is no record, whoever wrote it."""
    try:
        _after(History(), event)
        for name in ("number", "baseline_step") if event.kind == "run_ended" else ():
            int(event.data[name])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return False
    return True


def _after(history: History, event: Event) -> History:
    data = event.data
    changes: dict[str, Any] = {"last_sentence": event.sentence, "last_wall_s": event.wall_s}
    match event.kind:
        case "run_launching":
            changes |= {
                "last_number": int(data["number"]),
                "last_run_id": str(data["run_id"]),
                "launches": history.launches + 1,
                "open_run": data,
                "stopping": None,
                "first_launch_wall_s": history.first_launch_wall_s or event.wall_s,
            }
        case "run_ended":
            changes |= {
                "open_run": None,
                "stopping": None,
                "unweighed": data,
                "last_error": data.get("error") or history.last_error,
            }
        case "run_stopping":
            changes["stopping"] = data
        case "run_goes_on":
            changes["stopping"] = None
        case "run_weighed":
            cause = str(data["cause"])
            changes |= {
                "unweighed": None,
                "failures": int(data["failures"]),
                "steps_repeated": history.steps_repeated + int(data.get("repeated", 0)),
                "runs_by_cause": {**history.runs_by_cause, cause: history.runs_by_cause.get(cause, 0) + 1},
            }
        case "checkpoint_verified":
            entry = Known(step=int(data["step"]), digest=str(data["digest"]), run_id=data.get("run_id"))
            if entry not in history.known:
                changes["known"] = (*history.known, entry)
        case "run_refused":
            changes["refused_runs"] = history.refused_runs | {str(data["run_id"])}
        case "hold":
            changes["hold"] = str(data["reason"])
        case "lifted":
            changes |= {"hold": None, "failures": 0, "unweighed": None}
        case "finished":
            changes["finished"] = data
        case "archived":
            changes |= {
                "launches": 0,
                "first_launch_wall_s": None,
                "failures": 0,
                "hold": None,
                "finished": None,
                "known": (),
                "runs_by_cause": {},
                "steps_repeated": 0,
                "last_error": None,
                "unweighed": None,
            }
    return dataclasses.replace(history, **changes)
