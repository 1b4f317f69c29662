"""A lock of the job is held by no process that lives.

Proves: the kernel lists the lock as held, and no living process that can be seen has its file open: every launch
would end at it without a word.

Near misses: a holder in another container cannot be seen from here and looks the same, and so does one that ends
between the two reads of one look. Without root, another user's process may be the holder: the fact is then unknown.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, Known, Lock
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "lock-ghost"
NEEDS = ("locks",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.LOOK,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each lock (lock-holder tells of those that could not be read)."""
    return tuple(_judge(fact.value) for fact in facts.locks if isinstance(fact, Known))


def _judge(lock: Lock) -> Finding:
    subject = f"{lock.purpose} lock"
    if not lock.held or lock.holders:
        return fine(NAME, subject, "its holder lives" if lock.held else "held by nobody")
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=subject,
        reason="held, but by no living process that can be seen: a ghost's, or another container's",
        evidence=(lock.path,),
        cause="a process that is gone, or hidden, left the lock behind; whoever starts next meets it and stops",
        remedy=Remedy.LOOK,
    )
