"""Memory pressure: how much of the time work waits for memory.

Responsible for `/proc/pressure/memory`, and, where the kernel does not measure it (built in but off on WSL), for the
rates of major faults and of pages swapped in between two looks at `/proc/vmstat`. One look takes 0.02 ms.
Refuses to judge, and to call a first look at counters a rate: that is None, but for a counter of 0.
"""

from __future__ import annotations

import errno

from watchdog.clock import Clock
from watchdog.collectors.cgroups import parse_counters
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Fact, Known, Pressure, Unknown

_COUNTERS = ("pgmajfault", "pswpin")  # the second counts pages (mm/vmstat.c)
_NO_PSI = (errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM)


def parse_pressure(text: str) -> Pressure:
    """`some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and the same for `full`, in percent. Raises ValueError."""
    rows = {}
    for line in text.splitlines():
        name, *words = line.split()
        rows[name] = dict(word.split("=", 1) for word in words)
    try:
        return Pressure(
            from_psi=True,
            some_avg10_percent=float(rows["some"]["avg10"]),
            some_avg60_percent=float(rows["some"]["avg60"]),
            full_avg10_percent=float(rows["full"]["avg10"]),
            full_avg60_percent=float(rows["full"]["avg60"]),
        )
    except KeyError as error:
        raise ValueError(f"the pressure of memory has no {error}: {text[:200]!r}") from None


class PressureReader:
    """Reads again and again; keeps the counters of the look before, for hosts without PSI."""

    def __init__(self, roots: Roots, clock: Clock) -> None:
        self._roots = roots
        self._clock = clock
        self._before: tuple[float, tuple[int, ...]] | None = None

    def read(self) -> Fact[Pressure]:
        """The pressure as it is now. Raises OSError, ValueError."""
        path = f"{self._roots.proc}/pressure/memory"
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                return Known(parse_pressure(file.read()), self._clock.monotonic())
        except OSError as error:
            if error.errno not in _NO_PSI:
                raise
            return self._from_counters(f"{path}: {error.strerror}")

    def _from_counters(self, why: str) -> Fact[Pressure]:
        path = f"{self._roots.proc}/vmstat"
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                counters = parse_counters(file.read())
        except OSError as error:
            return Unknown(f"memory pressure cannot be seen: {why}; {path}: {error.strerror}")
        if any(name not in counters for name in _COUNTERS):
            return Unknown(f"memory pressure cannot be seen: {why}; {path} has no {' or no '.join(_COUNTERS)}")
        now_s, counts = self._clock.monotonic(), tuple(counters[name] for name in _COUNTERS)
        before, self._before = self._before, (now_s, counts)
        faults: float | None = None
        swapped = None if counts[1] else 0.0  # nothing was ever read back: that is known at the first look
        if before is not None and now_s > before[0]:
            elapsed_s = now_s - before[0]
            faults, swapped = (max(0, new - old) / elapsed_s for new, old in zip(counts, before[1], strict=True))
        return Known(Pressure(from_psi=False, major_faults_per_s=faults, swapped_in_per_s=swapped), now_s)
