"""The gate of the devices: no launch on a driver or a device that cannot carry it. Pure.

Only what the job names can close it, or, where it names nothing, what its run was seen to use. A host without a driver
has no such gate; a driver that does not answer closes it, since unknown is never healthy. A check that is switched off
closes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.core.facts import Absent, Facts, Known, Unknown
from watchdog.core.findings import Finding, Severity, next_step
from watchdog.core.limits import Limits, names
from watchdog.core.seen import Gate

_NONE = "a job that uses no GPU says so: [job] devices = []"


def uses_gpu(facts: Facts, limits: Limits) -> bool:
    """Whether there is a device that the job may use."""
    if not isinstance(facts.devices, Known):
        return False
    return any(names(limits.devices, uuid=device.uuid, index=device.index) for device in facts.devices.value)


def held_by_run(facts: Facts) -> bool:
    """Whether this job's run has a device open: then it uses a GPU, whatever was said."""
    return isinstance(facts.processes, Known) and any(holder.of_run for holder in facts.processes.value.holders)


def device_gate(
    facts: Facts, limits: Limits, findings: Sequence[Finding], *, used_gpu: bool = False
) -> tuple[Gate, ...]:
    """`findings` are those of the checks that gate a launch; `used_gpu`: a run of this job had a device open.

    Nothing where no device is meant or there is no driver.
    """
    if limits.devices == () or (isinstance(facts.driver, Absent) and limits.devices is None):
        return ()
    trouble = _trouble(facts, limits, findings)
    if trouble and limits.devices is None and not used_gpu:
        return (Gate(name="devices", open=True, words=f"not waited for, as the job names no device: {trouble}"),)
    if trouble:
        return (Gate(name="devices", open=False, words=f"{trouble}; {_NONE}"),)
    meant = []
    if isinstance(facts.devices, Known):
        named = (d for d in facts.devices.value if names(limits.devices, uuid=d.uuid, index=d.index))
        meant = [device.label for device in named]
    return (Gate(name="devices", open=True, words=f"devices {', '.join(meant) or 'none'}"),)


def _trouble(facts: Facts, limits: Limits, findings: Sequence[Finding]) -> str:
    """What keeps a launch from the devices, in words; "" when nothing does."""
    bad = [finding for finding in findings if finding.severity is Severity.CRITICAL]
    if bad:
        return "; ".join(f"{finding.subject}: {finding.reason} ({next_step(finding, '')})" for finding in bad)
    driver = facts.driver
    if not isinstance(driver, Known) or not driver.value.answers:
        # `driver` tells of every silence that no check of its own tells; both may be switched off.
        if not any(finding.check == "driver" and finding.severity is not Severity.OK for finding in findings):
            return ""
        if not isinstance(driver, Known):
            return f"the NVIDIA driver cannot be seen: {driver.why}"
        said = driver.value
        why = said.error or said.crash or f"no answer for {said.silent_s:.0f} s"
        return f"the NVIDIA driver does not answer: {why}"
    if isinstance(facts.devices, Unknown) and "device-readings" not in limits.off:
        return f"the devices cannot be seen: {facts.devices.why}"
    return ""
