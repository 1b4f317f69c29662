"""Something that is here could not be seen for a long time.

Proves: facts were unknown for as long as the limit says, by the count of who watches; nobody knows whether what they
would tell is in order.

Near misses: what is absent cannot be seen and need not be. A short blindness is told by the checks of the facts
themselves, and nothing is said here. Progress and probe count as their own: a run may say nothing of its steps.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "blind"
# Not the kernel log: without root it may be hidden for good, and io-errors says so at each look.
NEEDS = ("memory", "pressure", "oom", "disks", "locks", "driver", "devices", "processes", "beat", "clocks")
LIMITS = ("blind_s",)
WORST = Severity.WARNING
REMEDIES = (Remedy.LOOK,)


def unseen(facts: Facts) -> tuple[tuple[str, str], ...]:
    """(fact, why) of everything that is here and could not be seen."""
    found = []
    for name in NEEDS:
        given = getattr(facts, name)
        for fact in given if isinstance(given, tuple) else (given,):
            if isinstance(fact, Unknown):
                found.append((name, fact.why))
    return tuple(found)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing while it is short: each unknown fact has its own check that says so."""
    missing = unseen(facts)
    if not missing:
        return fine(NAME, "the watchdog", "everything that is here can be seen")
    if facts.blind_s < limits.blind_s:
        return ()
    names = ", ".join(dict.fromkeys(name for name, _ in missing))
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="the watchdog",
        reason=f"for {duration(facts.blind_s)} it could not see: {names}",
        evidence=tuple(f"{name}: {why}" for name, why in missing),
        cause="what is looked at hangs, or this user may not look at it",
        remedy=Remedy.LOOK,
    )
