"""The driver's library and its kernel module are of different versions.

Proves: NVML refuses with code 18, or NVML fails while the kernel wrote "API mismatch" within `xid_window_s`. Nothing
that starts now can use a GPU.

Near misses: a run that has been alive since before the update trains on. While NVML answers, a mismatch in the kernel
log is another program's, such as a container with a library of its own.
"""

from __future__ import annotations

from watchdog.core.devicefacts import NVML_LIB_RM_VERSION_MISMATCH
from watchdog.core.facts import Facts, Known, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.kernel import NOTHING_LOGGED, KernelKind
from watchdog.core.limits import Limits

NAME = "driver-mismatch"
NEEDS = ("driver", "kernel", "wsl")
LIMITS = ("xid_window_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.RELOAD_DRIVER, Remedy.WSL_SHUTDOWN)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    driver = value_of(facts.driver)
    if driver is None:
        return ()
    if driver.answers:
        return fine(NAME, "driver", f"library and kernel module fit: {driver.version}")
    log = value_of(facts.kernel) or NOTHING_LOGGED
    kernel = log.recent(KernelKind.MISMATCH, now_s=facts.at_s, window_s=limits.xid_window_s)
    lines = tuple(line.text for line in kernel)
    if driver.code is None or (driver.code != NVML_LIB_RM_VERSION_MISMATCH and not lines):
        return ()
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="driver",
        reason=f"NVML answers with code {driver.code}"
        + (f": {driver.error.rstrip('.')}" if driver.error else "")
        + "; the library and the kernel module are of different versions",
        evidence=lines[-3:],
        cause="the driver was updated and the old kernel module is still loaded",
        remedy=Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.RELOAD_DRIVER,
    )
