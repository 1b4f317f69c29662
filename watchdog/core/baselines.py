"""What a device did before, in TFLOP/s, and which results may teach it. Pure.

A baseline is the median of the last results of the same device, driver, data type and size. A result that is wrong,
below the floor, or far below the baseline itself teaches nothing: else a card that declines would take its baseline
along. Refuses to read or write (watchdog/baselines.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

KEPT = 20
Results = Mapping[str, tuple[float, ...]]


def key_of(*, device: str, driver: str, dtype: str, size: int) -> str:
    """What a result may be compared with."""
    return f"{device} {driver} {dtype} {size}"


def baseline(results: Results, key: str) -> tuple[float | None, int]:
    """(median TFLOP/s, number of results); (None, 0) before the first."""
    found = results.get(key, ())
    return (statistics.median(found), len(found)) if found else (None, 0)


def learned(results: Results, key: str, tflops: float, *, fraction: float) -> Results:
    """The results with this one, if it may teach: at least `fraction` of what is known."""
    known, _ = baseline(results, key)
    if known is not None and tflops < fraction * known:
        return results
    return {**results, key: (*results.get(key, ()), tflops)[-KEPT:]}
