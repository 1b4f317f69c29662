"""`watchdog diagnose` and `watchdog probe`: from settings to what is shown, with a supervisor's memory where one lives.

What needs a memory (progress over time, jumps of the clocks, kills since) is asked of the job's supervisor; without one
a single look says what it can. Takes no lock, writes nothing but, for `probe`, the baselines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from watchdog.checks.catalogue import CATALOGUE, Check
from watchdog.clock import SystemClock
from watchdog.collectors.roots import Roots
from watchdog.collectors.runner import Runner
from watchdog.core.diagnosis import Diagnosis, JobSeen
from watchdog.core.fact import Absent, Fact, Known, Unknown
from watchdog.core.facts import Device, Facts, Probed
from watchdog.core.findings import Severity
from watchdog.core.identity import ProcessId
from watchdog.diagnose import Measure, OfRun, Targets, diagnose
from watchdog.errors import SettingsError, StateError
from watchdog.folders import JobFolders
from watchdog.joblimits import limits_of
from watchdog.jobseen import job_seen, not_seen
from watchdog.lookout import Lookout
from watchdog.places import folders_of
from watchdog.settings import Settings

if TYPE_CHECKING:
    from watchdog.measuring import ProbeReport

_PROBE_WAIT_S = 10.0


def chosen(names: list[str]) -> tuple[Check, ...]:
    """The checks of these names, all of them without any. Raises SettingsError."""
    known = {check.name: check for check in CATALOGUE}
    for name in names:
        if name not in known:
            from watchdog.settings_meta import did_you_mean

            raise SettingsError(f"there is no check {name!r}{did_you_mean(name, known)}; watchdog diagnose --list")
    return tuple(check for check in CATALOGUE if not names or check.name in names)


def diagnose_job(
    settings: Settings, *, checks: tuple[Check, ...], probe: bool, wait_s: float, others: Sequence[Settings] = ()
) -> Diagnosis:
    """Everything that is seen from outside a job; takes no lock and needs no supervisor.

    `others`: further jobs, of which it is told whether they wait for a person.
    """
    folders, clock = folders_of(settings), SystemClock()
    runner = Runner(clock)  # the state folder may lie on a mount that hangs
    if checks == CATALOGUE:
        runner.start("job", lambda: Known(job_seen(settings), clock.monotonic()))
        runner.start("others", lambda: Known(_waiting(others), clock.monotonic()))
    memory, run, root = _known_of_run(settings, folders, clock, runner, wait_s)
    limits = run.limits(limits_of(settings, os.environ))
    return diagnose(
        _targets(folders, root),
        limits,
        roots=Roots(),
        clock=clock,
        environ=os.environ,
        run=run,
        checks=checks,
        measure=_measure(settings, clock) if probe else None,
        remembered=memory,
        deadline_s=wait_s,
        say=_say,
        job=_job(settings, runner.wait("job", wait_s)) if checks == CATALOGUE else None,
        others=_others(others, runner.wait("others", wait_s)) if checks == CATALOGUE else (),
    )


def _waiting(others: Sequence[Settings]) -> tuple[JobSeen, ...]:
    """Those on hold, and those of which nothing can be told."""
    return tuple(seen for seen in map(job_seen, others) if seen.state == "hold" or seen.severity is Severity.UNKNOWN)


def _others(others: Sequence[Settings], fact: Fact[tuple[JobSeen, ...]]) -> tuple[JobSeen, ...]:
    if isinstance(fact, Known):
        return fact.value
    return tuple(not_seen(settings, fact.why) for settings in others)


def _job(settings: Settings, fact: Fact[JobSeen]) -> JobSeen:
    return fact.value if isinstance(fact, Known) else not_seen(settings, fact.why)


def probe_job(settings: Settings, *, device: str | None, store: bool) -> ProbeReport:
    """Measure by hand."""
    from watchdog import measuring

    folders, clock = folders_of(settings), SystemClock()
    _, run, root = _known_of_run(settings, folders, clock, Runner(clock), _PROBE_WAIT_S)
    facts = _facts(_targets(folders, root), run, clock, measuring.needed())
    limits = run.limits(limits_of(settings, os.environ))
    return measuring.probe(settings, facts, limits, clock=clock, device=device, store=store, say=_say)


def _facts(targets: Targets, run: OfRun, clock: SystemClock, needs: frozenset[str]) -> Facts:
    lookout = Lookout(targets, roots=Roots(), clock=clock, environ=os.environ, only=needs)
    try:
        return lookout.gather(run, _PROBE_WAIT_S)
    finally:
        lookout.close()


def _targets(folders: JobFolders, root: ProcessId | None) -> Targets:
    return Targets(
        disks=[(str(folders.state), "state"), (str(folders.checkpoints), "checkpoints")],
        locks=[(str(folders.supervisor_lock), "supervisor"), (str(folders.run_lock), "run")],
        root=root,
    )


def _say(words: str) -> None:
    """Long work shows progress: to a person, on standard error."""
    if sys.stderr.isatty():
        print(words, file=sys.stderr, flush=True)


def _measure(settings: Settings, clock: SystemClock) -> Measure:
    def measure(facts: Facts, devices: tuple[Device, ...]) -> Fact[tuple[Probed, ...]]:
        from watchdog.measuring import Measuring, driver_of

        try:
            return Measuring(settings, clock, driver_of(facts), _say).measure(devices)
        except StateError as error:
            return Unknown(str(error))

    return measure


_OfRun = tuple[Callable[[Facts], Facts], OfRun, ProcessId | None]


def _known_of_run(settings: Settings, folders: JobFolders, clock: SystemClock, runner: Runner, wait_s: float) -> _OfRun:
    """As `_of_run`, within so many seconds."""
    found: Fact[_OfRun] = runner.collect(
        "run", lambda: Known(_of_run(settings, folders, clock), clock.monotonic()), wait_s
    )
    if isinstance(found, Known):
        return found.value
    why = Unknown(f"what the state folder {folders.state} says of the run is not known: {found.why}")
    return _as_seen, OfRun(beat=why, progress=why), None


def _of_run(settings: Settings, folders: JobFolders, clock: SystemClock) -> _OfRun:
    """What is known of a run, and how to put in what its supervisor remembers; cheap where there never was one."""
    if not folders.run_record.exists() and not folders.supervisor_lock.exists():
        never = Absent("no run was ever launched")
        return _as_seen, OfRun(beat=never, progress=never), None
    from watchdog.runfacts import of_run

    return of_run(settings, folders, clock)


def _as_seen(facts: Facts) -> Facts:
    return facts
