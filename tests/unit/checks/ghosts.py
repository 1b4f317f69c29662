"""The figures of the field's ghost on an RTX 3060, and what surrounds it, for the tests of several checks."""

from __future__ import annotations

from typing import Any

from tests.unit.checks.host import GIB, gpu, process, processes
from watchdog.core.facts import Absent, Device, DeviceProcess, Known, Wsl

LOST_PID = 8123
BUSY_IDLE: dict[str, Any] = dict(utilization_percent=100, power_watts=61.0)  # of 170 W
FULL: dict[str, Any] = dict(memory_used_bytes=int(11.8 * GIB))  # of 12 GiB
NO_RUN: dict[str, Any] = dict(
    beat=Absent("no run of this job is alive"),
    progress=Absent("no run of this job is alive"),
    processes=processes(run=(), holders=()),
)
WSL = Wsl(
    version=2, kernel="6.6.87.2-microsoft", systemd=True, guest_settings=Known({}, 1.0), windows_settings=Absent()
)


def lost_process(pid: int = LOST_PID, **changes: Any) -> DeviceProcess:
    return process(pid, **(dict(here=False, command="", memory_bytes=int(11.2 * GIB)) | changes))


def ghost_gpu(**changes: Any) -> Device:
    return gpu(**(BUSY_IDLE | FULL | dict(processes=(lost_process(),)) | changes))
