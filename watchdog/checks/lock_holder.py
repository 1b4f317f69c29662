"""A run of this job is supervised by nobody, or a lock is in strange hands.

Proves: whether a supervisor and a run of this job hold their locks, and who they are. A warning are: a run that nobody
supervises; a supervisor lock in the hands of a process that is no supervisor by its command line; one that is held by
somebody else than the supervisor that looks or answers, or while none answers: another one, or one that hangs.

Near misses: held is the normal state, not a fault. A supervisor started through a wrapper of another name looks like
an heir of its descriptor, hence a warning. One that has just started holds its lock before it answers; one of another
user may not be asked. While a run is being started its lock is exclusive for a moment. Locks whose holder does not live
are lock-ghost's, unlinked ones lock-unlinked's.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known, Lock, LockHolder, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, unknown
from watchdog.core.limits import Limits

NAME = "lock-holder"
NEEDS = ("locks",)
LIMITS = ()
WORST = Severity.WARNING
REMEDIES = (Remedy.ASK_HOLDER, Remedy.LOOK)
_STARTING_S = 30.0  # between taking the lock and answering: a ledger on a slow disk is read


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each lock; the one place where a lock that could not be read is told."""
    known = {fact.value.purpose: fact.value for fact in facts.locks if isinstance(fact, Known)}
    found = []
    for fact in facts.locks:
        if isinstance(fact, Unknown):
            found.append(unknown(NAME, "lock", fact.why))
        elif isinstance(fact, Known) and not fact.value.unlinked and (fact.value.holders or not fact.value.held):
            found.append(_judge(fact.value, known, facts))
    return tuple(found)


def _judge(lock: Lock, known: dict[str, Lock], facts: Facts) -> Finding:
    severity, remedy, cause = Severity.OK, Remedy.NONE, ""
    advice: tuple[str, ...] = ()
    if not lock.held:
        reason = f"free: no {lock.purpose} of this job holds it"
    else:
        reason = f"held by {line(lock.holders[0])}" + (f" and {len(lock.holders) - 1} more" if lock.holders[1:] else "")
        supervisor = known.get("supervisor")
        if lock.purpose == "supervisor" and not any(_may_supervise(holder) for holder in lock.holders):
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += "; by its command this is no supervisor"
            cause = "a child of a supervisor inherited the lock and outlived it"
        elif lock.purpose == "supervisor" and (strange := _strange(lock, facts)):
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += strange
            cause = "another supervisor has the job (by another configuration or user), or the job's own one hangs"
            advice = (
                "watchdog stop ends it, with the configuration that it was started with; "
                f"one that hangs, kill -KILL {lock.holders[0].pid}: its run lives on, and watchdog run adopts it",
            )
        elif lock.purpose == "run" and supervisor is not None and not supervisor.held:
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += "; no supervisor watches it (watchdog run adopts it)"
            cause = "the supervisor of this run has ended, or it was started by hand"
    return Finding(
        check=NAME,
        severity=severity,
        subject=f"{lock.purpose} lock",
        reason=reason,
        evidence=(lock.path, *(line(holder) for holder in lock.holders), *advice),
        cause=cause,
        remedy=remedy,
    )


def _strange(lock: Lock, facts: Facts) -> str:
    """Who else ought to hold the supervisor lock, in words; "" where nothing speaks against its holders."""
    ours = facts.supervisor
    if ours is None or any(holder.pid == ours.pid for holder in lock.holders):
        return ""
    held_s = [facts.wall_s - holder.since_wall_s for holder in lock.holders if holder.since_wall_s is not None]
    if held_s and min(held_s) < _STARTING_S:
        return ""
    lives = f", which has lived for {duration(max(held_s))}" if held_s else ""
    if ours.pid is not None:
        return f"{lives}, and not by the supervisor of this job, pid {ours.pid}"
    return f"{lives} and does not answer: {ours.silence}"


def line(holder: LockHolder) -> str:
    """A holder as people read it."""
    return f"pid {holder.pid} ({holder.command or 'its command cannot be read'})"


def _may_supervise(holder: LockHolder) -> bool:
    return not holder.command or "watchdog" in holder.command
