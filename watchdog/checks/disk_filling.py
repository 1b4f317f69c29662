"""A disk fills up so steadily that it will soon be full.

Proves: free space fell in each quarter of a stretch of looks, over a minute at least; at the pace of its second
slowest quarter nothing is left within the time given. Critical only after three minutes. The stretch is all looks, or
the newer half, or half of that, down to ten minutes: filling that began lately is seen in a window of hours, too.

Near misses: one big file (a checkpoint) is a step down and flat again, so that most quarters show no fall, and a fall
spread over two of them leaves the second slowest as it was; a slow disk takes over a minute to write 4 GB, so a
minute alone is never critical. Pruning makes the space rise. Little space without a trend is disk-space's.
"""

from __future__ import annotations

import itertools

from watchdog.checks.figures import duration, size
from watchdog.core.facts import Disk, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "disk-filling"
NEEDS = ("disks",)
LIMITS = ("disk_full_warning_s", "disk_full_critical_s")
WORST = Severity.CRITICAL
REMEDIES = (Remedy.FREE_DISK,)
_LOOKS = 5  # the ends of four quarters
_WINDOW_S = 60.0
_CRITICAL_WINDOW_S = 180.0  # 4 GB at 50 MB/s take 80 s
_PART_WINDOW_S = 600.0  # what was watched for longer is not judged by less: such a write covers a fifth of it

Looks = tuple[tuple[float, int], ...]  # (monotonic s, free bytes), oldest first


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each disk that was watched long enough (disk-space tells of what could not be read)."""
    found = []
    for fact in facts.disks:
        if not isinstance(fact, Known):
            continue
        looks = (*(look for look in fact.value.earlier if look[0] < fact.at_s), (fact.at_s, fact.value.free_bytes))
        if _is_enough(looks, _WINDOW_S):
            found.append(_judge(fact.value, looks, limits))
    return tuple(found)


def _is_enough(looks: Looks, window_s: float) -> bool:
    return len(looks) >= _LOOKS and looks[-1][0] - looks[0][0] >= window_s


def _judge(disk: Disk, looks: Looks, limits: Limits) -> Finding:
    subject = f"{disk.purpose} disk"
    worst: tuple[Severity, float, float] | None = None  # severity, bytes/s, seconds watched
    stretch = looks
    while stretch is looks or _is_enough(stretch, _PART_WINDOW_S):
        bytes_per_s = fall(stretch)
        watched_s = stretch[-1][0] - stretch[0][0]
        if bytes_per_s > 0:
            severity = _severity(disk.free_bytes / bytes_per_s, watched_s, limits)
            worst = max(worst or (severity, 0.0, 0.0), (severity, bytes_per_s, watched_s))
        stretch = stretch[len(stretch) // 2 :]
    if worst is None:
        watched_s = looks[-1][0] - looks[0][0]
        return fine(
            NAME, subject, f"{size(disk.free_bytes)} free, no steady fall in the last {duration(watched_s)}", disk.path
        )
    severity, bytes_per_s, watched_s = worst
    return Finding(
        check=NAME,
        severity=severity,
        subject=subject,
        reason=f"{size(disk.free_bytes)} free, falling by {size(round(bytes_per_s * 60))} a minute "
        f"over the last {duration(watched_s)}: full in {duration(disk.free_bytes / bytes_per_s)}",
        evidence=(disk.path,),
        cause="" if severity is Severity.OK else "something writes there without end",
        remedy=Remedy.NONE if severity is Severity.OK else Remedy.FREE_DISK,
    )


def fall(looks: Looks) -> float:
    """Bytes a second by which free space falls in the second slowest quarter; 0 when one quarter shows no fall."""
    # Quarters of the looks, not of the time: no step can hide in a gap between two of them.
    marks = [looks[round(quarter * (len(looks) - 1) / 4)] for quarter in range(5)]
    falls = sorted((old[1] - new[1]) / (new[0] - old[0]) for old, new in itertools.pairwise(marks))
    return falls[1] if falls[0] > 0 else 0.0


def _severity(left_s: float, watched_s: float, limits: Limits) -> Severity:
    if left_s < limits.disk_full_critical_s and watched_s >= _CRITICAL_WINDOW_S:
        return Severity.CRITICAL
    return Severity.WARNING if left_s < limits.disk_full_warning_s else Severity.OK
