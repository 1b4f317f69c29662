"""Names of devices that fit none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import UUID, gpu, host
from watchdog.checks import device_missing
from watchdog.core.facts import Absent, Driver, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(named: tuple[str, ...] | None, **changes: Any) -> Finding | tuple[Finding, ...]:
    found = device_missing.check(host(**changes), Limits(devices=named))
    return found[0] if found else ()


@pytest.mark.parametrize("name", ["1", "GPU-9999", "3f1c0a52"])
def test_fires_and_lists_what_is_there(name: str) -> None:
    finding = judge(("0", name))
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.CHECK_DEVICES)
    assert finding.reason == f"1 of 2 devices that the job names is not here: {name}"
    assert finding.evidence == ("0: NVIDIA GeForce RTX 3060 (GPU-3f1c0a52)",)


@pytest.mark.parametrize("named", [None, (), ("0",), ("GPU-3f1c",), ("gpu-3F1C0A52",), (UUID, "0")])
def test_names_that_fit_are_fine(named: tuple[str, ...] | None) -> None:
    finding = judge(named)
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.OK


def test_a_device_that_is_gone_is_told_by_gpu_lost() -> None:
    finding = judge(("GPU-3f1c",), devices=(gpu(missing=True),))
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.OK


@pytest.mark.parametrize(
    "changes",
    [dict(devices=Unknown("no answer")), dict(devices=Absent("none")), dict(devices=(), driver=Driver(code=999))],
)
def test_nothing_is_missing_where_nothing_is_seen(changes: dict[str, Any]) -> None:
    assert judge(("GPU-9999",), **changes) == ()


def test_a_prefix_that_fits_several_is_a_doubt() -> None:
    two = (gpu(), gpu(uuid="GPU-3f2b0000-1", index=1))
    for named in (("GPU-3f",), ("0", "GPU-3")):
        finding = judge(named, devices=two)
        assert isinstance(finding, Finding)
        assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.CHECK_DEVICES)
        assert finding.reason.startswith(f"{named[-1]} fits 2 devices, so which is meant cannot be told")
        assert len(finding.evidence) == 2
    for named in (("GPU-3f1",), ("0", "1")):
        finding = judge(named, devices=two)
        assert isinstance(finding, Finding)
        assert finding.severity is Severity.OK


def test_a_mig_instance_is_a_name() -> None:
    (finding,) = device_missing.check(host(), Limits(devices=None, devices_named=True))
    assert finding.severity is Severity.OK
    assert "names none" not in finding.reason
    assert "MIG instance" in finding.reason


NAMELESS = gpu(uuid="no UUID, index 1", index=1, name=Unknown("lost"), lost_code=15)


@pytest.mark.parametrize(
    ("named", "fires"),
    [
        (("GPU-9999",), False),  # it may be the one that tells no UUID: gpu-lost speaks of it
        (("GPU-9999", "GPU-3f1c"), False),
        (("GPU-9999", "GPU-8888"), True),  # it cannot be both
        (("GPU-9999", "7"), True),
    ],
)
def test_a_device_without_a_uuid_may_be_any(named: tuple[str, ...], fires: bool) -> None:
    finding = judge(named, devices=(gpu(), NAMELESS))
    assert isinstance(finding, Finding) is fires
    if isinstance(finding, Finding):
        assert finding.severity is Severity.CRITICAL
        assert finding.evidence[1] == "1: device 1 (no UUID)"


def test_a_value_that_cuda_cuts_short_is_a_warning_of_its_own() -> None:
    doubt = "CUDA_VISIBLE_DEVICES=7,foo: foo names no device that NVIDIA would know, so CUDA programs see only 7"
    found = device_missing.check(host(), Limits(devices=("7",), devices_doubt=doubt))
    assert [each.severity for each in found] == [Severity.WARNING, Severity.CRITICAL]
    assert found[0].reason == doubt
    (alone,) = device_missing.check(host(), Limits(devices=(), devices_doubt=doubt))
    assert (alone.severity, alone.remedy) == (Severity.WARNING, Remedy.CHECK_DEVICES)


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=Absent("the job uses no GPU"), driver=Absent("the job uses no GPU")),
        dict(devices=Unknown("no answer")),
        dict(devices=(), driver=Driver(code=999)),
    ],
    ids=["the supervisor of such a job asks no driver", "unknown", "failing"],
)
def test_a_value_that_leaves_no_gpu_is_told_where_no_device_was_looked_at(changes: dict[str, Any]) -> None:
    doubt = "CUDA_VISIBLE_DEVICES=cuda:0: cuda:0 names no device that NVIDIA would know, so CUDA programs see no GPU"
    (found,) = device_missing.check(host(**changes), Limits(devices=(), devices_doubt=doubt))
    assert (found.severity, found.reason, found.evidence) == (Severity.WARNING, doubt, ())
