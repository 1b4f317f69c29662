"""The NVIDIA driver answers.

Proves: NVML can be initialised, and how many devices it counts. Nothing about their health.

Near misses: no driver at all is not a fault, but it is no pass either: the GPU checks are then absent, and this says
so. A driver that is there and does not answer, or answers with an error, is unknown and never fine. A driver with
no device may be a container that was given none.
"""

from __future__ import annotations

from watchdog.core.facts import Absent, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAME = "driver"
NEEDS = ("driver",)


def check(facts: Facts, limits: Limits) -> Finding:
    if isinstance(facts.driver, Absent):
        return Finding(
            check=NAME,
            severity=Severity.OK,
            subject="driver",
            reason="no NVIDIA driver: GPU checks are absent, not passed",
            evidence=(facts.driver.why,) if facts.driver.why else (),
        )
    if isinstance(facts.driver, Unknown):
        return Finding(
            check=NAME,
            severity=Severity.UNKNOWN,
            subject="driver",
            reason=facts.driver.why,
            remedy=Remedy.CHECK_DRIVER,
        )
    driver = facts.driver.value
    severity = Severity.OK if driver.devices else Severity.WARNING
    return Finding(
        check=NAME,
        severity=severity,
        subject="driver",
        reason=f"NVIDIA driver {driver.version}, {driver.devices} {'device' if driver.devices == 1 else 'devices'}",
        remedy=Remedy.NONE if driver.devices else Remedy.CHECK_DRIVER,
    )
