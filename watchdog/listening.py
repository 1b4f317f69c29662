"""What people ask of a running supervisor: by signal and through the control socket. Collected here, decided elsewhere.

SIGINT and SIGTERM ask to drain; a second SIGINT to stop without saving; a third to leave at once and let the run be
(it can be adopted). SIGHUP means that the terminal is gone.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from watchdog.branching import wish_from
from watchdog.core.branching import GoBack
from watchdog.core.phase import Phase
from watchdog.core.seen import Request
from watchdog.core.view import StatusView
from watchdog.masking import mask_text
from watchdog.remembered import Remembered, to_record
from watchdog.render import status_record

_REQUESTS = {"relaunch": Request.RELAUNCH, "stop": Request.DRAIN, "stop-now": Request.STOP}


def _nobody(wish: GoBack) -> str | None:
    return f"--from {wish.step}: nobody here goes back"


class Listener:
    """Requests in the order in which they came, and a descriptor that wakes the loop for them."""

    def __init__(
        self,
        on_hangup: Callable[[], None],
        view: Callable[[], StatusView],
        remembered: Callable[[], Remembered],
        go_back: Callable[[GoBack], str | None] = _nobody,
    ) -> None:
        """`view` and `remembered` are asked from the socket's thread: what was published last.

        So is `go_back`, which takes a wish for an earlier step or says why not.
        """
        self._on_hangup = on_hangup
        self._view = view
        self._remembered = remembered
        self._go_back = go_back
        self._requests: deque[Request] = deque()
        self._dropped: deque[str] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._interrupts = 0

    @property
    def insisted(self) -> bool:
        """Three interrupts: somebody wants us gone now."""
        return self._interrupts >= 3

    def ask(self, request: Request) -> None:
        """Hand the loop a request; from any thread, and from a signal handler."""
        self._requests.append(request)
        os.eventfd_write(self._wake, 1)

    def next(self) -> Request | None:
        """The oldest request that was not taken yet."""
        return self._requests.popleft() if self._requests else None

    def put_back(self, request: Request) -> None:
        """It could not be followed in this turn; it is the next one's."""
        self._requests.appendleft(request)

    def drop(self, message: Mapping[str, Any], why: str) -> None:
        """Somebody asked who waits no more; of what would have changed something the loop is told. From any thread."""
        command = message.get("command")
        if isinstance(command, str) and command in _REQUESTS:
            self._dropped.append(f"a request to {command} was dropped: {why}; it was not carried out")
            os.eventfd_write(self._wake, 1)

    def dropped(self) -> list[str]:
        """What was dropped since this was asked last, in words."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def wait(self, wait_s: float, descriptors: Iterable[int]) -> None:
        """Until somebody asks, one of the descriptors becomes readable, or the time is over."""
        if self._requests:
            return
        poll = select.poll()
        for fd in (self._wake, *descriptors):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(wait_s * 1000):
            if fd == self._wake:
                os.eventfd_read(self._wake)

    def listen_to_signals(self) -> None:
        """Replace the process's handlers. SIGPIPE is ignored: a closed pipe is an error of the write."""

        def on_interrupt(_number: int, _frame: object) -> None:
            self._interrupts += 1
            self.ask(Request.DRAIN if self._interrupts == 1 else Request.STOP)

        def on_terminate(_number: int, _frame: object) -> None:
            self.ask(Request.DRAIN)

        def on_hangup(_number: int, _frame: object) -> None:
            self._on_hangup()

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored it would hide how the shim ended
        signal.signal(signal.SIGINT, on_interrupt)
        signal.signal(signal.SIGTERM, on_terminate)
        signal.signal(signal.SIGHUP, on_hangup)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One message of the control socket; runs in its thread."""
        command = message.get("command")
        view = self._view()
        if command == "status":
            return {"ok": True, "status": status_record(view)}
        if command == "facts":
            return {"ok": True, "facts": to_record(self._remembered())}
        if not isinstance(command, str) or command not in _REQUESTS:
            known = ", ".join(["status", "facts", *_REQUESTS])
            return {"ok": False, "error": f"command is {str(command)[:100]!r}; known are {known}"}
        alive = view.run is not None and view.run.alive
        if command == "relaunch" and view.state == Phase.HOLD.value and alive:
            words = f"the run does not end, so nothing is launched: {view.hold_reason}"
            return {"ok": False, "error": mask_text(words)}
        if command == "relaunch" and view.leaving:
            what = f"run {view.run.number} is being stopped" if view.run is not None and alive else "the job is stopped"
            words = f"{what}, as was asked before, and its supervisor leaves then: nothing is launched"
            return {"ok": False, "error": f"{words}; when it has left: watchdog run{view.options}"}
        try:
            wish = wish_from(message) if command == "relaunch" else None
        except ValueError as error:
            return {"ok": False, "error": str(error)}
        if wish is not None:
            if (refused := self._go_back(wish)) is not None:
                return {"ok": False, "error": refused, "usage": True}
            os.eventfd_write(self._wake, 1)
        elif command == "relaunch" and message.get("force") is True:
            self.ask(Request.RELAUNCH_AFRESH)
        else:
            self.ask(_REQUESTS[command])
        number = view.run.number if view.run is not None else None
        return {"ok": True, "state": view.state, "run": number if alive else None}
