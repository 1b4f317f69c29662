"""Every check is in the catalogue, says what it proves and what only looks like it, and calls nothing unknown fine."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import NO_RUN, ghost_gpu
from tests.unit.checks.host import UUID, gpu, host
from watchdog import checks, render_faults, render_schema, settings_limits
from watchdog.checks import xid_table
from watchdog.checks.catalogue import CATALOGUE, GATES, GATING, TOLD_BY, Check, absent, judge
from watchdog.core.facts import Absent, Driver, Fact, Facts, KernelLine, KernelLog, Probe, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

NO_CHECKS = {"catalogue", "contradiction", "figures", "owners", "silent", "working", "leftover", "xid_table"}
MODULES = sorted(name for _, name, _ in pkgutil.iter_modules(checks.__path__) if name not in NO_CHECKS)
FIELDS = set(Facts.__struct_fields__) - {"at_s", "wall_s", "blind_s", "supervisor"}
LIMITS = set(Limits.__struct_fields__)
WHY = "the stand-in could not see"
BRIDGE = KernelKind.DXG_BRIDGE


def all_facts(value: Fact[Any]) -> Facts:
    given = {name: (value, value) if name in ("disks", "locks") else value for name in FIELDS}
    return Facts(at_s=1.0, wall_s=2.0, **given)  # type: ignore[arg-type]


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
def test_needs_are_facts_limits_are_limits_and_remedies_are_named_once(check: Check) -> None:
    assert check.needs
    assert set(check.needs) <= FIELDS
    assert set(check.limits) <= LIMITS
    assert len(set(check.remedies)) == len(check.remedies)
    assert Remedy.NONE not in check.remedies
    assert check.worst >= Severity.WARNING


def test_every_limit_is_some_checks_and_every_remedy_too() -> None:
    """Nothing can be configured that nobody looks at, and no next step is kept that nobody names."""
    elsewhere = {"off", "xid", "devices", "devices_named", "memory_need_bytes", "memory_learned"}
    assert {name for check in CATALOGUE for name in check.limits} | elsewhere == LIMITS
    assert {remedy for check in CATALOGUE for remedy in check.remedies} | {Remedy.NONE} == set(Remedy)


def test_every_limit_has_a_key_and_the_same_default() -> None:
    """What is not among [limits] is configured elsewhere: the job's own need, devices and deadline."""
    keys = {field.name: field.default for field in msgspec.structs.fields(settings_limits.Limits)}
    defaults = {name: getattr(Limits(), name) for name in LIMITS}
    elsewhere = {"memory_need_bytes", "memory_learned", "disk_need_bytes", "train_deadline_s", "off", "xid"}
    elsewhere |= {"devices", "devices_named", "devices_doubt", "first_step_deadline_s"}
    assert keys == {name: default for name, default in defaults.items() if name not in elsewhere}
    assert settings_limits.ACTIONS == xid_table.ACTIONS


def test_a_healthy_host_is_in_order() -> None:
    loud = [finding for finding in judge(host(), Limits()) if finding.severity is not Severity.OK]
    assert loud == []


def test_a_check_that_is_switched_off_says_nothing() -> None:
    off = Limits(off=frozenset({"memory", "driver"}))
    assert not {"memory", "driver"} & {finding.check for finding in judge(host(), off)}


def test_a_device_that_the_job_does_not_name_is_never_critical() -> None:
    lost = host(devices=(gpu(lost_code=15), gpu(uuid="GPU-other", index=1)))
    assert Severity.CRITICAL in {finding.severity for finding in judge(lost, Limits())}
    for devices in (("GPU-other",), ("1",), ()):
        found = [each for each in judge(lost, Limits(devices=devices)) if each.check == "gpu-lost"]
        assert max(each.severity for each in found) is Severity.WARNING
        assert "this job does not use the device" in [line for each in found for line in each.evidence]


