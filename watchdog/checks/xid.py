"""The driver reports a fault of a GPU (Xid).

Proves: within `xid_window_s` NVML delivered, or the kernel wrote, an Xid of a number that asks for something: the GPU
needs a reset, the host a reboot, a cable or a vendor (critical), or the application faulted (warning). Repeats of 13
or 31 mean hardware: three faults of one device are critical.

Near misses: numbers that are only to be noted, and 45, which follows others. One fault comes as many Xids at once, so
what comes within seconds is one, and what both NVML and the kernel tell is counted once. No Xid ever comes on WSL, and
none where neither events nor the kernel log can be had: this then says so. What a number means is overridden by [xid].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchdog.checks.figures import duration
from watchdog.checks.xid_table import ACTION, REPEATS, REPEATS_MEAN_HARDWARE, WORDS, lines_of, slot
from watchdog.core.devicefacts import ONE_FAULT_S, XidFault
from watchdog.core.facts import Absent, Device, Facts, KernelLine, Known, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

NAME = "xid"
NEEDS = ("devices", "kernel", "wsl")
LIMITS = ("xid", "xid_window_s")
WORST = Severity.CRITICAL
REMEDIES = (
    Remedy.RELAUNCH,
    Remedy.RESET_DEVICE,
    Remedy.REBOOT,
    Remedy.RESEAT,
    Remedy.RELOAD_DRIVER,
    Remedy.REPLACE,
    Remedy.CHECK_DRIVER,
)

_FINE = ("log", "ignore")
# By weight: of several, the first speaks.
_JUDGED: dict[str, tuple[Severity, Remedy, str]] = {
    "reboot": (Severity.CRITICAL, Remedy.REBOOT, "the GPU is gone until the host starts anew"),
    "vm": (Severity.CRITICAL, Remedy.REBOOT, "the virtual machine has to start anew"),
    "support": (Severity.CRITICAL, Remedy.REPLACE, "a fault for the vendor"),
    "cable": (Severity.CRITICAL, Remedy.RESEAT, "the card lacks power"),
    "driver": (Severity.CRITICAL, Remedy.RELOAD_DRIVER, "driver and firmware do not work together"),
    "repeats": (Severity.CRITICAL, Remedy.RESET_DEVICE, "repeats on one device mean hardware, not the application"),
    "reset": (Severity.CRITICAL, Remedy.RESET_DEVICE, "the GPU is in a state that only a reset ends"),
    "depends": (Severity.WARNING, Remedy.CHECK_DRIVER, "what it means depends on other evidence"),
    "unknown": (Severity.WARNING, Remedy.CHECK_DRIVER, "a number that the catalogue here does not have"),
    "restart": (Severity.WARNING, Remedy.RELAUNCH, "the application faulted: its context is lost"),
}


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    devices = value_of(facts.devices)
    if isinstance(facts.devices, Absent):
        return ()
    log = value_of(facts.kernel)
    found: list[Finding] = []
    told: set[KernelLine] = set()
    for device in devices or ():
        lines = () if log is None else _recent(lines_of(log, device), facts, limits)
        told.update(lines)
        faults = tuple(fault for fault in device.xid_faults if facts.at_s - fault.at_s <= limits.xid_window_s)
        if lines or faults:
            found.append(_judge(device.label, device, faults, lines, limits))
        elif (nothing := _nothing(facts, device, limits)) is not None:
            found.append(nothing)
    # The log outlives NVML: a device that cannot be enumerated any more still has its lines.
    others = _recent(() if log is None else log.lines, facts, limits)
    others = tuple(line for line in others if line.kind is KernelKind.XID and line not in told)
    complete = devices is not None and all(slot(value_of(device.pci_bus_id) or "") for device in devices)
    for address in sorted({line.subject for line in others}):
        lines = tuple(line for line in others if line.subject == address)
        subject = f"GPU at {address}" if address else "a GPU that the kernel log does not name"
        found.append(_judge(subject, None, (), lines, limits, ours=not complete))
    return tuple(found)


def _recent(lines: Iterable[KernelLine], facts: Facts, limits: Limits) -> tuple[KernelLine, ...]:
    return tuple(line for line in lines if facts.at_s - line.at_s <= limits.xid_window_s)


def _nothing(facts: Facts, device: Device, limits: Limits) -> Finding | None:
    """No Xid was seen: because there was none, or because none can be seen here."""
    delivered = isinstance(device.xid_counts, Known)
    if not delivered and isinstance(facts.wsl, Known):
        said = "no Xid events are delivered here (WSL), so none can be seen"
    elif not delivered and isinstance(facts.kernel, Absent):
        said = "no Xid events are delivered here and no kernel log can be read, so none can be seen"
    elif isinstance(device.xid_counts, Unknown) or (not delivered and isinstance(facts.kernel, Unknown)):
        return None  # device-readings and io-errors tell it
    else:
        logged = isinstance(facts.kernel, Known)
        sources = ", ".join((*(("NVML",) if delivered else ()), *(("kernel log",) if logged else ())))
        said = f"no Xid in the last {duration(limits.xid_window_s)} ({sources})"
        if not delivered and (log := value_of(facts.kernel)) is not None and log.dropped:
            said += f"; {log.dropped} lines of the log were lost unread"
    return fine(NAME, device.label, said, device=device.uuid)


def _judge(
    subject: str,
    device: Device | None,
    faults: Sequence[XidFault],
    lines: tuple[KernelLine, ...],
    limits: Limits,
    *,
    ours: bool = True,
) -> Finding:
    """`ours` false: no device that we can see is in that slot, so the job has none of it."""
    uuid = None if device is None else device.uuid
    actions: dict[int, str] = {}
    words: dict[int, str] = {}
    numbers = {fault.number for fault in faults} | {line.number for line in lines if line.number is not None}
    for number in sorted(numbers):
        # Each event has its line: the two counts are of the same thing, and one of them may have missed some.
        delivered = sum(fault.number == number for fault in faults)
        seen = max(delivered, _faults(tuple(line for line in lines if line.number == number)))
        actions[number] = _action(number, seen, limits)
        meaning = f" ({WORDS[number]})" if number in WORDS else ""
        words[number] = f"Xid {number}" + (f" × {seen}" if seen > 1 else "") + meaning
    evidence = tuple(line.text for line in lines[-3:])
    firing = [number for number, action in actions.items() if action not in _FINE]
    noted = [words[number] for number in actions if number not in firing]
    if not firing:
        return fine(NAME, subject, "only to be noted: " + ", ".join(noted), *evidence, device=uuid)
    worst = min((actions[number] for number in firing), key=list(_JUDGED).index)
    severity, remedy, cause = _JUDGED[worst]
    firing.sort(key=lambda number: list(_JUDGED).index(actions[number]))
    if noted:
        evidence = ("only to be noted: " + ", ".join(noted), *evidence)
    return Finding(
        check=NAME,
        severity=severity if ours else min(severity, Severity.WARNING),
        subject=subject,
        reason=", ".join(words[number] for number in firing),
        evidence=evidence if ours else (*evidence, "no device that can be seen here is in that slot"),
        cause=cause,
        remedy=remedy,
        device=uuid,
    )


def _action(number: int, faults: int, limits: Limits) -> str:
    if number in limits.xid:
        return limits.xid[number]
    action = ACTION.get(number, "unknown")
    if number in REPEATS_MEAN_HARDWARE and faults >= REPEATS:
        return "repeats"
    return action


def _faults(lines: tuple[KernelLine, ...]) -> int:
    """Lines that follow each other within ONE_FAULT_S are one fault."""
    times = [line.at_s for line in lines]
    return sum(i == 0 or at_s - times[i - 1] > ONE_FAULT_S for i, at_s in enumerate(times))
