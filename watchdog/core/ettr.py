"""Where the time of a job went, from the ledger's events: steps that count, and what was lost on the way. Pure.

Responsible for one sweep over the events, in which every second since the first launch belongs to exactly one part, so
that the parts never sum to more than the wall; for when an incident begins, and when its recovery is proven; and for
ETTR: unique committed steps x median step time / wall since the first launch (Meta, arXiv 2410.21680).
Refuses to guess: a moment that no record tells is `unknown`, and its time is not counted as lost.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any

from watchdog.core.causes import Cause
from watchdog.core.history import Event


class Part(enum.Enum):
    """What a stretch of time was spent on. The value is the metric label and a person's word for it."""

    RUN = "run"  # training, as far as anybody knows: nothing lost
    START = "start"  # the first launch, up to its first step
    DETECTION = "detection"  # from the last sign of life to the first sign that it is missed
    STOP = "stop"  # TERM, grace, KILL
    PROOF = "proof"  # nothing lives, the checkpoint read back, the gates
    WAIT = "wait"  # backoff
    RECLAIM = "reclaim"  # making room in host memory
    HOLD = "hold"  # a person had to act
    AWAY = "away"  # nobody supervised
    LOAD = "load"  # from a launch to the first new step
    REPLAY = "replay"  # steps that were trained before


LOST = tuple(part for part in Part if part is not Part.RUN)
DOWN = tuple(part for part in LOST if part not in (Part.START, Part.REPLAY))
# Nothing trains in these, whoever looks after the job, or nobody: they last until the next record.
_WAITING = frozenset({Part.STOP, Part.PROOF, Part.WAIT, Part.RECLAIM, Part.HOLD, Part.AWAY})
_REQUESTED = (Cause.DRAINED.value, Cause.STOPPED.value)
_NO_FAILURE = tuple(cause.value for cause in Cause if not cause.is_failure)
_NOT_RESTORED = (Cause.WRONG_RESTORE.value, Cause.FRESH_START.value, Cause.NOT_ACKNOWLEDGED.value)
_STEP_MOST = 2**63


def number_in(data: Mapping[str, Any], name: str) -> float | None:
    """A finite number; None for anything else that a ledger may hold there."""
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_STEP_MOST < value < _STEP_MOST:
        return None
    return float(value)


def step_in(data: Mapping[str, Any], name: str = "step") -> int | None:
    """As `number_in`, for what is counted."""
    value = data.get(name)
    return value if isinstance(value, int) and number_in(data, name) is not None else None


def is_failure(cause: object) -> bool:
    """A word that is no cause (of another version) is one."""
    return cause not in _NO_FAILURE


class Span:
    """The time of one incident while it is read. `number` None: it is not known yet whether it is one."""

    def __init__(self, number: int | None, began_s: float, noticed_s: float) -> None:
        self.number = number
        self.began_s = began_s
        self.noticed_s = noticed_s
        self.recovered_s: float | None = None
        self.outcome = "open"
        self.last_step: int | None = None  # the highest of the runs that ended in it: what is beyond is no replay of it
        self.lost: dict[Part, float] = {}
        self.unknown: list[str] = []