@pytest.mark.parametrize(
    ("check", "trouble"),
    [
        ("driver", dict(driver=Driver(node="/dev/nvidiactl", library="/lib/x", code=999))),
        ("driver-mismatch", dict(driver=Driver(node="/dev/nvidiactl", library="/lib/x", code=18))),
        ("driver-hung", dict(driver=Driver(version="560", devices=1, silent_s=99.0))),
        ("driver-crash", dict(driver=Driver(version="560", devices=1, crashes=9))),
        ("gpu-lost", dict(driver=Driver(node="/dev/nvidiactl", code=15))),
        ("reset-required", dict(driver=Driver(node="/dev/nvidiactl", code=16))),
        ("dxg-bridge", dict(kernel=KernelLog(lines=(KernelLine(at_s=9999.0, kind=BRIDGE, text="-75"),), since_s=0.0))),
    ],
)
def test_for_a_job_that_uses_no_gpu_nothing_of_gpus_is_critical(check: str, trouble: dict[str, Any]) -> None:
    sick = host(**({"devices": Unknown("no answer")} | trouble))
    for devices, severity in ((None, Severity.CRITICAL), (("0",), Severity.CRITICAL), ((), Severity.WARNING)):
        found = [each for each in judge(sick, Limits(devices=devices)) if each.severity >= Severity.WARNING]
        assert [(each.check, each.severity) for each in found] == [(check, severity)]
        assert ("this job uses no GPU" in found[0].evidence) is (devices == ())


def test_a_device_without_a_uuid_may_be_the_jobs() -> None:
    nameless = gpu(uuid="no UUID, index 0", lost_code=15)
    lost = host(devices=(nameless, gpu(uuid="GPU-other", index=1)))
    for devices, severity in ((("GPU-3f1c",), Severity.CRITICAL), (("GPU-other",), Severity.WARNING)):
        found = [each for each in judge(lost, Limits(devices=devices)) if each.check == "gpu-lost"]
        assert max(each.severity for each in found) is severity


def test_a_ghost_explains_a_slow_probe_and_nothing_else_does() -> None:
    slow = Probe(
        device=UUID, name="", tflops=0.6, dtype="bf16", size=8192, seconds=1.0, correct=True, worst_error=0.0,
        baseline_tflops=None, baseline_count=0,
    )  # fmt: skip
    haunted = host(devices=(ghost_gpu(),), probe=(slow,), **NO_RUN)

    def told(facts: Facts, **limits: Any) -> list[str]:
        found = judge(facts, Limits(**limits))
        return [each.check for each in found if each.severity is Severity.CRITICAL]

    assert told(haunted) == ["ghost-context"]
    assert told(haunted, devices=()) == []
    assert told(haunted, off=frozenset({"ghost-context"})) == ["compute-floor"]
    assert told(host(probe=(slow,), **NO_RUN)) == ["compute-floor"]
    assert set(TOLD_BY) | set(TOLD_BY.values()) <= {check.name for check in CATALOGUE}


def test_the_gates_are_checks_that_can_be_critical() -> None:
    assert {check.name for check in GATING} == GATES
    assert all(check.worst is Severity.CRITICAL for check in GATING)


def test_the_pages_made_from_the_catalogue_are_not_stale(repository: Path) -> None:
    faults = (repository / "docs/faults.md").read_text(encoding="utf-8")
    assert faults == render_faults.page(), "python -P -m watchdog.render_faults > docs/faults.md"
    schema = (repository / "docs/diagnose.schema.json").read_text(encoding="utf-8")
    assert schema == render_schema.page(), "python -P -m watchdog.render_schema > docs/diagnose.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))


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
    facts = replace(all_facts(Absent("none here")), **given)  # type: ignore[arg-type]
    told = [finding for finding in judge(facts, Limits()) if WHY in finding.reason]
    assert [finding.severity for finding in told] == [Severity.UNKNOWN]


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_absent_facts_are_no_alarm(check: Check) -> None:
    severities = {finding.severity for finding in findings_of(check, all_facts(Absent("none here")))}
    assert severities <= {Severity.OK, Severity.UNKNOWN}


def test_absent_is_told_apart_from_passed() -> None:
    facts = replace(all_facts(Unknown(WHY)), driver=Absent("none here"))
    assert set(absent(facts)) == {check.name for check in CATALOGUE if check.needs[0] == "driver"}


def test_a_check_that_fails_is_a_finding_and_costs_no_other() -> None:
    def broken(facts: Facts, limits: Limits) -> Finding:
        raise ZeroDivisionError("seven by nought")

    bad = replace(CATALOGUE[-1], name="broken", judge=broken)
    found = judge(all_facts(Unknown(WHY)), Limits(), (bad, *CATALOGUE))
    assert (found[0].check, found[0].severity) == ("broken", Severity.UNKNOWN)
    assert "seven by nought" in found[0].reason
    assert found[1:] == judge(all_facts(Unknown(WHY)), Limits())
