"""Time, passed in and never reached for.

`monotonic` (CLOCK_MONOTONIC, seconds) is for every duration and deadline; `wall` (seconds since the epoch) is for
people and for noticing that the machine slept. Decisions get numbers, never a clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the edges may ask of time."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
