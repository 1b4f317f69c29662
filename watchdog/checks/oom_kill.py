"""The kernel killed a process because memory had run out.

Proves: a counter of kills grew while it was watched, or the kernel wrote such a line within the window. Whose process
it was, the log and the cgroup's own counter say.

Near misses: a counter that is not nought, and did not grow, tells of a kill long ago. Signal 9 alone is no sign of
it. A kill that our cgroup does not count hit
somebody else's process; the memory was short all the same.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, KernelLine, Known, OomKills, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.kernel import NOTHING_LOGGED, KernelKind
from watchdog.core.limits import Limits

NAME = "oom-kill"
NEEDS = ("oom", "kernel")
LIMITS = ("oom_window_s",)
WORST = Severity.WARNING
REMEDIES = (Remedy.FREE_MEMORY, Remedy.LOOK)
_NAMED = 3


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """The one place where kills that could not be counted are told; lines of the kernel log count without them."""
    log = value_of(facts.kernel) or NOTHING_LOGGED
    lines = log.recent(KernelKind.OOM_KILL, now_s=facts.at_s, window_s=limits.oom_window_s)
    found = []
    if isinstance(facts.oom, Unknown):
        found.append(unknown(NAME, "memory", facts.oom.why))
    oom = value_of(facts.oom)
    count = max(len(lines), oom.since_host if oom else 0, oom.since_cgroup if oom else 0)
    if count:
        found.append(_fired(count, lines, oom, facts.at_s))
    elif isinstance(facts.oom, Known):
        found.append(_quiet(facts.oom.value))
    return tuple(found)


def _fired(count: int, lines: tuple[KernelLine, ...], oom: OomKills | None, at_s: float) -> Finding:
    reason = f"{count} {'process' if count == 1 else 'processes'} killed for lack of memory"
    if lines:
        named = ", ".join(f"{line.subject or 'a process'} (pid {line.number})" for line in lines[-_NAMED:])
        reason += f", the newest {duration(at_s - lines[-1].at_s)} ago: {named}"
    elif oom is not None:
        reason += f" in the last {duration(oom.watched_s)}; the kernel log does not name it"
    evidence = [line.text for line in lines[-_NAMED:]]
    if oom is not None and oom.since_cgroup:
        evidence.append(f"{oom.since_cgroup} of them counted by cgroup {oom.cgroup_path}, in which we are")
    elif oom is not None and oom.since_host and oom.cgroup is not None:
        evidence.append(
            f"none of them counted by cgroup {oom.cgroup_path}, in which we are: it was somebody else's process, "
            "unless the run has a cgroup of its own"
        )
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="memory",
        reason=reason,
        evidence=tuple(evidence),
        cause="host memory, or what a cgroup allows, was used up",
        remedy=Remedy.FREE_MEMORY,
    )


def _quiet(oom: OomKills) -> Finding:
    since_boot = "" if oom.host is None else f"{oom.host:,} since boot"
    if oom.watched_s > 0:
        reason = f"nothing was killed for lack of memory in the last {duration(oom.watched_s)}"
        return fine(NAME, "memory", f"{reason}; {since_boot}" if since_boot else reason)
    return fine(NAME, "memory", f"killed for lack of memory: {since_boot or 'not counted here'}, none seen lately")
