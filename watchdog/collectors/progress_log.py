"""Reading progress from the trainer's output log, for jobs that send no beats.

Responsible for what was appended since the last look: bounded (1 MiB a look; of more, the newest), past a front that
was punched out, anew when the file was replaced or cut short, split at line feeds and at the carriage returns of
progress bars, whatever the bytes are.
Refuses to understand a line (classify/progress_lines.py) and to write to the log or keep its text: only numbers leave.

Known limits: all points of one look carry the time of that look. A line is read when it is complete; a bar already
when its closing bracket is there, since nothing follows it until the next step.
"""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

from watchdog.classify.progress_lines import BarSieve, Pattern, ProgressWord, detect, parse, pattern_of
from watchdog.collectors.outputlog import first_data
from watchdog.contract import open_regular
from watchdog.core.facts import ProgressPoint

AUTO = "auto"
_LOOK_BYTES = 1024 * 1024
_PARTIAL_BYTES = 16 * 1024  # of a line that does not end; patterns look at its first 2,000 characters
_UNDECIDED_LINES = 200
_ENDS = re.compile(rb"[\r\n]+")


class ProgressLog:
    """One run's log, look after look. For use from one thread."""

    def __init__(self, path: Path, pattern: str = AUTO) -> None:
        """`pattern`: a ready one's name, a regular expression with named groups, or "auto". Raises PatternError."""
        self._path = path
        self._pattern: Pattern | None = None if pattern == AUTO else pattern_of(pattern)
        self._undecided: deque[str] = deque(maxlen=_UNDECIDED_LINES)
        self._file: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._partial = b""
        self._torn = False  # what comes next began before we looked
        self._bar_told = b""  # the bar at the end, which was read before its line ended
        self._sieve = BarSieve()
        self._step: int | None = None

    @property
    def source(self) -> str:
        """For `Progress.source`: "log (huggingface)"; "log" while no ready pattern was seen to fit."""
        return "log" if self._pattern is None else f"log ({self._pattern.name})"

    def read_new(self, now_s: float) -> tuple[ProgressPoint, ...]:
        """What the new lines say, oldest first; nothing while there is no file. Raises OSError."""
        try:
            content = self._appended()
        except FileNotFoundError:
            return ()
        *lines, self._partial = _ENDS.split(self._partial + content)
        if lines:
            if self._torn or lines[0] == self._bar_told:
                lines = lines[1:]
            self._torn, self._bar_told = False, b""
        texts = [line.decode("utf-8", "replace") for line in lines if line]
        if self._partial.endswith(b"]") and self._partial != self._bar_told and not self._torn:
            self._bar_told = self._partial
            texts.append(self._partial.decode("utf-8", "replace"))
        if len(self._partial) > _PARTIAL_BYTES:
            self._partial, self._torn = b"", True
        points = (self._point(word, now_s) for word in self._words(texts))
        return tuple(point for point in points if point is not None)

    def _appended(self) -> bytes:
        with open_regular(self._path) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._file or status.st_size < self._offset:
                self._begin()
                self._file = identity
            start = max(self._offset, first_data(file.fileno()), status.st_size - _LOOK_BYTES)
            if start > self._offset:
                self._partial, self._torn = b"", True
            file.seek(start)
            content = file.read(_LOOK_BYTES)
            self._offset = start + len(content)
        return content.replace(b"\0", b"")

    def _words(self, texts: list[str]) -> list[ProgressWord]:
        if self._pattern is None and texts:
            self._undecided.extend(texts)
            found = detect(self._undecided)
            if found is None:
                return []
            self._pattern = pattern_of(found)
            texts = list(self._undecided)
            self._undecided.clear()
        pattern = self._pattern
        return [] if pattern is None else [word for text in texts if (word := parse(text, pattern)) is not None]

    def _point(self, word: ProgressWord, now_s: float) -> ProgressPoint | None:
        sifted = self._sieve.pass_on(word)
        if sifted is None:
            return None
        # Hugging Face writes the loss in one line and the step in the bar beside it.
        self._step = self._step if sifted.step is None else sifted.step
        return ProgressPoint(
            at_s=now_s,
            step=self._step,
            tokens=sifted.tokens,
            loss=sifted.loss,
            gradient_norm=sifted.gradient_norm,
        )
