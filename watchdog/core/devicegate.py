"""The gate of the devices: no launch on a driver or a device that cannot carry it. Pure.

Only what the job names can close it, or, where it names nothing, what its run was seen to use. A host without a driver
has no such gate; a driver that does not answer closes it, since unknown is never healthy, and so does a check that
failed, or one that has to look again before it can tell. A check that is switched off closes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from watchdog.core.devicefacts import NVML_GPU_IS_LOST, NVML_LIB_RM_VERSION_MISMATCH, NVML_RESET_REQUIRED
from watchdog.core.facts import Absent, Driver, Facts, Known, Unknown, value_of
from watchdog.core.findings import Finding, Severity, is_failure, next_step
from watchdog.core.limits import Limits, may_name, names
from watchdog.core.seen import Gate

# Who tells of a driver that answers with such a code; of any other `driver` does.
_OF_CODE = {
    NVML_GPU_IS_LOST: "gpu-lost",
    NVML_RESET_REQUIRED: "reset-required",
    NVML_LIB_RM_VERSION_MISMATCH: "driver-mismatch",
}
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
    facts: Facts,
    limits: Limits,
    findings: Sequence[Finding],
    *,
    used_gpu: bool = False,
    used: Collection[str] = (),
) -> tuple[Gate, ...]:
    """`findings` are those of the checks that gate a launch; `used_gpu`: a run of this job had a device open.

    `used` are the UUIDs of the devices that it was seen on. Nothing where no device is meant or there is no driver.
    """
    named = limits.devices_named or limits.devices is not None
    if limits.devices == () or (isinstance(facts.driver, Absent) and not named):
        return ()
    meant = limits.devices if named else _of_used(facts, used)
    trouble = _trouble(facts, limits, [each for each in findings if _concerns(each, meant, facts)])
    if trouble and not named and not used_gpu:
        return (Gate(name="devices", open=True, words=f"not waited for, as the job names no device: {trouble}"),)
    if trouble:
        return (Gate(name="devices", open=False, words=f"{trouble}; {_NONE}"),)
    devices = value_of(facts.devices) or ()
    labels = [device.label for device in devices if names(meant, uuid=device.uuid, index=device.index)]
    return (Gate(name="devices", open=True, words=f"devices {', '.join(labels) or 'none'}"),)


def _of_used(facts: Facts, used: Collection[str]) -> tuple[str, ...] | None:
    """What is known to be used; None = all. Of devices that are gone nothing follows: it will take what there is."""
    devices = value_of(facts.devices) or ()
    wanted = tuple(sorted(used))
    return wanted if any(may_name(wanted, device, devices) for device in devices) else None


def _concerns(finding: Finding, meant: tuple[str, ...] | None, facts: Facts) -> bool:
    """Whether it is about a device that is meant, or about all of them."""
    devices = value_of(facts.devices) or ()
    device = next((each for each in devices if each.uuid == finding.device), None)
    return device is None or may_name(meant, device, devices)


def _trouble(facts: Facts, limits: Limits, findings: Sequence[Finding]) -> str:
    """What keeps a launch from the devices, in words; "" when nothing does."""
    bad = [finding for finding in findings if finding.severity is Severity.CRITICAL or is_failure(finding)]
    if bad:
        return "; ".join(f"{finding.subject}: {finding.reason} ({next_step(finding, '')})" for finding in bad)
    driver = facts.driver
    if not isinstance(driver, Known):
        return "" if "driver" in limits.off else f"the NVIDIA driver cannot be seen: {driver.why}"
    if not driver.value.answers:
        # `driver` tells of it until the check of its own does: whichever is switched off, this is no reason.
        if limits.off & {"driver", _teller(driver.value)}:
            return ""
        said = driver.value
        why = said.error or said.crash or f"no answer for {said.silent_s:.0f} s"
        return f"the NVIDIA driver does not answer: {why}"
    if isinstance(facts.devices, Unknown) and "device-readings" not in limits.off:
        return f"the devices cannot be seen: {facts.devices.why}"
    unsure = [finding for finding in findings if finding.severity is Severity.OK and finding.looks_wanted]
    return "; ".join(f"looks again: {finding.subject}: {finding.reason}" for finding in unsure)


def _teller(driver: Driver) -> str:
    """The check that tells of this trouble once it is sure."""
    if driver.code is not None:
        return _OF_CODE.get(driver.code, "driver")
    if driver.silent_s:
        return "driver-hung"
    return "driver-crash" if driver.crashes else "driver"
