"""Host memory below the job's stated need.

Proves: less memory can be had than the job says it needs, so that a launch now would be refused or end in an OOM
kill. "Can be had" is the least of MemAvailable and of every ancestor cgroup's limit, page cache counted as free.

Near misses: a living run already holds its part, so that the rest being below the need is its success and not a
lack; memory full of page cache is not short; swap is not memory.
"""

from __future__ import annotations

from watchdog.checks.figures import size
from watchdog.core.facts import Absent, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NAME = "memory"
NEEDS = ("memory", "beat")


def check(facts: Facts, limits: Limits) -> Finding:
    if isinstance(facts.memory, Unknown | Absent):
        return Finding(
            check=NAME, severity=Severity.UNKNOWN, subject="memory", reason=facts.memory.why, remedy=Remedy.LOOK
        )
    memory = facts.memory.value
    reason = f"{size(memory.available_bytes)} available, the job states {size(limits.memory_need_bytes)}"
    evidence = [f"MemAvailable {size(memory.host_available_bytes)} of {size(memory.total_bytes)}"]
    if memory.limit_bytes is not None:
        evidence.append(f"tightest cgroup limit {size(memory.limit_bytes)}, at {memory.limit_cgroup}")
    severity, remedy = Severity.OK, Remedy.NONE
    if memory.available_bytes < limits.memory_need_bytes:
        if isinstance(facts.beat, Known) and facts.beat.value.alive:
            reason += "; a run is alive and holds its part"
        else:
            severity, remedy = Severity.WARNING, Remedy.FREE_MEMORY
    return Finding(
        check=NAME, severity=severity, subject="memory", reason=reason, evidence=tuple(evidence), remedy=remedy
    )
