"""NVML does not come back from its calls.

Proves: the question that is outstanding has had no answer for `driver_hung_s` or longer. The call sits in the driver
and cannot be cancelled; the last readings of all devices are as old.

Near misses: with no device memory free NVML stalled for 33 s and 45 s and came back, so less than the limit is
unknown (told by `driver`). A run can train on beside a hung NVML: this is no reason to end it. Each look at a hung
driver leaves a sampling child behind, a process of its own with parent 1, until its alarm ends it within 90 s.
"""

from __future__ import annotations

from watchdog.checks import driver as driver_check
from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "driver-hung"
NEEDS = ("driver", "wsl")
LIMITS = ("driver_hung_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.REBOOT, Remedy.WSL_SHUTDOWN)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    driver = value_of(facts.driver)
    if driver is None:
        return ()
    if driver.silent_s < limits.driver_hung_s:
        return fine(NAME, "driver", "NVML comes back from its calls") if driver.answers else ()
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="driver",
        reason=f"NVML has not answered for {duration(driver.silent_s)}, from {duration(limits.driver_hung_s)} on "
        "the driver counts as hung: readings of devices are as old",
        evidence=(driver_check.CHILD,),
        cause="a call that does not return from the driver",
        remedy=Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.REBOOT,
    )
