"""A diagnosis: the findings of one look at the host, and what a monitoring system is told.

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


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Findings in the catalogue's order. `absent`: checks that had nothing to look at, which is not a pass."""

    findings: tuple[Finding, ...]
    exit_code: int
    absent: tuple[str, ...]
    taken_wall_s: float
    facts: Facts
    collectors: Mapping[str, CollectorView]


def exit_code(findings: Sequence[Finding], absent: Sequence[str] = ()) -> int:
    """0 ok, 1 warning, 2 critical, 3 unknown; the worst counts, critical before warning before unknown.

    No finding at all is unknown, since nothing was looked at, unless there was nothing to look at.
    """
    if not findings and absent:
        return _EXIT_CODES[Severity.OK]
    return _EXIT_CODES[max((finding.severity for finding in findings), default=Severity.UNKNOWN)]
