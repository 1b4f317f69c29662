"""The kernel's view of jobs: who was born, who died and how, written down while it happens. For bench/audit.py.

Responsible for polling /proc and holding a pidfd of everybody who is of a job, so that a death is known within
milliseconds and by its signal (from Linux 6.15 on; before, only where a zombie is met). A process is of the job NAME
when its environment or its words name something below ROOT/NAME: a trainer, its shim, a supervisor, a command, or
somebody else with the trainer's words.
Refuses to read what the product writes, to import anything of it, and to signal anybody.

    python -P -m bench.audit_eye ROOT

Orders come on its standard input, one a line: `begin NAME`, `struck NAME PID SIGNAL MONOTONIC_S` (who was signalled
from outside, by whoever makes the faults), `end NAME`. What is seen goes to ROOT/NAME.kernel, one JSON object a line;
times are CLOCK_MONOTONIC in seconds.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import select
import struct
import sys
import time
from typing import TextIO

PERIOD_S = 0.005
_YOUNG_S = 0.5  # so long a process may still be on its way through fork and exec
_AGAIN_S = 1.0  # how often somebody who is of no job is looked at again
_CODE_S = 2.0  # how long is waited for the exit code of one that nobody has reaped
_CHECKPOINTS, _RUN_ID = b"GPUHOST_WATCHDOG_CHECKPOINTS=", b"GPUHOST_WATCHDOG_RUN_ID="  # docs/job-contract.md
# ioctl PIDFD_GET_INFO, struct pidfd_info of 64 bytes, PIDFD_INFO_EXIT: linux/pidfd.h
_GET_INFO, _INFO_EXIT = 0xC040FF0B, 8


@dataclasses.dataclass(frozen=True)
class Who:
    """What a process is by its words and its environment. `role`: trainer, shim, supervisor, command, or other."""

    job: str
    role: str
    run_id: str | None = None
    words: str = ""


def who_is(words: list[bytes], environment: list[bytes], root: bytes) -> Who | None:
    """None for somebody who is of no job below `root`."""
    folder = _value(environment, _CHECKPOINTS)
    marked = _value(words, b"--of-job=")
    if (job := _job(folder, root) or _job(marked, root)) is not None:
        run_id = _value(environment, _RUN_ID) or _value(words, b"--of-run=")
        shim = any(word.endswith(b"/shim.py") for word in words[:5])
        return Who(job, "shim" if shim else "trainer", None if run_id is None else os.fsdecode(run_id))
    for place, word in enumerate(words):
        if (job := _job(word, root)) is not None:
            verb = os.fsdecode(words[place - 2]) if place >= 2 and words[place - 1] == b"--config" else ""
            return Who(job, "supervisor" if verb == "run" else "command" if verb else "other", words=verb)
    return None


def _value(entries: list[bytes], prefix: bytes) -> bytes | None:
    return next((entry[len(prefix) :] for entry in entries if entry.startswith(prefix)), None)


def _job(path: bytes | None, root: bytes) -> str | None:
    if path is None or not path.startswith(root + b"/"):
        return None
    return os.fsdecode(path[len(root) + 1 :].split(b"/")[0])


@dataclasses.dataclass
class _Member:
    """One process of a job, held by its pidfd."""

    pid: int
    ticks: int
    ppid: int
    fd: int
    who: Who
    first_s: float
    alive_s: float
    dead_s: float | None = None


class Eye:
    """Looks again and again, and writes down what changes."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: dict[str, TextIO] = {}
        self._looks: dict[str, int] = {}
        self._gaps: dict[str, float] = {}
        self._members: dict[int, _Member] = {}  # by pidfd
        self._others: dict[int, tuple[float, float]] = {}  # pid -> (first seen, looked at last)
        self._poll = select.poll()
        self._last_s: float | None = None

    # --- jobs ---------------------------------------------------------------------------------------------------
    def begin(self, job: str) -> None:
        self._files[job] = open(f"{self._root}/{job}.kernel", "a", encoding="utf-8")  # noqa: SIM115 - until `end`
        self._looks[job], self._gaps[job] = 0, 0.0
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
        ahead_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        hz = os.sysconf("SC_CLK_TCK")
        self._write(job, kind="eye", boot_id=boot_id, ticks_per_s=hz, boottime_ahead_s=round(ahead_s, 4))
        self._others.clear()

    def struck(self, job: str, pid: int, number: int, at_s: float) -> None:
        self._write(job, kind="struck", pid=pid, signal=number, at_s=at_s)

    def end(self, job: str) -> None:
        for member in list(self._members.values()):
            if member.who.job == job:
                if member.dead_s is None:
                    self._write(job, kind="alive", pid=member.pid, ticks=member.ticks, alive_s=member.alive_s)
                else:
                    self._bury(member, None)
                self._drop(member)
        self._write(job, kind="end", looks=self._looks[job], longest_gap_s=round(self._gaps[job], 4))
        self._files.pop(job).close()

    def _write(self, job: str, **what: object) -> None:
        if job in self._files:
            self._files[job].write(json.dumps(what) + "\n")
            self._files[job].flush()

    # --- looking ------------------------------------------------------------------------------------------------
    def wait(self, orders: int, timeout_s: float) -> bool:
        """Until somebody dies, an order comes (True) or the time is over."""
        self._poll.register(orders, select.POLLIN | select.POLLHUP)
        try:
            return any(fd == orders for fd, _ in self._poll.poll(max(0.0, timeout_s) * 1000))
        finally:
            self._poll.unregister(orders)

    def look(self) -> None:
        """Who has died since the last look, and who is new."""
        now_s = time.monotonic()
        gap_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        for job in self._files:
            self._looks[job] += 1
            self._gaps[job] = max(self._gaps[job], gap_s if self._looks[job] > 1 else 0.0)
        gone = {fd for fd, _ in self._poll.poll(0)}
        found_s = time.monotonic()
        for fd, member in list(self._members.items()):
            if fd in gone:
                member.dead_s = found_s
                self._poll.unregister(fd)
            elif member.dead_s is None:
                member.alive_s = now_s
            if member.dead_s is not None:
                code = _exit_code(member)
                if code is not None or found_s - member.dead_s > _CODE_S:
                    self._bury(member, code)
                    self._drop(member)
        self._look_for_new(now_s)

    def _look_for_new(self, now_s: float) -> None:
        known = {member.pid: member for member in self._members.values() if member.dead_s is None}
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._others.keys() - pids:
            del self._others[pid]
        for pid in pids - known.keys():
            first_s, last_s = self._others.get(pid, (now_s, float("-inf")))
            if now_s - first_s > _YOUNG_S and now_s - last_s < _AGAIN_S:
                continue
            self._others[pid] = (first_s, now_s)
            if (member := self._meet(pid, now_s)) is not None:
                self._members[member.fd] = member
                self._poll.register(member.fd, select.POLLIN)
                self._others.pop(pid)
                self._tell("born", member)
        for member in known.values():
            if now_s - member.first_s < _YOUNG_S:
                who = self._read(member.pid, member.ppid)
                if who is None and member.who.run_id is None and _has_words(member.pid):
                    who = Who(member.who.job, "left")  # a child of a supervisor that has become something else
                if who is not None and who != member.who and _stat(member.pid) is not None:
                    member.who = who
                    self._tell("is", member)

    def _meet(self, pid: int, now_s: float) -> _Member | None:
        before = _stat(pid)
        who = None if before is None else self._read(pid, before[1])
        if before is None or who is None or who.job not in self._files:
            return None
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        # Compared after opening: from here on the descriptor stands for this very process.
        after = _stat(pid)
        if after is None or after[0] != before[0]:
            os.close(fd)
            return None
        return _Member(pid, before[0], before[1], fd, who, now_s, now_s)

    def _read(self, pid: int, ppid: int) -> Who | None:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:
            return None
        who = who_is(words, environment, os.fsencode(self._root))
        if who is not None and who.role == "shim":
            # A trainer between fork and exec still has the words of its shim.
            for member in self._members.values():
                if member.pid == ppid and member.who.role == "shim" and member.who.run_id == who.run_id:
                    return dataclasses.replace(who, role="trainer")
        return who

    def _tell(self, kind: str, member: _Member) -> None:
        who = member.who
        self._write(
            who.job, kind=kind, pid=member.pid, ticks=member.ticks, ppid=member.ppid, role=who.role, run_id=who.run_id,
            words=who.words, at_s=member.first_s,
        )  # fmt: skip

    def _bury(self, member: _Member, code: int | None) -> None:
        number = None if code is None else code & 0x7F
        self._write(
            member.who.job, kind="dead", pid=member.pid, ticks=member.ticks, alive_s=member.alive_s,
            dead_s=member.dead_s, signal=number, code=None if code is None else code >> 8 & 0xFF,
        )  # fmt: skip

    def _drop(self, member: _Member) -> None:
        if member.dead_s is None:
            self._poll.unregister(member.fd)
        del self._members[member.fd]
        os.close(member.fd)


