"""Autopsies: the incidents of a job, each one record, derived from the ledger's events. Pure.

An incident goes from the first sign (a run ended, a stall, a hold) to proven recovery, the first new step of the next
run, or to the hold. Its number is its place in the ledger, which only grows, so it never changes. Every text in it is
masked: an autopsy is made to be pasted. Refuses to know what no record tells: that part is named in `unknown`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from watchdog.core.ettr import LOST, Account, Span, step_in
from watchdog.core.history import Event
from watchdog.masking import mask_command, mask_text

_MOMENTS, _EVIDENCE_LINES, _TEXT = 120, 40, 2000
_QUIET = frozenset({"uses_gpu", "gpu_memory", "step_time", "run_beats", "run_weighed", "notifying", "notified"})
_ACTING = frozenset(
    {
        "run_stopping",
        "signal_sent",
        "run_killing",
        "checkpoint_refused",
        "reclaiming",
        "prune_planned",
        "run_launching",
        "lifted",
    }
    | {"device_probing", "branched", "budget_reset", "wait_cut"}
)
_PROVING = frozenset(
    {"run_ended", "run_killed", "reclaimed", "pruned", "checkpoint_moved", "checkpoint_verified", "run_acknowledged"}
    | {"run_steps", "run_recovered", "run_caught_up", "device_probed"}
)
# What a record of an end may carry of its evidence, and what a person calls it.
_EVIDENCE: tuple[tuple[str, str], ...] = (
    ("error", "last words of the trainer"),
    ("fault", "what failed"),
    ("tail", "end of its output"),
    ("kernel", "kernel lines"),
    ("kernel_lines", "kernel lines"),
    ("failure", "failure.json"),
    ("evidence", "evidence"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One record of the timeline. `after_s` since the last sign of life; below 0 for what led to it.

    `role`: "did" for an action of ours, "proof" for what it led to as it was seen, "saw" for the rest.
    """

    after_s: float
    wall_s: float
    role: str
    kind: str
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Lines of one source."""

    source: str
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """One autopsy.

    `outcome`: open, recovered, held, finished (the job was, after all), went on (nothing was done), archived.
    `lost_s`: seconds by part; `lost_total_s` their sum, replay included. `wall_s`: what the job had run by then since
    its first launch. `recovered_after_s`: from the last sign of life to the first new step. `confidence`:
    in the cause, "certain" or "likely", where whoever classified it told one.
    """

    id: int
    outcome: str
    began_wall_s: float
    noticed_after_s: float
    recovered_after_s: float | None
    cause: str | None
    words: str
    confidence: str | None
    runs: tuple[int, ...]  # those that ended in it
    next_run: int | None  # that which recovered it, or tries to
    last_step: int | None
    checkpoint_step: int | None
    checkpoint_digest: str | None
    steps_repeated: int | None
    lost_s: Mapping[str, float]
    lost_total_s: float
    wall_s: float | None
    unknown: tuple[str, ...]
    hold: str | None
    findings: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    timeline: tuple[Moment, ...]
    run_ids: tuple[str, ...] = ()  # as `runs`


def shown(text: object, most: int = _TEXT) -> str:
    """Masked, and no longer than a person reads."""
    words = mask_text(str(text)[: 4 * most])
    return words if len(words) <= most else words[:most] + "…"


def lines_of(value: object) -> tuple[str, ...]:
    """Whatever a record holds as evidence, as lines: a text, a list of texts, an object."""
    if isinstance(value, Mapping):
        found = [f"{name}: {each}" for name, each in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found = [str(each) for each in value]
    else:
        found = [] if value is None else str(value).splitlines()
    return tuple(shown(line) for line in found[-_EVIDENCE_LINES:])


def incidents(events: Iterable[Event]) -> tuple[Incident, ...]:
    """All of them, oldest first."""
    reader = _Reader()
    for event in events:
        reader.add(event)
    return reader.all()


class _Draft:
    """What is gathered of one incident while it is open."""

    def __init__(self, span: Span, origin_wall_s: float, findings: Iterable[str] = ()) -> None:
        """`origin_wall_s`: the wall clock at the beginning of the account's line, as it was set when this began."""
        self.span = span
        self.origin_wall_s = origin_wall_s
        self.findings = list(findings)
        self.moments: list[tuple[float, Event]] = []
        self.ends: list[Mapping[str, Any]] = []
        self.cause: str | None = None
        self.words = ""
        self.confidence: str | None = None
        self.launch: Mapping[str, Any] | None = None
        self.stepped: Event | None = None
        self.repeated: int | None = None
        self.hold: str | None = None
        self.wall_s: float | None = None