class Account:
    """One sweep; `add` takes the events in the order of the ledger. Seconds on a line that begins with its first event.

    The line is monotonic: within a boot by CLOCK_MONOTONIC, which does not count a suspended host, across boots by the
    wall clock; time that went backwards was none.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.before_s = 0.0  # the moment of the event before
        self.newest: Event | None = None
        self.incidents = 0  # numbers given so far
        self.span: Span | None = None
        self.closed: Span | None = None  # by the event that was added last
        self._begin()

    def _begin(self) -> None:
        self.part: Part | None = None  # None: no launch yet, or the job is finished
        self.lost: dict[Part, float] = {}
        self._mark_s = self.now_s
        self._wait_until_s: float | None = None
        self.first_launch_s: float | None = None
        self._idle_s = 0.0
        self.baseline_step = 0
        self.high_step: int | None = None  # the highest step that was ever trained, on the line that is gone on from
        self.run_id: str | None = None
        self.resume_step: int | None = None
        self.stepped = False
        self._runs: set[str] = set()
        self._left: frozenset[str] = frozenset()  # runs from before the newest branch: what they do beyond it is gone
        self._branch_step = 0
        self._loading = Part.LOAD
        self.step_s: float | None = None
        self.saving_s = 0.0

    # --- time -----------------------------------------------------------------------------------------------
    def later_s(self, wall_s: float, monotonic_s: float | None, boot_id: str | None) -> float:
        """A moment on the line, not before the last event."""
        last = self.newest
        if last is None:
            return self.now_s
        if monotonic_s is not None and last.monotonic_s is not None and boot_id == last.boot_id:
            passed_s = monotonic_s - last.monotonic_s
        else:
            passed_s = wall_s - last.wall_s
        return self.now_s + (passed_s if 0 < passed_s < math.inf else 0.0)

    def until_s(self, now_wall_s: float, *, supervised: bool = False) -> float:
        """Up to when a reader of the ledger counts: now while the job waits for somebody, else the last record.

        `supervised`: somebody lives who would have recorded it, had what goes on come to its end.
        """
        goes_on = self.part in _WAITING or (supervised and self.part is not None)
        return self.later_s(now_wall_s, None, None) if goes_on else self.now_s

    @property
    def replay_to(self) -> int | None:
        """The step that a run has to pass: first the last one of the runs that ended in the incident, then all."""
        last_step = None if self.span is None else self.span.last_step
        return self.high_step if last_step is None or self.high_step is None else min(last_step, self.high_step)

    def _ago(self, event: Event, monotonic_s: float | None, wall_s: float | None = None) -> float | None:
        """When something was made of which the event tells; never before what was already accounted for."""
        if monotonic_s is not None and event.monotonic_s is not None:
            passed_s = event.monotonic_s - monotonic_s
        elif wall_s is not None:
            passed_s = event.wall_s - wall_s
        else:
            return None
        return max(self._mark_s, self.now_s - max(0.0, passed_s))

    def _spend(self, part: Part | None, until_s: float) -> None:
        passed_s = until_s - self._mark_s
        if passed_s <= 0:
            return
        self._mark_s = until_s
        if part is None:
            self._idle_s += 0.0 if self.first_launch_s is None else passed_s
            return
        self.lost[part] = self.lost.get(part, 0.0) + passed_s
        if self.span is not None and part is not Part.RUN:
            self.span.lost[part] = self.span.lost.get(part, 0.0) + passed_s

    def _to(self, part: Part | None, at_s: float | None = None) -> None:
        """From `at_s` on (now, if it is not told) time belongs to `part`."""
        at_s = self.now_s if at_s is None else min(max(at_s, self._mark_s), self.now_s)
        if self.part is Part.WAIT and self._wait_until_s is not None:
            self._spend(Part.WAIT, min(self._wait_until_s, at_s))
            self.part = Part.PROOF
        self._spend(self.part, at_s)
        self.part, self._wait_until_s = part, None

    def lost_by(self, now_s: float) -> dict[Part, float]:
        """What was lost up to `now_s`, with the part that is going on."""
        lost: dict[Part, float] = {part: self.lost[part] for part in LOST if part in self.lost}
        if self.part is not None and self.part is not Part.RUN and now_s > self._mark_s:
            lost[self.part] = lost.get(self.part, 0.0) + now_s - self._mark_s
        return lost

    def span_lost(self, span: Span, now_s: float) -> dict[Part, float]:
        """The same of one incident."""
        lost = dict(span.lost)
        if span is self.span and self.part is not None and self.part is not Part.RUN and now_s > self._mark_s:
            lost[self.part] = lost.get(self.part, 0.0) + now_s - self._mark_s
        return lost

    def wall_s(self, now_s: float) -> float | None:
        """Since the first launch, without the time in which the job was finished."""
        if self.first_launch_s is None:
            return None
        idle_s = self._idle_s + (max(0.0, now_s - self._mark_s) if self.part is None else 0.0)
        return max(0.0, now_s - self.first_launch_s - idle_s)

    # --- incidents ------------------------------------------------------------------------------------------
    def _open(self, began_s: float, *, sure: bool = True) -> Span:
        self.span = Span(None, began_s, self.now_s)
        if sure:
            self._confirm()
        return self.span

    def _confirm(self) -> None:
        if self.span is not None and self.span.number is None:
            self.incidents += 1
            self.span.number = self.incidents

    def _close(self, outcome: str | None = None) -> None:
        if self.span is None:
            return
        if outcome is not None:
            self.span.outcome = outcome
        self.closed, self.span = self.span, None

    # --- events ---------------------------------------------------------------------------------------------
    def add(self, event: Event) -> None:
        """One event later."""
        self.before_s, self.now_s = self.now_s, self.later_s(event.wall_s, event.monotonic_s, event.boot_id)
        self.newest, self.closed = event, None
        data = event.data
        match event.kind:
            case "run_launching":
                self._launching(data)
            case "run_stopping":
                self._stopping(event)
            case "run_goes_on":
                if self.part is Part.STOP:
                    self._to(Part.RUN if self.stepped else self._loading)
                    self._close("went on")
            case "run_ended":
                self._ended(event)
            case "run_weighed":
                self._weighed(data)
            case "run_steps" | "run_recovered":
                self._stepped(event, step_in(data))
            case "run_caught_up":
                if data.get("run_id") == self.run_id and self.part is Part.REPLAY:
                    self._passed(step_in(data), self._ago(event, number_in(data, "made_s")))
            case "branched":
                self._branched(step_in(data))
            case "checkpoint_verified":
                self._verified(event)
            case "step_time":
                self.step_s = number_in(data, "step_s") or self.step_s
                self.saving_s += max(0.0, number_in(data, "saving_s") or 0.0)
            case "hold":
                self._hold()
            case "lifted":
                if self.part is Part.HOLD:
                    self._to(Part.PROOF)
                if self.span is not None and self.span.outcome == "held":
                    self.span.outcome = "open"
            case "supervisor_leaving":
                if self.part not in (None, Part.HOLD):
                    self._to(Part.AWAY)
                    self._given_up()
            case "supervisor_started":
                if self.part in (Part.STOP, Part.PROOF, Part.WAIT, Part.RECLAIM, Part.AWAY):
                    self._to(Part.AWAY, self.before_s)  # whoever was there before recorded nothing after that
                    self._to(Part.PROOF)
            case "reclaiming":
                if self.part in (Part.PROOF, Part.WAIT):
                    self._to(Part.RECLAIM)
            case "reclaimed":
                if self.part is Part.RECLAIM:
                    self._to(Part.PROOF)
            case "finished":
                self._to(None)
                if self.span is not None:
                    self._close("finished" if self.span.number is not None else None)
            case "archived":
                self._to(None)
                self._close("archived")
                self._begin()

    def _launching(self, data: Mapping[str, Any]) -> None:
        first = self.first_launch_s is None
        self._confirm()  # it ended, was never weighed, and is launched again
        self._loading = Part.START if first else Part.LOAD
        self._to(self._loading)
        if first:
            self.first_launch_s = self.now_s
            self.baseline_step = max(0, step_in(data, "baseline_step") or 0)
        self.run_id = str(data.get("run_id"))
        self._runs.add(self.run_id)
        self.resume_step = step_in(data, "resume_step")
        self.stepped = False

    def _stopping(self, event: Event) -> None:
        if self.part in (Part.STOP, Part.HOLD):
            return
        self._assume_launched()
        if event.data.get("cause") not in _REQUESTED:
            self._sign(self._alive_s(event))
        self._to(Part.STOP)
        self._end_of_replay()  # what is left of it is repeated because a person wished it

    def _alive_s(self, event: Event) -> float | None:
        """When the run that is stopped now was well for the last time; None where no record tells."""
        cause = event.data.get("cause")
        if cause == Cause.STALLED.value:
            beat_s = self._ago(event, number_in(event.data, "beat_s"))
            # Without any beat it is silent since its launch. Older ledgers have not told of the beat at all.
            return self._mark_s if beat_s is None and "beat_s" in event.data else beat_s
        died_s = self._ago(event, None, number_in(event.data, "died_wall_s"))
        if died_s is None and cause != Cause.SHIM_KILLED.value and "died_wall_s" in event.data:
            return self.now_s  # it lives, and has just said what is wrong with it
        return died_s

    def _sign(self, life_s: float | None, *, sure: bool = True) -> None:
        """The first sign that a run is missed, `life_s` after it was seen well for the last time."""
        if self.span is not None and self.span.recovered_s is not None:
            self._to(Part.DETECTION, life_s)
            self._close()
        elif self.part is not None:
            self._to(Part.DETECTION, life_s)
        if self.span is None:
            span = self._open(self._mark_s, sure=sure)
            if life_s is None:
                span.unknown.append("detection: no record tells when it was well for the last time")

    def _ended(self, event: Event) -> None:
        data = event.data
        step = step_in(data, "last_step")
        died_s = self._ago(event, None, number_in(data, "died_wall_s"))
        cause = data.get("cause")
        loading = self.part in (Part.START, Part.LOAD)
        if loading and step is not None and step > (self.resume_step or 0) and cause not in _NOT_RESTORED:
            self._stepped(event, step, self.now_s if died_s is None else died_s)  # between two looks
        self._assume_launched()
        if self.part is Part.HOLD:
            self._confirm()  # it ended at last; the hold stays
        elif self.part is Part.STOP:
            if self.span is None and cause not in _NO_FAILURE:
                self._open(self._mark_s)
            # What ended before the stop was asked for was not what the stop waited for.
            self._to(Part.PROOF, died_s if died_s is not None and died_s > self._mark_s else None)
        elif cause in _NO_FAILURE and cause != Cause.FINISHED.value:
            self._to(Part.PROOF, died_s)
            self._end_of_replay()
        else:
            self._sign(died_s, sure=cause != Cause.FINISHED.value)
            self._to(Part.PROOF)
        if step is not None:
            if self.span is not None:
                self.span.last_step = max(step, self.span.last_step or 0)
            self._trained(step, data.get("run_id"))
        self.run_id, self.stepped = None, False

    def _trained(self, step: int, run_id: object) -> None:
        if run_id in self._left and step > self._branch_step:
            return  # on a branch that was left: nobody will train it again
        self.high_step = max(step, self.high_step or 0)

    def _branched(self, step: int | None) -> None:
        """A person went back: what was trained beyond that step is not repeated, it is something else now."""
        if step is None:
            return
        self._left, self._branch_step = frozenset(self._runs), step
        if self.high_step is not None:
            self.high_step = min(step, self.high_step)

    def _end_of_replay(self) -> None:
        if self.span is not None and self.span.recovered_s is not None:
            self._close()

    def _given_up(self) -> None:
        """A person had the job stopped. What nobody has judged yet is judged first."""
        self._end_of_replay()
        if self.span is not None and self.span.number is not None:
            self._close("stopped")

    def _passed(self, step: int | None, at_s: float | None) -> None:
        """The run that repeats is at this step."""
        if step is None or self.high_step is None or step > self.high_step:
            self._to(Part.RUN, at_s)
            self._close()
        elif self.replay_to is not None and step > self.replay_to:
            self._to(Part.REPLAY, at_s)
            self._close()

    def _weighed(self, data: Mapping[str, Any]) -> None:
        if self.span is not None and self.span.number is None:
            if is_failure(data.get("cause")):
                self._confirm()
                if self.part is Part.AWAY:
                    self._given_up()
            else:
                self.span = None
        wait_s = number_in(data, "wait_s")
        if self.part is Part.PROOF and wait_s is not None and wait_s > 0:
            self._to(Part.WAIT)
            self._wait_until_s = self.now_s + wait_s

    def _stepped(self, event: Event, step: int | None, at_s: float | None = None) -> None:
        if event.data.get("run_id") != self.run_id or self.stepped or self.part is None:
            return
        at_s = self._ago(event, number_in(event.data, "made_s")) if at_s is None else at_s
        self.stepped = True
        again = step is not None and self.high_step is not None and step <= self.high_step
        self._to(Part.REPLAY if again else Part.RUN, at_s)
        if self.span is not None:
            self.span.recovered_s = self._mark_s
            self.span.outcome = "recovered"
            if not again or (step is not None and self.replay_to is not None and step > self.replay_to):
                self._close()

    def _verified(self, event: Event) -> None:
        step = step_in(event.data)
        if step is None:
            return
        if event.data.get("run_id") == self.run_id and step > (self.resume_step or 0):
            self._stepped(event, step)  # a ledger without a record of the first step
            if self.part is Part.REPLAY:
                self._passed(step, None)
        self._trained(step, event.data.get("run_id"))

    def _hold(self) -> None:
        self._to(Part.HOLD if self.part is not None else None)
        span = self.span or self._open(self.now_s)
        self._confirm()
        span.outcome = "held"

    def _assume_launched(self) -> None:
        """A run of whose launch no record is left."""
        if self.part is None:
            self._to(Part.RUN)
            self.first_launch_s = self.now_s if self.first_launch_s is None else self.first_launch_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ettr:
    """`ratio` None: `why` says what is missing. `lost_s` by the value of its part; `saving_s`: the least it can be."""

    ratio: float | None
    why: str
    wall_s: float
    committed_steps: int
    step_s: float | None
    down_s: float
    lost_s: Mapping[str, float]
    saving_s: float
    incident: int | None  # the one that is open


def ettr(account: Account, *, now_s: float, newest_step: int | None, step_s: float | None = None) -> Ettr | None:
    """At the moment `now_s` of the account's line; None before the first launch.

    `newest_step`: the newest verified checkpoint. `step_s`: the median step time of a living run, else the recorded.
    """
    wall_s = account.wall_s(now_s)
    if wall_s is None:
        return None
    lost = account.lost_by(now_s)
    step_s = account.step_s if step_s is None else step_s
    steps = max(0, (newest_step or 0) - account.baseline_step)
    ratio, why = None, ""
    if steps == 0:
        why = "no new step is in a verified checkpoint yet"
    elif step_s is None:
        why = "how long a step takes is not known yet"
        if account.part is None:
            why = "the job was over before two of its steps were seen, so how long one takes is not known"
    elif wall_s <= 0:
        why = "no time has passed"
    else:
        ratio = min(1.0, steps * step_s / wall_s)
    return Ettr(
        ratio=ratio,
        why=why,
        wall_s=wall_s,
        committed_steps=steps,
        step_s=step_s,
        down_s=sum(lost.get(part, 0.0) for part in DOWN),
        lost_s={part.value: lost.get(part, 0.0) for part in LOST},
        saving_s=account.saving_s,
        incident=account.span.number if account.span is not None else None,
    )


def ettr_fields(value: Ettr | None) -> dict[str, Any]:
    """What a view shows of it."""
    if value is None:
        return {}
    return {
        "ettr_ratio": value.ratio,
        "ettr_why": value.why,
        "down_s": value.down_s,
        "lost_s": value.lost_s,
        "saving_s": value.saving_s,
        "incident": value.incident,
    }


def ettr_of_ledger(
    events: Iterable[Event], newest_step: int | None, now_wall_s: float, *, supervised: bool = False
) -> Ettr | None:
    """For a reader of the ledger: see `Account.until_s`."""
    account = Account()
    for event in events:
        account.add(event)
    return ettr(account, now_s=account.until_s(now_wall_s, supervised=supervised), newest_step=newest_step)
