"""One look at the host: gather the facts, judge them, done.

Responsible for asking every collector at once, for waiting no longer than told, and for the exit code that
monitoring plugins know. Works without configuration, without root, without a GPU, inside containers.
Refuses to print, to write anything, to take or try a lock, and to change what it looks at.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from watchdog.checks import catalogue
from watchdog.clock import Clock
from watchdog.collectors.disks import DiskReader
from watchdog.collectors.driver import DriverReader
from watchdog.collectors.locks import read_lock
from watchdog.collectors.memory import read_memory
from watchdog.collectors.roots import Roots
from watchdog.collectors.runner import Runner
from watchdog.core.diagnosis import Diagnosis, exit_code
from watchdog.core.facts import BeatFact, Fact, Facts
from watchdog.core.limits import Limits

_Call = Callable[[], Fact[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """What to look at: (path, purpose) pairs. Disks: state, checkpoints, cache. Locks: supervisor, run.

    A purpose names a collector, so each is there once.
    """

    disks: Sequence[tuple[str, str]] = ()
    locks: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        for pairs in (self.disks, self.locks):
            purposes = [purpose for _, purpose in pairs]
            if len(set(purposes)) != len(purposes):
                raise ValueError(f"a purpose is given twice: {', '.join(purposes)}")


def collectors_of(targets: Targets, roots: Roots, clock: Clock, deadline_s: float) -> dict[str, _Call]:
    """What to call, by the collector's name as metrics and status show it."""
    partial = functools.partial
    calls: dict[str, _Call] = {
        "driver": partial(DriverReader(roots, clock).read, deadline_s),
        "memory": partial(read_memory, roots, clock),
    }
    for path, purpose in targets.disks:
        calls[f"disk_{purpose}"] = partial(DiskReader(path, purpose, roots, clock).read, deadline_s)
    for path, purpose in targets.locks:
        calls[f"lock_{purpose}"] = partial(read_lock, path, purpose, roots, clock)
    return calls


def diagnose(
    targets: Targets,
    limits: Limits,
    *,
    roots: Roots,
    clock: Clock,
    beat: Fact[BeatFact],
    deadline_s: float = 10.0,
) -> Diagnosis:
    """Look once. Takes as long as the slowest collector, and `deadline_s` and a second at most."""
    runner = Runner(clock)
    calls = collectors_of(targets, roots, clock, deadline_s)
    for name, call in calls.items():
        runner.start(name, call)
    # One second more than a child is given: its own word on what hung is worth more than ours.
    answers = {name: runner.wait(name, deadline_s + 1.0) for name in calls}
    facts = Facts(
        at_s=clock.monotonic(),
        memory=answers["memory"],
        disks=tuple(answers[f"disk_{purpose}"] for _, purpose in targets.disks),
        locks=tuple(answers[f"lock_{purpose}"] for _, purpose in targets.locks),
        driver=answers["driver"],
        beat=beat,
    )
    findings = catalogue.judge(facts, limits)
    return Diagnosis(
        findings=findings,
        exit_code=exit_code(findings),
        absent=catalogue.absent(facts),
        taken_wall_s=clock.wall(),
        facts=facts,
        collectors=runner.views(),
    )
