"""Keeping where a run stands before it is ended for a stall: looked at from outside, asked, and written to a file.

Responsible for SIGUSR2 to a proven process of the run that has a handler for it (without one the signal would kill),
for finding in the run's output what faulthandler wrote on it, for py-spy in a disposable child, and for a file that
nobody else may read. One process after the other, so that each text has its owner; who is stopped or waits in the
kernel cannot answer and is not asked.
Refuses to take longer than it was given, to pass on anything of an output log but stacks, and to let a program trace
the run (py-spy reads without stopping it): who is traced is not signalled, and a TERM is to follow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from watchdog.actuators.signals import Handle, Sent, hold, send
from watchdog.clock import Clock
from watchdog.collectors.threads import read_threads
from watchdog.contract import handles, open_regular
from watchdog.core.identity import Process, ProcessId
from watchdog.core.stacks import Answer, ProcessThreads, Stacks, as_text, faulthandler_lines, place, py_spy_lines

PROCESSES_MOST = 50
ASKED_MOST = 8
LOOK_S = 0.35  # for looking at everybody; the process that matters most is looked at first
ASK_S = 1.25  # from the beginning: nobody is asked, or waited for, after that
SPY_S = 3.0  # py-spy 0.4 takes 0.02 s; one that hangs makes no TERM wait
SPY = "py-spy"
_SETTLED_S = 0.08  # a text that has not grown for so long is whole: it is written at once
_POLL_S = 0.01
_TEXT_BYTES = 256 * 1024

# Its own alarm ends it, whoever else has died; kept over exec. A file in memory takes what it prints, up to a limit.
_SPY_CHILD = """
import os, resource, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Children that did not end by their alarm (state D), kept until they can be reaped.
_leaving: list[subprocess.Popen[bytes]] = []


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What is to be kept. `members`: proven of the run; `beating`: the one that beats, if any; `leader`: its first.

    `title` is the first line of the file.
    """

    members: tuple[Process, ...]
    beating: ProcessId | None
    leader: ProcessId | None
    log: Path
    file: Path
    title: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What came of it. `why_not`: why there is no file. `words`: where the run stood, `frames` the lines of it."""

    stacks: Stacks
    words: str
    frames: tuple[str, ...]
    why_not: str = ""


def keep_stacks(order: Order, clock: Clock) -> Kept:
    """All of it. Takes ASK_S, or SPY_S where py-spy hangs. Raises nothing for what a process or a disk does."""
    began_s = clock.monotonic()
    looks, left_out = _looks(order, began_s + LOOK_S, clock)
    program = shutil.which(SPY)
    spied_on = next((look for look in looks if look.python), None)
    spy = None if program is None or spied_on is None else _Spy(program, spied_on.process, clock)
    answers = []
    asked = [look for look in looks if look.process.id == order.beating or look.python]
    for look in asked[:ASKED_MOST]:
        answers.append(ask(look.process, order.log, began_s + ASK_S, clock))
    stacks = Stacks(
        looks=looks,
        answers=tuple(answers),
        spied=None if spy is None else spy.answer(),
        spy_words=f"{SPY} is not installed" if program is None else "",
        left_out=left_out,
    )
    words, frames = place(stacks)
    why_not = ""
    try:
        _write(order.file, as_text(stacks, order.title).encode())
    except OSError as error:
        why_not = error.strerror or str(error)
    return Kept(stacks=stacks, words=words, frames=frames, why_not=why_not)


def _looks(order: Order, until_s: float, clock: Clock) -> tuple[tuple[ProcessThreads, ...], int]:
    """Everybody, who beats first, then the Pythons, the leader before the others; and how many were left out."""
    front = [order.beating, order.leader]
    rank = {identity: number for number, identity in reversed(list(enumerate(front))) if identity is not None}
    members = sorted(order.members, key=lambda each: rank.get(each.id, len(front)))
    found: list[ProcessThreads] = []
    for number, process in enumerate(members[:PROCESSES_MOST]):
        if number and clock.monotonic() >= until_s:
            break
        look = read_threads(process, until_s=until_s, clock=clock)
        if look is not None:
            found.append(look)
    found.sort(key=lambda look: (look.process.id != order.beating, not look.python))
    return tuple(found), len(members) - len(found)


