"""Autopsies: the incidents of a job, each one record, derived from the ledger's events. Pure.

An incident goes from the first sign (a run ended, a stall, a hold) to proven recovery, the first new step of the next
run, or to the hold. Its number is its place in the ledger, which only grows, so it never changes. Every text in it is
masked: an autopsy is made to be pasted. Refuses to know what no record tells: that part is named in `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from watchdog.core.autopsy import TEXT_MOST, Evidence, Incident, Moment, RunEnd, lines_of, shown
from watchdog.core.ettr import LOST, Account, Span, number_in, step_in
from watchdog.core.history import Event
from watchdog.masking import mask_command

_MOMENTS = 120
_ENDS = 10  # of so many at each end of a row of runs the evidence is told
_QUIET = frozenset({"uses_gpu", "gpu_memory", "host_memory", "step_time", "run_beats", "notifying", "notified"})
_ACTING = frozenset(
    {
        "run_stopping",
        "signal_sent",
        "shim_continued",
        "run_killing",
        "checkpoint_refused",
        "reclaiming",
        "prune_planned",
        "run_launching",
        "run_weighed",
        "lifted",
    }
    | {"device_probing", "branched", "budget_reset", "wait_cut", "batch_shrunk", "batch_whole"}
)
_PROVING = frozenset(
    {"run_ended", "run_killed", "reclaimed", "pruned", "checkpoint_moved", "checkpoint_verified", "run_acknowledged"}
    | {"run_steps", "run_recovered", "run_caught_up", "device_probed"}
)
T = TypeVar("T")
_WISHED = ("drained", "stopped")  # causes: a person wished it, so it is no failure that explains anything
_UNDERSTOOD_BY_NOBODY = ("exited", "unknown")
# What a record of an end may carry of its evidence, and what a person calls it.
_EVIDENCE: tuple[tuple[str, str], ...] = (
    ("error", "last words of the trainer"),
    ("fault", "what failed"),
    ("facts", "last facts"),
    ("tail", "end of its output"),
    ("kernel", "kernel lines"),
    ("kernel_lines", "kernel lines"),
    ("failure", "failure.json"),
    ("evidence", "evidence"),
)


def incidents(
    events: Iterable[Event], now_wall_s: float | None = None, *, supervised: bool = False
) -> tuple[Incident, ...]:
    """All of them, oldest first. What the one that is open has cost grows up to `now_wall_s`: `Account.until_s`."""
    reader = _Reader()
    for event in events:
        reader.add(event)
    return reader.all(now_wall_s, supervised=supervised)


class _Draft:
    """What is gathered of one incident while it is open."""

    def __init__(self, span: Span, origin_wall_s: float) -> None:
        """`origin_wall_s`: the wall clock at the beginning of the account's line, as it was set when this began."""
        self.span = span
        self.origin_wall_s = origin_wall_s
        self.findings: list[str] = []
        self.also_standing: list[str] = []
        self.moments: list[tuple[float, Event]] = []
        self.ends: list[Mapping[str, Any]] = []
        self.waits: set[int] = set()  # numbers of the records that a wait follows: a hold makes it pointless
        self.failed: object = None  # the id of the run that failed first
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
        self._launched_s = float("-inf")
        self._doubted: list[tuple[float, Event]] = []  # the verdict that stands, unless it was a good one

    def add(self, event: Event) -> None:
        before = self._account.span
        self._account.add(event)
        now_s = self._account.now_s
        key = _key(event)
        if event.kind == "finding":
            # Told at the first look of a supervisor it is as old as it was told to be before, else of unknown age.
            since_s = now_s if event.data.get("stood_before") is not True else float("-inf")
            self._standing[key] = (self._standing[key][0] if key in self._standing else since_s, event)
        elif event.kind == "finding_over":
            self._standing.pop(key, None)
        elif event.kind == "verdict_changed":
            self._doubted = [] if event.data.get("verdict") in ("healthy", "starting", "finished") else [(now_s, event)]
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
            self._draft = _Draft(after, event.wall_s - now_s)
            standing = [each for each in self._standing.values() if each[1] is not event]
            of_it = [each for each in standing if each[0] >= self._launched_s]
            self._draft.findings = [shown(each.sentence) for _, each in of_it]
            self._draft.also_standing = [shown(each.sentence) for at_s, each in standing if at_s < self._launched_s]
            self._draft.moments = sorted((*of_it, *self._doubted), key=lambda each: each[0])
            self._tell(self._draft, event)
        if event.kind == "run_launching":
            self._launched_s = now_s

    def all(self, now_wall_s: float | None, *, supervised: bool) -> tuple[Incident, ...]:
        draft, account = self._draft, self._account
        if draft is None or draft.span.number is None:
            return tuple(self._done)
        now_s = account.now_s
        if now_wall_s is not None:
            now_s = account.until_s(now_wall_s, supervised=supervised)
            draft.wall_s = account.wall_s(now_s)
        return (*self._done, self._made(draft, now_s))

    def _finish(self, draft: _Draft) -> None:
        if draft.span.number is not None:
            self._done.append(self._made(draft, self._account.now_s))

    def _tell(self, draft: _Draft, event: Event) -> None:
        """What one record adds."""
        data = event.data
        if event.kind not in _QUIET:
            draft.moments.append((self._account.now_s, event))
        draft.wall_s = self._account.wall_s(self._account.now_s)
        match event.kind:
            case "run_stopping":
                self._blame(draft, data, str(data.get("reason")), None)
            case "run_ended":
                draft.ends.append(data)
                self._blame(draft, data, str(data.get("words")), _confidence(data))
                draft.launch = draft.stepped = None
            case "run_weighed":
                if draft.failed == data.get("run_id", draft.failed) and data.get("cause") not in _WISHED:
                    draft.cause = str(data.get("cause"))
                if draft.span.outcome != "held":
                    draft.waits.add(event.seq)
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
            case "finding" if data.get("stood_before") is True:
                draft.moments.pop()
                if self._standing[_key(event)][0] < self._launched_s:  # else it has been told
                    draft.also_standing.append(shown(event.sentence))
            case "finding":
                draft.findings.append(shown(event.sentence))

    @staticmethod
    def _blame(draft: _Draft, data: Mapping[str, Any], words: str, confidence: str | None) -> None:
        """The first failure is the cause: later ones follow from it, or from what was done about it."""
        run_id = data.get("run_id")
        if draft.failed is None and data.get("cause") in _WISHED:
            draft.words = draft.words or words
        elif draft.failed in (None, run_id) and data.get("cause") not in _WISHED:
            draft.failed = run_id
            draft.cause, draft.words, draft.confidence = str(data.get("cause")), words, confidence

    def _made(self, draft: _Draft, now_s: float) -> Incident:
        span, account = draft.span, self._account
        assert span.number is not None
        lost = account.span_lost(span, now_s)
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
            timeline=tuple(
                moment
                for at_s, event in _first_and_last(draft.moments, _MOMENTS // 2)
                for moment in _moments(at_s, event, span.began_s, waits=event.seq in draft.waits)
            ),
            run_ids=tuple(str(end.get("run_id")) for end in _first_and_last(draft.ends)),
            ends=tuple(map(_end, _first_and_last(draft.ends))),
            also_standing=tuple(dict.fromkeys(draft.also_standing)),
        )


