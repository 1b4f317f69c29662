"""What the supervisor says: to the terminal as long as there is one, and always to its own log.

Responsible for one live line at the bottom of a terminal, for lines now and then where there is none, for going on
in silence when the terminal is closed (print raises EIO then), and for keeping its log bounded.
Refuses to know what the words mean (render.py makes them).
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from watchdog.masking import mask_text

LOG_LIMIT_BYTES = 4 * 1024 * 1024
_QUEUED_LINES, _PATIENCE_S = 1000, 1.0
_WAITS = ("wait", "gate", "choose")
QUIET_EVERY_S = 15.0  # how often the live line is said where there is no terminal


def _writer_for(out: TextIO) -> _Writer | None:
    """A writer for what has a descriptor; what has none (a text in memory) cannot make anybody wait."""
    try:
        return _Writer(out.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def _without_controls(text: str, keep: str = "") -> str:
    """What a trainer says ends up here: its escape sequences and line feeds must not move our cursor."""
    return "".join(char if char in keep or char.isprintable() else "·" for char in text)


class _Writer:
    """Writes to a descriptor from a thread of its own: a stopped terminal (Ctrl-S) or a reader that pauses never
    makes the loop wait. What does not fit into the queue is dropped; the log has it.
    """

    def __init__(self, fd: int) -> None:
        self.failed = False
        self._fd = fd
        self._queue: queue.Queue[bytes | None] = queue.Queue(maxsize=_QUEUED_LINES)
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)
        self._thread.start()

    def put(self, content: bytes) -> None:
        """Hand it over, or drop it."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(content)

    def close(self, patience_s: float) -> None:
        """Write what is queued, for at most `patience_s`."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
            self._thread.join(patience_s)

    def _run(self) -> None:
        while (content := self._queue.get()) is not None:
            left = memoryview(content)
            try:
                while left and not self.failed:
                    left = left[os.write(self._fd, left) :]
            except OSError:  # closed terminal (EIO), closed pipe, full disk behind a redirection
                self.failed = True


class Screen:
    """Words go to `out` (None: nobody listens) and to `log` (None: no log yet)."""

    def __init__(self, out: TextIO | None = None, *, quiet: bool = False) -> None:
        self._out = sys.stdout if out is None else out
        self._deaf = quiet
        self._terminal = not quiet and self._out.isatty()
        self._live = ""
        self._writer = None if quiet else _writer_for(self._out)
        self._said_live_s = -QUIET_EVERY_S
        self._said_label = ""
        self._log: Path | None = None

    def log_to(self, path: Path) -> None:
        """From now on everything is also written to this file."""
        self._log = path

    def detach(self) -> None:
        """The terminal is gone: from now on to the log only."""
        self._deaf = True

    def line(self, label: str, text: str) -> None:
        """One lasting line: a label of up to nine characters, and a text; further lines of it are indented."""
        # A sentence of the ledger stands by itself ("run 3 exit 1"); beside its label it need not say it twice.
        text = mask_text(_without_controls(text, keep="\n"))
        first, *rest = text.removeprefix(label).removeprefix(":").strip().split("\n")
        lines = [f"{label:<9} {first}", *(f"{'':<9} {more}" for more in rest)]
        self._clear()
        for each in lines:
            self._print(each + "\n")
        self._redraw()
        self._write_log(lines)

    def live(self, text: str, now_s: float) -> None:
        """The line that changes: redrawn on a terminal, said every few seconds elsewhere."""
        text = mask_text(_without_controls(text))
        if self._terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            text = text[:width]
            if text != self._live:
                self._clear()
                self._live = text
                self._redraw()
        elif text and self._is_due(text, now_s):
            self._said_live_s = now_s
            self._print(text + "\n")

    def _is_due(self, text: str, now_s: float) -> bool:
        """Now and then; and at once where the job begins to wait, which a short wait would else be over before."""
        before, self._said_label = self._said_label, text.split(" ", 1)[0]
        return now_s - self._said_live_s >= QUIET_EVERY_S or (self._said_label in _WAITS and before != self._said_label)

    def end_live(self) -> None:
        """Leave the live line standing as it is."""
        if self._terminal and self._live:
            self._print("\n")
        self._live = ""

    def close(self) -> None:
        """Say what is still to be said, for a moment at most; call before the process leaves."""
        self.end_live()
        if self._writer is not None:
            self._writer.close(_PATIENCE_S)
            self._deaf, self._writer = True, None

    def _clear(self) -> None:
        if self._terminal and self._live:
            self._print("\r\x1b[K")

    def _redraw(self) -> None:
        if self._terminal and self._live:
            self._print(self._live)

    def _print(self, text: str) -> None:
        if self._deaf or (self._writer is not None and self._writer.failed):
            return
        encoding = self._out.encoding or "utf-8"
        content = text.encode(encoding, "backslashreplace")
        if self._writer is not None:
            self._writer.put(content)
            return
        try:
            self._out.write(content.decode(encoding))
            self._out.flush()
        except (OSError, ValueError):
            self._deaf = True

    def _write_log(self, lines: list[str]) -> None:
        if self._log is None:
            return
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):  # the ledger has it as well; a full disk must not end the loop here
            if self._log.exists() and self._log.stat().st_size > LOG_LIMIT_BYTES:
                self._log.replace(self._log.with_suffix(".log.1"))
            with open(self._log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{stamp} {line}\n" for line in lines)
