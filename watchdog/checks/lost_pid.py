"""The driver names a process that the system does not know.

Proves: NVML named the pid in each of the last `lost_pid_looks` samples, and /proc did not know it at the same moment,
where both count the same pids. Alone it says nothing about the device, and never a reason to signal the number.

Near misses: a process that ends between two reads is lost for a sample or two; WSLg's Xwayland, and the processes of
the host, of other containers or of others below hidepid, are never in this /proc. What ghost-context tells is not told
here again.
"""

from __future__ import annotations

from watchdog.checks.contradiction import ghost
from watchdog.checks.figures import counted, size
from watchdog.checks.owners import comparable, judged, lists_wanted, lost
from watchdog.core.facts import Device, DeviceProcess, Facts, Processes, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "lost-pid"
NEEDS = ("devices", "processes", "progress", "beat", "clocks", "wsl")
LIMITS = ("lost_pid_looks",)
WORST = Severity.WARNING
REMEDIES = (Remedy.PROBE,)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device whose processes are known."""
    processes = value_of(facts.processes)
    if processes is None:
        return ()
    found = (_judge(device, processes, facts, limits) for device in judged(facts))
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, processes: Processes, facts: Facts, limits: Limits) -> Finding | None:
    listed = value_of(device.now.processes)
    if listed is None:
        return None
    gone = lost(device, limits, processes)
    if not gone:
        return fine(
            NAME, device.label, f"{counted(len(listed), 'process', 'processes')} on the device", device=device.uuid
        )
    said = ", ".join(_words(each) for each in gone) + (" is" if len(gone) == 1 else " are") + " not in /proc"
    if not comparable(facts):
        note = "pids cannot be compared here: WSLg, the host, another container, or hidepid"
        return fine(NAME, device.label, f"{said}; {note}", device=device.uuid)
    if ghost(device, facts, limits) is not None:
        return None
    missing = lists_wanted(device, limits)
    count = limits.lost_pid_looks - missing
    reason = f"{said} in {count} of {count} samples"
    if missing:
        return unsure(NAME, device.label, reason, missing, device=device.uuid)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=device.label,
        reason=reason,
        cause="a process that ended without its context, or one in a pid namespace that we do not see",
        remedy=Remedy.PROBE,
        device=device.uuid,
    )


def _words(process: DeviceProcess) -> str:
    memory = "" if process.memory_bytes is None else f" with {size(process.memory_bytes)}"
    return f"pid {process.pid}{memory}"
