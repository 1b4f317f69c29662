"""The sampling children that ask a stand-in of NVML, found by the scenario in their environment.

A child that is stuck outlives whoever started it, until its alarm: a test that made one ends it here.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from bench.campaign_observer import is_living
from tests.fakes.nvml.standin import Scenario


def askers(scenario: Scenario) -> list[int]:
    """The living ones that read this scenario."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            asks = b"/nvml_child.py\0" in Path(f"/proc/{name}/cmdline").read_bytes()
            if asks and os.fsencode(f"FAKE_NVML={scenario.path}\0") in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return [pid for pid in found if is_living(pid, None) is not None]


def end_askers(scenario: Scenario) -> None:
    for pid in askers(scenario):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
