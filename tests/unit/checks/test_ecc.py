"""Memory errors: uncorrected, rows that cannot be remapped, rows that wait for a reset."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import UUID, gpu, host
from watchdog.checks import ecc
from watchdog.core.facts import Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

HEALTHY = dict(
    ecc_uncorrected=0,
    ecc_corrected=0,
    remapped_correctable=0,
    remapped_uncorrectable=0,
    remap_pending=False,
    remap_failed=False,
)


def judge(limits: Limits | None = None, **changes: Any) -> tuple[Finding, ...]:
    return ecc.check(host(devices=(gpu(**(HEALTHY | changes)),)), limits or Limits())


@pytest.mark.parametrize(
    ("changes", "severity", "remedy", "words"),
    [
        ({"ecc_uncorrected": 1}, Severity.CRITICAL, Remedy.RESET_DEVICE, "memory errors: 1 uncorrected, 0 corrected"),
        ({"remap_failed": True, "ecc_uncorrected": 2}, Severity.CRITICAL, Remedy.REPLACE, "could not be remapped, 2 "),
        ({"remap_pending": True, "remapped_uncorrectable": 1}, Severity.WARNING, Remedy.RESET_DEVICE, "waits for a"),
    ],
)
def test_fires(changes: dict[str, Any], severity: Severity, remedy: Remedy, words: str) -> None:
    (finding,) = judge(**changes)
    assert (finding.severity, finding.remedy, finding.device) == (severity, remedy, UUID)
    assert words in finding.reason


@pytest.mark.parametrize(
    "changes", [{}, {"ecc_corrected": 9000}, {"remapped_uncorrectable": 2}, {"remapped_correctable": 3}]
)
def test_what_was_corrected_is_fine(changes: dict[str, int]) -> None:
    (finding,) = judge(**changes)
    assert finding.severity is Severity.OK
    for count in changes.values():
        assert str(count) in finding.reason


def test_the_limit_is_passed_in() -> None:
    assert judge(Limits(ecc_uncorrected=3), ecc_uncorrected=2)[0].severity is Severity.OK
    assert judge(Limits(ecc_uncorrected=3), ecc_uncorrected=3)[0].severity is Severity.CRITICAL


def test_unknown_is_not_fine_and_absent_no_word() -> None:
    assert judge(ecc_uncorrected=Unknown("code 999")) == ()
    assert judge(ecc_uncorrected=Unknown("code 999"), remap_failed=True)[0].severity is Severity.CRITICAL
    assert ecc.check(host(), Limits()) == ()  # a GeForce
    assert ecc.check(host(devices=Unknown("no answer")), Limits()) == ()


@pytest.mark.parametrize("gone", [dict(missing=True), dict(lost_code=15), dict(lost_code=16), dict(lost_code=999)])
def test_what_was_read_before_a_device_was_lost_is_not_judged(gone: dict[str, Any]) -> None:
    assert judge(remap_failed=True, **gone) == ()


def test_windows_resets_no_device_by_itself() -> None:
    [found] = ecc.check(host(devices=(gpu(ecc_uncorrected=2),), wsl=WSL), Limits())
    assert found.remedy is Remedy.WSL_SHUTDOWN
