"""What the rules of the verdict look at: one turn as a whole, and one function for each sign there is. Pure.

Responsible for saying with figures what a sign rests on. `faking` is asked by core/watching.py as well, which stops a
run for that: what is judged and what is done cannot disagree. Refuses to weigh one sign against another
(core/verdict.py does), and to listen to a finding that is older than the run or its grace.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

from watchdog.contract import STEPPING_PHASES
from watchdog.core.causes import Cause
from watchdog.core.facts import Absent, Device, Facts, Known, Progress, Unknown, value_of
from watchdog.core.findings import Finding, Severity, calls_for_a_stop
from watchdog.core.identity import Process
from watchdog.core.lateness import Late, lateness
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen, Seen, Shim
from watchdog.core.state import Policy, RunState, State


class Kind(enum.Enum):
    """The value is what people and metrics see."""

    HEALTHY = "healthy"  # known to advance
    STARTING = "starting"  # before its first step, and within the time for that
    SLOW = "slow"  # advances, below this job's own pace
    STALLED = "stalled"  # does not advance, for longer than was ever allowed
    GHOST = "ghost"  # fakes being alive: a device is busy with nothing
    DEAD = "dead"  # no run lives, or what lives is being ended
    DIVERGED = "diverged"  # advances, and its numbers are worth nothing
    FINISHED = "finished"
    BLIND = "blind"  # not known


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`since_s`: since when it is of this kind, monotonic. `evidence`: checks by name, or what was seen.

    `run`: the number of the run that it is about. `pending`: rules that one look has satisfied, and when that was.
    """

    kind: Kind
    rule: str
    reason: str
    since_s: float
    evidence: tuple[str, ...]
    subject: str
    run: int | None = None
    pending: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What made a rule fire. `look_s`: when that was seen, for a rule that wants two looks."""

    reason: str
    evidence: tuple[str, ...] = ()
    subject: str = ""
    look_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """All that a rule may look at. `launches`: how many the ledger knows. `facts` None: the host was not looked at."""

    state: State
    seen: Seen
    policy: Policy
    facts: Facts | None
    launches: int
    before: Verdict | None

    @property
    def run(self) -> RunState | None:
        return self.state.run

    @property
    def beat(self) -> BeatSeen | None:
        return value_of(self.seen.beat)

    @property
    def late(self) -> Late | None:
        return None if self.state.run is None else lateness(self.state.run, self.seen, self.policy)

    @property
    def progress(self) -> Progress | None:
        """Of this very run."""
        known = None if self.facts is None else value_of(self.facts.progress)
        return known if known is not None and self.run is not None and known.run_id == self.run.run_id else None

    def finding(self, check: str, least: Severity = Severity.WARNING) -> Finding | None:
        """What the check says of this run: not what it said of another one, or before our own absence."""
        if not is_fresh(self.run, self.seen):
            return None
        return next((each for each in self.seen.findings if each.check == check and each.severity >= least), None)


FAKING = ("ghost-context", "steps-frozen")


def faking(run: RunState, seen: Seen, checks: tuple[str, ...] = FAKING) -> Finding | None:
    """What proves, as far as one look can, that a run which lives and may even beat does not train."""
    if not is_fresh(run, seen):
        return None
    found = (each for check in checks for each in seen.findings if each.check == check)
    return next((each for each in found if calls_for_a_stop(each)), None)


def is_fresh(run: RunState | None, seen: Seen) -> bool:
    """Whether the findings were made of this run, and since its grace last began."""
    return run is None or seen.judged_s > max(run.launched_s, run.grace_from_s)


def _told(case: Case, finding: Finding | None) -> Found | None:
    if finding is None:
        return None
    return Found(f"{finding.subject}: {finding.reason}", (finding.check,), finding.subject, case.seen.judged_s)


def said(check: str, least: Severity = Severity.WARNING) -> Callable[[Case], Found | None]:
    return lambda case: _told(case, case.finding(check, least)) if case.run is not None else None


def seconds(value: float) -> str:
    """`0.4 s`, `45 s`."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


# --- no run -------------------------------------------------------------------------------------------------------
def finished(case: Case) -> Found | None:
    if case.state.phase is Phase.FINISHED:
        return Found("its target is reached, and nothing of it runs")
    if case.state.phase is Phase.LEFT and case.before is not None and case.before.kind is Kind.FINISHED:
        return Found(case.before.reason)
    return None


