"""Asking NVML kills who asks.

Proves: `driver_crashes` sampling children in a row died without an answer: the library faults in whoever loads it.

Near misses: fewer in a row can be the kernel short of memory, or a driver that is being replaced; they are unknown
(told by `driver`). A child that was answered in between starts the count anew. A child that hung is told by
`driver-hung`, and one that left of its own accord by `driver`.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "driver-crash"
NEEDS = ("driver",)
LIMITS = ("driver_crashes", "driver_hung_s")
WORST = Severity.CRITICAL
REMEDIES = (Remedy.CHECK_DRIVER,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    driver = value_of(facts.driver)
    if driver is None or driver.silent_s >= limits.driver_hung_s:
        return ()
    if driver.crashes < limits.driver_crashes:
        return fine(NAME, "driver", "NVML answers without killing who asks") if driver.answers else ()
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="driver",
        reason=f"{driver.crashes} children in a row died while they asked NVML: no reading of any device can be had",
        evidence=(driver.crash,) if driver.crash else (),
        cause="the library faults: a broken or half-replaced driver",
        remedy=Remedy.CHECK_DRIVER,
    )
