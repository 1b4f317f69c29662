"""The file of a lock was unlinked while it was held.

Proves: a living process holds a lock on a file that has no name any more. Whoever starts next makes a new file under
that name, locks it, and there are two.

Near misses: a lock file that is free, or was never made, is no fault: the next supervisor makes it.
"""

from __future__ import annotations

from watchdog.checks.lock_holder import line
from watchdog.core.facts import Facts, Known, Lock
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "lock-unlinked"
NEEDS = ("locks",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.ASK_HOLDER,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each lock with a holder (lock-holder tells of those that could not be read)."""
    return tuple(_judge(fact.value) for fact in facts.locks if isinstance(fact, Known) and fact.value.holders)


def _judge(lock: Lock) -> Finding:
    subject = f"{lock.purpose} lock"
    if not lock.unlinked:
        return fine(NAME, subject, "its file is where the next supervisor would look")
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=subject,
        reason=f"its file was unlinked while pid {lock.holders[0].pid} holds it: "
        "whoever starts next would not meet this lock",
        evidence=(lock.path, *(line(holder) for holder in lock.holders)),
        cause="somebody cleaned up the folder while the job was held",
        remedy=Remedy.ASK_HOLDER,
    )
