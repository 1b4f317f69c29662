"""One look at the host: gather the facts, judge them, and look again where one look proves nothing.

Responsible for asking every collector at once, for waiting no longer than told, for further looks when a check wants
them, for the probe when a device may be measured, and for the exit code that monitoring plugins know. Works without
configuration, without root, without a GPU, inside containers.
Refuses to print, to write anything, to take or try a lock, and to change what it looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from watchdog.checks import catalogue
from watchdog.checks.catalogue import CATALOGUE, Check
from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.core.diagnosis import Diagnosis, exit_code
from watchdog.core.facts import Device, Fact, Facts, Probe
from watchdog.core.limits import Limits
from watchdog.core.probing import to_measure
from watchdog.lookout import Lookout, OfRun, Targets

__all__ = ["OfRun", "Targets", "diagnose", "needs_of"]

# Utilization is averaged over up to a second, power over one: looks closer together would be one look said twice.
_PAUSE_S = 0.5
_MOST_LOOKS = 30
_FOR_ALL = frozenset({"devices"})  # the catalogue itself asks which device a finding is about
_FOR_MEASURING = frozenset({"processes", "beat", "locks"})  # who must not be disturbed

Measure = Callable[[Facts, tuple[Device, ...]], Fact[tuple[Probe, ...]]]


def needs_of(checks: tuple[Check, ...]) -> frozenset[str]:
    """The facts that these checks look at."""
    needs = frozenset(need for check in checks for need in check.needs) | _FOR_ALL
    return needs | _FOR_MEASURING if "probe" in needs else needs


def diagnose(
    targets: Targets,
    limits: Limits,
    *,
    roots: Roots,
    clock: Clock,
    environ: Mapping[str, str],
    run: OfRun,
    checks: tuple[Check, ...] = CATALOGUE,
    measure: Measure | None = None,
    remembered: Callable[[Facts], Facts] = lambda facts: facts,
    deadline_s: float = 10.0,
    pause_s: float = _PAUSE_S,
) -> Diagnosis:
    """Look as often as the checks want it. One look takes as long as the slowest collector, `deadline_s` + 1 at most.

    `measure` runs the probe on the devices that it is given; None = nothing is measured. `remembered` puts in what a
    supervisor knows from watching.
    """
    lookout = Lookout(
        targets,
        roots=roots,
        clock=clock,
        environ=environ,
        only=None if checks == CATALOGUE else needs_of(checks),
    )
    try:
        facts = remembered(lookout.gather(run, deadline_s))
        for _ in range(_MOST_LOOKS):
            findings = catalogue.judge(facts, limits, checks)
            if not any(finding.looks_wanted for finding in findings):
                break
            clock.sleep(pause_s)
            facts = remembered(lookout.gather(run, deadline_s))
    finally:
        lookout.close()
    facts = _measured(facts, limits, checks, measure)
    findings, absent = catalogue.judge(facts, limits, checks), catalogue.absent(facts, checks)
    return Diagnosis(
        findings=findings,
        exit_code=exit_code(findings, absent),
        absent=absent,
        taken_wall_s=clock.wall(),
        facts=facts,
        collectors=lookout.views(),
    )


def _measured(facts: Facts, limits: Limits, checks: tuple[Check, ...], measure: Measure | None) -> Facts:
    if measure is None or "probe" not in needs_of(checks):
        return facts
    devices = to_measure(facts, limits)
    return facts if isinstance(devices, str) else replace(facts, probe=measure(facts, devices))
