"""Whether what a leader left works: by its output, its devices and its CPU time; idle only where all of it is seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.host import AT_S, gpu, host, process, processes
from tests.unit.checks.standstill import IDLE, cpu
from watchdog.checks.leftover import left_over
from watchdog.checks.working import CPU_FRACTION
from watchdog.core.facts import Absent, CpuLook, DeviceHolder, RunProcess, Unknown
from watchdog.core.limits import Limits
from watchdog.core.seen import Left

NO_GPU: dict[str, Any] = {"devices": Absent("no GPU")}
HOLDER = DeviceHolder(pid=4711, command="python", nodes=("/dev/nvidia0",), of_run=True)
NO_HOLDER = processes(cpu=cpu(), holders=())
BUSY_BEFORE = tuple(
    CpuLook(at_s=AT_S - 600 + 10 * n, seconds=10.0 * n if n < 51 else 1000.0) for n in range(61)
)  # with what the shim is given of the leader, right after its end


def left(since_s: float = 90.0, grew_s: float | None = None, log_read: bool = True, **changes: Any) -> Left:
    facts = host(**IDLE | NO_GPU | changes)
    return left_over(
        facts, Limits(), since_s=AT_S - since_s, now_s=AT_S, window_s=60.0, grew_s=grew_s, log_read=log_read
    )


def in_state(letter: str) -> tuple[RunProcess, ...]:
    return (RunProcess(pid=4711, command="python", state=letter),)


@pytest.mark.parametrize(
    ("changes", "works"),
    [
        (dict(), False),
        (dict(grew_s=AT_S - 59), True),
        (dict(grew_s=AT_S - 61), False),
        (dict(grew_s=AT_S - 59, processes=Unknown("x")), True),
        (dict(log_read=False), None),
        (dict(processes=Unknown("x")), None),
        (dict(processes=processes(cpu=cpu(), run=())), None),
        (dict(processes=processes(cpu=())), None),
        (dict(processes=processes(cpu=cpu()[:-4])), None),
        (dict(processes=processes(cpu=cpu(), initial_namespace=None)), None),
        (dict(processes=processes(cpu=cpu(), run=in_state("D"))), None),
        (dict(processes=processes(cpu=cpu(), run=in_state("T"))), None),
        (dict(processes=processes(cpu=cpu(), run=in_state("t"))), None),
        (dict(processes=processes(cpu=cpu(1.1 * CPU_FRACTION))), True),
        (dict(processes=processes(cpu=cpu(0.9 * CPU_FRACTION))), False),
        (dict(processes=processes(cpu=BUSY_BEFORE)), False),  # what its leader used is not its own
        (dict(since_s=5.0), None),  # just begun to look
        (dict(devices=(gpu(),)), True),
        (dict(devices=(gpu(utilization_percent=0, power_watts=21.0),)), None),  # it holds one, and may wait
        (dict(devices=(gpu(processes=(process(99),)),), processes=NO_HOLDER), False),  # a neighbour's
        (dict(devices=Unknown("the driver hangs"), processes=NO_HOLDER), False),  # no device node is open
        (dict(devices=Unknown("the driver hangs"), processes=processes(cpu=cpu(), holders=(HOLDER,))), None),
    ],
)
def test_every_answer(changes: dict[str, Any], works: bool | None) -> None:
    told = left(**changes)
    assert told.works is works, told
    assert told.words
