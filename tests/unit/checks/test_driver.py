"""The driver: there, absent, failing, silent for a while; and what other checks tell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import host
from watchdog.checks import driver
from watchdog.core.facts import Absent, Driver, Unknown, Wsl
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NODE = "/dev/nvidiactl"
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"


def wsl(*, dxg: bool) -> Wsl:
    settings: Any = Absent()
    return Wsl(version=2, kernel="6.6", systemd=True, guest_settings=settings, windows_settings=settings, dxg=dxg)


def judge(fact: Any, limits: Limits | None = None, **changes: Any) -> Finding:
    found = driver.check(host(driver=fact, **changes), limits or Limits())
    assert isinstance(found, Finding)
    return found


def test_absent_is_no_fault_and_no_pass() -> None:
    finding = judge(Absent("no libnvidia-ml.so.1"))
    assert (finding.severity, finding.evidence) == (Severity.OK, ("no libnvidia-ml.so.1",))
    assert finding.reason == "no NVIDIA driver: GPU checks are absent, not passed"


def test_absent_is_critical_for_a_job_that_names_devices() -> None:
    finding = judge(Absent("no library"), Limits(devices=("GPU-3f1c",)))
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.CHECK_DEVICES)
    assert "GPU-3f1c" in finding.reason
    assert judge(Absent("no library"), Limits(devices=())).severity is Severity.OK


def test_no_answer_is_unknown_with_its_reason() -> None:
    finding = judge(Unknown("NVML could not be asked"))
    assert (finding.severity, finding.remedy) == (Severity.UNKNOWN, Remedy.LOOK)
    assert finding.reason == "NVML could not be asked"


def test_a_job_that_uses_no_gpu_is_told_why_nothing_was_looked_at() -> None:
    finding = judge(Absent("the job uses no GPU"), Limits(devices=()))
    assert (finding.severity, finding.reason) == (Severity.OK, "GPU checks are absent, not passed: the job uses no GPU")


@pytest.mark.parametrize(
    ("devices", "severity", "words"),
    [(0, Severity.WARNING, "0 devices"), (1, Severity.OK, "1 device"), (8, Severity.OK, "8 devices")],
)
def test_devices_are_counted(devices: int, severity: Severity, words: str) -> None:
    finding = judge(Driver(version="560.35.03", cuda_version="12.6", devices=devices))
    assert finding.severity is severity
    assert finding.reason == f"NVIDIA driver 560.35.03, CUDA 12.6, {words}"


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        (9, Severity.CRITICAL, "the driver is not loaded (code 9): no luck"),
        (12, Severity.CRITICAL, "its library cannot be loaded (code 12)"),
        (17, Severity.WARNING, "a cgroup blocks it (code 17)"),
        (999, Severity.CRITICAL, "(code 999)"),
        (3, Severity.CRITICAL, "answers with code 3"),
    ],
)
def test_a_code_with_a_node_is_told(code: int, severity: Severity, words: str) -> None:
    finding = judge(Driver(code=code, error="no luck", node=NODE, library="/usr/lib/libnvidia-ml.so.1"))
    assert (finding.severity, finding.remedy) == (severity, Remedy.CHECK_DRIVER)
    assert finding.reason.startswith("/dev/nvidiactl is there, but NVML ")
    assert words in finding.reason
    assert ("Xid 79" in finding.cause) is (code == 999)


def test_a_node_without_a_library_is_told() -> None:
    assert "cannot be loaded (code 12)" in judge(Driver(node=NODE)).reason


def test_a_library_without_a_node_is_no_driver() -> None:
    finding = judge(Driver(code=9, library="/usr/lib/libnvidia-ml.so.1"))
    assert (finding.severity, finding.reason) == (Severity.OK, driver.ABSENT)
    assert "code 9" in finding.evidence[0]
    finding = judge(Driver(code=999, error="unknown", library="/usr/lib/libnvidia-ml.so.1"))
    assert finding.severity is Severity.WARNING


def test_the_bridge_of_wsl_can_vanish() -> None:
    gone = Driver(code=9, error="not loaded", library=WSL_LIBRARY)
    finding = judge(gone, wsl=wsl(dxg=False))
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.WSL_SHUTDOWN)
    assert "AC is unplugged" in finding.cause
    assert judge(gone, wsl=wsl(dxg=True)).remedy is not Remedy.WSL_SHUTDOWN
    # a library from a Linux package on a machine without NVIDIA
    package = Driver(code=9, library="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    assert judge(package, wsl=wsl(dxg=False)).severity is Severity.OK


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (dict(version="560", devices=1, silent_s=12.0), "for 12 s (60 s of it would be a hung driver)"),
        (dict(version="560", devices=1, crashes=1, crash="signal 11"), "1 child died asking NVML"),
        (dict(version="560", devices=1, crashes=2, crash="signal 11"), "2 children in a row died asking NVML"),
        (dict(version=None), "has not said yet"),
        (dict(version="560", devices=None), "has not said yet"),
    ],
)
def test_what_can_come_back_is_unknown(state: dict[str, Any], words: str) -> None:
    finding = judge(Driver(**state))
    assert finding.severity is Severity.UNKNOWN
    assert words in finding.reason


@pytest.mark.parametrize(
    "state",
    [dict(code=15), dict(code=16), dict(code=18), dict(silent_s=60.0), dict(crashes=3), dict(code=9, crashes=3)],
)
def test_what_other_checks_tell_is_not_told_twice(state: dict[str, Any]) -> None:
    assert driver.check(host(driver=Driver(version="560", devices=1, node=NODE, **state)), Limits()) == ()
