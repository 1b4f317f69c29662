"""How fast a run goes, from its beats: tokens per second and time to the target. Arithmetic on numbers passed in."""

from __future__ import annotations

from collections import deque

from watchdog.contract import Beat

_WINDOW_S = 30.0


class Pace:
    """A window of recent beats. Unknown (None) until two of them lie apart."""

    def __init__(self) -> None:
        self._beats: deque[Beat] = deque()

    def reset(self) -> None:
        """A new run begins: what was measured belongs to the old one."""
        self._beats.clear()

    def see(self, beat: Beat) -> None:
        """Take a beat in; one that was seen already changes nothing. Only training counts."""
        if beat.phase != "train" or beat.step is None or (self._beats and self._beats[-1].seq >= beat.seq):
            return
        self._beats.append(beat)
        while len(self._beats) > 2 and beat.monotonic_s - self._beats[0].monotonic_s > _WINDOW_S:
            self._beats.popleft()

    def _span(self) -> tuple[Beat, Beat] | None:
        if len(self._beats) < 2 or self._beats[-1].monotonic_s - self._beats[0].monotonic_s < 0.5:
            return None
        return self._beats[0], self._beats[-1]

    def tokens_per_s(self) -> float | None:
        """Tokens per second over the window."""
        span = self._span()
        if span is None or span[0].tokens is None or span[1].tokens is None:
            return None
        return (span[1].tokens - span[0].tokens) / (span[1].monotonic_s - span[0].monotonic_s)

    def eta_s(self) -> float | None:
        """Seconds to the target step at this pace."""
        span = self._span()
        if span is None or span[0].step is None or span[1].step is None or span[1].target_step is None:
            return None
        steps = span[1].step - span[0].step
        if steps <= 0:
            return None
        return (span[1].target_step - span[1].step) * (span[1].monotonic_s - span[0].monotonic_s) / steps
