"""WSL's settings: version, systemd, idle timeouts, memory reclaim."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import host, known
from watchdog.checks import wsl_settings
from watchdog.core.facts import Absent, Unknown, Wsl
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

ALIVE = {"general.instanceidletimeout": "-1", "wsl2.vmidletimeout": "-1"}


def judge(**changes: Any) -> tuple[Finding, ...]:
    given: dict[str, Any] = dict(
        version=2,
        kernel="5.15.167.4-microsoft-standard-WSL2",
        systemd=True,
        guest_settings=known({}),
        windows_settings=known(ALIVE),
        windows_settings_path="/mnt/c/Users/me/.wslconfig",
    )
    found = wsl_settings.check(host(wsl=Wsl(**(given | changes))), Limits())
    return found if isinstance(found, tuple) else (found,)


def test_all_in_order() -> None:
    (finding,) = judge()
    assert finding.severity is Severity.OK


def test_version_1_is_critical_and_hides_the_rest() -> None:
    (finding,) = judge(version=1, systemd=False, windows_settings=Absent())
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.WSL_SETTINGS)


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ({}, "in /etc/wsl.conf: [boot] systemd=true"),
        ({"boot.systemd": "true"}, "in /etc/wsl.conf: [boot] systemd=true, which is there already"),
    ],
)
def test_without_systemd(written: dict[str, str], line: str) -> None:
    (finding,) = judge(systemd=False, guest_settings=known(written))
    assert (finding.severity, finding.evidence) == (Severity.WARNING, (line,))


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"general.instanceidletimeout": "-1"}, ["[wsl2] vmIdleTimeout=-1"]),
        ({"wsl2.vmidletimeout": "-1"}, ["[general] instanceIdleTimeout=-1"]),
        (ALIVE | {"wsl2.vmidletimeout": "60000"}, ["[wsl2] vmIdleTimeout=-1"]),
        (ALIVE | {"wsl2.vmidletimeout": "never"}, ["[wsl2] vmIdleTimeout=-1"]),
        ({}, ["[general] instanceIdleTimeout=-1", "[wsl2] vmIdleTimeout=-1"]),
    ],
)
def test_idle_timeouts_come_with_the_lines_to_write(changes: dict[str, str], missing: list[str]) -> None:
    (finding,) = judge(windows_settings=known(changes))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.WSL_SETTINGS)
    assert list(finding.evidence) == [f"in /mnt/c/Users/me/.wslconfig: {line}" for line in missing]


def test_no_file_means_the_defaults() -> None:
    (finding,) = judge(windows_settings=Absent("no such file"), windows_settings_path="")
    assert finding.reason.startswith("instanceIdleTimeout is not set, vmIdleTimeout is not set")


@pytest.mark.parametrize("section", ["experimental", "wsl2"])
@pytest.mark.parametrize(("value", "fires"), [("gradual", True), ("Gradual", True), ("dropCache", False)])
def test_gradual_reclaim(section: str, value: str, fires: bool) -> None:
    (finding,) = judge(windows_settings=known(ALIVE | {f"{section}.automemoryreclaim": value}))
    assert finding.severity is (Severity.WARNING if fires else Severity.OK)


@pytest.mark.parametrize(
    "changes",
    [{"guest_settings": Unknown("hangs")}, {"windows_settings": Unknown("hangs")}, {"systemd": None}],
)
def test_what_cannot_be_read_is_not_fine(changes: dict[str, Any]) -> None:
    (finding,) = judge(**changes)
    assert finding.severity is Severity.UNKNOWN


def test_unknown_wsl_is_told_and_no_wsl_is_no_matter() -> None:
    finding = wsl_settings.check(host(wsl=Unknown("no /proc/version")), Limits())
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.UNKNOWN
    assert wsl_settings.check(host(), Limits()) == ()
