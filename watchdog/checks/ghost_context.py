"""A device is kept busy and full by nothing that lives, or by our run long after its last step.

Proves: in every one of the last `looks` samples utilization contradicts power and at least `ghost_memory_fraction` of
the memory is in use, and no step advances; and either no run of ours uses the device and the owner is dead (a pid that
/proc does not know in `lost_pid_looks` samples, or nobody at all with a device node open), or our run is past what its
phase was ever allowed, with the contradiction seen since then. A reason to stop a run only in the second case, by its
beats, and where the ghost is its own (NVML names a living process of it there, or one that was seen alive in it) and no
other device works for it.

Near misses: a lost pid alone (WSLg's Xwayland, other containers) or one that ends between two reads; WDDM paging, small
kernels or an idle collective at 96 % and 20 W while steps advance; an evaluation, a compilation or a save within its
deadline; a run that was frozen with us; busy with no memory and no process, after a kill on Blackwell; a living process
of somebody else; a hang at 0 % utilization, which is beat-stale's. Where the owner may be out of sight (another
container, another distribution or the Windows side of WSL, users whom hidepid hides) it is a warning; without a run it
is critical on WSL only for the pid of our run's last beat. A log knows no phases: without beats no run is
stopped. Of a device that tells no power limit (many laptops) a ghost cannot be told from a small model.
"""

from __future__ import annotations

import dataclasses

from watchdog.checks.contradiction import Ghost, contradiction, figures, ghost
from watchdog.checks.figures import size
from watchdog.checks.owners import judged, may_be_windows
from watchdog.checks.working import Work, worker
from watchdog.core.facts import Device, Facts, Known, Probe, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unsure
from watchdog.core.limits import Limits

NAME = "ghost-context"
NEEDS = ("devices", "processes", "progress", "beat", "probe", "clocks", "wsl")
LIMITS = (
    "looks",
    "lost_pid_looks",
    "busy_percent",
    "idle_percent",
    "contradiction_power_fraction",
    "codec_percent",
    "ghost_memory_fraction",
    "steps_frozen_factor",
    "train_deadline_s",
    "first_step_deadline_s",
    "compute_floor_tflops",
)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.RELAUNCH, Remedy.WSL_SHUTDOWN, Remedy.REBOOT, Remedy.RESET_DEVICE, Remedy.LOOK)


def check(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for each device on which it can be told; a contradiction that is no ghost is utilization-power's."""
    if not isinstance(facts.processes, Known):
        return ()
    found = (_judge(device, facts, limits) for device in judged(facts))
    return tuple(finding for finding in found if finding is not None)


def _judge(device: Device, facts: Facts, limits: Limits) -> Finding | None:
    said, memory = figures(device, limits), _memory(device)
    if not said or not memory:
        return None
    seen = ghost(device, facts, limits)
    if seen is None:
        if contradiction(device, limits) is not None:
            return None
        return fine(NAME, device.label, f"{said}; {memory}", device=device.uuid)
    if seen.looks_wanted:
        return unsure(NAME, device.label, f"{said}; {memory}", seen.looks_wanted, seen.evidence, device=device.uuid)
    windows = may_be_windows(device, facts, limits)
    evidence = seen.evidence
    if seen.of_run and (who := worker(facts, limits, seen.pace.since_s)).work is Work.DEVICE:
        # One rank evaluates and the others wait for it in a collective: busy, at idle power, and in order.
        seen, evidence = dataclasses.replace(seen, of_run=False, certain=False), f"{evidence}; {who.words}"
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if seen.certain else Severity.WARNING,
        subject=device.label,
        reason=f"{said}; {memory}; {evidence}",
        evidence=(*_probe(device, facts, limits), seen.pace.words),
        cause=_cause(seen, wsl=isinstance(facts.wsl, Known), windows=windows),
        remedy=_remedy(seen, facts, windows=windows),
        device=device.uuid,
    )


def _cause(seen: Ghost, *, wsl: bool, windows: bool) -> str:
    if not seen.dead:
        return "what the run started on the device does not end: a hung kernel or collective, or a broken CUDA context"
    if seen.certain:
        return "a CUDA context outlived its process"
    beside = "a program of Windows" if windows else "something out of our sight"
    if wsl and not windows:
        beside = "another distribution or a program of Windows"
    return f"a CUDA context outlived its process, or {beside} uses the device"


def _remedy(seen: Ghost, facts: Facts, *, windows: bool) -> Remedy:
    if seen.of_run:
        return Remedy.RELAUNCH
    if isinstance(facts.wsl, Known):
        return Remedy.WSL_SHUTDOWN if seen.certain or not windows else Remedy.LOOK
    if not seen.certain:  # core/probing.py measures nothing beside what may be somebody's
        return Remedy.LOOK
    processes = value_of(facts.processes)
    # A reboot would end the run that trains on another device.
    return Remedy.RESET_DEVICE if processes is not None and processes.run else Remedy.REBOOT


def _memory(device: Device) -> str:
    used, total = value_of(device.now.memory_used_bytes), value_of(device.memory_total_bytes)
    return "" if used is None or total is None else f"memory {size(used)} of {size(total)}"


def _probe(device: Device, facts: Facts, limits: Limits) -> tuple[str, ...]:
    for probe in value_of(facts.probe) or ():
        if isinstance(probe, Probe) and probe.device == device.uuid:
            own = "" if probe.baseline_tflops is None else f", this card's own baseline {probe.baseline_tflops:.1f}"
            return (f"probe {probe.tflops:.2f} TFLOP/s (floor {limits.compute_floor_tflops:.1f}{own})",)
    return ()
