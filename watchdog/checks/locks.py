"""Who holds the job: the supervisor lock and the run lock.

Proves: whether a supervisor and a run of this job hold their locks, who they are, and the three states in which a
launch is impossible or unsafe: a lock held by no process that lives (a ghost's, which makes every relaunch end
silently), a lock file unlinked while held (a second supervisor would not meet it), a run without a supervisor.

Near misses: held is the normal state, not a fault. A supervisor lock in the hands of a process that is no supervisor
by its command line is a descriptor that was inherited; a supervisor started through a wrapper of another name looks
the same, hence a warning. While a run is being started its lock is exclusive for a moment. A holder in another
container cannot be seen from here, nor without root one of another user (the fact is then unknown).
"""

from __future__ import annotations

from watchdog.core.facts import Facts, Known, Lock, LockHolder
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAME = "locks"
NEEDS = ("locks",)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each lock."""
    known = {fact.value.purpose: fact.value for fact in facts.locks if isinstance(fact, Known)}
    return tuple(
        _judge(fact.value, known)
        if isinstance(fact, Known)
        else Finding(check=NAME, severity=Severity.UNKNOWN, subject="lock", reason=fact.why, remedy=Remedy.LOOK)
        for fact in facts.locks
    )


def _judge(lock: Lock, known: dict[str, Lock]) -> Finding:
    severity, remedy = Severity.OK, Remedy.NONE
    evidence = (lock.path, *(_line(holder) for holder in lock.holders))
    first = lock.holders[0] if lock.holders else None
    if not lock.held:
        reason = f"free: no {lock.purpose} of this job holds it"
    elif first is None:
        severity, remedy = Severity.CRITICAL, Remedy.LOOK
        reason = "held, but by no living process that can be seen: a ghost's, or another container's"
    elif lock.unlinked:
        severity, remedy = Severity.CRITICAL, Remedy.ASK_HOLDER
        reason = f"its file was unlinked while pid {first.pid} holds it: whoever starts next would not meet this lock"
    else:
        reason = f"held by {_line(first)}" + (f" and {len(lock.holders) - 1} more" if lock.holders[1:] else "")
        if lock.purpose == "supervisor" and not any(_may_supervise(holder) for holder in lock.holders):
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += "; by its command this is no supervisor: it may have inherited the lock"
        supervisor = known.get("supervisor")
        if lock.purpose == "run" and supervisor is not None and not supervisor.held:
            severity, remedy = Severity.WARNING, Remedy.ASK_HOLDER
            reason += "; no supervisor watches it (watchdog run adopts it)"
    return Finding(
        check=NAME,
        severity=severity,
        subject=f"{lock.purpose} lock",
        reason=reason,
        evidence=evidence,
        remedy=remedy,
    )


def _line(holder: LockHolder) -> str:
    return f"pid {holder.pid} ({holder.command or 'its command cannot be read'})"


def _may_supervise(holder: LockHolder) -> bool:
    return not holder.command or "watchdog" in holder.command