def ask(process: Process, log: Path, until_s: float, clock: Clock) -> Answer:
    """SIGUSR2 to a process that catches it, and what it then wrote to `log`. Waits until `until_s` at most."""

    def said(words: str, text: str = "") -> Answer:
        return Answer(id=process.id, command=process.command, words=words, lines=faulthandler_lines(text))

    if process.state in "TtDZXx":
        return said(f"in state {process.state} it cannot answer: not asked")
    began_s = clock.monotonic()
    if began_s >= until_s:
        return said("not asked: the time was over")
    try:
        handle = hold(process.id)
        if handle is None:
            return said("it is gone")
        with contextlib.closing(handle):
            # Of a process that `hold` and `send` both prove to be this one. Should it execute another program in the
            # microseconds between, the signal ends it, in the middle of a stop that was decided and recorded.
            if not handles(signal.SIGUSR2, process.id.pid):
                return said("no handler for SIGUSR2: not asked")
            with open_regular(log) as file:
                start = file.seek(0, os.SEEK_END)
                sent = send(handle, signal.SIGUSR2)
                if sent is not Sent.DELIVERED:
                    return said(f"SIGUSR2: {sent.value}")
                text = _growth(file.fileno(), start, until_s, clock)
    except OSError as error:
        return said(f"not asked: {error.strerror or error}")
    took_s = clock.monotonic() - began_s
    if not faulthandler_lines(text):
        return said(f"got SIGUSR2 and wrote no stacks to its output within {took_s:.1f} s")
    return said(f"answered SIGUSR2 within {took_s:.2f} s", text)


def _growth(fd: int, start: int, until_s: float, clock: Clock) -> str:
    """What was written after `start`: until stacks are there and it has settled, or the time is over."""
    size, grew_s = start, clock.monotonic()
    while True:
        now_s = clock.monotonic()
        now = os.fstat(fd).st_size
        if now != size:
            size, grew_s = now, now_s
        if now_s >= until_s or (size > start and now_s - grew_s >= _SETTLED_S):
            text = os.pread(fd, _TEXT_BYTES, start).decode("utf-8", "replace")
            if now_s >= until_s or faulthandler_lines(text):
                return text
            grew_s = now_s  # something else was written meanwhile
        clock.sleep(_POLL_S)


class _Spy:
    """`py-spy dump` of one process, started at once and waited for later."""

    def __init__(self, program: str, process: Process, clock: Clock) -> None:
        self._process, self._clock = process, clock
        self._until_s = clock.monotonic() + SPY_S
        self._child: subprocess.Popen[bytes] | None = None
        self._handle: Handle | None = None
        self._output = -1
        self._failed = "it is gone"
        _leaving[:] = [child for child in _leaving if child.poll() is None]
        argv = (program, "dump", "--nonblocking", "--full-filenames", "--pid", str(process.id.pid))
        try:
            self._handle = hold(process.id)
            if self._handle is None:
                return
            self._output = os.memfd_create("stacks", os.MFD_CLOEXEC)
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SPY_CHILD, f"{SPY_S}", str(_TEXT_BYTES), *argv],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd="/",  # never in a folder that may be on a dead mount
                env={},
                process_group=0,
            )
        except OSError as error:
            self._failed = f"could not be started: {error.strerror or error}"

    def answer(self) -> Answer:
        """What it says, waited for until its alarm and a moment."""
        try:
            words, text = self._heard()
        finally:
            if self._output >= 0:
                os.close(self._output)
            if self._handle is not None:
                self._handle.close()
        lines = py_spy_lines(text)
        return Answer(id=self._process.id, command=self._process.command, words=f"{SPY}: {words}", lines=lines)

    def _heard(self) -> tuple[str, str]:
        if self._child is None:
            return self._failed, ""
        try:
            code = self._child.wait(max(0.0, self._until_s - self._clock.monotonic()) + 0.5)
        except subprocess.TimeoutExpired:
            _leaving.append(self._child)
            return f"did not end within {SPY_S:g} s and was left behind", ""
        if code == -signal.SIGALRM:
            return f"did not answer within {SPY_S:g} s", ""
        assert self._handle is not None
        if send(self._handle, signal.SIGUSR2, dry_run=True) is Sent.GONE:
            return "the process ended meanwhile: what it says may be of another", ""
        text = os.pread(self._output, _TEXT_BYTES, 0).decode("utf-8", "replace")
        if code != 0 or not py_spy_lines(text):
            return f"ended with {code} and no stacks (it may need root)", ""
        return "as it read them from outside", text


def _write(path: Path, content: bytes) -> None:
    """A whole file or none, for its owner's eyes, and never through a link. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
