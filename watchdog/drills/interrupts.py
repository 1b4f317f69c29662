"""Holding signals off while something is made and written down for its removal, or while it is removed.

Responsible for the first of them being acted upon afterwards. Refuses to block them in the kernel: a child would
inherit that, while a handler of ours ends with its exec. Refuses to hold off what is ignored, which stays ignored.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A drill was interrupted and has cleaned up; `left` says what it could not end or remove."""

    def __init__(self, left: tuple[str, ...]) -> None:
        super().__init__(*left)
        self.left = left


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """What would end us waits until the block is left. In another thread than the first no handler ever runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in NUMBERS}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN and handler is not None]
    try:
        for number in mine:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])
        if came:
            signal.raise_signal(signal.Signals(came[0]))
