"""The kernel log: records taken apart, read on from where the last look ended, and nobody believed but the kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors import kernel_log
from watchdog.collectors.kernel_log import KernelLogReader, message_of, parse_record
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Absent, KernelLog, Known
from watchdog.core.kernel import KernelKind

XID = "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def record(message: str, *, sequence: int = 1, at_s: float = 5.0, priority: int = 3, flags: str = "-") -> str:
    return f"{priority},{sequence},{round(at_s * 1e6)},{flags};{message}\n"


class Host:
    def __init__(self, base: Path) -> None:
        self.path = base / "dev/kmsg"
        self.path.parent.mkdir()
        self.reader = KernelLogReader(Roots(str(base)), SystemClock())

    def append(self, *records: str) -> None:
        with open(self.path, "a") as file:
            file.write("".join(records))

    def read(self) -> KernelLog:
        fact = self.reader.read()
        assert isinstance(fact, Known), fact
        return fact.value


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.reader.close()


def test_a_record_is_taken_apart() -> None:
    found = parse_record(b"4,339,5140900,-,caller=T123;NET: Registered; really\n SUBSYSTEM=net\n DEVICE=+net:eth0\n")
    assert found is not None
    assert (found.sequence, found.at_s, found.kernel) == (339, 5.1409, True)
    assert found.raw == b"NET: Registered; really"


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"no record", b"3,1;short", b"x,1,2,-;m", b"3,,2,-;m", b"3,1,-2,-;m", b"3," + b"9" * 5000 + b",1,-;m"],
)
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert parse_record(data) is None


def test_escapes_are_undone_once() -> None:
    assert message_of(rb"a\x0ab\x09c \x5cx41 caf\xc3\xa9 \xff \xzz") == "a\nb\tc \\x41 café \ufffd \\xzz"


def test_lines_that_mean_something_are_kept_with_their_moment(host: Host) -> None:
    host.append(
        record("Linux version 6.6.87", sequence=0, at_s=0.5, priority=5),
        record(XID, at_s=12.25),
        " SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n",
        record("eth0: link up", sequence=2, at_s=13.0, priority=6),
    )
    log = host.read()
    assert (log.since_s, log.dropped) == (0.5, 0)
    [line] = log.lines
    assert (line.kind, line.at_s, line.number, line.subject) == (KernelKind.XID, 12.25, 79, "0000:01:00.0")


@pytest.mark.parametrize("priority", [8 + 3, 12, 24 + 3, 191])
def test_user_space_cannot_invent_a_line(host: Host, priority: int) -> None:
    host.append(
        record(XID, priority=priority), record("Out of memory: Killed process 1 (init) total-vm:1kB", priority=priority)
    )
    assert host.read().lines == ()


def test_several_lines_of_one_message_stay_one(host: Host) -> None:
    host.append(
        record(
            r"NVRM: API mismatch: the client has the version 535.54.03, but\x0aNVRM: this kernel module has the "
            r"version 530.30.02.  Please\x0aNVRM: make sure that this kernel module and all NVIDIA driver"
        )
    )
    [line] = host.read().lines
    assert line.kind is KernelKind.MISMATCH
    assert "535.54.03, but this kernel module has the version 530.30.02." in line.text


def test_each_look_reads_on_where_the_last_one_ended(host: Host) -> None:
    host.append(record(XID, at_s=1.0))
    assert len(host.read().lines) == 1
    assert len(host.read().lines) == 1
    host.append(record(XID, sequence=2, at_s=2.0), record(XID, sequence=3, at_s=3.0)[:20])  # the last one half written
    assert [line.at_s for line in host.read().lines] == [1.0, 2.0]
    host.append(record(XID, sequence=3, at_s=3.0)[20:])
    assert [line.at_s for line in host.read().lines] == [1.0, 2.0, 3.0]


def test_a_pipe_is_read_as_far_as_it_goes(host: Host) -> None:
    os.mkfifo(host.path)
    assert host.read().lines == ()
    writer = os.open(host.path, os.O_WRONLY)
    try:
        os.write(writer, record(XID).encode())
        assert len(host.read().lines) == 1
        assert len(host.read().lines) == 1  # nothing more, and no waiting for it
    finally:
        os.close(writer)


def test_the_newest_hundred_of_a_kind_are_kept(host: Host) -> None:
    host.append(*(record(XID, sequence=number, at_s=float(number)) for number in range(150)))
    lines = host.read().lines
    assert (len(lines), lines[0].at_s, lines[-1].at_s) == (100, 50.0, 149.0)


def test_a_flood_of_one_kind_pushes_out_no_other(host: Host) -> None:
    disk = "blk_update_request: I/O error, dev sdb, sector 1953512"
    fault = XID.replace(" 79,", " 31,")
    flood = (record(line, at_s=float(number)) for number in range(10, 1010) for line in (disk, fault))
    host.append(record(XID, at_s=5.0), *flood)
    lines = host.read().lines
    assert lines[0].number == 79, "an Xid is of a kind with its own number only"
    assert [line.kind for line in lines].count(KernelKind.IO_ERROR) == 100
    assert [line.at_s for line in lines] == sorted(line.at_s for line in lines), "oldest first"


def test_a_very_long_log_takes_several_looks(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_RECORDS_A_LOOK", 1000)
    host.append(*(record("noise " * 10, sequence=number) for number in range(5000)), record(XID, sequence=5000))
    looks = 0
    while not host.read().lines:
        looks += 1
        assert looks < 10
    assert looks >= 2


def test_a_full_ring_takes_no_time(host: Host) -> None:
    text = "EXT4-fs (sdc): mounted filesystem with ordered data mode"
    host.append(*(record(f"{text} {number}", sequence=number) for number in range(4000)))  # 256 KiB of messages
    took_s = []
    for _ in range(5):
        started_s = time.monotonic()
        host.read()
        took_s.append(time.monotonic() - started_s)
        host.reader.close()
    assert min(took_s) < 0.1  # 10 ms here; what is asked is 30 ms


def test_an_empty_log_is_seen_from_now_on(host: Host) -> None:
    host.append("")
    before_s = time.monotonic()
    assert before_s <= host.read().since_s <= time.monotonic()


def test_after_closing_all_is_read_again_and_nothing_told_twice(host: Host) -> None:
    host.append(record(XID))
    host.read()
    host.reader.close()
    assert len(host.read().lines) == 1


def test_no_kernel_log_is_absent(host: Host) -> None:
    fact = host.reader.read()
    assert isinstance(fact, Absent)
    assert "a container?" in fact.why
    host.append(record(XID))  # and once there is one, it is read
    assert len(host.read().lines) == 1


def test_a_device_that_is_not_the_kernels_is_no_log(host: Host) -> None:
    """Containers put /dev/null there; empty for ever, it would read as a healthy log."""
    host.path.symlink_to("/dev/null")
    fact = host.reader.read()
    assert isinstance(fact, Absent)
    assert "in its place" in fact.why


@pytest.mark.parametrize("error", [PermissionError(1, "dmesg_restrict"), PermissionError(13, "mode 0640")])
def test_no_permission_says_what_to_do(host: Host, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """Played, since root may open everything."""

    def refuse(path: str, flags: int) -> int:
        raise error

    host.append(record(XID))
    with monkeypatch.context() as patched:
        patched.setattr(kernel_log.os, "open", refuse)
        fact = host.reader.read()
    assert isinstance(fact, Absent)
    assert "dmesg_restrict=0" in fact.why
    assert len(host.read().lines) == 1, "it is tried again at each look"


class Ring:
    """Stands for the device: each read gives one record, or fails as the kernel would."""

    def __init__(self, *answers: str | OSError) -> None:
        self._answers = list(answers)

    def read(self, fd: int, length: int) -> bytes:
        if not self._answers:
            raise BlockingIOError
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer.encode()


def test_what_the_kernel_overwrote_is_counted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.append("")
    ring = Ring(
        BrokenPipeError(),  # before anything was read: how much was there before us is not our loss
        record("a", sequence=100),
        record("b", sequence=101),
        BrokenPipeError(),
        BrokenPipeError(),
        record(XID, sequence=142),
        record("c", sequence=145),  # a gap without a word from the kernel is none
    )
    monkeypatch.setattr(kernel_log.os, "read", ring.read)
    log = host.read()
    assert (log.dropped, len(log.lines)) == (40, 1)


def test_a_log_that_fails_is_opened_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.append(record(XID))
    with monkeypatch.context() as patched:
        patched.setattr(kernel_log.os, "read", Ring(OSError(5, "Input/output error")).read)
        with pytest.raises(OSError, match="Input/output"):
            host.reader.read()
    assert len(host.read().lines) == 1