def ghost_without_run(case: Case) -> Found | None:
    if case.run is not None:
        return None
    # One that calls for a stop was still seen beside a run.
    found = (
        each
        for each in case.seen.findings
        if each.check in ("ghost-context", "lock-ghost")
        and each.severity is Severity.CRITICAL
        and not calls_for_a_stop(each)
    )
    return _told(case, next(found, None))


def ended_diverged(case: Case) -> Found | None:
    ended, before = case.state.ended, case.before
    if case.run is not None:
        return None
    if ended is not None:
        return Found(f"run {ended.number} {ended.words}") if ended.cause is Cause.NUMERIC else None
    # Until the next run starts it is what it was when it ended; a hold says by its own words what has to be done.
    return Found(before.reason) if before is not None and before.kind is Kind.DIVERGED else None


def not_weighed(case: Case) -> Found | None:
    ended = case.state.ended
    if case.run is not None or ended is None or ended.cause is not Cause.FINISHED:
        return None
    return Found(f"run {ended.number} {ended.words}; whether the job is finished is being verified")


def first_start(case: Case) -> Found | None:
    begins = case.run is None and case.state.phase is Phase.GATING and case.launches == 0
    return Found("no run was ever launched: the first one waits for its gates") if begins else None


def no_run(case: Case) -> Found | None:
    if case.run is not None:
        return None
    ended, before = case.state.ended, case.before
    if ended is not None:
        return Found(f"run {ended.number} {ended.words}")
    if before is not None and before.kind is Kind.DEAD:
        return Found(before.reason, before.evidence)
    last = "" if before is None or before.run is None else f"; run {before.run} is over"
    return Found(case.state.hold or f"no run of this job lives{last}")


# --- a run that is over, or is being ended ------------------------------------------------------------------------
def end_unheard(case: Case) -> Found | None:
    over = case.run is not None and case.seen.shim in (Shim.ENDED, Shim.NEVER)
    return Found("it is over, and how it ended is not heard yet") if over else None


def lost(case: Case) -> Found | None:
    if case.run is None or case.seen.shim is not Shim.LOST:
        return None
    return Found(f"its shim was killed; {len(case.seen.members)} processes of it are known to live")


def stopped_as_stalled(case: Case) -> Found | None:
    stop = None if case.run is None else case.run.stop
    return Found(f"is being ended: {stop.reason}") if stop is not None and stop.cause is Cause.STALLED else None


_ASKED = (Cause.DRAINED, Cause.STOPPED)


def being_ended(case: Case) -> Found | None:
    stop = None if case.run is None else case.run.stop
    if stop is None or stop.cause is Cause.FINISHED or (stop.cause in _ASKED and not stop.killing):
        return None
    return Found(f"is being ended: {stop.reason}")


def _leader_is_gone(case: Case) -> bool:
    """And nobody beats for it."""
    seen, beat = case.seen, case.beat
    return (
        case.run is not None
        and seen.shim is Shim.ALIVE
        and not seen.leader_alive
        and not (beat is not None and beat.alive)
    )


def leader_ended(case: Case) -> Found | None:
    end = case.seen.end
    if not _leader_is_gone(case) or end is None or end.cause is Cause.FINISHED:
        return None
    return Found(f"{end.words}; {stopped_words(case.seen) or 'what it left behind is ended'}")


def in_background(run: RunState, seen: Seen) -> bool:
    """A launcher that ended with 0 may have put its work into the background (level 0)."""
    end = seen.end
    return run.level == 0 and not run.beat_seen and end is not None and end.cause is Cause.FINISHED


def names_of(members: tuple[Process, ...]) -> str:
    """`12 python, 14 sleep`."""
    more = ", …" if len(members) > _NAMED else ""
    return ", ".join(f"{process.id.pid} {process.command}" for process in members[:_NAMED]) + more


def _left_words(members: tuple[Process, ...]) -> str:
    count = "1 process is" if len(members) == 1 else f"{len(members) or 'no known'} processes are"
    return f"its leader has ended with 0; {count} left{': ' if members else ''}{names_of(members)}"


_NAMED = 5


def stopped_words(seen: Seen) -> str | None:
    """What keeps the end of a run from being heard, and the command against it; None where its shim runs."""
    shim = seen.shim_stopped
    if shim is None:
        return None
    if shim.state == "t":
        return f"its shim, pid {shim.id.pid}, is under a debugger (state t): detach it"
    return f"its shim, pid {shim.id.pid}, is stopped (state {shim.state}): kill -CONT {shim.id.pid}"


