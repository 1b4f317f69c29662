"""Every check is in the catalogue, says what it proves and what only looks like it, and calls nothing unknown fine."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from pathlib import Path

import pytest

from watchdog import checks
from watchdog.checks.catalogue import CATALOGUE, Check, absent, judge
from watchdog.core.facts import Absent, Fact, Facts, Unknown
from watchdog.core.findings import Finding, Severity
from watchdog.core.limits import Limits

NO_CHECKS = {"catalogue", "figures"}
MODULES = sorted(name for _, name, _ in pkgutil.iter_modules(checks.__path__) if name not in NO_CHECKS)
FIELDS = {field.name for field in dataclasses.fields(Facts)} - {"at_s"}
WHY = "the stand-in could not see"


def all_facts(value: Fact[object]) -> Facts:
    return Facts(at_s=1.0, memory=value, disks=(value, value), locks=(value, value), driver=value, beat=value)  # type: ignore[arg-type]


def findings_of(check: Check, facts: Facts) -> tuple[Finding, ...]:
    return judge(facts, Limits(), (check,))


def test_every_check_is_in_the_catalogue_once() -> None:
    names = [importlib.import_module(f"watchdog.checks.{module}").NAME for module in MODULES]
    assert sorted(check.name for check in CATALOGUE) == sorted(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("module", MODULES)
def test_every_check_has_its_test(module: str, repository: Path) -> None:
    assert (repository / f"tests/unit/checks/test_{module}.py").is_file()


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_every_check_says_what_it_proves_and_its_near_misses(check: Check) -> None:
    assert "\nProves: " in check.about
    assert "\nNear misses: " in check.about
    assert check.proves.endswith(".")
    assert len(check.proves) < 100


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_needs_are_facts(check: Check) -> None:
    assert check.needs
    assert set(check.needs) <= FIELDS


def test_every_fact_is_needed_by_a_check() -> None:
    assert {need for check in CATALOGUE for need in check.needs} == FIELDS


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_unknown_facts_are_never_fine(check: Check) -> None:
    for finding in findings_of(check, all_facts(Unknown(WHY))):
        assert finding.severity is Severity.UNKNOWN
        assert WHY in finding.reason
        assert finding.check == check.name


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_each_unknown_fact_is_told_by_somebody(field: str) -> None:
    fact = Unknown(WHY)
    given = {"disks": (), "locks": ()} | {field: (fact,) if field in ("disks", "locks") else fact}
    facts = dataclasses.replace(all_facts(Absent("none here")), **given)  # type: ignore[arg-type]
    told = [finding for finding in judge(facts, Limits()) if WHY in finding.reason]
    assert [finding.severity for finding in told] == [Severity.UNKNOWN]


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_absent_facts_are_no_alarm(check: Check) -> None:
    severities = {finding.severity for finding in findings_of(check, all_facts(Absent("none here")))}
    assert severities <= {Severity.OK, Severity.UNKNOWN}


def test_absent_is_told_apart_from_passed() -> None:
    facts = dataclasses.replace(all_facts(Unknown(WHY)), driver=Absent("none here"))
    assert absent(facts) == ("driver",)


def test_a_check_that_fails_is_a_finding_and_costs_no_other() -> None:
    def broken(facts: Facts, limits: Limits) -> Finding:
        raise ZeroDivisionError("seven by nought")

    bad = dataclasses.replace(CATALOGUE[-1], name="broken", judge=broken)
    found = judge(all_facts(Unknown(WHY)), Limits(), (bad, *CATALOGUE))
    assert (found[0].check, found[0].severity) == ("broken", Severity.UNKNOWN)
    assert "seven by nought" in found[0].reason
    assert found[1:] == judge(all_facts(Unknown(WHY)), Limits())
