"""The kernel log, read from `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg).

Responsible for keeping the file open and its place in it between looks, so that a later look reads what is new; for
taking a record apart; and for counting what the kernel overwrote before it was read. What a line means is
classify/kernel_lines.py. A first look takes 3 ms for 400 records, and 32 ms for 5,000 of which half mean something; a
later one with nothing new 2 us.

Lines of user space are dropped: whoever may write to `/dev/kmsg` could else invent an Xid or an OOM kill. The kernel
stamps such lines with a facility other than its own and lets nobody claim 0, so this cannot be forged without code in
the kernel. For the same reason only the kernel's own device (1, 11) is believed on a real host: containers put
`/dev/null` or a terminal there, and an empty log would read as a healthy one. Where there is none, or it is closed to
this user, it is absent: nobody is told each time what will not change. It is tried anew at each look.

Of each kind, and of each number of an Xid, the newest lines are kept: no flood of one pushes out another.

Stamps are the kernel's local clock, which counts like CLOCK_MONOTONIC but is not disciplined by NTP: seconds apart
after days of uptime. Good enough to tell an hour ago from now, not to order against another clock.
Refuses to write, and to wait: the file is opened non-blocking.
"""

from __future__ import annotations

import collections
import errno
import os
import re
import stat

from msgspec import Struct

from watchdog.classify.kernel_lines import MARKERS, classify
from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Absent, Fact, KernelLine, KernelLog, Known
from watchdog.core.kernel import KernelKind

_KEPT_LINES = 100  # of each kind
_RECORDS_A_LOOK = 20_000
_BUFFER_BYTES = 16 * 1024  # a record is 8 KiB at most; a smaller buffer would be EINVAL
_KMSG = (1, 11)  # Documentation/admin-guide/devices.txt
_MEANS_SOMETHING = re.compile(b"|".join(map(re.escape, MARKERS)))  # one pass over the record, for all of them
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")


class Record(Struct, frozen=True, kw_only=True):
    """The head of one record. `kernel`: it was written by the kernel itself."""

    sequence: int
    at_s: float
    kernel: bool
    raw: bytes  # the message, escapes as they are


def parse_record(record: bytes) -> Record | None:
    """`prio,sequence,microseconds,flags[,...];message`, then lines of a dictionary that begin with a space.

    None for what is no record.
    """
    head, separator, body = record.partition(b";")
    fields = head.split(b",", 3)
    if not separator or len(fields) < 4 or not all(field.isdigit() and len(field) < 20 for field in fields[:3]):
        return None
    return Record(
        sequence=int(fields[1]),
        at_s=int(fields[2]) / 1e6,
        kernel=int(fields[0]) >> 3 == 0,
        raw=body.partition(b"\n")[0],
    )


def message_of(raw: bytes) -> str:
    """The message with `\\xNN` undone: the kernel escapes control characters, backslashes and all beyond ASCII."""
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), raw).decode("utf-8", errors="replace")


class KernelLogReader:
    """Reads again and again. Not for use from two threads at once; the runner sees to that."""

    def __init__(self, roots: Roots, clock: Clock) -> None:
        self._path = f"{roots.dev}/kmsg"
        self._fixture = roots.base != "/"
        self._clock = clock
        self._fd: int | None = None
        self._by_record = True
        self._tail = b""  # of a fixture: a record whose end was not there yet
        self._kept: dict[tuple[KernelKind, int | None], collections.deque[KernelLine]] = {}
        self._lines: tuple[KernelLine, ...] | None = ()  # of all kinds; None: to be put together anew
        self._since_s: float | None = None
        self._last: int | None = None  # sequence number of the last record that was taken apart
        self._newest: bytes | None = None  # a later one, not taken apart
        self._overrun = False
        self._dropped = 0

    def read(self) -> Fact[KernelLog]:
        """What has been read so far, with what is new; a very long log over several looks. Raises OSError."""
        if self._fd is None:
            opened = self._open()
            if isinstance(opened, Absent):
                return opened
            self._fd = opened
        try:
            self._read_on(self._fd)
        except OSError:
            self.close()  # the next look begins anew
            raise
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s  # an empty log: what comes is seen from here on
        if self._lines is None:
            self._lines = tuple(sorted((line for kept in self._kept.values() for line in kept), key=_moment))
        return Known(KernelLog(lines=self._lines, since_s=self._since_s, dropped=self._dropped), now_s)

    def close(self) -> None:
        """Let go of the file. A later look opens it again and reads all that the kernel still has."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._tail, self._overrun = None, b"", False

    def _open(self) -> int | Absent:
        """Open from the oldest record on."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                return Absent(
                    "the kernel log is closed to this user (dmesg_restrict): run as root, or sysctl "
                    "kernel.dmesg_restrict=0"
                )
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV):
                return Absent(f"there is no {self._path} here (a container?)")
            raise
        status = os.fstat(fd)
        self._by_record = stat.S_ISCHR(status.st_mode)
        device = (os.major(status.st_rdev), os.minor(status.st_rdev))
        genuine = device == _KMSG if self._by_record else self._fixture
        if not genuine:
            os.close(fd)
            return Absent(f"{self._path} is not the kernel's log but something put in its place (a container?)")
        self._kept, self._lines = {}, ()  # all of it is read again
        self._since_s = self._last = self._newest = None
        return fd

    def _read_on(self, fd: int) -> None:
        taken = 0
        while taken < _RECORDS_A_LOOK:
            try:
                data = os.read(fd, _BUFFER_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # the kernel overwrote what we would have read next, and has moved us on
                self._overrun, taken = True, taken + 1
                continue
            if not data:
                return  # the end of a fixture
            records = [data] if self._by_record else self._split(data)
            for record in records:
                self._take(record)
            taken += max(1, len(records))

    def _split(self, data: bytes) -> list[bytes]:
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        return [line for line in lines if not line.startswith(b" ")]

    def _take(self, data: bytes) -> None:
        # Of most records nothing is wanted but the number, and that only after an overrun.
        if self._since_s is not None and not self._overrun and _MEANS_SOMETHING.search(data) is None:
            self._newest = data
            return
        record = parse_record(data)
        if record is None:
            return
        if self._newest is not None:
            passed_over = parse_record(self._newest)
            self._last = self._last if passed_over is None else passed_over.sequence
            self._newest = None
        if self._overrun and self._last is not None:
            self._dropped += max(0, record.sequence - self._last - 1)
        self._overrun, self._last = False, record.sequence
        if self._since_s is None:
            self._since_s = record.at_s
        if record.kernel and _MEANS_SOMETHING.search(record.raw) is not None:
            line = classify(record.at_s, message_of(record.raw))
            if line is not None:
                kind = (line.kind, line.number if line.kind is KernelKind.XID else None)
                self._kept.setdefault(kind, collections.deque(maxlen=_KEPT_LINES)).append(line)
                self._lines = None


def _moment(line: KernelLine) -> float:
    return line.at_s
