"""The word for a check that was asked for by name and said nothing. Pure.

Responsible for telling "nothing to judge here" from "what it needs cannot be seen": the first is absent, the second
unknown. Refuses to judge in a check's place.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.checks import device_readings
from watchdog.checks import driver as driver_check
from watchdog.checks.catalogue import TOLD_BY, Check
from watchdog.checks.figures import duration
from watchdog.core.facts import Absent, Device, Driver, Facts, Known, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits, may_name

_OF_DRIVER = {"driver", "devices", "probe"}


def silent(facts: Facts, limits: Limits, checks: Sequence[Check], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding for each of these checks that made none of `findings`."""
    spoken = {finding.check for finding in findings}
    return tuple(_word(check, facts, limits, spoken) for check in checks if check.name not in spoken)


def _word(check: Check, facts: Facts, limits: Limits, spoken: set[str]) -> Finding:
    if check.name in limits.off:
        return fine(check.name, check.name, "switched off: [checks] off")
    teller = TOLD_BY.get(check.name)
    if teller in spoken:
        return fine(check.name, check.name, f"{teller} tells of it")
    first = getattr(facts, check.needs[0])
    nothing = f"nothing here that it judges: {check.proves}"
    if isinstance(first, Absent) and check.needs[0] != "probe":  # of a probe that was not made the driver may tell why
        return fine(check.name, check.name, first.why or nothing)
    unseen = _unseen(check, facts, limits)
    if unseen is not None:
        return unseen
    return fine(check.name, check.name, first.why or nothing if isinstance(first, Absent) else nothing)


def _unseen(check: Check, facts: Facts, limits: Limits) -> Finding | None:
    """What it needs and could not be seen."""
    name = check.name
    if _OF_DRIVER & set(check.needs) and isinstance(facts.driver, Known) and not facts.driver.value.answers:
        return _of_driver(name, facts.driver.value, facts, limits)
    for need in check.needs:
        given = getattr(facts, need)
        for fact in given if isinstance(given, tuple) else (given,):
            if isinstance(fact, Unknown):
                return unknown(name, name, fact.why)
    return _of_devices(name, facts, limits) if "devices" in check.needs else None


def _of_driver(name: str, driver: Driver, facts: Facts, limits: Limits) -> Finding:
    """In the words of the check that tells of drivers; it says nothing of what a check of its own tells."""
    found = driver_check.check(facts, limits)
    for each in found if isinstance(found, tuple) else (found,):
        if each.severity is Severity.OK:  # there is no driver after all
            return fine(name, name, each.reason, *each.evidence)
        remedy = each.remedy if each.severity is Severity.UNKNOWN else Remedy.CHECK_DRIVER
        return Finding(
            check=name,
            severity=Severity.UNKNOWN,
            subject=name,
            reason=each.reason,
            evidence=each.evidence,
            remedy=remedy,
            looks_wanted=each.looks_wanted,
        )
    why = f"NVML answers with code {driver.code}" + (f": {driver.error}" if driver.error else "")
    if driver.code is None:
        why = f"NVML has not answered for {duration(driver.silent_s)}"
        if not driver.silent_s:
            why = f"{driver.crashes} children in a row died asking NVML: {driver.crash}"
    return unknown(name, name, why, Remedy.CHECK_DRIVER)


def _of_devices(name: str, facts: Facts, limits: Limits) -> Finding | None:
    """A device of the job's that does not answer, or has readings that cannot be had."""
    devices: tuple[Device, ...] = value_of(facts.devices) or ()
    meant = [device for device in devices if may_name(limits.devices, device, devices)]
    for device in meant:
        if not device.answers:
            return unknown(name, name, f"{device.label} does not answer", Remedy.CHECK_DRIVER)
    uuids = {device.uuid for device in meant}
    for each in device_readings.check(facts, limits):
        if each.severity is not Severity.OK and each.device in uuids:
            return Finding(
                check=name,
                severity=Severity.UNKNOWN,
                subject=name,
                reason=f"{each.subject}: {each.reason}",
                evidence=each.evidence,
                remedy=each.remedy,
            )
    return None
