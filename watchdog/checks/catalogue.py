"""The one ordered list of checks. Adding a check is one file, one line here, one test.

Responsible for the order in which checks are told and for running all of them: one that fails becomes a finding and
takes no other with it. Refuses to be extended from outside: what is not in this list does not run.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol, cast

# The list, in the order of reading: who holds the job, is it moving, can it go on, on what. A line here is all that a
# new check needs: CATALOGUE below is made of these modules, in this order.
# isort: off
from watchdog.checks import (  # noqa: F401  (found by CATALOGUE)
    lock_holder,
    lock_ghost,
    lock_unlinked,
    lock_path,
    beat_process,
    beat_stale,
    steps_frozen,
    loss_nan,
    loss_exploding,
    loss_frozen,
    throughput,
    run_stuck,
    run_defunct,
    driver,
    driver_mismatch,
    driver_hung,
    driver_crash,
    dxg_bridge,
    dxg_residency,
    device_missing,
    gpu_lost,
    reset_required,
    ghost_context,
    sysmem_paging,
    utilization_power,
    lost_pid,
    memory_unowned,
    foreign_process,
    wrong_product,
    compute_floor,
    xid,
    ecc,
    thermal_slowdown,
    power_brake,
    pcie,
    device_readings,
    memory,
    oom_kill,
    cgroup_limit,
    memory_pressure,
    disk_space,
    disk_filling,
    disk_inodes,
    disk_read_only,
    windows_drive,
    drvfs,
    io_errors,
    wsl_settings,
    suspended,
    clock_step,
    blind,
)
# isort: on

from msgspec import Struct
from msgspec.structs import replace

from watchdog.core.facts import Absent, Device, Facts, value_of
from watchdog.core.findings import Finding, Remedy, Severity, failed
from watchdog.core.limits import Limits, may_name


class Judge(Protocol):
    """A pure function of the facts. It may assume nothing that NEEDS does not name."""

    def __call__(self, facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]: ...


class Check(Struct, frozen=True, kw_only=True):
    """One check: `needs` are field names of Facts; `proves` is a line for people, `about` the whole docstring.

    `worst` is the loudest that it ever says, `remedies` all that it ever names, `limits` the figures it compares with.
    """

    name: str
    needs: tuple[str, ...]
    judge: Judge
    proves: str
    about: str
    worst: Severity
    remedies: tuple[Remedy, ...]
    limits: tuple[str, ...]


def _check(module: ModuleType) -> Check:
    about = module.__doc__ or ""
    return Check(
        name=module.NAME,
        needs=module.NEEDS,
        judge=cast(Judge, module.check),
        proves=about.strip().partition("\n")[0],
        about=about,
        worst=module.WORST,
        remedies=module.REMEDIES,
        limits=module.LIMITS,
    )


CATALOGUE: tuple[Check, ...] = tuple(
    _check(module)
    for module in list(globals().values())
    if isinstance(module, ModuleType) and module.__name__.startswith("watchdog.checks.")
)


# Those that close the gate of a launch when they are critical: what a run could not begin on, or not beside.
GATES = frozenset(
    {
        "driver",
        "driver-mismatch",
        "driver-hung",
        "driver-crash",
        "device-missing",
        "gpu-lost",
        "reset-required",
        "ghost-context",
        "wrong-product",
        "dxg-bridge",
    }
)
GATING: tuple[Check, ...] = tuple(check for check in CATALOGUE if check.name in GATES)


# Those that say nothing of a job that uses no GPU.
_OF_GPUS = frozenset(
    {check.name for check in CATALOGUE if check.needs[0] in ("driver", "devices", "probe")}
    | {"dxg-bridge", "dxg-residency"}
)

# A critical finding of the second about a device explains what the first finds there: one fault, one next step.
# `watchdog probe` asks the first alone, and is told.
TOLD_BY = {"compute-floor": "ghost-context"}


def judge(facts: Facts, limits: Limits, checks: tuple[Check, ...] = CATALOGUE) -> tuple[Finding, ...]:
    """All findings, in the order of the list; a check that is switched off says nothing, nor what TOLD_BY explains."""
    findings: list[Finding] = []
    devices = {device.uuid: device for device in value_of(facts.devices) or ()}
    for check in checks:
        if check.name in limits.off:
            continue
        try:
            found = check.judge(facts, limits)
        except Exception as error:  # a bug of ours: it must be heard, and cost only itself
            found = failed(check.name, error)
        for finding in found if isinstance(found, tuple) else (found,):
            findings.append(finding)
    told = {(each.check, each.device) for each in findings if each.severity is Severity.CRITICAL}
    return tuple(
        _weighed(finding, devices, limits)
        for finding in findings
        if finding.severity < Severity.WARNING or (TOLD_BY.get(finding.check), finding.device) not in told
    )


def _weighed(finding: Finding, devices: dict[str, Device], limits: Limits) -> Finding:
    """A device that the job does not name is never critical, and nothing is relaunched for its sake.

    For a job that uses no GPU the same holds of drivers and bridges.
    """
    if finding.severity <= Severity.UNKNOWN:
        return finding
    device = None if finding.device is None else devices.get(finding.device)
    if device is not None and not may_name(limits.devices, device, devices.values()):
        why = "this job does not use the device"
    elif limits.devices == () and finding.check in _OF_GPUS:
        why = "this job uses no GPU"
    else:
        return finding
    return replace(
        finding,
        severity=Severity.WARNING,
        remedy=Remedy.LOOK if finding.remedy is Remedy.RELAUNCH else finding.remedy,
        evidence=(*finding.evidence, why),
    )


def absent(facts: Facts, checks: tuple[Check, ...] = CATALOGUE) -> tuple[str, ...]:
    """The checks that had nothing to look at, because what they need first is absent from this host."""
    return tuple(check.name for check in checks if isinstance(getattr(facts, check.needs[0]), Absent))