def _left_over(case: Case) -> bool:
    """What lives is what a leader left: what was printed may be the leader's."""
    return case.run is not None and _leader_is_gone(case)


def leader_unclear(case: Case) -> Found | None:
    """Work of a launcher that ended with 0 (level 0), and is not known to go on in the background, is no health."""
    run, end, left = case.run, case.seen.end, case.seen.left
    if run is None or not _leader_is_gone(case):
        return None
    if stopped := stopped_words(case.seen):
        return Found(f"its leader is gone; {stopped}")
    if not in_background(run, case.seen):
        ended = "" if end is None else f" ({end.words})"
        return Found(f"its leader is gone{ended}, and something of it lives on")
    if left is not None and left.works and run.stop is None:
        return None
    said = "" if left is None else f"; {left.words}"
    return Found(f"{_left_words(case.seen.members)}{said}")


def left_works(case: Case) -> Found | None:
    left = case.seen.left
    if not _left_over(case) or not case.seen.members or left is None or not left.works:
        return None
    return Found(f"{_left_words(case.seen.members)}; {left.words}")


# --- a run that lives and does not advance --------------------------------------------------------------------------
def late(case: Case) -> Found | None:
    late = case.late
    if late is None or not late.proven:
        return None
    held = f"; pid {case.seen.traced[0]} is under a debugger" if case.seen.traced else ""
    return Found(late.words + held)


def late_while_ending(case: Case) -> Found | None:
    """Of a run that was asked to end the decision counts no stale looks any more."""
    late = case.late
    if case.run is None or case.run.stop is None or late is None:
        return None
    return Found(f"{late.words}; it was asked to end", look_s=case.seen.now_s)


def fakes(check: str) -> Callable[[Case], Found | None]:
    return lambda case: None if case.run is None else _told(case, faking(case.run, case.seen, (check,)))


def signalled(case: Case) -> Found | None:
    beat = case.beat
    if case.run is None or beat is None or not beat.stopped:
        return None
    return Found(f"pid {beat.beat.pid} is stopped (state T): it waits for SIGCONT", look_s=case.seen.now_s)


def beater_gone(case: Case) -> Found | None:
    beat = case.beat
    if case.run is None or beat is None or beat.alive or beat.beat.phase == "finished":
        return None
    return Found(f"pid {beat.beat.pid}, which beat last, is gone; the leader lives", look_s=case.seen.now_s)


_QUIET_S, _QUIET_STEPS = 15.0, 3  # as the checks have it: a step younger than this advances


def contradicts(case: Case) -> Found | None:
    """A device of the run that is busy for too little power counts only while the run takes no step."""
    finding, progress = case.finding("utilization-power"), case.progress
    if case.run is None or finding is None or progress is None or progress.step_changed_s is None:
        return None
    still_s = case.seen.now_s - progress.step_changed_s
    if still_s <= max(_QUIET_S, _QUIET_STEPS * (progress.typical_step_s or 0.0)):
        return None
    if not _runs_on(case.facts, finding.device):
        return None
    told = _told(case, finding)
    assert told is not None
    return dataclasses.replace(told, reason=f"{told.reason}; no step for {seconds(still_s)}")


def _runs_on(facts: Facts | None, uuid: str | None) -> bool:
    """The only device there is, or one on which the driver lists the run."""
    devices: tuple[Device, ...] = () if facts is None else value_of(facts.devices) or ()
    if len(devices) == 1:
        return devices[0].uuid == uuid
    return any(device.uuid == uuid and _lists_run(facts, device) for device in devices)


def _lists_run(facts: Facts | None, device: Device) -> bool:
    table = None if facts is None else value_of(facts.processes)
    ours = set() if table is None else {process.pid for process in table.run}
    return any(each.pid in ours for each in value_of(device.now.processes) or ())


# --- a run of which too little is known -----------------------------------------------------------------------------
def just_launched(case: Case) -> Found | None:
    begins = case.run is not None and case.seen.shim in (Shim.NONE, Shim.STARTING)
    return Found("it was launched just now") if begins else None


def beat_unreadable(case: Case) -> Found | None:
    return Found(case.seen.beat.why) if case.run is not None and isinstance(case.seen.beat, Unknown) else None


def beat_gone(case: Case) -> Found | None:
    gone = case.run is not None and case.run.beat_seen and isinstance(case.seen.beat, Absent)
    return Found("it has beaten, and its beat is not there any more") if gone else None