class _Reader:
    def __init__(self) -> None:
        self._account = Account()
        self._done: list[Incident] = []
        self._draft: _Draft | None = None
        self._standing: dict[tuple[str, str], tuple[float, Event]] = {}  # findings that are not over

    def add(self, event: Event) -> None:
        before = self._account.span
        self._account.add(event)
        now_s = self._account.now_s
        key = (str(event.data.get("check")), str(event.data.get("subject")))
        if event.kind == "finding":
            self._standing[key] = (now_s, event)
        elif event.kind == "finding_over":
            self._standing.pop(key, None)
        after, closed = self._account.span, self._account.closed
        draft, new = self._draft, after is not None and after is not before
        if draft is not None:
            if not new:  # what begins the next one does not belong to the one that it ends
                self._tell(draft, event)
            if closed is before:
                self._finish(draft)
            if after is not before:
                self._draft = None
        if after is not None and new:
            self._draft = _Draft(after, event.wall_s - now_s, (shown(e.sentence) for _, e in self._standing.values()))
            self._draft.moments = list(self._standing.values())
            self._tell(self._draft, event)

    def all(self) -> tuple[Incident, ...]:
        if self._draft is not None and self._draft.span.number is not None:
            return (*self._done, self._made(self._draft))
        return tuple(self._done)

    def _finish(self, draft: _Draft) -> None:
        if draft.span.number is not None:
            self._done.append(self._made(draft))

    def _tell(self, draft: _Draft, event: Event) -> None:
        """What one record adds."""
        data = event.data
        if event.kind not in _QUIET:
            draft.moments.append((self._account.now_s, event))
        draft.wall_s = self._account.wall_s(self._account.now_s)
        match event.kind:
            case "run_stopping":
                draft.cause, draft.words = str(data.get("cause")), str(data.get("reason"))
            case "run_ended":
                draft.ends.append(data)
                draft.cause, draft.words = str(data.get("cause")), str(data.get("words"))
                draft.confidence = shown(data["confidence"], 50) if isinstance(data.get("confidence"), str) else None
                draft.launch = draft.stepped = None
            case "run_weighed":
                draft.cause = str(data.get("cause"))
                repeated = step_in(data, "repeated")
                if repeated is not None:
                    draft.repeated = (draft.repeated or 0) + repeated
            case "run_launching":
                draft.launch = data
            case "run_steps" | "run_recovered":
                draft.stepped = event
            case "hold":
                draft.hold = str(data.get("reason"))
                draft.words = draft.words or draft.hold
            case "finding":
                draft.findings.append(shown(event.sentence))

    def _made(self, draft: _Draft) -> Incident:
        span, account = draft.span, self._account
        assert span.number is not None
        lost = account.span_lost(span, account.now_s)
        launch = draft.launch or {}
        last_steps = [step for end in draft.ends if (step := step_in(end, "last_step")) is not None]
        digest = launch.get("digest")
        return Incident(
            id=span.number,
            outcome=span.outcome,
            began_wall_s=draft.origin_wall_s + span.began_s,
            noticed_after_s=max(0.0, span.noticed_s - span.began_s),
            recovered_after_s=None if span.recovered_s is None else max(0.0, span.recovered_s - span.began_s),
            cause=draft.cause,
            words=shown(draft.words),
            confidence=draft.confidence,
            runs=tuple(step for end in draft.ends if (step := step_in(end, "number")) is not None),
            next_run=step_in(launch, "number"),
            last_step=last_steps[-1] if last_steps else None,
            checkpoint_step=step_in(launch, "resume_step"),
            checkpoint_digest=digest if isinstance(digest, str) else None,
            steps_repeated=draft.repeated,
            lost_s={part.value: round(lost[part], 3) for part in LOST if part in lost},
            lost_total_s=round(sum(lost.values()), 3),
            wall_s=None if draft.wall_s is None else round(draft.wall_s, 3),
            unknown=(*span.unknown, *_unknown(draft, span)),
            hold=None if draft.hold is None else shown(draft.hold),
            findings=tuple(dict.fromkeys(draft.findings)),
            evidence=_evidence(draft),
            timeline=tuple(_moment(at_s, event, span.began_s) for at_s, event in _shortened(draft.moments)),
            run_ids=tuple(str(end.get("run_id")) for end in draft.ends),
        )


def _moment(at_s: float, event: Event, began_s: float) -> Moment:
    sentence = shown(event.sentence)
    command = event.data.get("command")
    if event.kind == "run_launching" and isinstance(command, list):
        sentence += ": " + shown(" ".join(mask_command([str(part) for part in command])), 300)
    role = "did" if event.kind in _ACTING else "proof" if event.kind in _PROVING else "saw"
    after_s = round(at_s - began_s, 3)
    return Moment(after_s=after_s, wall_s=event.wall_s, role=role, kind=event.kind, sentence=sentence)


def _shortened(moments: list[tuple[float, Event]]) -> list[tuple[float, Event]]:
    """The first and the last of many: a job that flaps for a week has an autopsy that can be read."""
    half = _MOMENTS // 2
    return moments if len(moments) <= _MOMENTS else moments[:half] + moments[-half:]


def _unknown(draft: _Draft, span: Span) -> list[str]:
    unknown = []
    if draft.cause in (None, "unknown"):
        unknown.append("cause: no record tells it")
    if span.recovered_s is not None and draft.stepped is None:
        unknown.append("load: no record tells the first new step, its checkpoint is the first that is known")
    if span.outcome == "recovered" and draft.repeated is None:
        unknown.append("replay: no record tells how many steps were repeated")
    if draft.ends and span.outcome == "recovered" and all(step_in(end, "last_step") is None for end in draft.ends):
        unknown.append("replay: the run told no step before it ended")
    return unknown


def _stood(data: Mapping[str, Any]) -> tuple[str, ...]:
    lines = lines_of(data.get("place")) + lines_of(data.get("frames"))
    return lines if not lines or data.get("path") is None else (*lines, shown(f"all of it: {data['path']}"))


def _evidence(draft: _Draft) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    for end in draft.ends:
        for name, title in _EVIDENCE:
            lines = lines_of(end.get(name))
            if lines:
                found.append(Evidence(source=f"run {end.get('number')}: {title}", lines=lines))
    for _, event in draft.moments:
        if event.kind == "stacks_kept" and (lines := _stood(event.data)):
            found.append(Evidence(source=shown(f"run {event.data.get('number')}: where it stood", 100), lines=lines))
        if event.kind == "finding" and (lines := lines_of(event.data.get("evidence"))):
            source = shown(f"finding {event.data.get('check')} of {event.data.get('subject')}", 200)
            found.append(Evidence(source=source, lines=lines))
    return tuple(dict.fromkeys(found))
