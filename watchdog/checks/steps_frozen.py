"""The run speaks, trains by its own word, and its step does not move.

Proves: the run was heard within the time that a step may take, in phase train all along, while step, tokens, loss and
gradient norm stayed the same for a multiple of that time and for twenty of its own typical steps (before those are
known: of the deadline of the first step). It is called a fake, and a reason to end the run, only by beats, where every
word since the last change was one of training, and where it is seen that nobody works: no device of the run is busy or
takes power like one at work, and its processes use less than a twentieth of a core. A run that only computes on the CPU
is critical, and left to a person: it may loop for ever. What works on a device, or cannot be seen, is a warning.

Near misses: evaluating, compiling, saving, loading take no step, and their time does not count; the micro-batches of a
long step repeat its number, with other tokens. A log tells no phase, so that by a log it is a warning; so it is where
older words are not kept. A run that is silent is beat-stale's. After a sleep or a freeze of the machine the time begins
anew. Of a run that tells no step only the age of its last output is said: silence proves nothing of who may print once
an hour.
"""

from __future__ import annotations

from watchdog.checks.contradiction import allowed_still_s
from watchdog.checks.figures import duration
from watchdog.checks.working import Work, worker
from watchdog.core.facts import Clocks, Facts, Known, Progress, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits
from watchdog.core.progress import still_since

NAME = "steps-frozen"
NEEDS = ("progress", "clocks", "beat", "devices", "processes", "wsl")
LIMITS = (
    "steps_frozen_factor",
    "train_deadline_s",
    "first_step_deadline_s",
    "looks",
    "idle_percent",
    "busy_percent",
    "contradiction_power_fraction",
    "codec_percent",
)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.RELAUNCH, Remedy.LOOK)
_HANGS = "the training loop hangs, or repeats itself, while something else in the run goes on speaking"
_CAUSES = {
    Work.NOBODY: "the training loop hangs while something else in the run goes on speaking",
    Work.CPU: "the training loop repeats itself, or does long work in phase train; it is not ended for that",
    Work.DEVICE: "a very long step, or other work in phase train that should have a phase of its own",
    Work.UNSEEN: _HANGS,
}
_TRAINS = ("train", None)  # None: a log does not say


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """The one place where progress that could not be read is told."""
    if isinstance(facts.progress, Unknown):
        return unknown(NAME, "progress", facts.progress.why)
    if not isinstance(facts.progress, Known):
        return ()
    progress = facts.progress.value
    newest = progress.points[-1] if progress.points else None
    if newest is None or newest.step is None:
        return _stepless(progress, facts.at_s)
    still_s = still_since(progress)
    if still_s is None or progress.heard_s is None:
        return ()
    if facts.at_s - progress.heard_s > limits.train_deadline_s:
        return ()
    if newest.phase not in _trains(progress):
        return fine(NAME, "steps", f"step {newest.step:,}, in phase {newest.phase or 'unknown'}, which takes no step")
    allowed_s = allowed_still_s(progress, limits)
    since_s = max(still_s, _awake_since(facts))
    frozen_s = facts.at_s - since_s
    reason = f"at step {newest.step:,} for {duration(frozen_s)}, heard {duration(facts.at_s - progress.heard_s)} ago"
    if frozen_s <= allowed_s:
        return fine(NAME, "steps", reason)
    seen_all = progress.source == "beats" and progress.points[0].at_s <= since_s
    who = worker(facts, limits, since_s)
    proven = seen_all and who.work is Work.NOBODY
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if proven or (seen_all and who.work is Work.CPU) else Severity.WARNING,
        subject="steps",
        reason=f"{reason}; it says that it trains, and {duration(allowed_s)} are allowed; {who.words}",
        evidence=(f"run {progress.run_id}, by its {progress.source}",),
        cause=_CAUSES[who.work],
        remedy=Remedy.RELAUNCH if proven else Remedy.LOOK,
    )


def _trains(progress: Progress) -> tuple[str | None, ...]:
    return _TRAINS[:1] if progress.source == "beats" else _TRAINS


def _stepless(progress: Progress, at_s: float) -> Finding:
    said = f"run {progress.run_id} says nothing of its steps"
    if progress.printed_s is not None:
        said += f"; its last output was {duration(at_s - progress.printed_s)} ago"
    return fine(NAME, "steps", said)


def _awake_since(facts: Facts) -> float:
    clocks: Clocks | None = value_of(facts.clocks)
    jumps = clocks.jumps if clocks is not None else ()
    return max((jump.at_s for jump in jumps if jump.kind != "step"), default=float("-inf"))
