"""A run of this job is supervised by nobody, or a lock is in strange hands.

Proves: whether a supervisor and a run of this job hold their locks, and who they are; a run that nobody supervises,
and a supervisor lock in the hands of a process that is no supervisor by its command line, are a warning.

Near misses: held is the normal state, not a fault. A supervisor started through a wrapper of another name looks like
an heir of its descriptor, hence a warning. While a run is being started its lock is exclusive for a moment. Locks
whose holder does not live are lock-ghost's, unlinked ones lock-unlinked's.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, Known, Lock, LockHolder, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, unknown
from watchdog.core.limits import Limits

NAME = "lock-holder"
NEEDS = ("locks",)
LIMITS = ()
WORST = Severity.WARNING
REMEDIES = (Remedy.ASK_HOLDER, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each lock; the one place where a lock that could not be read is told."""
    known = {fact.value.purpose: fact.value for fact in facts.locks if isinstance(fact, Known)}
    found = []
    for fact in facts.locks:
        if isinstance(fact, Unknown):
            found.append(unknown(NAME, "lock", fact.why))
        elif isinstance(fact, Known) and not fact.value.unlinked and (fact.value.holders or not fact.value.held):
            found.append(_judge(fact.value, known))
    return tuple(found)


def _judge(lock: Lock, known: dict[str, Lock]) -> Finding:
    severity, remedy, cause = Severity.OK, Remedy.NONE, ""
    if not lock.held:
        reason = f"free: no {lock.purpose} of this job holds it"
    else:
        reason = f"held by {line(lock.holders[0])}" + (f" and {len(lock.holders) - 1} more" if lock.holders[1:] else "")
        supervisor = known.get("supervisor")
        if lock.purpose == "supervisor" and not any(_may_supervise(holder) for holder in lock.holders):
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += "; by its command this is no supervisor"
            cause = "a child of a supervisor inherited the lock and outlived it"
        elif lock.purpose == "run" and supervisor is not None and not supervisor.held:
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += "; no supervisor watches it (watchdog run adopts it)"
            cause = "the supervisor of this run has ended, or it was started by hand"
    return Finding(
        check=NAME,
        severity=severity,
        subject=f"{lock.purpose} lock",
        reason=reason,
        evidence=(lock.path, *(line(holder) for holder in lock.holders)),
        cause=cause,
        remedy=remedy,
    )


def line(holder: LockHolder) -> str:
    """A holder as people read it."""
    return f"pid {holder.pid} ({holder.command or 'its command cannot be read'})"


def _may_supervise(holder: LockHolder) -> bool:
    return not holder.command or "watchdog" in holder.command