def _key(finding: Event) -> tuple[str, str]:
    return str(finding.data.get("check")), str(finding.data.get("subject"))


def _confidence(data: Mapping[str, Any]) -> str | None:
    """As it was recorded; older ledgers are sure of an exit code that nobody understands."""
    confidence = data.get("confidence")
    if not isinstance(confidence, str) or (confidence == "certain" and data.get("cause") in _UNDERSTOOD_BY_NOBODY):
        return None
    return shown(confidence, 50)


def _end(data: Mapping[str, Any]) -> RunEnd:
    return RunEnd(
        number=step_in(data, "number"),
        cause=str(data.get("cause")),
        words=shown(data.get("words")),
        confidence=_confidence(data),
        last_step=step_in(data, "last_step"),
    )


def _moments(at_s: float, event: Event, began_s: float, *, waits: bool) -> list[Moment]:
    """A launch has two: the gates that were found open, and itself."""
    sentence, data = shown(event.sentence), event.data
    role = "did" if event.kind in _ACTING else "proof" if event.kind in _PROVING else "saw"
    after_s = round(at_s - began_s, 3)
    command, gates = data.get("command"), data.get("gates")
    found = []
    if event.kind == "run_launching" and isinstance(gates, list) and gates:
        words = shown("gates held: " + " · ".join(str(gate)[:TEXT_MOST] for gate in gates[:_ENDS]))
        found.append(Moment(after_s=after_s, wall_s=event.wall_s, role="proof", kind="gates", sentence=words))
    if event.kind == "run_launching" and isinstance(command, list):
        sentence += ": " + shown(" ".join(mask_command([str(part) for part in command])), 300)
    wait_s = number_in(data, "wait_s")
    if waits and wait_s is not None and wait_s > 0:
        sentence += f"; the next run in {wait_s:.1f} s"
    return [*found, Moment(after_s=after_s, wall_s=event.wall_s, role=role, kind=event.kind, sentence=sentence)]


def _first_and_last(many: list[T], each: int = _ENDS) -> list[T]:
    """A job that flaps for a week has an autopsy that can be read."""
    return many if len(many) <= 2 * each else many[:each] + many[-each:]


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
    for end in _first_and_last(draft.ends):
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
