"""What the trainer says: lines and progress bars on standard output.

Refuses to let a full disk or a closed terminal end a training: a line that cannot be written is counted, and the
count is told with the next line that can. It writes to the descriptor itself, since a line left over in Python's
own buffer would fail a second time when the interpreter ends, and change the exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping

BAR_CELLS = 24
_BAR_REDRAW_S = 0.1
_LINE_EVERY = 0.25  # without a terminal: a line per quarter of the work


class Console:
    """Lines on one descriptor. `lost` counts those that could not be written."""

    def __init__(self, fd: int = 1) -> None:
        self.fd = fd
        self.lost = 0
        try:
            self.terminal = os.isatty(fd)
        except OSError:
            self.terminal = False

    def say(self, line: str) -> None:
        """One line, at once. Never raises for the state of the disk or the reader."""
        if self.lost:
            line = f"\n({self.lost} lines could not be written)\n{line}"
        if self._write(f"{line}\n"):
            self.lost = 0
        else:
            self.lost += 1

    def say_json(self, record: Mapping[str, object]) -> None:
        """One JSON object as one line; floats keep every digit (`repr`)."""
        self.say(json.dumps(record))

    def draw(self, text: str) -> None:
        """Text without an end of line, for a bar on a terminal; dropped in silence when it cannot be written."""
        with contextlib.suppress(OSError):
            os.write(self.fd, text.encode())

    def _write(self, text: str) -> bool:
        left = memoryview(text.encode(errors="replace"))
        try:
            while left:
                left = left[os.write(self.fd, left) :]
        except OSError:
            return False
        return True


class Progress:
    """How far a piece of work is: a bar on a terminal, else a line per quarter; each update also goes to `beat`.

    `beat(fraction, text)` is the supervisor's view. It is called by finished work only, never by a timer.
    """

    def __init__(
        self, console: Console, what: str, total: int, *, beat: Callable[[float, str], None] | None = None
    ) -> None:
        self._console = console
        self._what = what
        self._total = max(total, 1)
        self._beat = beat
        self._done = 0
        self._drawn_at = 0.0
        self._beaten_at = 0.0
        self._next_line = _LINE_EVERY

    def advance(self, amount: int, text: str = "") -> None:
        """`amount` more units of the total are done."""
        self._done = min(self._done + amount, self._total)
        fraction = self._done / self._total
        now = time.monotonic()
        last = self._done == self._total
        if self._beat is not None and (last or now - self._beaten_at >= _BAR_REDRAW_S):
            self._beaten_at = now
            self._beat(fraction, f"{self._what} {fraction:.0%} {text}".rstrip())
        if self._console.terminal:
            if last or now - self._drawn_at >= _BAR_REDRAW_S:
                self._drawn_at = now
                filled = round(fraction * BAR_CELLS)
                bar = "▇" * filled + "▁" * (BAR_CELLS - filled)
                self._console.draw(f"\r{self._what:<10}{bar} {fraction:4.0%} {text}\x1b[K")
        elif fraction >= self._next_line:
            self._next_line = (fraction // _LINE_EVERY + 1) * _LINE_EVERY
            self._console.say(f"{self._what:<10}{fraction:4.0%} {text}".rstrip())

    def close(self) -> None:
        """End the line of the bar."""
        if self._console.terminal:
            self._console.draw("\n")
