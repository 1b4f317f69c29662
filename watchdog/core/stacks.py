"""Where the processes of a run stand: what was seen of their threads and what they said, as records and as words. Pure.

Reads the texts of Python's faulthandler and of py-spy, and takes nothing of them but lines of their own shape: what
else stands in an output log is not ours to copy. Refuses to judge why a run stands where it stands.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from watchdog.core.identity import Process, ProcessId
from watchdog.masking import mask_text

FILE_MOST_BYTES = 1024 * 1024
FRAMES_SHOWN = 12  # of the main thread, in the ledger
_FRAMES_IN_WORDS = 3
_LINE_MOST = 500
_CUT = b"cut: the rest is more than this file may hold\n"

_STATES = {
    "R": "is running",
    "S": "sleeps",
    "D": "waits in the kernel and cannot be interrupted",
    "T": "is stopped by a signal",
    "t": "is held by a debugger",
}
_CANNOT_GO_ON = "DTt"
_LONGEST = 2000  # characters of a line that may be of a stack; the patterns take their time over longer ones
# faulthandler: `Current thread 0x00007f36dfc3db80 (most recent call first):`; since 3.14 with a name in brackets.
_HEADER = re.compile(r"(?:(Current thread|Thread) 0x[0-9a-fA-F]{1,16}\b.*|(Stack)) \(most recent call first\):\s*")
_FRAME = re.compile(r'  (?:File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)|<[^>]+>|\.\.\.)\s*')
# py-spy dump: `Thread 26407 (idle): "MainThread"`, then four spaces and `wait (threading.py:327)`.
_SPY_HEADER = re.compile(r'Thread .+ \(.+\)(?:: "(?P<thread>.*)")?\s*')
_SPY_FRAME = re.compile(r"    (?:(?P<name>\S.*) \((?P<file>.+):(?P<line>\d+)\)|\S.*)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Thread:
    """One thread as `/proc/PID/task/TID` shows it; None is what could not be read or says nothing.

    `syscall`: the number alone, never its arguments. `stack`: of the kernel, as far as this user may see it.
    """

    tid: int
    name: str
    state: str
    wchan: str | None = None
    syscall: str | None = None
    stack: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProcessThreads:
    """A process of the run. `catches`: it has a handler for SIGUSR2. `left_out`: threads that were not looked at."""

    process: Process
    threads: tuple[Thread, ...] = ()
    left_out: int = 0
    catches: bool = False
    python: bool = False

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.tid == self.process.id.pid), None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one process said, or py-spy of it: `words` how it went, `lines` the stacks, none where there are none."""

    id: ProcessId
    command: str
    words: str
    lines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stacks:
    """All that was gathered, the process that matters most in front. `left_out`: processes not looked at."""

    looks: tuple[ProcessThreads, ...]
    answers: tuple[Answer, ...] = ()
    spied: Answer | None = None
    spy_words: str = ""  # of py-spy where it was not asked
    left_out: int = 0

    @property
    def counted(self) -> str:
        """`1 process, 12 threads`."""
        threads = sum(len(look.threads) for look in self.looks)
        return f"{_count(len(self.looks), 'process', 'processes')}, {_count(threads, 'thread', 'threads')}"


def faulthandler_lines(text: str) -> tuple[str, ...]:
    """The headers and frames that faulthandler wrote into `text`, and nothing else of it."""
    lines = (line for line in text.splitlines() if len(line) <= _LONGEST)
    found = [line for line in lines if _HEADER.fullmatch(line) or _FRAME.fullmatch(line)]
    return tuple(map(_shown, found)) if any(map(_HEADER.fullmatch, found)) else ()


def py_spy_lines(text: str) -> tuple[str, ...]:
    """The same of `py-spy dump`; its first line, which holds the command's arguments, is left out."""
    lines = (line for line in text.splitlines() if len(line) <= _LONGEST)
    found = [line for line in lines if _SPY_HEADER.fullmatch(line) or _SPY_FRAME.fullmatch(line)]
    return tuple(map(_shown, found)) if any(map(_SPY_HEADER.fullmatch, found)) else ()


