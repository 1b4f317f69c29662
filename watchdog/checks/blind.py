"""Something that is here could not be seen for a long time.

Proves: a fact was unknown at every look for as long as the limit says, by the count of who watches; nobody knows
whether what it would tell is in order.

Near misses: several facts that cannot be seen in turn, each for a short while. What is absent cannot be seen and need
not be. A short blindness is told by the checks of the facts themselves, and nothing is said here. Progress and probe
count as their own: a run may say nothing of its steps.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "blind"
# Not the kernel log: io-errors tells of it at each look.
NEEDS = ("memory", "pressure", "oom", "disks", "locks", "driver", "devices", "processes", "beat", "clocks")
LIMITS = ("blind_s",)
WORST = Severity.WARNING
REMEDIES = (Remedy.LOOK,)


def unseen(facts: Facts) -> dict[tuple[str, int], str]:
    """By fact, and which of several: why what is here could not be seen."""
    found = {}
    for name in NEEDS:
        given = getattr(facts, name)
        for number, fact in enumerate(given if isinstance(given, tuple) else (given,)):
            if isinstance(fact, Unknown):
                found[name, number] = fact.why
    return found


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
        reason=f"for {duration(facts.blind_s)} it could not see: {names}"
        + (" (the longest of them)" if len(missing) > 1 else ""),
        evidence=tuple(f"{name}: {why}" for (name, _), why in missing.items()),
        cause="what is looked at hangs, or this user may not look at it",
        remedy=Remedy.LOOK,
    )