def _has_words(pid: int) -> bool:
    """Who is on its way out has none any more."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def _stat(pid: int) -> tuple[int, int] | None:
    """(start time in ticks, parent) of a living process."""
    fields = _fields(pid)
    if fields is None or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]), int(fields[1])


def _fields(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data[data.rindex(b")") + 2 :].split()


def _exit_code(member: _Member) -> int | None:
    """As `wait` gives it: from the zombie, or from the pidfd of one that was reaped; None where neither tells."""
    fields = _fields(member.pid)
    if fields is not None and int(fields[19]) == member.ticks and fields[0] == b"Z":
        code = int(fields[49])
        return code or None  # 0 is also what is told to whoever may not know
    info = bytearray(64)
    struct.pack_into("Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(member.fd, _GET_INFO, info, True)
    except OSError:
        return None
    mask, code = struct.unpack_from("Q", info, 0)[0], struct.unpack_from("i", info, 60)[0]
    return code if mask & _INFO_EXIT else None


def main(argv: list[str]) -> int:
    eye = Eye(os.path.realpath(argv[0]))
    os.set_blocking(0, False)
    pending = b""
    while True:
        began_s = time.monotonic()
        eye.look()
        if not eye.wait(0, PERIOD_S - (time.monotonic() - began_s)):
            continue
        more = os.read(0, 65536)
        if not more:
            return 0
        *lines, pending = (pending + more).split(b"\n")
        for line in lines:
            order, job, *words = line.decode().split()
            if order == "begin":
                eye.begin(job)
            elif order == "struck":
                eye.struck(job, int(words[0]), int(words[1]), float(words[2]))
            elif order == "end":
                eye.look()
                eye.end(job)
            print(order, job, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
