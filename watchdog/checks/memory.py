"""Host memory is below the job's need.

Proves: less memory can be had than the job says it needs, or, where it says nothing, than loading a model takes; a
launch now would be refused or end in an OOM kill. "Can be had" is the least of MemAvailable and of every ancestor
cgroup's limit, page cache counted as free.

Near misses: a living run already holds its part, so that the rest being below the need is its success and not a
lack; memory full of page cache is not short; swap is not memory.

After an end for memory the need is what that run had and a margin, where that is more.
"""

from __future__ import annotations

from watchdog.checks.figures import size
from watchdog.core.facts import Facts, Known, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, unknown
from watchdog.core.limits import Limits, names

NAME = "memory"
NEEDS = ("memory", "beat", "processes", "devices")
LIMITS = ("memory_need_bytes", "devices")
WORST = Severity.WARNING
REMEDIES = (Remedy.FREE_MEMORY, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """The one place where memory that could not be read is told."""
    if isinstance(facts.memory, Unknown):
        return unknown(NAME, "memory", facts.memory.why)
    if not isinstance(facts.memory, Known):
        return ()
    memory = facts.memory.value
    uses_gpu = any(names(limits.devices, uuid=one.uuid, index=one.index) for one in value_of(facts.devices) or ())
    need_bytes = limits.memory_need(uses_gpu=uses_gpu)
    if (learned := limits.learned_need(uses_gpu=uses_gpu)) is not None:
        stated = f"{size(need_bytes)} are needed: {learned.words}"
    elif limits.memory_need_bytes is not None:
        stated = f"the job states {size(need_bytes)}"
    else:
        stated = f"a {'GPU job' if uses_gpu else 'job'} is taken to need {size(need_bytes)}"
    reason = f"{size(memory.available_bytes)} available, {stated}"
    evidence = [f"MemAvailable {size(memory.host_available_bytes)} of {size(memory.total_bytes)}"]
    if memory.limit_bytes is not None:
        evidence.append(f"tightest cgroup limit {size(memory.limit_bytes)}, at {memory.limit_cgroup}")
    severity, remedy, cause = Severity.OK, Remedy.NONE, ""
    if memory.available_bytes < need_bytes:
        if _run_lives(facts):
            reason += "; a run is alive and holds its part"
        else:
            severity, remedy = Severity.WARNING, Remedy.FREE_MEMORY
            within = memory.available_bytes < memory.host_available_bytes
            cause = "a cgroup's limit is nearly used up" if within else "other processes hold the host's memory"
    return Finding(
        check=NAME,
        severity=severity,
        subject="memory",
        reason=reason,
        evidence=tuple(evidence),
        cause=cause,
        remedy=remedy,
    )


def _run_lives(facts: Facts) -> bool:
    """By its beat, or, of a run that makes none, by its processes."""
    if isinstance(facts.beat, Known) and facts.beat.value.alive is not False:
        return True
    processes = value_of(facts.processes)
    return processes is not None and any(one.state != "Z" for one in processes.run)
