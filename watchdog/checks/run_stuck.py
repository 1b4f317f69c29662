"""A process of the run is stuck in the kernel, where no signal reaches it.

Proves: a thread of it was in state D at every look, for the time given (warning) or for five minutes while no step
was taken (critical). It cannot be killed, nothing can be started beside it, and only a restart of the machine helps.

Near misses: one look in state D is any disk read. A data loader on a slow disk is found in it again and again while
the steps go on: never critical. Stuck processes of others are evidence, not a finding.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known, Processes, RunProcess, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "run-stuck"
NEEDS = ("processes", "progress", "kernel", "wsl")
LIMITS = ("stuck_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.WAIT, Remedy.REBOOT, Remedy.WSL_SHUTDOWN, Remedy.LOOK)
_UNKILLABLE_S = 300.0  # gpud's figure too: what the driver or a disk frees by itself, it frees in minutes
_SHOWN = 3
_APART_S = 10.0  # looks at the processes; so much longer it may have been


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """The one place where a process table that could not be read is told."""
    if isinstance(facts.processes, Unknown):
        return unknown(NAME, "processes", facts.processes.why)
    if not isinstance(facts.processes, Known):
        return ()
    processes = facts.processes.value
    stuck = sorted((one for one in processes.run if one.stuck_s >= limits.stuck_s), key=lambda one: -one.stuck_s)
    if not stuck:
        count = len(processes.run)
        words = f"{count} {'process' if count == 1 else 'processes'}, none stuck in the kernel"
        return fine(NAME, "run", words if count else "no process of a run")
    moved_s = _since_a_step(facts)
    moves = moved_s is not None and moved_s < _UNKILLABLE_S
    critical = stuck[0].stuck_s >= _UNKILLABLE_S and not moves
    restart = Remedy.WSL_SHUTDOWN if isinstance(facts.wsl, Known) else Remedy.REBOOT
    reason = f"{_line(stuck[0])} has been stuck in the kernel for {duration(stuck[0].stuck_s)}"
    if stuck[1:]:
        reason += f", and {len(stuck) - 1} more of the run"
    if critical:
        reason += "; it cannot be killed, and nothing is started beside it"
    elif moves and moved_s is not None:
        reason += f"; the run took a step {duration(moved_s)} ago"
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        subject="run",
        reason=reason,
        evidence=(
            *(_threads(one) for one in stuck[:_SHOWN]),
            *_kernel_says(facts, processes, stuck),
            *_others(processes, limits.stuck_s),
        ),
        cause="a driver or a disk does not answer the kernel",
        remedy=restart if critical else Remedy.WAIT,
    )


def _since_a_step(facts: Facts) -> float | None:
    progress = value_of(facts.progress)
    return None if progress is None or progress.step_changed_s is None else facts.at_s - progress.step_changed_s


def _line(process: RunProcess) -> str:
    return f"pid {process.pid} ({process.command})"


def _threads(process: RunProcess) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in process.states)
    words = f"pid {process.pid} waits in {process.wait_channel or 'an unknown place'}"
    return f"{words}; threads: {counts}" if counts else words


def _kernel_says(facts: Facts, processes: Processes, stuck: list[RunProcess]) -> tuple[str, ...]:
    """The kernel looks each two minutes, and names threads: of a process we know the first one's number."""
    log = value_of(facts.kernel)
    if log is None or not processes.initial_namespace:
        return ()
    pids, window_s = {one.pid for one in stuck}, stuck[0].stuck_s + _APART_S
    return tuple(line.text for line in log.hung_tasks(pids, now_s=facts.at_s, window_s=window_s)[-1:])


def _others(processes: Processes, stuck_s: float) -> tuple[str, ...]:
    ours = {one.pid for one in processes.run}
    others = [one for one in processes.stuck if one.pid not in ours and one.stuck_s >= stuck_s]
    if not others:
        return ()
    return (f"stuck on this host, too: {', '.join(_line(one) for one in others[:_SHOWN])}",)
