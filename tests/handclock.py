"""A clock that goes when a test tells it to."""

from __future__ import annotations


class HandClock:
    """A `watchdog.clock.Clock`. `now_s` is set by the test, and is all three of its times."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