def main_frames(lines: Iterable[str]) -> tuple[str, ...]:
    """The frames of the main thread, innermost first: of a text of faulthandler's or of py-spy's.

    faulthandler does not name it: it is the thread that got the signal, or else the last that was written.
    """
    sections: list[tuple[bool, list[str]]] = []
    for line in lines:
        header, spy = _HEADER.fullmatch(line), _SPY_HEADER.fullmatch(line)
        if header or spy:
            main = header[1] == "Current thread" if header else spy is not None and spy["thread"] == "MainThread"
            sections.append((main, []))
        elif sections and line.strip():
            sections[-1][1].append(line)
    if not sections:
        return ()
    return tuple(next((frames for main, frames in sections if main), sections[-1][1]))


def frame_words(line: str) -> str:
    """`wait (threading.py:327)`."""
    match = _FRAME.fullmatch(line) or _SPY_FRAME.fullmatch(line)
    if match is None or match["file"] is None:
        return line.strip()
    return f"{match['name']} ({match['file'].rpartition('/')[2]}:{match['line']})"


def place(stacks: Stacks) -> tuple[str, tuple[str, ...]]:
    """Where the run stands, in words, and the lines that tell it: the main thread's frames, else what the kernel says.

    The first process counts; another one's frames only where the first is able to go on and said nothing.
    """
    if not stacks.looks:
        return "nobody of it could be looked at", ()
    first = stacks.looks[0]
    told = [*stacks.answers, *([stacks.spied] if stacks.spied is not None else [])]
    told = [answer for answer in told if main_frames(answer.lines)]
    told.sort(key=lambda answer: answer.id != first.process.id)
    held = first.main is not None and first.main.state in _CANNOT_GO_ON
    if told and (told[0].id == first.process.id or not held):
        frames = main_frames(told[0].lines)
        telling = [frame for frame in frames if "<frozen " not in frame] or frames  # Python's own way to a program
        words = " ← ".join(frame_words(frame) for frame in telling[:_FRAMES_IN_WORDS])
        state = f"{_STATES[first.main.state]}, " if held and first.main is not None else ""
        return f"pid {told[0].id.pid} ({told[0].command}) {state}stood in {words}", frames[:FRAMES_SHOWN]
    who = f"pid {first.process.id.pid} ({first.process.command})"
    if first.main is None:
        return f"{who} could not be looked at", ()
    return f"{who} {_state_words(first.main)}", tuple(_shown(line) for line in first.main.stack[:FRAMES_SHOWN])


def as_text(stacks: Stacks, title: str) -> str:
    """The file: what the processes said, then what the kernel shows. At most FILE_MOST_BYTES of UTF-8."""
    content = bytearray()
    for line in _lines(stacks, title):
        shown = _shown(line).encode("utf-8", "backslashreplace") + b"\n"
        if len(content) + len(shown) + len(_CUT) > FILE_MOST_BYTES:
            content += _CUT
            break
        content += shown
    return content.decode()


def _lines(stacks: Stacks, title: str) -> Iterator[str]:
    yield from (title, place(stacks)[0])
    for answer in [*stacks.answers, *([stacks.spied] if stacks.spied is not None else [])]:
        yield from ("", f"== pid {answer.id.pid} ({answer.command}): {answer.words}", *answer.lines)
    if stacks.spy_words:
        yield from ("", f"== {stacks.spy_words}")
    for look in stacks.looks:
        count = _count(len(look.threads), "thread", "threads")
        more = f", {look.left_out} more were not looked at" if look.left_out else ""
        yield from ("", f"== pid {look.process.id.pid} ({look.process.command}): {count}{more}")
        for thread in look.threads:
            yield f"{thread.tid} {thread.name}: {_state_words(thread)}"
            yield from (f"    {line}" for line in thread.stack)
    if stacks.left_out:
        were = "was not looked at, or is gone" if stacks.left_out == 1 else "were not looked at, or are gone"
        yield from ("", f"{_count(stacks.left_out, 'process', 'processes')} {were}")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _state_words(thread: Thread) -> str:
    words = _STATES.get(thread.state, f"is in state {thread.state}")
    if thread.wchan is not None:
        words += f" at {thread.wchan}"
    return words if thread.syscall is None else f"{words} (system call {thread.syscall})"


def _shown(line: str) -> str:
    """Masked, in one line that a terminal can take."""
    line = mask_text(line[:_LINE_MOST].rstrip())
    return "".join(char if char.isprintable() else "?" for char in line)
