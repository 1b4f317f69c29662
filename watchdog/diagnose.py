"""One look at the host: gather the facts, judge them, and look again where one look proves nothing.

Responsible for asking every collector at once, for waiting no longer than told, for further looks when a check wants
them, for the probe when a device may be measured, and for the exit code that monitoring plugins know. Works without
configuration, without root, without a GPU, inside containers. A host on which nothing is suspicious is looked at once.
Refuses to print, to write anything, to take or try a lock, and to change what it looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from watchdog.checks import catalogue
from watchdog.checks.catalogue import CATALOGUE, Check
from watchdog.checks.silent import silent
from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.core.diagnosis import Diagnosis, JobSeen, exit_code
from watchdog.core.facts import Absent, Device, Fact, Facts, Known, Probed
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits
from watchdog.core.probing import refused, to_measure
from watchdog.lookout import Lookout, OfRun, Targets

__all__ = ["OfRun", "Targets", "diagnose", "needs_of"]

# Utilization is averaged over up to a second, power over one: looks closer together would be one look said twice.
_PAUSE_S = 1.0
_MOST_LOOKS = 30  # as many samples of a device are kept
_FOR_ALL = frozenset({"devices"})  # the catalogue itself asks which device a finding is about
# Who must not be disturbed, and what a result is compared with.
_FOR_MEASURING = frozenset({"processes", "beat", "locks", "wsl", "driver"})

Measure = Callable[[Facts, tuple[Device, ...]], Fact[tuple[Probed, ...]]]


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
    say: Callable[[str], None] = lambda words: None,
    job: JobSeen | None = None,
    others: tuple[JobSeen, ...] = (),
) -> Diagnosis:
    """Look as often as the checks want it. One look takes as long as the slowest collector, `deadline_s` + 1 at most.

    All further looks together have `deadline_s`, or twice the time that their number takes where that is longer: a
    driver that hangs in the midst of them costs no multiple of it. `measure` runs the probe on the devices that it is
    given; None = nothing is measured. `remembered` puts in what a supervisor knows from watching; `say` is told what
    takes long; `job` and `others` count for the exit code. A check that was asked for by name always has a word.
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
        until_s = None
        for number in range(2, _MOST_LOOKS + 1):
            wanted = max((finding.looks_wanted for finding in catalogue.judge(facts, limits, checks)), default=0)
            now_s = clock.monotonic()
            if until_s is None:
                until_s = now_s + max(deadline_s, 2 * wanted * _PAUSE_S)
            left_s = until_s - now_s
            if not wanted or left_s <= _PAUSE_S:
                break
            say(f"looking again, {number} of {number + wanted - 1}: one look does not prove what it saw")
            clock.sleep(_PAUSE_S)
            facts = remembered(lookout.gather(run, min(deadline_s, left_s - _PAUSE_S)))
    finally:
        lookout.close()
    facts = _measured(facts, limits, checks, measure)
    findings, absent = catalogue.judge(facts, limits, checks), catalogue.absent(facts, checks)
    if checks != CATALOGUE:
        words = silent(facts, limits, checks, findings)
        order = [check.name for check in checks]
        findings = tuple(sorted((*findings, *words), key=lambda finding: order.index(finding.check)))
        nothing = (finding.check for finding in words if finding.severity is Severity.OK)
        absent = tuple(dict.fromkeys((*absent, *nothing)))
    return Diagnosis(
        findings=findings,
        exit_code=exit_code(findings, absent, job, others),
        absent=absent,
        taken_wall_s=clock.wall(),
        facts=facts,
        collectors=lookout.views(),
        job=job,
        others=others,
    )


def _measured(facts: Facts, limits: Limits, checks: tuple[Check, ...], measure: Measure | None) -> Facts:
    if measure is None or "probe" not in needs_of(checks):
        return facts
    devices = to_measure(facts, limits)
    if isinstance(devices, str):
        return replace(facts, probe=Absent(f"not measured: {devices}"))
    probe = measure(facts, devices)
    if isinstance(probe, Known):
        probe = Known((*probe.value, *refused(facts, limits)), probe.at_s)
    return replace(facts, probe=probe)
