"""The NVIDIA driver does not answer, or counts no device.

Proves: there is a driver and NVML fails with a code, the GPU bridge of WSL is gone, or the job names devices and there
is no driver (critical); or NVML answers and counts nothing (warning). Silence says nothing about the devices' health.

Near misses: no driver at all is no fault, but no pass either, and a library without a device node is no driver. A
driver with no device may be a container that was given none. NVML that is silent for less than `driver_hung_s`, or
whose sampling child died fewer than `driver_crashes` times, is unknown: it can come back. Codes 15 (gpu-lost), 16
(reset-required) and 18 (driver-mismatch), a hung driver and a crashing one are told by the checks of those names.
"""

from __future__ import annotations

from msgspec.structs import replace

from watchdog.checks.figures import duration
from watchdog.core.devicefacts import (
    NVML_DRIVER_NOT_LOADED,
    NVML_GPU_IS_LOST,
    NVML_LIB_RM_VERSION_MISMATCH,
    NVML_LIBRARY_NOT_FOUND,
    NVML_OPERATING_SYSTEM,
    NVML_RESET_REQUIRED,
    NVML_UNKNOWN,
)
from watchdog.core.facts import Absent, Driver, Facts, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "driver"
NEEDS = ("driver", "wsl")
LIMITS = ("devices", "driver_hung_s", "driver_crashes")
WORST = Severity.CRITICAL
REMEDIES = (Remedy.LOOK, Remedy.WAIT_LONGER, Remedy.CHECK_DRIVER, Remedy.CHECK_DEVICES, Remedy.WSL_SHUTDOWN)

SUBJECT = "driver"
ABSENT = "no NVIDIA driver: GPU checks are absent, not passed"
CHILD = "the driver holds whoever asks: its sampling child leaves by itself within 90 s"
_TOLD_ELSEWHERE = (NVML_GPU_IS_LOST, NVML_RESET_REQUIRED, NVML_LIB_RM_VERSION_MISMATCH)
_MEANING = {
    NVML_DRIVER_NOT_LOADED: "the driver is not loaded",
    NVML_LIBRARY_NOT_FOUND: "its library cannot be loaded",
    NVML_OPERATING_SYSTEM: "the operating system or a cgroup blocks it",
    NVML_UNKNOWN: "there is an error that it does not know",
}


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    if isinstance(facts.driver, Absent):
        return _no_driver(limits, facts.driver.why)
    if isinstance(facts.driver, Unknown):
        return unknown(NAME, SUBJECT, facts.driver.why)  # it was not asked: nothing that is the driver's
    driver = facts.driver.value
    if driver.silent_s >= limits.driver_hung_s or driver.crashes >= limits.driver_crashes:
        return ()
    wsl = value_of(facts.wsl)
    # A library of Windows proves that there was a bridge; one from a Linux package does not.
    if not driver.answers and wsl is not None and not wsl.dxg and "/wsl/" in (driver.library or ""):
        return Finding(
            check=NAME,
            severity=Severity.CRITICAL,
            subject=SUBJECT,
            reason=f"{driver.library} is there, /dev/dxg is not: no GPU can be reached",
            evidence=_said(driver),
            cause="the GPU bridge's device node is gone: on laptops it vanishes when AC is unplugged",
            remedy=Remedy.WSL_SHUTDOWN,
        )
    if driver.code is not None:
        return () if driver.code in _TOLD_ELSEWHERE else _failing(driver, driver.code, limits)
    if driver.silent_s > 0:
        why = f"NVML has not answered for {duration(driver.silent_s)} ({duration(limits.driver_hung_s)} of it"
        silence = unknown(NAME, SUBJECT, f"{why} would be a hung driver)", Remedy.WAIT_LONGER)
        return replace(silence, evidence=(CHILD,))
    if driver.crashes:
        children = "1 child" if driver.crashes == 1 else f"{driver.crashes} children in a row"
        why = f"{children} died asking NVML ({limits.driver_crashes} in a row would be a crashing driver)"
        words = f"{why}: {driver.crash}" if driver.crash else why
        wanted = limits.driver_crashes - driver.crashes
        return replace(unknown(NAME, SUBJECT, words, Remedy.CHECK_DRIVER), looks_wanted=wanted)
    if driver.version is None and driver.node is not None and driver.library is None:
        return _failing(driver, NVML_LIBRARY_NOT_FOUND, limits)
    if driver.version is None or driver.devices is None:
        why = driver.error or "NVML has not said yet which driver this is and how many devices it has"
        return unknown(NAME, SUBJECT, why, Remedy.CHECK_DRIVER)
    return _answering(driver, driver.devices)


def _no_driver(limits: Limits, why: str) -> Finding:
    evidence = (why,) if why else ()
    if limits.devices == ():
        return fine(NAME, SUBJECT, "GPU checks are absent, not passed" + (f": {why}" if why else ""))
    if not limits.devices:
        return fine(NAME, SUBJECT, ABSENT, *evidence)
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=SUBJECT,
        reason=f"{ABSENT}; the job names {', '.join(limits.devices)}",
        evidence=evidence,
        cause="the driver is not installed, or this container was given no device",
        remedy=Remedy.CHECK_DEVICES,
    )


def _failing(driver: Driver, code: int, limits: Limits) -> Finding:
    if driver.node is None and code in (NVML_DRIVER_NOT_LOADED, NVML_LIBRARY_NOT_FOUND):
        return _no_driver(limits, f"NVML says that {_MEANING[code]} (code {code}), and there is no device node")
    says = f"says that {_MEANING[code]} (code {code})" if code in _MEANING else f"answers with code {code}"
    where = "" if driver.node is None else f"{driver.node} is there, but "
    cause = ""
    if code == NVML_UNKNOWN:
        cause = "after Xid 79 (a GPU fell off the bus) this can be NVML's only answer: look for NVRM in the kernel log"
    elif code == NVML_OPERATING_SYSTEM:
        cause = "a container or a service without access to the device nodes"
    certain = driver.node is not None and code != NVML_OPERATING_SYSTEM
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if certain else Severity.WARNING,
        subject=SUBJECT,
        reason=f"{where}NVML {says}" + (f": {driver.error.rstrip('.')}" if driver.error else ""),
        cause=cause,
        remedy=Remedy.CHECK_DRIVER,
    )


def _answering(driver: Driver, devices: int) -> Finding:
    cuda = "" if driver.cuda_version is None else f", CUDA {driver.cuda_version}"
    reason = f"NVIDIA driver {driver.version}{cuda}, {devices} {'device' if devices == 1 else 'devices'}"
    if devices:
        return fine(NAME, SUBJECT, reason)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=SUBJECT,
        reason=reason,
        cause="a container that was given none, or devices that the driver could not start",
        remedy=Remedy.CHECK_DRIVER,
    )


def _said(driver: Driver) -> tuple[str, ...]:
    if driver.code is None:
        return ()
    return (f"NVML answers with code {driver.code}" + (f": {driver.error.rstrip('.')}" if driver.error else ""),)
