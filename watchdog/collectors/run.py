"""The living run, as far as it can be seen: its shim, its leader, its members, what it left.

Held by pidfd, so that an end is seen at once and a number that was given to another is never mistaken for ours.
Refuses to signal anybody and to decide what an end means.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import select
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from watchdog import contract
from watchdog.classify.ends import End, ExitRecord
from watchdog.classify.log_tail import Failure, failure_of_record, make_link
from watchdog.collectors.outputlog import tail
from watchdog.collectors.processes import (
    all_traces,
    is_alive,
    living_table,
    process_table,
    read_process,
    tracer_of,
)
from watchdog.collectors.runcgroup import is_there, pids_in
from watchdog.core.identity import Orphans, Process, ProcessId, descendants, orphans_of
from watchdog.core.runrecord import RunRecord
from watchdog.core.seen import Shim
from watchdog.folders import RunFolder

SHIM_COULD_NOT_START = 111  # as in shim.py, which nothing imports
SHIM_COULD_NOT_RECORD = 112
_LOG_END_BYTES = 64 * 1024
_LINKS = 20  # of a chain of exceptions
_MEMBERS_LIMIT_BYTES = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StartRecord:
    """What the shim wrote of itself and its leader."""

    shim: ProcessId
    leader: ProcessId | None
    cgroup_error: str | None = None  # why the leader is not in the run's cgroup


def read_start(run: RunFolder) -> StartRecord | None:
    """The shim's start file; None while there is none. A foreign or broken one raises ContractError."""
    try:
        record = contract.read_json(run.start, "start record")
    except FileNotFoundError:
        return None
    try:
        shim, leader, cgroup_error = record["shim"], record["leader"], record.get("cgroup_error")
        return StartRecord(
            shim=ProcessId(int(shim["pid"]), int(shim["start_ticks"])),
            leader=None if leader is None else ProcessId(int(leader["pid"]), int(leader["start_ticks"])),
            cgroup_error=None if cgroup_error is None else str(cgroup_error),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise contract.ContractError(f"{run.start} lacks or misstates {error}") from error


def _end(record: object) -> End | None:
    if not isinstance(record, dict):
        return None
    return End(
        pid=int(record["pid"]),
        code=None if record["code"] is None else int(record["code"]),
        signal=None if record["signal"] is None else int(record["signal"]),
        wall_s=float(record["wall_s"]),
        monotonic_s=None if record.get("monotonic_s") is None else float(record["monotonic_s"]),
    )


def read_exit(run: RunFolder) -> ExitRecord | None:
    """The shim's exit record; None while there is none or it is being written, or where it cannot be read."""
    with contextlib.suppress(OSError):
        return _exit_of(run)
    return None


def _exit_of(run: RunFolder) -> ExitRecord | None:
    """The same. Raises OSError where no descriptor is to be had, which says nothing of the record."""
    try:
        record = contract.read_json(run.exit, "exit record")
        error = record["exec_error"]
        return ExitRecord(
            run_id=str(record["run_id"]),
            complete=record["complete"] is True,
            leader=_end(record["leader"]),
            exec_error=None if error is None else (int(error[0]), str(error[1]), str(error[2])),
            others=tuple(end for end in map(_end, record["ended"]) if end is not None),
        )
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    except (contract.ContractError, KeyError, TypeError, ValueError, IndexError, OverflowError):
        return None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LastWords:
    """What a run left of its end: its failure record, where it is one, and the end of its output.

    `told`: the failure record as it stands in the file.
    """

    failure: Failure | None = None
    log: str = ""
    told: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)


def read_last_words(run: RunFolder) -> LastWords:
    """As far as it can be read: a record that is none and a log that is gone say nothing. May hang with the disk."""
    log = ""
    with contextlib.suppress(OSError):
        log = tail(run.log, _LOG_END_BYTES)
    told = _told(run)
    return LastWords(failure=None if told is None else _failure(told), log=log, told=told)


