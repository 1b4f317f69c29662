"""Device memory that nobody owns, and every doubt that speaks against saying so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import FULL, NO_RUN, WSL, ghost_gpu, lost_process
from tests.unit.checks.host import AT_S, GIB, gpu, host, process, processes, sample
from watchdog.checks import memory_unowned
from watchdog.core.facts import Absent, DeviceHolder, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

EMPTY = gpu(**FULL, utilization_percent=0, power_watts=14.0, processes=())
DESKTOP = process(50, kind="graphics", memory_bytes=None)


def judge(facts: Facts) -> tuple[Finding, ...]:
    return memory_unowned.check(facts, Limits())


def held_by(pid: int, command: str = "python", node: str = "/dev/nvidia0", **changes: Any) -> dict[str, Any]:
    holders = (DeviceHolder(pid=pid, command=command, nodes=(node,), of_run=False),)
    return NO_RUN | {"processes": processes(run=(), holders=holders, **changes)}


def test_nobody_at_all() -> None:
    [found] = judge(host(devices=(EMPTY,), **NO_RUN))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.RESET_DEVICE)
    assert found.reason == "11.8 GiB of 12.0 GiB in use, no process is listed: 11.8 GiB is nobody's"


@pytest.mark.parametrize(
    ("listed", "remedy"),
    [
        ((), Remedy.SMALLER),  # a game of Windows, most likely
        ((DESKTOP,), Remedy.SMALLER),
        ((lost_process(memory_bytes=None),), Remedy.WSL_SHUTDOWN),
    ],
)
def test_on_wsl_more_than_windows_is_allowed(listed: Any, remedy: Remedy) -> None:
    [found] = judge(
        host(devices=(gpu(**FULL, utilization_percent=0, power_watts=14.0, processes=listed),), **NO_RUN, wsl=WSL)
    )
    assert (found.severity, found.remedy) == (Severity.WARNING, remedy)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(host(), id="a run that owns 9 of 10 GiB"),
        pytest.param(host(devices=(gpu(memory_used_bytes=GIB, processes=()),), **NO_RUN), id="what the driver keeps"),
        pytest.param(host(devices=(gpu(**FULL, processes=(process(memory_bytes=None),)),)), id="not told by process"),
        pytest.param(host(devices=(gpu(**FULL, processes=(lost_process(),)),), **NO_RUN), id="a lost pid owns it"),
        pytest.param(host(devices=(EMPTY,), **held_by(99)), id="a worker that inherited the node"),
        pytest.param(host(devices=(EMPTY,), **held_by(99, node="/dev/dxg"), wsl=WSL), id="unlisted on WSL"),
        pytest.param(host(devices=(EMPTY,), **held_by(1, "nvidia-persiste", unreadable=3)), id="hidden files"),
        pytest.param(host(devices=(EMPTY,), **held_by(1, "nvtop", initial_namespace=False)), id="a container"),
        pytest.param(
            host(devices=(gpu(memory_used_bytes=5 * GIB, processes=()),), **NO_RUN, wsl=WSL), id="games of Windows"
        ),
        pytest.param(host(devices=(gpu(**FULL, processes=()),), wsl=WSL), id="a run that WSL does not list"),
    ],
)
def test_doubts_and_near_misses(facts: Facts) -> None:
    [found] = judge(facts)
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


@pytest.mark.parametrize("command", ["nvidia-persiste", "nvidia-persistenced", "nvtop", "watchdog-nvml"])
def test_who_only_watches_owns_nothing(command: str) -> None:
    assert [each.severity for each in judge(host(devices=(EMPTY,), **held_by(1, command)))] == [Severity.WARNING]


def test_too_few_samples_ask_for_more_and_one_in_order_ends_it() -> None:
    [found] = judge(host(devices=(gpu(**FULL, processes=(), samples=1),), **NO_RUN))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 4)
    mixed = (*EMPTY.recent[1:], sample(memory_used_bytes=GIB // 2, processes=()))
    [found] = judge(host(devices=(gpu(recent=mixed),), **NO_RUN))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


def test_a_table_each_ten_seconds_makes_no_flapping() -> None:
    """Half a minute of the loop: a sample each second, a table each ten; before that the device was empty."""
    said = []
    for second in range(40):
        now_s = AT_S + second
        recent = tuple(
            sample(at_s, memory_used_bytes=8 * GIB if at_s >= AT_S + 3 else 0, processes=())
            for at_s in (now_s - back for back in reversed(range(30)))
        )
        table = Known(processes(run=(), holders=()), now_s - second % 10)
        facts = host(at_s=now_s, devices=(gpu(recent=recent),), **NO_RUN | {"processes": table})
        said += [found.severity for found in judge(facts)]
    assert said == [Severity.OK] * 10 + [Severity.WARNING] * 30


def test_a_ghost_is_told_once() -> None:
    assert judge(host(devices=(ghost_gpu(processes=()),), **NO_RUN)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=Unknown("x")),
        dict(processes=Unknown("x")),
        dict(devices=(gpu(memory_used_bytes=Unknown("x")),)),
        dict(devices=(gpu(processes=Absent()),)),
        dict(devices=(gpu(**FULL, processes=(), mig=True),)),
    ],
)
def test_what_is_not_known_is_not_judged(changes: dict[str, Any]) -> None:
    assert judge(host(**NO_RUN | changes)) == ()
