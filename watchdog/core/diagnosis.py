"""A diagnosis: what the job is, the findings of one look at the host, and what a monitoring system is told.

Responsible for its shape and for the one rule that makes an exit code of it. Refuses to look and to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from watchdog.core.collectorview import CollectorView
from watchdog.core.facts import Facts
from watchdog.core.findings import Finding, Severity

# Monitoring plugins' codes, from the loudest severity down.
_EXIT_CODES = {Severity.CRITICAL: 2, Severity.WARNING: 1, Severity.UNKNOWN: 3, Severity.OK: 0}
EXIT_WARNING = _EXIT_CODES[Severity.WARNING]
EXIT_UNKNOWN = _EXIT_CODES[Severity.UNKNOWN]  # also of a usage error, or a failure of our own


class JobSeen(Struct, frozen=True, kw_only=True):
    """What the job is, whatever the host is like. `state`: as `watchdog status` has it, or "unknown".

    `next` is a command, or an act and a command; "" where there is nothing to do. `start`: the command that supervises
    it again, with the trainer's own command where no configuration has it; "" where it is not known, or not wanted.
    """

    name: str
    state: str
    severity: Severity
    reason: str
    evidence: tuple[str, ...] = ()
    next: str = ""
    start: str = ""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Findings in the catalogue's order. `absent`: checks that had nothing to look at, which is not a pass.

    `job` is None where only some checks were asked for. `others`: further jobs that wait for a person.
    """

    findings: tuple[Finding, ...]
    exit_code: int
    absent: tuple[str, ...]
    taken_wall_s: float
    facts: Facts
    collectors: Mapping[str, CollectorView]
    job: JobSeen | None = None
    others: tuple[JobSeen, ...] = ()


def exit_code(
    findings: Sequence[Finding],
    absent: Sequence[str] = (),
    job: JobSeen | None = None,
    others: Sequence[JobSeen] = (),
) -> int:
    """0 ok, 1 warning, 2 critical, 3 unknown; the worst counts, critical before warning before unknown.

    No finding at all is unknown, since nothing was looked at, unless there was nothing to look at.
    """
    worst = max((finding.severity for finding in findings), default=Severity.OK if absent else Severity.UNKNOWN)
    jobs = (*others, *(() if job is None else (job,)))
    return _EXIT_CODES[max((worst, *(each.severity for each in jobs)))]
