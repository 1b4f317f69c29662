"""A lock of the job is held by no process that lives.

Proves: at two looks, one right after the other, the kernel listed the lock as held, and no living process that can be
seen had its file open: every launch would end at it without a word. A process that is stuck in the kernel while it ends
has given its files up and keeps their locks; one that is stuck on this host is named.

Near misses: a holder that ends, or hands its lock on, between the two reads of one look. A holder in another container
cannot be seen from here and looks the same. Without root, another user's process may be the holder: the fact is then
unknown.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known, Lock, RunProcess, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.limits import Limits

NAME = "lock-ghost"
NEEDS = ("locks", "processes", "wsl")
LIMITS = ("stuck_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.FIND_HOLDER, Remedy.REBOOT, Remedy.WSL_SHUTDOWN)
_SHOWN = 3


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each lock (lock-holder tells of those that could not be read)."""
    return tuple(_judge(fact.value, facts, limits) for fact in facts.locks if isinstance(fact, Known))


def _judge(lock: Lock, facts: Facts, limits: Limits) -> Finding:
    subject = f"{lock.purpose} lock"
    if not lock.held or lock.holders:
        return fine(NAME, subject, "its holder lives" if lock.held else "held by nobody")
    processes = value_of(facts.processes)
    stuck = [] if processes is None else [one for one in processes.stuck if one.stuck_s >= limits.stuck_s]
    remedy = Remedy.FIND_HOLDER
    cause = "its holder is out of sight (another container), or hangs in the kernel while it ends"
    if stuck:
        cause = "a process that ended and hangs in the kernel keeps its locks until the machine is restarted"
        remedy = Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.REBOOT
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject=subject,
        reason="held, but at two looks by no living process that can be seen: nothing can be launched until it is free",
        evidence=(lock.path, *(_line(one) for one in stuck[:_SHOWN])),
        cause=cause,
        remedy=remedy,
    )


def _line(process: RunProcess) -> str:
    where = process.wait_channel or "an unknown place"
    return f"pid {process.pid} ({process.command}) is stuck in {where} for {duration(process.stuck_s)} and may hold it"
