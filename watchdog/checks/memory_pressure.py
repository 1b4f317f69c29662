"""The host stands still for want of memory.

Proves: for a good part of the last ten seconds, and of the last minute, every task that wanted to run waited for
memory (PSI "full"). Where the kernel counts no pressure: pages are read back from swap, and major faults are many.

Near misses: "some" pressure is the price of a busy page cache. A burst of ten seconds passes. Major faults without
swap are files being read for the first time, as when a model is loaded. Swap in use, and left alone, costs nothing.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, Known, Pressure, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown, unsure
from watchdog.core.limits import Limits

NAME = "memory-pressure"
NEEDS = ("pressure",)
LIMITS = ("pressure_full_percent", "pressure_faults_per_s")
WORST = Severity.WARNING
REMEDIES = (Remedy.FREE_MEMORY, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """The one place where pressure that could not be read is told."""
    if isinstance(facts.pressure, Unknown):
        return unknown(NAME, "memory", facts.pressure.why)
    if not isinstance(facts.pressure, Known):
        return ()
    pressure = facts.pressure.value
    return _by_psi(pressure, limits) if pressure.from_psi else _by_faults(pressure, limits)


def _by_psi(pressure: Pressure, limits: Limits) -> Finding:
    reason = (
        f"all tasks waited for memory {pressure.full_avg10_percent:.1f} % of the last 10 s "
        f"and {pressure.full_avg60_percent:.1f} % of the last minute"
    )
    worst = limits.pressure_full_percent
    if pressure.full_avg10_percent >= worst and pressure.full_avg60_percent >= worst / 2:
        return _short(reason)
    return fine(NAME, "memory", reason)


def _by_faults(pressure: Pressure, limits: Limits) -> Finding:
    faults, swapped = pressure.major_faults_per_s, pressure.swapped_in_per_s
    if faults is None and swapped == 0:
        return fine(NAME, "memory", "no page was ever read back from swap (no PSI here)")
    if faults is None or swapped is None:
        return unsure(NAME, "memory", "no PSI here, and one look shows no rate of page faults", 1)
    reason = f"{faults:,.0f} major faults/s and {swapped:,.0f} pages/s read back from swap (no PSI here)"
    if faults >= limits.pressure_faults_per_s and swapped > 0:
        return _short(reason)
    return fine(NAME, "memory", reason)


def _short(reason: str) -> Finding:
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="memory",
        reason=reason,
        cause="more memory is in use than the host has, so it spends its time fetching pages",
        remedy=Remedy.FREE_MEMORY,
    )
