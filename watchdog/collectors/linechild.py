"""A long-lived child that answers lines: started, spoken to and heard, without ever waiting for it.

Responsible for the pipes and for reaping. The child is in a process group of its own (a Ctrl-C is not meant for it),
but in our session: that tells it from an orphan of the run that is given to us. It has to leave by itself when its
stdin ends, which also happens when this process dies.
Refuses to signal the child, to block, and to let an answer grow without bound.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

MOST_BYTES = 4 * 1024 * 1024  # of one answer; 16 devices with 1000 processes each come to 0.7 MB
_CHUNK_BYTES = 8 * 1024  # a device is 0.5 KiB; a larger buffer is more memory to touch, once a second

# Children whose pipes are closed and that have not ended yet: kept until they can be reaped.
_leaving: list[subprocess.Popen[bytes]] = []


def reap() -> None:
    """Collects what has ended since. Never waits."""
    if _leaving:
        _leaving[:] = [process for process in _leaving if process.poll() is None]


class LineChild:
    """One child. For use from one thread."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] | None) -> None:
        """Starts it. Raises OSError."""
        import subprocess  # 5 ms that a host without a driver does not pay

        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",  # never in a folder that may be on a dead mount
            env=None if environ is None else dict(environ),
            process_group=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._heard = bytearray()
        self.finished = False  # nothing more will come; the process may be there still
        self.trouble = ""  # why we do not listen any more, where that is the child's fault

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """What becomes readable with an answer; not to be used after `finished`."""
        return self._stdout.fileno()

    def say(self, line: bytes) -> bool:
        """One line. False: it does not listen any more, and `hear` will find out that it ended."""
        if self.finished:
            return False
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            return os.write(self._stdin.fileno(), line) == len(line)
        return False

    def hear(self) -> list[bytes]:
        """The lines that are complete, without their ends."""
        # Once a second every step here runs with cold caches: 20 to 80 us each. Hence one read, and the short way out
        # for the usual case, one whole line.
        while not self.finished and len(self._heard) <= MOST_BYTES:
            try:
                piece = os.read(self._stdout.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not piece:
                self._stop()
            elif not self._heard and piece.find(b"\n") == len(piece) - 1:
                return [piece[:-1]]
            self._heard += piece
            if len(piece) < _CHUNK_BYTES:  # then the pipe is empty; asking again would be one call more
                break
        *lines, rest = bytes(self._heard).split(b"\n") if self._heard else (b"",)
        if len(rest) > MOST_BYTES:
            self.trouble = f"it wrote more than {MOST_BYTES} bytes without an end of line"
            self._stop()
            rest = b""
        self._heard = bytearray(rest)
        return lines

    def ended(self) -> int | None:
        """Its return code, once it has ended and is reaped."""
        return self._process.poll()

    def close(self) -> None:
        """Lets go of it: it leaves when it sees its stdin end, and is reaped when it has."""
        self._stop()
        if self._process.poll() is None:
            _leaving.append(self._process)

    def _stop(self) -> None:
        self.finished = True
        self._stdin.close()
        self._stdout.close()
