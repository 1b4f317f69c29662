"""Every scenario file gives exactly the findings that it names; every check has one that fires and a near miss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.world import World, scenario_files
from watchdog.checks.catalogue import CATALOGUE
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.probing import to_measure

SCENARIOS = scenario_files()
BY_NAME = {check.name: check for check in CATALOGUE}


def told(finding: Finding) -> tuple[str, str]:
    return finding.check, finding.severity.name.lower()


def they_are(expected: list[dict[str, str]], findings: Sequence[Finding]) -> None:
    """All that is loud in one look, and nothing else."""
    loud = [finding for finding in findings if finding.severity is not Severity.OK]
    wanted = sorted((each["check"], each["severity"]) for each in expected)
    assert sorted(map(told, loud)) == wanted, "\n".join(
        f"{told(finding)}: {finding.subject} · {finding.reason} {finding.evidence}" for finding in loud
    )
    for each in expected:
        fitting = [finding for finding in loud if told(finding) == (each["check"], each["severity"])]
        if "remedy" in each:
            assert any(finding.remedy.name.lower() == each["remedy"] for finding in fitting), fitting
        if "subject" in each:
            assert any(each["subject"] in finding.subject for finding in fitting), fitting


def near_misses_speak(expect: dict[str, Any], findings: Sequence[Finding]) -> None:
    """A check that says nothing at all was not put to the test, unless it leaves the word to another on purpose."""
    said = {finding.check for finding in findings}
    silent: dict[str, str] = expect.get("silent", {})
    assert {name for name in expect.get("near", []) if name not in said} == set(silent), said
    for name, why in silent.items():
        assert why, name
        assert not why.startswith("told by ") or why.removeprefix("told by ") in said, f"{name}: {why}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_findings_are_exactly_those(path: Path, tmp_path: Path) -> None:
    world = World(path, tmp_path)
    outcome = world.look()
    they_are(world.expect["findings"], outcome.findings)
    for earlier in world.expect.get("at", []):
        they_are(earlier["findings"], outcome.each[earlier["look"] - 1])
    words = "\n".join(f"{finding.reason}\n{finding.cause}\n" + "\n".join(finding.evidence) for finding in outcome.loud)
    for part in world.expect.get("says", []):
        assert part in words, words
    near_misses_speak(world.expect, outcome.findings)
    if "measure" in world.expect:
        found = to_measure(outcome.facts, world.limits)
        assert world.expect["measure"] in found if isinstance(found, str) else world.expect["measure"] == "", found
    for finding in outcome.findings:  # nobody says more than the catalogue promises
        check = BY_NAME[finding.check]
        assert finding.severity <= check.worst or finding.severity is Severity.UNKNOWN, finding
        assert finding.remedy in (*check.remedies, Remedy.NONE), finding


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_every_check_fires_in_one_scenario_and_has_a_near_miss(check: object) -> None:
    import tomllib

    name = check.name  # type: ignore[attr-defined]
    expectations = [tomllib.loads(path.read_text(encoding="utf-8"))["expect"] for path in SCENARIOS]
    loud = {"warning", "critical"}
    assert any(
        each["check"] == name and each["severity"] in loud for expect in expectations for each in expect["findings"]
    ), f"no scenario in which {name} fires"
    near = [expect for expect in expectations if name in expect.get("near", [])]
    assert near, f"no scenario that is a near miss of {name}"
    for expect in near:
        assert name not in [each["check"] for each in expect["findings"]]


def test_expectations_name_checks_that_there_are() -> None:
    import tomllib

    for path in SCENARIOS:
        expect = tomllib.loads(path.read_text(encoding="utf-8"))["expect"]
        named = {each["check"] for each in expect["findings"]} | set(expect.get("near", []))
        assert named <= set(BY_NAME), path.name
