"""A check that was asked for by name always answers: absent where there is nothing to judge, unknown where unseen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import NO_RUN, ghost_gpu
from tests.unit.checks.host import UUID, gpu, host
from watchdog.checks.catalogue import CATALOGUE, judge
from watchdog.checks.silent import silent
from watchdog.core.facts import Absent, Driver, Facts, Probe, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

SICK = dict(devices=Unknown("no answer"))


def word(name: str, facts: Facts, **limits: Any) -> Finding:
    """What is said of a check that is asked for alone, by itself or for it."""
    checks = tuple(check for check in CATALOGUE if check.name == name)
    found = judge(facts, Limits(**limits), checks)
    (finding, *_) = (*found, *silent(facts, Limits(**limits), checks, found))
    return finding


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_no_check_is_ever_without_a_word(check: Any) -> None:
    nothing: Any = Absent("none here")
    fields = {name: nothing for name in Facts.__struct_fields__ if name not in ("at_s", "wall_s", "blind_s")}
    empty = Facts(at_s=1.0, wall_s=2.0, **fields | {"disks": (), "locks": (), "supervisor": None})
    assert word(check.name, host()).severity is Severity.OK
    assert word(check.name, empty).severity is Severity.OK
    assert word(check.name, host(driver=Driver(version="560", devices=1, silent_s=3.0), **SICK)).reason


@pytest.mark.parametrize("name", ["sysmem-paging", "windows-drive"])
def test_nothing_to_judge_is_absent_in_words(name: str) -> None:
    (check,) = (each for each in CATALOGUE if each.name == name)
    finding = word(name, host())
    assert (finding.severity, finding.subject) == (Severity.OK, name)
    assert finding.reason == f"nothing here that it judges: {check.proves}"


@pytest.mark.parametrize("name", ["driver-hung", "gpu-lost", "ecc", "xid", "device-readings", "blind", "compute-floor"])
def test_a_driver_that_is_silent_leaves_nothing_judged(name: str) -> None:
    finding = word(name, host(driver=Driver(version="560", devices=1, silent_s=3.0), **SICK))
    assert finding.check == finding.subject == name
    assert (finding.severity, finding.remedy) == (Severity.UNKNOWN, Remedy.WAIT_LONGER)
    assert finding.reason == "NVML has not answered for 3.0 s (60 s of it would be a hung driver)"


def test_a_driver_that_another_check_tells_of_is_no_pass() -> None:
    assert "code 18" in word("driver", host(driver=Driver(node="/dev/nvidiactl", code=18), **SICK)).reason
    hung = word("ecc", host(driver=Driver(version="560", devices=1, silent_s=99.0), **SICK))
    assert (hung.severity, hung.reason) == (Severity.UNKNOWN, "NVML has not answered for 99 s")
    crashed = host(driver=Driver(version="560", devices=1, crashes=9, crash="died of signal 11"), **SICK)
    assert "died of signal 11" in word("ecc", crashed).reason
    none = word("gpu-lost", host(driver=Driver(code=9), **SICK))
    assert (none.severity, "no NVIDIA driver" in none.reason) == (Severity.OK, True)


def test_a_fact_that_cannot_be_seen_gives_its_reason() -> None:
    assert word("windows-drive", host(disks=(Unknown("the mount hangs"),))).reason == "the mount hangs"
    assert word("cgroup-limit", host(memory=Unknown("no /proc"))).severity is Severity.UNKNOWN


def test_a_device_that_tells_nothing_is_no_pass() -> None:
    assert word("ecc", host(devices=(gpu(lost_code=15),))).severity is Severity.UNKNOWN
    unread = word("ecc", host(devices=(gpu(ecc_uncorrected=Unknown("code 999")),)))
    assert (unread.severity, "code 999" in f"{unread.reason} {unread.evidence}") == (Severity.UNKNOWN, True)
    others = host(devices=(gpu(uuid="GPU-other", index=1, lost_code=15),))
    assert word("ecc", others, devices=("GPU-3f",)).severity is Severity.OK


def test_switched_off_and_told_by_another() -> None:
    assert word("ecc", host(), off=frozenset({"ecc"})).reason == "switched off: [checks] off"
    slow = Probe(
        device=UUID, name="", tflops=0.6, dtype="bf16", size=8192, seconds=1.0, correct=True, worst_error=0.0,
        baseline_tflops=None, baseline_count=0,
    )  # fmt: skip
    facts = host(devices=(ghost_gpu(),), probe=(slow,), **NO_RUN)
    checks = tuple(check for check in CATALOGUE if check.name in ("ghost-context", "compute-floor"))
    (finding,) = silent(facts, Limits(), checks, judge(facts, Limits(), checks))
    assert (finding.check, finding.reason) == ("compute-floor", "ghost-context tells of it")
