"""A run that beats and says one word, and what works for it: for the tests of checks, and for the lives of a job."""

from __future__ import annotations

import functools
from typing import Any

from tests.unit.checks.host import AT_S, gpu, host, processes, progress
from watchdog.checks import steps_frozen
from watchdog.core.facts import CpuLook, ProgressPoint, Unknown
from watchdog.core.findings import Finding
from watchdog.core.limits import Limits


def cpu(cores: float = 0.001, *, for_s: float = 900.0) -> tuple[CpuLook, ...]:
    """Looks each ten seconds at processes that keep so many cores busy."""
    ages = range(int(for_s), -1, -10)
    return tuple(CpuLook(at_s=AT_S - age_s, seconds=cores * (for_s - age_s)) for age_s in ages)


IDLE: dict[str, Any] = dict(devices=(gpu(utilization_percent=0, power_watts=21.0),), processes=processes(cpu=cpu()))
WORK: dict[str, dict[str, Any]] = {
    "nobody works": IDLE,
    "device works": IDLE | {"devices": (gpu(),)},
    "cpu works": IDLE | {"processes": processes(cpu=cpu(1.0))},
    "work unseen": IDLE | {"devices": Unknown("the driver hangs")},
}


@functools.cache
def standstill(work: str) -> Finding:
    """What steps-frozen truly says of a run that has told step 420 for 15 minutes; `work`: a key of WORK."""
    words = tuple(ProgressPoint(at_s=AT_S - 10 * back, step=420, phase="train") for back in reversed(range(91)))
    told = progress(points=words, step_changed_s=words[0].at_s, heard_s=AT_S)
    found = steps_frozen.check(host(progress=told, **WORK[work]), Limits())
    assert isinstance(found, Finding)
    return found
