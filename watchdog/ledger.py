"""The ledger: an append-only record, one JSON object a line, from which everything is rebuilt.

The writer has a thread of its own and a deadline: what could not be recorded is not done (`RecordingError`). A full
disk first releases a 1 MiB ballast file that is kept for this. Opening closes a torn last line; garbage in the
middle is passed over, counted and told, never removed. One that begins with what is no record is not used at all: what
the job came to, a hold perhaps, is not known then.
Refuses to interpret: core/history.py folds the events.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from watchdog.clock import Clock
from watchdog.contract import open_regular
from watchdog.core.history import Event, can_fold
from watchdog.errors import RecordingError, StateError

BALLAST_BYTES = 1024 * 1024
LINE_LIMIT_BYTES = 256 * 1024
END_BYTES = 2 * LINE_LIMIT_BYTES  # holds the last record whole, however long it is
_SHORTEST_BYTES = 100  # no record of ours is shorter: less garbage took the place of none
_BEGINS = b'{"seq": '  # as every line of ours
_FULL = (errno.ENOSPC, errno.EDQUOT)


def parse_line(line: bytes) -> Event | None:
    """One event, or None when the line is none."""
    if len(line) > LINE_LIMIT_BYTES:
        return None
    try:
        record = json.loads(line)
        event = Event(
            seq=int(record["seq"]),
            wall_s=float(record["wall_s"]),
            kind=str(record["event"]),
            sentence=str(record["sentence"]),
            data=dict(record.get("data") or {}),
            monotonic_s=_moment(record.get("monotonic_s")),
            boot_id=sys.intern(str(record["boot_id"])) if "boot_id" in record else None,
        )
        return event if math.isfinite(event.wall_s) and can_fold(event) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _moment(value: object) -> float | None:
    """A moment of CLOCK_MONOTONIC; older ledgers, and records made by hand, have none."""
    number = float(value) if isinstance(value, int | float) else math.nan
    return number if math.isfinite(number) else None


class Reading(NamedTuple):
    """All events in order, how many lines were none, and `damage`: why a part of it is not known, in words.

    `from_the_start`: what cannot be understood stands before every record.
    """

    events: tuple[Event, ...]
    bad: int
    damage: str
    from_the_start: bool = False


def read_events(path: Path) -> tuple[tuple[Event, ...], int]:
    """All events in order, and how many lines were none. A missing file has none.

    Raises StateError for one that cannot be read, or whose beginning, or nothing of which, can be understood.
    """
    events, bad, damage, from_the_start = read_ledger(path)
    if damage and from_the_start:
        raise StateError(f"{damage}; bring back a copy of it, or move it away to begin anew")
    return events, bad


def _is_torn(line: bytes) -> bool:
    """As a crash of ours leaves a line: cut off, or with zeros where the disk did not get to what was written."""
    head = line.rstrip(b"\n").strip(b"\0")[: len(_BEGINS)]
    return len(line) <= LINE_LIMIT_BYTES and head == _BEGINS[: len(head)]


def read_ledger(path: Path, last_bytes: int | None = None) -> Reading:
    """What the ledger holds, and what of it cannot be understood. A missing file is an empty one. Raises StateError.

    A crash of ours leaves one torn line, without an end until the next record: whole lines behind the last record that
    are none, a first line that does not begin as one, or more in the middle than such lines, are somebody else's work.
    `last_bytes`: only so much of its end is read.
    """
    events: list[Event] = []
    bad, at_byte = 0, 0
    lost: int | None = None  # where the lines without sense begin that no record follows
    strange, strange_bytes = 0, 0  # those since the last record that no crash of ours left: where, and how many bytes
    gaps: list[tuple[int, int, bool]] = []  # where such began, how many bytes, and whether no record stands before it
    try:
        with open_regular(path) as file:
            if last_bytes is not None and (skipped := os.fstat(file.fileno()).st_size - last_bytes) > 0:
                at_byte = file.seek(skipped) + len(file.readline())
            for line in file:
                begins, at_byte = at_byte, at_byte + len(line)
                if not line.strip():
                    continue
                event = parse_line(line)
                if event is not None:
                    if strange_bytes >= _SHORTEST_BYTES:
                        gaps.append((strange, strange_bytes, not events))
                    strange_bytes = 0
                    events.append(event)
                    lost = None
                    continue
                bad += 1
                if not _is_torn(line):
                    strange = strange if strange_bytes else begins
                    strange_bytes += len(line)
                torn = not line.endswith(b"\n") and (events or line.startswith(b"{"))
                if lost is None and not torn:
                    lost = begins
    except FileNotFoundError:
        return Reading((), 0, "")
    except OSError as error:
        raise StateError(f"cannot read the ledger {path}: {error.strerror}") from error
    damage = ""
    if lost is not None:
        damage = (
            f"the ledger {path} cannot be understood (byte {lost} of {at_byte} and what follows is no record): what "
            "became of the job, a hold too, is not known"
        )
    elif gaps:
        at, many, _ = gaps[-1]
        damage = (
            f"the ledger {path} cannot be understood (byte {at} of {at_byte} on: {many} bytes in the middle of the "
            "ledger are no records): what stood there, a hold too, is not known"
        )
    return Reading(tuple(events), bad, damage, not events or any(first for _, _, first in gaps))


class Ledger:
    """The one writer of a job's ledger; whoever makes one holds the supervisor lock."""

    def __init__(self, path: Path, ballast: Path, *, clock: Clock, boot_id: str, deadline_s: float = 5.0) -> None:
        """Open for append and close a torn last line. Raises StateError."""
        self.path = path
        self._ballast = ballast
        self._clock = clock
        self._boot_id = boot_id
        self._deadline_s = deadline_s
        self.events, self.bad_lines = read_events(path)
        self._seq = self.events[-1].seq if self.events else 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = os.fstat(self._fd).st_size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        except OSError as error:
            raise StateError(
                f"cannot open the ledger {path}: {error.strerror}; "
                "make the state folder writable, or set [state] folder"
            ) from error
        self._keep_ballast()
        self._queue: queue.SimpleQueue[tuple[bytes, _Receipt] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="ledger", daemon=True)
        self._thread.start()

    def record(self, kind: str, sentence: str, **data: Any) -> Event:
        """Write one event and wait until it is on disk. Raises RecordingError: then the action must not be done."""
        return self.record_all([(kind, sentence, data)])[0]

    def record_all(self, entries: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[Event]:
        """Write several events at once, all or none of them. Raises RecordingError."""
        wall_s, now_s = self._clock.wall(), round(self._clock.monotonic(), 3)
        events = [
            Event(
                seq=self._seq + number,
                wall_s=wall_s,
                kind=kind,
                sentence=sentence,
                data=data,
                monotonic_s=now_s,
                boot_id=self._boot_id,
            )
            for number, (kind, sentence, data) in enumerate(entries, start=1)
        ]
        lines = b"".join(self._line(event) for event in events)
        receipt = _Receipt()
        self._queue.put((lines, receipt))
        if not receipt.done.wait(self._deadline_s):
            receipt.abandoned = True
            self._seq += len(events)  # the one that is being written may still arrive: its number is not used again
            raise RecordingError(
                f"the ledger {self.path} took no record for {self._deadline_s:g} s; the disk under it hangs"
            )
        if receipt.error is not None:
            raise RecordingError(f"the ledger {self.path} took no record: {receipt.error.strerror}; free disk space")
        self._seq += len(events)
        return events

    def _line(self, event: Event) -> bytes:
        record = {
            "seq": event.seq,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.wall_s)),
            "wall_s": round(event.wall_s, 3),
            "monotonic_s": event.monotonic_s,
            "boot_id": event.boot_id,
            "event": event.kind,
            "sentence": event.sentence,
            "data": dict(event.data),
        }
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        if len(line) > LINE_LIMIT_BYTES:
            raise RecordingError(f"a record of {len(line)} bytes is too long for the ledger: {event.kind}")
        return line

    def close(self) -> None:
        """Write what is queued and stop; does not wait for a hanging disk."""
        self._queue.put(None)
        self._thread.join(self._deadline_s)

    def tend(self) -> None:
        """Put the ballast back when there is room again; call it now and then."""
        self._keep_ballast()

    def _write_all(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            line, receipt = item
            if receipt.abandoned:
                continue  # whoever asked has given up and asks again: written late, it would count twice
            try:
                self._append(line)
            except OSError as error:
                receipt.error = error
            receipt.done.set()

    def _append(self, line: bytes) -> None:
        try:
            self._append_once(line)
        except OSError as error:
            if error.errno not in _FULL or not self._release_ballast():
                raise
            self._append_once(line)

    def _append_once(self, line: bytes) -> None:
        """Append a whole line or nothing: what was written of it is cut off again."""
        before = os.fstat(self._fd).st_size
        content = (b"\n" if self._torn else b"") + line
        try:
            written = 0
            while written < len(content):
                written += os.write(self._fd, content[written:])
            os.fsync(self._fd)
        except OSError:
            try:
                os.ftruncate(self._fd, before)
            except OSError:
                self._torn = True  # the next record closes it with a newline
            raise
        self._torn = False

    def _release_ballast(self) -> bool:
        try:
            size = os.stat(self._ballast).st_size
            os.unlink(self._ballast)
        except FileNotFoundError:
            return False
        return size > 0

    def _keep_ballast(self) -> None:
        """Write the ballast for real (a sparse file would hold nothing), unless the disk is nearly full."""
        with contextlib.suppress(OSError):  # without ballast we are merely less safe; the disk check says so
            if self._ballast.exists():
                return
            room = os.statvfs(self._ballast.parent)
            if room.f_bavail * room.f_frsize < 4 * BALLAST_BYTES:
                return
            temporary = self._ballast.with_suffix(".tmp")
            temporary.write_bytes(os.urandom(BALLAST_BYTES))  # random: a compressing file system must not shrink it
            os.rename(temporary, self._ballast)


class _Receipt:
    """What the writer thread says about one record."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.abandoned = False
        self.error: OSError | None = None