def late_once(case: Case) -> Found | None:
    late = case.late
    return None if late is None else Found(f"{late.words}: one look is no proof")


def restore_unproven(case: Case) -> Found | None:
    run, beat = case.run, case.beat
    if run is None or beat is None or run.level != 2 or run.acknowledged or beat.beat.phase not in STEPPING_PHASES:
        return None
    word = case.seen.acknowledgement
    why = word.why if isinstance(word, Unknown) else "it has not said so yet"
    return Found(f"it trains, and what it restored is not proven: {why}")


# --- a run that goes on ---------------------------------------------------------------------------------------------
def starts(case: Case) -> Found | None:
    """Whether it is late is lateness's word; a run that may be without beats for good starts no longer than `start`."""
    run, beat = case.run, case.beat
    if run is None:
        return None
    if beat is None:
        since_s, allowed_s = max(run.launched_s, run.grace_from_s), case.policy.deadlines_s["start"]
        silent = not (prints(case) or steps_in_log(case) or computes(case) or left_works(case))
        if run.level == 0 and not (silent and _within(case, allowed_s, since_s)):
            return None
        return Found(f"no beat for {seconds(case.seen.now_s - since_s)}, {seconds(allowed_s)} are allowed")
    if not beat.promised or run.first_step is not None or beat.beat.phase in _AFTER_THE_FIRST_STEP:
        return None
    return Found(f"phase {beat.beat.phase}, last beat {_ago(case, beat)}")


_AFTER_THE_FIRST_STEP = ("train", "evaluate", "save", "drain", "finished")


def _ago(case: Case, beat: BeatSeen) -> str:
    return f"{seconds(max(0.0, case.seen.now_s - beat.beat.monotonic_s))} ago"


def beats(case: Case) -> Found | None:
    beat = case.beat
    if case.run is None or beat is None or not beat.promised or not beat.alive or beat.stopped:
        return None
    step = "" if beat.beat.step is None else f"step {beat.beat.step:,}, "
    phase = "" if beat.beat.phase == "train" else f" in phase {beat.beat.phase}"
    return Found(f"{step}last beat {_ago(case, beat)}{phase}")


def _within(case: Case, allowed_s: float, moment_s: float | None) -> bool:
    return moment_s is not None and case.seen.now_s - moment_s <= allowed_s


def _lives(case: Case) -> bool:
    seen = case.seen
    return case.run is not None and seen.shim is Shim.ALIVE and (seen.leader_alive or bool(seen.members))


def _works_by_its_leader(case: Case) -> bool:
    """What a leader that is gone has left is judged by itself."""
    return _lives(case) and not _left_over(case)


def steps_in_log(case: Case) -> Found | None:
    progress = case.progress
    if (
        not _works_by_its_leader(case)
        or progress is None
        or progress.source == "beats"
        or progress.step_changed_s is None
    ):
        return None
    if not _within(case, case.policy.deadlines_s["train"], progress.step_changed_s):
        return None
    step = next((point.step for point in reversed(progress.points) if point.step is not None), None)
    ago = seconds(case.seen.now_s - progress.step_changed_s)
    return Found(f"step {step if step is None else format(step, ',')} by its output, {ago} ago")


def prints(case: Case) -> Found | None:
    progress = case.progress
    if not _works_by_its_leader(case) or progress is None or progress.printed_s is None:
        return None
    if not _within(case, case.policy.deadlines_s["train"], progress.printed_s):
        return None
    return Found(f"alive, and printed something {seconds(case.seen.now_s - progress.printed_s)} ago")


def computes(case: Case) -> Found | None:
    """A device on which the driver lists the run is at work, and nothing contradicts that."""
    if not _works_by_its_leader(case) or case.facts is None or not isinstance(case.facts.devices, Known):
        return None
    if not is_fresh(case.run, case.seen) or _doubted(case):
        return None
    for device in case.facts.devices.value:
        busy, at_s = device.now.utilization_percent, device.now.at_s
        if not isinstance(busy, Known) or busy.value <= 0 or not _lists_run(case.facts, device):
            continue
        if _within(case, case.policy.deadlines_s["train"], at_s):
            return Found(f"alive, and {device.label} is {busy.value} % busy with it", subject=device.label)
    return None


def _doubted(case: Case) -> bool:
    return any(case.finding(check) is not None for check in ("utilization-power", "ghost-context"))


def nothing(case: Case) -> Found | None:
    return Found("nothing that can be seen says whether it advances")
