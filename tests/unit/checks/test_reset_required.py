"""A GPU that wants a reset or a reboot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import UUID, gpu, host
from tests.unit.checks.test_driver import wsl
from watchdog.checks import reset_required
from watchdog.core.facts import Absent, Driver, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(*devices: Any, **changes: Any) -> tuple[Finding, ...]:
    return reset_required.check(host(devices=devices, **changes), Limits())


@pytest.mark.parametrize(
    ("state", "remedy", "words"),
    [
        ({"lost_code": 16}, Remedy.RESET_DEVICE, "code 16"),
        ({"recovery_action": 1}, Remedy.RESET_DEVICE, "action 1: reset"),
        ({"recovery_action": 2}, Remedy.REBOOT, "action 2: reboot"),
        ({"recovery_action": 3}, Remedy.RESET_DEVICE, "action 3: drain"),
        ({"recovery_action": 4}, Remedy.RESET_DEVICE, "action 4: drain and reset"),
    ],
)
def test_fires(state: dict[str, Any], remedy: Remedy, words: str) -> None:
    (finding,) = judge(gpu(**state))
    assert (finding.severity, finding.remedy, finding.device) == (Severity.CRITICAL, remedy, UUID)
    assert words in finding.reason
    (finding,) = judge(gpu(**state), wsl=wsl(dxg=True))
    assert finding.remedy is Remedy.WSL_SHUTDOWN


def test_an_action_that_is_not_known_is_a_warning() -> None:
    (finding,) = judge(gpu(recovery_action=7))
    assert finding.severity is Severity.WARNING
    assert "action 7" in finding.reason


def test_the_driver_may_not_say_which_one() -> None:
    (finding,) = judge(gpu(recovery_action=0), driver=Driver(code=16))
    assert (finding.severity, finding.subject) == (Severity.CRITICAL, "driver")
    (finding,) = judge(gpu(lost_code=16), driver=Driver(code=16))
    assert finding.device == UUID


def test_no_action_is_fine_and_no_reading_is_no_word() -> None:
    (finding,) = judge(gpu(recovery_action=0))
    assert finding.severity is Severity.OK
    for silent in (gpu(recovery_action=Absent()), gpu(recovery_action=Unknown("failed")), gpu(lost_code=15)):
        assert judge(silent) == ()
    assert judge(gpu(recovery_action=0), driver=Driver(version="560", devices=1, silent_s=9.0)) == ()
    assert reset_required.check(host(devices=Unknown("no answer")), Limits()) == ()
