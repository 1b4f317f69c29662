"""A GPU that fell off its bus."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, UUID, gpu, host
from tests.unit.checks.test_driver import wsl
from watchdog.checks import gpu_lost
from watchdog.core.facts import Driver, KernelLine, KernelLog, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits


def judge(*devices: Any, **changes: Any) -> tuple[Finding, ...]:
    return gpu_lost.check(host(devices=devices, **changes), Limits())


def line(subject: str, text: str) -> KernelLine:
    return KernelLine(at_s=AT_S - 7200.0, kind=KernelKind.XID, text=text, number=79, subject=subject)


@pytest.mark.parametrize(
    ("state", "words"),
    [({"lost_code": 15}, "code 15"), ({"lost_code": 999}, "code 999"), ({"missing": True}, "not there any more")],
)
def test_fires_with_the_lines_of_its_slot(state: dict[str, Any], words: str) -> None:
    log = KernelLog(lines=(line("0000:01:00", "Xid of ours"), line("0000:41:00", "Xid of another")), since_s=0.0)
    (finding,) = judge(gpu(pci_bus_id="00000000:01:00.0", **state), kernel=log)
    assert (finding.severity, finding.remedy, finding.device) == (Severity.CRITICAL, Remedy.REBOOT, UUID)
    assert words in finding.reason
    assert finding.evidence == ("Xid of ours",)


def test_on_wsl_the_remedy_is_windows() -> None:
    (finding,) = judge(gpu(lost_code=15), wsl=wsl(dxg=True))
    assert finding.remedy is Remedy.WSL_SHUTDOWN


def test_the_driver_may_not_say_which_one() -> None:
    lost = Driver(code=15, error="GPU is lost")
    (finding,) = gpu_lost.check(host(devices=Unknown("no answer"), driver=lost), Limits())
    assert (finding.severity, finding.subject, finding.device) == (Severity.CRITICAL, "driver", None)
    (finding,) = judge(gpu(lost_code=15), driver=lost)
    assert finding.device == UUID


def test_others_are_fine_and_what_is_not_seen_is_not() -> None:
    (finding,) = judge(gpu())
    assert finding.severity is Severity.OK
    assert judge(gpu(lost_code=16)) == ()
    assert judge(gpu(), driver=Driver(version="560", devices=1, silent_s=9.0)) == ()
    assert gpu_lost.check(host(devices=Unknown("no answer")), Limits()) == ()
