"""A disposable child: one question to something that may never answer, asked outside this process.

Responsible for starting at most one child at a time, for waiting no longer than told, and for saying what became of
it. The child ends itself: its first act is an alarm (`end_after`), so nothing here ever sends a signal, and a
supervisor that dies leaves nothing behind. What the alarm cannot end (state D: uninterruptible, in the kernel) is
left where it is and reported; no second one is put beside it.
Refuses to keep a conversation: one question, one line of answer, gone.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from watchdog.clock import Clock
from watchdog.core.facts import Unknown

if TYPE_CHECKING:
    import subprocess

_GOOD = frozenset({0})
_GRACE_S = 0.5  # between the child's own alarm and the end of our patience


def end_after(deadline_s: float) -> None:
    """In the child: be ended by the kernel after `deadline_s` seconds, whatever library we are stuck in.

    SIGALRM's default action does that; the handler and the mask are inherited over exec, so both are set.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, deadline_s)


class DisposableChild:
    """Asks by a child process. Not for use from two threads at once; the runner sees to that."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self.late = False  # the child that was asked last was ended by its alarm

    def ask(
        self,
        argv: Sequence[str],
        deadline_s: float,
        *,
        answers: frozenset[int] = _GOOD,
        given: bytes | None = None,
    ) -> str | Unknown:
        """The last line of the child's output, or why there is none. The program must call `end_after` itself.

        `given` is what the child reads from its standard input. `answers` are the exit codes with which it may have
        answered. Blocks for `deadline_s` and half a second at most. Raises OSError when the child cannot be started.
        """
        self.late = False
        if self._process is not None:
            if self._process.poll() is None:
                return self._outstanding(self._process.pid)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:  # it ended at last; what it says now is about then
                    pipe.close()
            self._process = None
        import subprocess  # 5 ms that a diagnosis on a host without a driver does not pay

        self._started_s = self._clock.monotonic()
        self._process = process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",  # never in a folder that may be on a dead mount
        )
        try:
            output, _ = process.communicate(given, timeout=deadline_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            return self._outstanding(process.pid)
        self._process = None
        self.late = process.returncode == -signal.SIGALRM
        if process.returncode < 0:
            return Unknown(self._ended_by(-process.returncode, deadline_s))
        lines = output.decode(errors="replace").strip().splitlines()
        if process.returncode not in answers or not lines:
            return Unknown(f"{self._what}: the child that was asked ended with code {process.returncode}, no answer")
        return lines[-1]

    def _outstanding(self, pid: int) -> Unknown:
        age_s = self._clock.monotonic() - self._started_s
        return Unknown(
            f"{self._what} has not answered for {age_s:.0f} s; its child, pid {pid}, does not end "
            "(state D?) and is left alone; no other is started"
        )

    def _ended_by(self, number: int, deadline_s: float) -> str:
        if number == signal.SIGALRM:
            return f"{self._what} did not answer within {deadline_s:g} s"
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "a real-time signal"
        return f"{self._what}: the child that was asked died of signal {number} ({name})"
