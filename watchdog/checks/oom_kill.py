"""The kernel killed a process because memory had run out.

Proves: a counter of kills grew while it was watched, or the kernel wrote such a line within the window. Whose process
it was, the log and the cgroup's own counter say, and whether the host's memory or the limit of a cgroup was used up.

Near misses: a counter that is not nought, and did not grow, tells of a kill long ago. Signal 9 alone is no sign of it.
The limit of another cgroup (a container's beside us) is not the job's: where the counter of ours, or the living run,
proves that, it is said, and no warning. A kill for lack of the host's memory that hit somebody else's process may hit
the job next.
"""

from __future__ import annotations

from watchdog.checks.figures import counted, duration
from watchdog.core.facts import Facts, KernelLine, Known, OomKills, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.kernel import NOTHING_LOGGED, KernelKind
from watchdog.core.limits import Limits

NAME = "oom-kill"
NEEDS = ("oom", "kernel", "processes")
LIMITS = ("oom_window_s",)
WORST = Severity.WARNING
REMEDIES = (Remedy.FREE_MEMORY, Remedy.RAISE_LIMIT, Remedy.LOOK)
_NAMED = 3
_OF_A_LIMIT = "Memory cgroup out of memory"  # else it was the host's memory


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
        found.append(_fired(count, lines, oom, facts))
    elif isinstance(facts.oom, Known):
        found.append(_quiet(facts.oom.value))
    return tuple(found)


def _fired(count: int, lines: tuple[KernelLine, ...], oom: OomKills | None, facts: Facts) -> Finding:
    reason = f"{counted(count, 'process', 'processes')} killed for lack of memory"
    if lines:
        named = ", ".join(f"{line.subject or 'a process'} (pid {line.number})" for line in lines[-_NAMED:])
        reason += f", the newest {duration(facts.at_s - lines[-1].at_s)} ago: {named}"
    elif oom is not None:
        reason += (
            f" in the last {duration(oom.watched_s)}; the kernel log does not name {'it' if count == 1 else 'them'}"
        )
    evidence = [line.text for line in lines[-_NAMED:]]
    limit = bool(lines) and all(line.text.startswith(_OF_A_LIMIT) for line in lines)
    if limit and _of_another_group(lines, oom, facts):
        return fine(NAME, "memory", f"{reason}; by the limit of another cgroup, not of this job", *evidence)
    cause = "what a cgroup allows was used up" if limit else "the host's memory, or what a cgroup allows, was used up"
    if oom is not None and oom.since_cgroup:
        evidence.append(f"{oom.since_cgroup} of them counted by cgroup {oom.cgroup_path}, in which we are")
    elif limit:
        evidence.append("which cgroup it was, the lines before it say: dmesg | grep oom_memcg")
    elif oom is not None and oom.since_host and oom.cgroup is not None:
        evidence.append(
            f"none of them counted by cgroup {oom.cgroup_path}, in which we are: it was somebody else's process, "
            "unless the run has a cgroup of its own"
        )
        cause = "the host's memory, or what somebody else's cgroup allows, was used up"
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        subject="memory",
        reason=reason,
        evidence=tuple(evidence),
        cause=cause,
        remedy=Remedy.RAISE_LIMIT if limit else Remedy.FREE_MEMORY,
    )


def _of_another_group(lines: tuple[KernelLine, ...], oom: OomKills | None, facts: Facts) -> bool:
    """Only with proof: our cgroup counted none of these kills, and no process of the run has such a name.

    Its counter was watched meanwhile. Or it is nought, and a run lives: whose cgroup it is, is not known otherwise. A
    person's shell has one of its own, and a run that was killed has no name any more.
    """
    processes = value_of(facts.processes)
    if oom is None or oom.cgroup is None or oom.since_cgroup or processes is None:
        return False
    if any(line.subject in {one.command for one in processes.run} for line in lines):
        return False
    watched = lines[0].at_s >= facts.at_s - oom.watched_s
    return watched or (oom.cgroup == 0 and bool(processes.run))


def _quiet(oom: OomKills) -> Finding:
    since_boot = "" if oom.host is None else f"{oom.host:,} since boot"
    if oom.watched_s > 0:
        reason = f"nothing was killed for lack of memory in the last {duration(oom.watched_s)}"
        return fine(NAME, "memory", f"{reason}; {since_boot}" if since_boot else reason)
    return fine(NAME, "memory", f"no kill for lack of memory seen lately; {since_boot or 'not counted here'}")
