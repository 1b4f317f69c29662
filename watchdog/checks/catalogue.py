"""The one ordered list of checks. Adding a check is one file, one line here, one test.

Responsible for the order in which checks are told and for running all of them: one that fails becomes a finding and
takes no other with it. Refuses to be extended from outside: what is not in this list does not run.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Protocol, cast

from watchdog.checks import (
    beat_process,
    beat_stale,
    disk_inodes,
    disk_read_only,
    disk_space,
    driver,
    lock_path,
    locks,
    memory,
)
from watchdog.core.facts import Absent, Facts
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


class Judge(Protocol):
    """A pure function of the facts. It may assume nothing that NEEDS does not name."""

    def __call__(self, facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check: `needs` are field names of Facts; `proves` is a line for people, `about` the whole docstring."""

    name: str
    needs: tuple[str, ...]
    judge: Judge
    proves: str
    about: str


def _check(module: ModuleType) -> Check:
    about = module.__doc__ or ""
    return Check(
        name=module.NAME,
        needs=module.NEEDS,
        judge=cast(Judge, module.check),
        proves=about.strip().partition("\n")[0],
        about=about,
    )


# In the order of reading: who holds the job, is it moving, can it go on, on what.
CATALOGUE: tuple[Check, ...] = tuple(
    _check(module)
    for module in (
        locks,
        lock_path,
        beat_process,
        beat_stale,
        memory,
        disk_space,
        disk_inodes,
        disk_read_only,
        driver,
    )
)


def judge(facts: Facts, limits: Limits, checks: tuple[Check, ...] = CATALOGUE) -> tuple[Finding, ...]:
    """All findings, in the order of the list."""
    findings: list[Finding] = []
    for check in checks:
        try:
            found = check.judge(facts, limits)
        except Exception as error:  # a bug of ours: it must be heard, and cost only itself
            found = Finding(
                check=check.name,
                severity=Severity.UNKNOWN,
                subject=check.name,
                reason=f"the check itself failed: {type(error).__name__}: {error}",
                remedy=Remedy.LOOK,
            )
        findings.extend(found if isinstance(found, tuple) else (found,))
    return tuple(findings)


def absent(facts: Facts, checks: tuple[Check, ...] = CATALOGUE) -> tuple[str, ...]:
    """The checks that had nothing to look at, because what they need first is absent from this host."""
    return tuple(check.name for check in checks if isinstance(getattr(facts, check.needs[0]), Absent))
