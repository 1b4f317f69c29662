"""Reading progress from the trainer's output log, for jobs that send no beats.

Responsible for what was appended since the last look: bounded (1 MiB a look; of more, the newest), past a front that
was punched out, anew when the file was replaced or cut short, split at line feeds and at the carriage returns of
progress bars, whatever the bytes are; and for when anything was printed at all. A person's own expression is searched
for by a disposable child: it can take hours for one line, and `re` lets no other thread of its process run meanwhile.
Refuses to understand a line (classify/progress_lines.py) and to write to the log or keep its text: only numbers leave.

Known limits: all points of one look carry the time of that look. A line is read when it is complete; a bar already
when its closing bracket is there, since nothing follows it until the next step. An own expression that takes long but
not too long (a second for all new lines) is shown the newest lines only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from pathlib import Path

from watchdog.classify.progress_lines import (
    BarSieve,
    Pattern,
    ProgressWord,
    detect,
    parse,
    pattern_of,
    plain,
    word_of,
)
from watchdog.clock import Clock, SystemClock
from watchdog.collectors.child import DisposableChild
from watchdog.collectors.outputlog import first_data
from watchdog.contract import open_regular
from watchdog.core.facts import ProgressPoint, Unknown

AUTO = "auto"
_LOOK_BYTES = 1024 * 1024
_PARTIAL_BYTES = 16 * 1024  # of a line that does not end; patterns look at its first 2,000 characters
_UNDECIDED_LINES = 200
_ENDS = re.compile(rb"[\r\n]+")

# From the newest line back, so that what is left out for its time is the oldest. Its first lines are
# `child.end_after`, written out as in disks.py. No number has 100 digits.
_CHILD = """
import signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
import json, re, time
search = re.compile(json.loads(sys.argv[1])).search
lines = sys.stdin.buffer.read().decode().split("\\n")
found, began_s = [], time.monotonic()
for number in range(len(lines) - 1, -1, -1):
    match = search(lines[number][:2000])
    if match:
        groups = match.groupdict().items()
        found.append([number, {name: text for name, text in groups if text and len(text) < 100}])
    if len(found) == 500 or time.monotonic() - began_s > 1:
        break
print(json.dumps(found[::-1]))
"""
_OWN_DEADLINE_S = 2.0


class _OwnSearch:
    """Searches lines for a person's own expression. Once that took too long, it is not tried again."""

    def __init__(self, expression: str, clock: Clock) -> None:
        # As JSON: an expression may hold what no argument can (NUL, letters that are not of the locale).
        self._argv = (sys.executable, "-I", "-S", "-c", _CHILD, json.dumps(expression), str(_OWN_DEADLINE_S))
        self._child = DisposableChild("the search for the pattern of [job] progress", clock)
        self.given_up = ""

    def words(self, texts: list[str]) -> list[ProgressWord]:
        """What the lines say, oldest first. Raises OSError when the child gave no answer."""
        if self.given_up or not texts:
            return []
        given = "\n".join(plain(text) for text in texts).encode()
        answer = self._child.ask(self._argv, _OWN_DEADLINE_S, given=given)
        if self._child.late:
            self.given_up = (
                f"the pattern of [job] progress took more than {_OWN_DEADLINE_S:g} s for the run's output: simplify "
                "it; progress is not read any more"
            )
            return []
        if isinstance(answer, Unknown):
            raise OSError(answer.why)
        return [word for _, groups in json.loads(answer) if (word := word_of(groups)) is not None]


class ProgressLog:
    """One run's log, look after look. For use from one thread."""

    def __init__(self, path: Path, pattern: str = AUTO, clock: Clock | None = None) -> None:
        """`pattern`: a ready one's name, a regular expression with named groups, or "auto". Raises PatternError."""
        self._path = path
        self._pattern: Pattern | None = None if pattern == AUTO else pattern_of(pattern)
        self._own: _OwnSearch | None = None
        if self._pattern is not None and self._pattern.name == "own":
            self._own = _OwnSearch(pattern, clock or SystemClock())
        self._undecided: deque[str] = deque(maxlen=_UNDECIDED_LINES)
        self._file: tuple[int, int] | None = None
        self._clock = clock or SystemClock()
        self._written: tuple[int, int] | None = None  # inode and size at the last look
        self.printed_s: float | None = None  # when anything was printed, CLOCK_MONOTONIC; None: nothing yet
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

    @property
    def given_up(self) -> str:
        """Why this log is not read any more; empty while it is."""
        return "" if self._own is None else self._own.given_up

    def read_new(self, now_s: float) -> tuple[ProgressPoint, ...]:
        """What the new lines say, oldest first; nothing while there is no file, or when given up. Raises OSError."""
        if self.given_up:
            return ()
        try:
            content = self._appended(now_s)
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

    def _appended(self, now_s: float) -> bytes:
        with open_regular(self._path) as file:
            status = os.fstat(file.fileno())
            self._note(status, now_s)
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

    def _note(self, status: os.stat_result, now_s: float) -> None:
        """What was written before we looked is dated by the wall clock, what comes later by our own looks.

        A file that is longer was written to; its time of change also moves when its front is punched out.
        """
        written = (status.st_ino, status.st_size)
        if written == self._written:
            return
        first, self._written = self._written is None, written
        if status.st_size or not first:
            age_s = max(0.0, self._clock.wall() - status.st_mtime) if first else 0.0
            self.printed_s = now_s - age_s

    def _words(self, texts: list[str]) -> list[ProgressWord]:
        if self._own is not None:
            return self._own.words(texts)
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