def _told(run: RunFolder) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, contract.ContractError):
        return contract.read_json(run.failure, "failure record")
    return None


def _failure(record: Mapping[str, Any]) -> Failure | None:
    with contextlib.suppress(KeyError, TypeError, IndexError, AttributeError):
        links = []
        for link in record["chain"][:_LINKS]:
            number = link.get("errno")
            number = number if isinstance(number, int) and not isinstance(number, bool) else None
            links.append(make_link(str(link["class"]), str(link["message"]), number))
        if links:
            return failure_of_record(links, str(record.get("traceback") or ""))
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Grouped:
    """The pids in a run's cgroup; `strangers` are those that are not proven the run's."""

    pids: frozenset[int]
    strangers: frozenset[int]


class RunWatch:
    """Eyes on one run, launched by us (`child`) or adopted."""

    def __init__(
        self,
        record: RunRecord,
        child: subprocess.Popen[bytes] | None = None,
        *,
        lock_is_free: Callable[[], bool] = lambda: False,
    ) -> None:
        """`lock_is_free` asks the run lock; it tells the end of an adopted shim that left no start record to go by."""
        self.record = record
        self.folder = RunFolder(path=Path(record.folder))
        self.start: StartRecord | None = None
        self._child = child
        self._lock_is_free = lock_is_free
        self.orphans_come_to_us = False  # set by who has made sure of it: we are a subreaper, and nobody else's
        self._shim_fd: int | None = None
        self._child_id: ProcessId | None = None
        self._leader_fd: int | None = None
        self._leader_gone = False
        self._seen: frozenset[ProcessId] = self._remembered()
        self._shim_state = Shim.STARTING
        self._hold_child()

    def _hold_child(self) -> None:
        """Our own shim, by descriptor. Where none is to be had yet it is told by waiting for it, and tried again."""
        child = self._child
        if child is None or child.returncode is not None or self._child_id is not None:
            return
        with contextlib.suppress(OSError):  # ours and not reaped, so its number is its own
            self._shim_fd = os.pidfd_open(child.pid) if self._shim_fd is None else self._shim_fd
            self._child_id = ProcessId(child.pid, contract.start_ticks(child.pid))

    @property
    def adopted(self) -> bool:
        return self._child is None

    @property
    def _ours_come_to_us(self) -> bool:
        return self.orphans_come_to_us and not self.adopted

    @property
    def shim_id(self) -> ProcessId | None:
        """The shim, as soon as it is known: our own child at once, an adopted one from its start record."""
        return self._child_id if self.start is None else self.start.shim

    def descriptors(self) -> list[int]:
        """What becomes readable when the shim or the leader ends; only those not known to be over."""
        shim_over = self._shim_state in (Shim.ENDED, Shim.LOST, Shim.NEVER)
        watched = ((self._shim_fd, shim_over), (self._leader_fd, self._leader_gone))
        return [fd for fd, over in watched if fd is not None and not over]

    def close(self) -> None:
        for fd in (self._shim_fd, self._leader_fd):
            if fd is not None:
                os.close(fd)
        self._shim_fd = self._leader_fd = None

    def shim(self) -> Shim:
        """Look at the shim, and find out about the leader on the way."""
        if self._shim_state in (Shim.ENDED, Shim.LOST, Shim.NEVER):
            return self._shim_state
        if self.start is None:
            self._read_start()
        over = self._shim_over()  # before reading its files once more: what it wrote last is then there
        self._read_start()
        if over:
            self._shim_state = self._how_the_shim_ended()
        elif self.start is not None:
            self._shim_state = Shim.ALIVE
        return self._shim_state

    def _read_start(self) -> None:
        if self.start is None or self.start.leader is None:
            with contextlib.suppress(contract.ContractError, OSError):
                self.start = read_start(self.folder) or self.start
        self._hold_child()
        if self.start is None:
            return
        with contextlib.suppress(OSError):  # no descriptor to be had says nothing of them: the next look tries again
            if self._shim_fd is None and self.adopted:
                self._shim_fd = _open(self.start.shim)
            if self._leader_fd is None and self.start.leader is not None and not self._leader_gone:
                self._leader_fd = _open(self.start.leader)
                self._leader_gone = self._leader_fd is None

    def _shim_over(self) -> bool:
        if self._child is not None:
            return self._child.poll() is not None
        if self._shim_fd is not None:
            return _readable(self._shim_fd)
        if self.start is not None:
            return not is_alive(self.start.shim)
        record = self.exit_record()
        return (record is not None and record.complete) or self._lock_is_free()

    def _how_the_shim_ended(self) -> Shim:
        try:
            exit_record = _exit_of(self.folder)
        except OSError:
            return self._shim_state  # how it ended is not to be told yet: the next look
        if exit_record is not None and exit_record.complete and exit_record.run_id == self.record.run_id:
            return Shim.ENDED
        code = None if self._child is None else self._child.returncode
        if code == SHIM_COULD_NOT_START:
            return Shim.NEVER
        if code == SHIM_COULD_NOT_RECORD:
            return Shim.ENDED
        if self.adopted and self.start is None and not self.folder.start.exists():
            return Shim.NEVER  # the shim writes that file before it starts anything
        return Shim.LOST

    def leader_alive(self) -> bool:
        if self._leader_fd is None:
            return not self._leader_gone and self._shim_state in (Shim.STARTING, Shim.ALIVE)
        if not self._leader_gone and _readable(self._leader_fd):
            self._leader_gone = True
        return not self._leader_gone

    def exit_record(self) -> ExitRecord | None:
        record = read_exit(self.folder)
        return record if record is not None and record.run_id == self.record.run_id else None

    def members(self) -> tuple[Process, ...]:
        """Everything living that descends from the shim; what was seen once is remembered for harder times.

        Never this process itself, wherever it was started: it is no part of the run that it may have to end.
        """
        if self.start is None:
            return ()
        me, found = os.getpid(), descendants(self.start.shim, living_table())
        members = tuple(process for process in found if process.living and process.id.pid != me)
        identities = frozenset(process.id for process in members)
        if identities - self._seen:
            self._seen = identities | (self._seen if self._shim_state is Shim.LOST else frozenset())
            self._remember()
        return members

    def orphans(self, run_lock: Path) -> Orphans:
        """What is left after the shim was killed."""
        table = living_table()
        seen_in_it = self.pids_in_cgroup()
        grouped = seen_in_it or frozenset()
        by_pid = {process.id.pid for process in table}
        # Who came after the table was read.
        late = (read_process(pid) for pid in grouped - by_pid if pid != 0)
        table = (*table, *(process for process in late if process is not None))
        me = os.getpid()
        my_session = os.getsid(0)
        own = frozenset(p.id.pid for p in table if p.ppid == me and p.session == my_session)
        lock_status = None
        with contextlib.suppress(OSError):
            lock_status = os.stat(run_lock)
        since = self.record.started_ticks
        found = orphans_of(
            run_id=self.record.run_id,
            started_ticks=since,
            table=table,
            traces=all_traces(table, since_ticks=since, run_lock=lock_status),
            seen_before=self._seen,
            reparented_to=me if self._ours_come_to_us else None,
            own_children=own,
            own_pid=me,
            adopters=self._adopters(),
            in_cgroup=grouped,
            launcher=self._launcher(),
        )
        found = self._with_the_unseen(found, grouped - {process.id.pid for process in table})
        if seen_in_it is None and self.record.cgroup is not None and is_there(self.record.cgroup, self.record.run_id):
            # It exists and cannot be read whole: somebody may be in it, and unknown is not gone.
            nobody = ProcessId(0, self.record.started_ticks)
            somebody = Process(id=nobody, ppid=0, session=0, state="?", command="somebody in its cgroup, not readable")
            found = dataclasses.replace(found, unclear=(*found.unclear, somebody))
        for process in table:  # zombies that came to us because we are their subreaper
            if process.ppid == me and not process.living and process.id.pid not in own and self._ours_come_to_us:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.id.pid, os.WNOHANG)
        return found

    def pids_in_cgroup(self) -> frozenset[int] | None:
        """Who is in the run's own cgroup; None where it has none, or that cannot be seen."""
        return None if self.record.cgroup is None else pids_in(self.record.cgroup, self.record.run_id)

    def in_cgroup(self, run_lock: Path) -> Grouped | None:
        """Who is in it, told apart; None where that cannot be seen.

        Asked in this order (who is there, who is ours, who is still there), nobody that was forked or that ended
        meanwhile is taken for a stranger.
        """
        before = self.pids_in_cgroup()
        if not before or self.start is None:
            return None if before is None else Grouped(before, before)
        if self.shim() is Shim.LOST:
            ours = {process.id.pid for process in self.orphans(run_lock).ours}
        else:
            ours = {process.id.pid for process in descendants(self.start.shim, process_table())}
        after = self.pids_in_cgroup()
        return None if after is None else Grouped(after, (before & after) - ours)

    def _with_the_unseen(self, found: Orphans, hidden: frozenset[int]) -> Orphans:
        """Who is in the cgroup and in no process table we may see: neither proven ours nor excluded."""
        if hidden:
            hidden &= self.pids_in_cgroup() or frozenset()
        unseen = (
            Process(id=ProcessId(pid, self.record.started_ticks), ppid=0, session=0, state="?", command="hidden")
            for pid in sorted(hidden - {process.id.pid for process in (*found.ours, *found.unclear)})
        )
        return dataclasses.replace(found, unclear=(*found.unclear, *unseen))

    def _launcher(self) -> int | None:
        """The pid of the supervisor that launched the run, while that number is nobody else's."""
        if not self.record.ancestors:
            return None
        first = self.record.ancestors[0]
        return first.pid if is_alive(first) or read_process(first.pid) is None else None

    def _adopters(self) -> frozenset[int] | None:
        """Who may have been given the orphans of the run; None for a record that does not say."""
        if not self.record.ancestors:
            return None
        return frozenset({0, 1, *(ancestor.pid for ancestor in self.record.ancestors if is_alive(ancestor))})

    def traced(self, members: tuple[Process, ...]) -> tuple[int, ...]:
        """Those of the members that a debugger holds."""
        return self.traced_pids(process.id.pid for process in members)

    def traced_pids(self, pids: Iterable[int]) -> tuple[int, ...]:
        """The same, by number."""
        traced = []
        for pid in pids:
            with contextlib.suppress(OSError):
                if tracer_of(pid) != 0:
                    traced.append(pid)
        return tuple(traced)

    def _remember(self) -> None:
        """For a supervisor after us, should the shim die as well. A cross-check: a full disk costs no more than it."""
        with contextlib.suppress(OSError):
            temporary = self.folder.members.with_suffix(".tmp")
            temporary.write_text(json.dumps(sorted([p.pid, p.start_ticks] for p in self._seen)), encoding="ascii")
            os.replace(temporary, self.folder.members)

    def _remembered(self) -> frozenset[ProcessId]:
        try:
            with contract.open_regular(self.folder.members) as file:
                pairs = json.loads(file.read(_MEMBERS_LIMIT_BYTES))
            return frozenset(ProcessId(int(pid), int(ticks)) for pid, ticks in pairs)
        except (OSError, ValueError, TypeError, OverflowError, RecursionError):
            return frozenset()


def _open(identity: ProcessId) -> int | None:
    """A pidfd of the very process, None when it is gone. Raises OSError where that cannot be looked at now."""
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    same = False
    try:
        if is_alive(identity) or _readable(fd):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                same = contract.start_ticks(identity.pid) == identity.start_ticks
        return fd if same else None
    except BaseException:
        same = False
        raise
    finally:
        if not same:
            os.close(fd)


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
