"""The kernel reported errors of a disk.

Proves: within the window the kernel could not read or write a device (warning), or made a file system read-only
because of an error (critical, but for a disk that lies neither under the job's folders nor under the system's root).

Near misses: a read-only mount that somebody asked for writes no such line. Empty floppy and CD drives of virtual
machines fail at every boot. A disk on which none of the folders lies is a warning at most, and no less: the data set,
the home folder or swap may be on it. Where it cannot be told what the folders lie on (btrfs, a container), any may be.
"""

from __future__ import annotations

import re

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, KernelLine, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

NAME = "io-errors"
NEEDS = ("kernel", "disks")
LIMITS = ("io_error_window_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.CHECK_DISK, Remedy.LOOK)
_KINDS = frozenset({KernelKind.IO_ERROR, KernelKind.READ_ONLY})
_SHOWN = 3
# sda1, vda2; nvme0n1p2, mmcblk0p1: the disk is what fails, whichever of its partitions the kernel names.
_PARTITION = re.compile(r"((?:sd|hd|vd|xvd)[a-z]+)\d+|((?:nvme\d+n|mmcblk|md|loop|nbd)\d+)p\d+")

_PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")  # one of several ways to a disk of NVMe


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """One finding for each disk; the one place where a kernel log that cannot be read is told."""
    if isinstance(facts.kernel, Unknown):
        return unknown(NAME, "kernel log", facts.kernel.why)
    if not isinstance(facts.kernel, Known):  # so it will stay: said at each diagnosis, and no alarm
        return fine(NAME, "kernel log", facts.kernel.why or "there is none")
    log = facts.kernel.value
    by_disk: dict[str, list[KernelLine]] = {}
    for line in log.lines:
        if line.kind in _KINDS and facts.at_s - line.at_s <= limits.io_error_window_s and not _empty_drive(line):
            by_disk.setdefault(_disk(line.subject) or "a disk", []).append(line)
    if not by_disk:
        seen_s = min(limits.io_error_window_s, facts.at_s - log.since_s)
        lost = (f"{log.dropped:,} lines were overwritten before they could be read",) if log.dropped else ()
        return fine(NAME, "kernel log", f"no disk error in the last {duration(seen_s)}", *lost)
    used = _used(facts)
    return tuple(_judge(disk, lines, facts.at_s, used) for disk, lines in by_disk.items())


def _used(facts: Facts) -> frozenset[str] | None:
    """The devices that the job and the system lie on; None where that is not told of all folders."""
    devices: set[str] = set()
    for fact in facts.disks:
        if isinstance(fact, Known) and fact.value.purpose == "windows":
            continue
        if not isinstance(fact, Known) or not fact.value.devices:
            return None
        devices |= set(fact.value.devices)
    return frozenset(devices) or None


def _disk(subject: str) -> str:
    subject = _PATH.sub(r"\1\2", subject)
    found = _PARTITION.fullmatch(subject)
    return subject if found is None else found[1] or found[2]


def _empty_drive(line: KernelLine) -> bool:
    return line.subject.rstrip("0123456789") in ("fd", "sr")


def _judge(disk: str, lines: list[KernelLine], at_s: float, used: frozenset[str] | None) -> Finding:
    read_only = any(line.kind is KernelKind.READ_ONLY for line in lines)
    count = f"{len(lines)} {'error' if len(lines) == 1 else 'errors'}"
    reason = f"{count} on {disk} in the kernel log, the newest {duration(at_s - lines[-1].at_s)} ago"
    other = used is not None and all(line.subject and used.isdisjoint((disk, line.subject)) for line in lines)
    note = "not a disk of the job's folders or the system's root; whether the job reads from it is not known"
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if read_only and not other else Severity.WARNING,
        subject=disk,
        reason=f"{reason}; its file system was made read-only" if read_only else reason,
        evidence=(*(line.text for line in lines[-_SHOWN:]), *((note,) if other else ())),
        cause="the disk or its connection fails",
        remedy=Remedy.CHECK_DISK,
    )
