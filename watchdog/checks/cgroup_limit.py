"""A cgroup above this process is close to its memory limit.

Proves: memory that cannot be taken back (usage without file pages) is above a fraction of the limit; the next
allocations there end in an OOM kill, however much the host has left.

Near misses: page cache counts as usage and is given back when it is wanted, so a group "full" of it is not. A group
without a limit cannot reach it.
"""

from __future__ import annotations

from watchdog.checks.figures import size
from watchdog.core.facts import CgroupLimit, Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "cgroup-limit"
NEEDS = ("memory",)
LIMITS = ("cgroup_fraction",)
WORST = Severity.WARNING
REMEDIES = (Remedy.RAISE_LIMIT,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """One finding for each group with a limit (memory tells of what could not be read)."""
    if not isinstance(facts.memory, Known):
        return ()
    groups = facts.memory.value.limits
    if not groups:
        return fine(NAME, "cgroup", "no cgroup here has a memory limit")
    return tuple(_judge(group, limits.cgroup_fraction) for group in groups)


def _judge(group: CgroupLimit, fraction: float) -> Finding:
    subject = f"cgroup {group.cgroup}"
    held = f"{size(group.held_bytes)} of {size(group.limit_bytes)} held, page cache not counted"
    if group.held_bytes < fraction * group.limit_bytes:
        return fine(NAME, subject, held)
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject=subject,
        reason=f"{held}: over {fraction * 100:g} % of the limit",
        cause="what runs in this cgroup needs nearly all that it is allowed",
        remedy=Remedy.RAISE_LIMIT,
    )
