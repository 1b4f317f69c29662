"""A pid that NVML names and /proc does not know."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import NO_RUN, WSL, ghost_gpu, lost_process
from tests.unit.checks.host import AT_S, gpu, host, process, processes, sample
from watchdog.checks import lost_pid
from watchdog.core.facts import Absent, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

LOST = (process(), lost_process())


def judge(facts: Facts) -> tuple[Finding, ...]:
    return lost_pid.check(facts, Limits())


def with_lost_in(*last: bool) -> Any:
    looks = (sample(AT_S - len(last) + index, processes=LOST if it else (process(),)) for index, it in enumerate(last))
    return gpu(recent=tuple(looks))


def test_lost_in_three_samples() -> None:
    [found] = judge(host(devices=(with_lost_in(True, True, True),)))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.PROBE)
    assert found.reason == "pid 8123 with 11.2 GiB is not in /proc in 3 of 3 samples"


@pytest.mark.parametrize(
    ("last", "wanted"), [((True, True), 1), ((True,), 2), ((True, True, False), 0), ((True, False, True, True), 0)]
)
def test_fewer_ask_for_more_and_a_process_that_ends_between_two_reads_is_none(last: Any, wanted: int) -> None:
    [found] = judge(host(devices=(with_lost_in(*last),)))
    assert (found.severity, found.looks_wanted) == (Severity.OK, wanted)


def test_three_different_ones_are_not_one() -> None:
    recent = tuple(sample(AT_S - pid, processes=(lost_process(pid),)) for pid in (3, 2, 1))
    [found] = judge(host(devices=(gpu(recent=recent),)))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


@pytest.mark.parametrize(
    "changes",
    [
        dict(wsl=WSL),
        dict(processes=processes(initial_namespace=False)),
        dict(processes=processes(initial_namespace=None)),
    ],
)
def test_where_pids_cannot_be_compared(changes: dict[str, Any]) -> None:
    [found] = judge(host(devices=(with_lost_in(True, True, True),), **changes))
    assert found.severity is Severity.OK
    assert "pid 8123" in found.reason
    assert "cannot be compared" in found.reason


def test_a_scrambled_number_is_no_pid() -> None:
    [found] = judge(host(devices=(gpu(processes=(lost_process(4_294_967_295),)),)))
    assert found.severity is Severity.OK


def test_a_ghost_is_told_once() -> None:
    assert judge(host(devices=(ghost_gpu(),), **NO_RUN)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=Unknown("x")),
        dict(processes=Unknown("x")),
        dict(devices=(gpu(processes=Unknown("x")),)),
        dict(devices=(gpu(processes=Absent()),)),
    ],
)
def test_what_is_not_known_is_not_judged(changes: dict[str, Any]) -> None:
    assert judge(host(**changes)) == ()
