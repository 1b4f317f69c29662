"""The gate of the devices: no launch on a driver or a device that cannot carry it. Pure.

Only what the job names can close it. A host without a driver has no such gate; a driver that does not answer closes
it, since unknown is never healthy.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.core.facts import Absent, Facts, Known, Unknown
from watchdog.core.findings import Finding, Severity
from watchdog.core.limits import Limits, names
from watchdog.core.seen import Gate

_NONE = "a job that uses no GPU says so: [job] devices = []"


def uses_gpu(facts: Facts, limits: Limits) -> bool:
    """Whether there is a device that the job may use."""
    if not isinstance(facts.devices, Known):
        return False
    return any(names(limits.devices, uuid=device.uuid, index=device.index) for device in facts.devices.value)


def device_gate(facts: Facts, limits: Limits, findings: Sequence[Finding]) -> tuple[Gate, ...]:
    """`findings` are those of the checks that gate a launch. Nothing where no device is meant or there is no driver."""
    if limits.devices == () or (isinstance(facts.driver, Absent) and limits.devices is None):
        return ()
    bad = [finding for finding in findings if finding.severity is Severity.CRITICAL]
    if bad:
        words = "; ".join(f"{finding.subject}: {finding.reason} ({finding.remedy.value})" for finding in bad)
        return (Gate(name="devices", open=False, words=f"{words}; {_NONE}"),)
    if isinstance(facts.driver, Unknown):
        return (
            Gate(name="devices", open=False, words=f"the NVIDIA driver cannot be seen: {facts.driver.why}; {_NONE}"),
        )
    if isinstance(facts.driver, Known) and not facts.driver.value.answers:
        driver = facts.driver.value
        why = driver.error or driver.crash or f"no answer for {driver.silent_s:.0f} s"
        return (Gate(name="devices", open=False, words=f"the NVIDIA driver does not answer: {why}; {_NONE}"),)
    if isinstance(facts.devices, Unknown):
        return (Gate(name="devices", open=False, words=f"the devices cannot be seen: {facts.devices.why}; {_NONE}"),)
    meant = []
    if isinstance(facts.devices, Known):
        named = (d for d in facts.devices.value if names(limits.devices, uuid=d.uuid, index=d.index))
        meant = [device.label for device in named]
    return (Gate(name="devices", open=True, words=f"devices {', '.join(meant) or 'none'}"),)
