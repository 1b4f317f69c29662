"""What the clocks did between two looks: the machine slept, the wall clock was set, or only this process stood still.

Responsible for comparing CLOCK_REALTIME, CLOCK_BOOTTIME and CLOCK_MONOTONIC with the look before, never with the first:
NTP may slew 0.5 ms each second, which in a week is five minutes and no jump.
- BOOTTIME grew more than MONOTONIC: the machine slept, whatever the wall clock says.
- Under WSL the sleep of Windows stops both, and only REALTIME leaps forward (63,297 s were seen): a leap of more than
  a minute counts as sleep there, a smaller one as a step.
- A frozen container or a stopped process leaves no trace in the clocks at all (7 s frozen: 0.000 s apart). Whoever has
  a schedule sees that it was late, and tells it by `froze`.
Refuses to judge, and to wait: everything here takes microseconds.

Known limits: a jump of less than 5 s between two looks is not seen; a step of the wall clock in the same interval as a
sleep counts as a step of what is left over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Clocks, Fact, Jump, Known

_LIMIT_S = 5.0
_WSL_SLEEP_S = 60.0  # WSL's own clock synchronisation makes smaller leaps
_KEPT = 10
_SAME_MOMENT_S = 0.1  # the three clocks are read one after the other; a freeze in between would look like a jump
_TRIES = 5


class _Reading(NamedTuple):
    monotonic_s: float
    wall_s: float
    boottime_s: float


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Remembers the look before and the last jumps. For use from one thread."""

    def __init__(
        self, roots: Roots, clock: Clock, *, is_wsl: bool = False, boottime: Callable[[], float] = _boottime
    ) -> None:
        self._roots = roots
        self._clock = clock
        self._is_wsl = is_wsl
        self._boottime = boottime
        self._boot_id = ""
        self._before: _Reading | None = None
        self._first_s = clock.monotonic()
        self._jumps: deque[Jump] = deque(maxlen=_KEPT)

    def froze(self, seconds: float) -> None:
        """The caller's own schedule was `seconds` late, and the clocks go on as before."""
        self._jumps.append(Jump(kind="freeze", at_s=self._clock.monotonic(), seconds=seconds))

    def look(self) -> Fact[Clocks]:
        """Compare with the look before. Raises OSError where there is no boot id to be read."""
        if not self._boot_id:
            with open(f"{self._roots.proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
                self._boot_id = file.read().strip()
        now = self._read()
        if self._before is not None:
            self._compare(self._before, now)
        self._before = now
        return Known(
            Clocks(
                boot_id=self._boot_id,
                asleep_s=max(0.0, now.boottime_s - now.monotonic_s),
                watched_s=now.monotonic_s - self._first_s,
                jumps=tuple(self._jumps),
            ),
            now.monotonic_s,
        )

    def _read(self) -> _Reading:
        for _ in range(_TRIES):
            reading = _Reading(self._clock.monotonic(), self._clock.wall(), self._boottime())
            if self._clock.monotonic() - reading.monotonic_s < _SAME_MOMENT_S:
                break
        return reading

    def _compare(self, before: _Reading, now: _Reading) -> None:
        passed_s = now.monotonic_s - before.monotonic_s
        slept_s = now.boottime_s - before.boottime_s - passed_s
        leapt_s = now.wall_s - before.wall_s - passed_s
        if slept_s > _LIMIT_S:
            self._jumps.append(Jump(kind="suspend", at_s=now.monotonic_s, seconds=slept_s))
            leapt_s -= slept_s
        if self._is_wsl and leapt_s > _WSL_SLEEP_S:
            self._jumps.append(Jump(kind="suspend", at_s=now.monotonic_s, seconds=leapt_s))
        elif abs(leapt_s) > _LIMIT_S:
            self._jumps.append(Jump(kind="step", at_s=now.monotonic_s, seconds=leapt_s))
