"""A process of the run that no signal reaches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, host, processes, progress
from watchdog.checks import run_stuck
from watchdog.core.facts import Absent, KernelLine, KernelLog, RunProcess, Unknown, Wsl
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

STANDS = progress(step_changed_s=AT_S - 900.0)
WSL = Wsl(version=2, kernel="5.15", systemd=True, guest_settings=Absent(), windows_settings=Absent())


def stuck(seconds: float, pid: int = 4711) -> RunProcess:
    return RunProcess(
        pid=pid, command="python", state="D", states=(("D", 1), ("S", 12)), wait_channel="dxgvmb_send", stuck_s=seconds
    )


def judge(*run: RunProcess, others: tuple[RunProcess, ...] = (), **changes: Any) -> Finding:
    given = host(**({"progress": STANDS, "processes": processes(run=run, stuck=others)} | changes))
    found = run_stuck.check(given, Limits())
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(
    ("seconds", "severity", "remedy"),
    [
        (29.9, Severity.OK, Remedy.NONE),
        (30.0, Severity.WARNING, Remedy.WAIT),
        (299.9, Severity.WARNING, Remedy.WAIT),
        (300.0, Severity.CRITICAL, Remedy.REBOOT),
    ],
)
def test_by_how_long(seconds: float, severity: Severity, remedy: Remedy) -> None:
    finding = judge(stuck(seconds))
    assert (finding.severity, finding.remedy) == (severity, remedy)


def test_the_kernel_says_it_too_where_its_pids_are_ours() -> None:
    def says(ago_s: float, pid: int) -> KernelLine:
        text = f"INFO: task python:{pid} blocked for more than 120 seconds."
        return KernelLine(at_s=AT_S - ago_s, kind=KernelKind.HUNG_TASK, text=text, number=pid, subject="python")

    log = KernelLog(lines=(says(900.0, 4711), says(170.0, 4711), says(50.0, 4711), says(40.0, 99)), since_s=0.0)
    assert judge(stuck(301.0), kernel=log).evidence[1:] == (says(50.0, 4711).text,)
    contained = processes(run=(stuck(301.0),), initial_namespace=None)
    assert len(judge(kernel=log, processes=contained).evidence) == 1


def test_under_wsl_it_is_wsl_that_is_restarted() -> None:
    assert judge(stuck(301.0), wsl=WSL).remedy is Remedy.WSL_SHUTDOWN


def test_figures_and_where_it_waits() -> None:
    finding = judge(
        stuck(40.0, pid=9), stuck(330.0), others=(stuck(60.0, pid=77), stuck(40.0, pid=9), stuck(1.0, pid=5))
    )
    assert finding.reason == (
        "pid 4711 (python) has been stuck in the kernel for 5 min 30 s, and 1 more of the run; "
        "it cannot be killed, and nothing is started beside it"
    )
    assert finding.evidence == (
        "pid 4711 waits in dxgvmb_send; threads: 1 D, 12 S",
        "pid 9 waits in dxgvmb_send; threads: 1 D, 12 S",
        "stuck on this host, too: pid 77 (python)",
    )


def test_a_loader_on_a_slow_disk_is_never_critical_while_steps_are_taken() -> None:
    finding = judge(stuck(900.0), progress=progress())
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.WAIT)
    assert "took a step 0.8 s ago" in finding.reason


def test_others_alone_are_no_finding() -> None:
    assert judge(others=(stuck(900.0, pid=77),)).severity is Severity.OK


def test_an_unreadable_table_is_told_here() -> None:
    assert judge(processes=Unknown("no /proc")).severity is Severity.UNKNOWN
    assert run_stuck.check(host(processes=Absent()), Limits()) == ()
