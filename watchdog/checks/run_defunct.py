"""A process of the run has ended, and nobody has collected it.

Proves: the whole process was seen in state Z for the time given: its parent does not wait for its children.

Near misses: every process is defunct for a moment between its end and its parent's notice. A leader thread that has
ended while others of its threads live on is no defunct process: it works, or it is stuck, which run-stuck sees.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known, RunProcess
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "run-defunct"
NEEDS = ("processes",)
LIMITS = ("defunct_s",)
WORST = Severity.WARNING
REMEDIES = (Remedy.WAIT,)
_DEAD = frozenset("ZXx")
_SHOWN = 5


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing without a process table (run-stuck tells of one that could not be read)."""
    if not isinstance(facts.processes, Known):
        return ()
    leaders = [one for one in facts.processes.value.run if one.state == "Z"]
    headless = tuple(_threads(one) for one in leaders if _living(one))[:_SHOWN]
    defunct = [one for one in leaders if not _living(one) and one.defunct_s >= limits.defunct_s]
    if not defunct:
        return fine(NAME, "run", "no process of the run is defunct", *headless)
    first = defunct[0]
    more = f", and {len(defunct) - 1} more of the run" if defunct[1:] else ""
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="run",
        reason=f"pid {first.pid} ({first.command}) has been defunct for {duration(first.defunct_s)}{more}",
        evidence=(*(f"pid {one.pid} ({one.command})" for one in defunct[1 : _SHOWN + 1]), *headless),
        cause="its parent does not wait for its children",
        remedy=Remedy.WAIT,
    )


def _living(process: RunProcess) -> int:
    return sum(count for state, count in process.states if state not in _DEAD)


def _threads(process: RunProcess) -> str:
    return f"pid {process.pid} ({process.command}): the leader has ended, {_living(process)} of its threads live on"
