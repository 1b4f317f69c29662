"""The host beside the run: memory, disks, driver, read by the runner, never by the loop itself.

Also the small chores that touch a disk (keeping the output log and the run folders bounded), for the same reason:
what hangs there becomes a fact, and the loop goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from watchdog.actuators.outputlog import punch_front
from watchdog.clock import Clock
from watchdog.collectors.disks import DiskReader
from watchdog.collectors.driver import DriverReader
from watchdog.collectors.memory import read_memory
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch
from watchdog.collectors.runner import Runner
from watchdog.core.facts import Absent, Disk, Driver, Fact, Known, Memory, Unknown
from watchdog.core.gates import disk_gate, lock_gate, memory_gate
from watchdog.core.seen import Gate
from watchdog.core.view import CollectorView
from watchdog.folders import JobFolders
from watchdog.ledger import Ledger
from watchdog.settings import Settings

T = TypeVar("T")

_DRIVER_EVERY_S = 60.0
_CHORES_EVERY_S = 5.0
_DEADLINE_S = 10.0


class HostWatch:
    """The newest facts about the host. For use from the loop alone."""

    def __init__(self, settings: Settings, folders: JobFolders, clock: Clock) -> None:
        self._settings = settings
        self._folders = folders
        self._clock = clock
        self._runner = Runner(clock)
        self._roots = Roots()
        self._every_s = max(1.0, settings.loop.period_s)
        places = {"state": folders.state, "checkpoints": folders.checkpoints}
        self._disks = {purpose: DiskReader(str(path), purpose, self._roots, clock) for purpose, path in places.items()}
        self._unread = False
        self._driver = DriverReader(self._roots, clock)

    def memory(self) -> Fact[Memory]:
        return self._poll("memory", lambda: read_memory(self._roots, self._clock), self._every_s)

    def disks(self) -> tuple[Fact[Disk], ...]:
        return tuple(
            self._poll(f"disk_{purpose}", reader.read, self._every_s) for purpose, reader in self._disks.items()
        )

    def _poll(self, name: str, function: Callable[[], Fact[T]], every_s: float) -> Fact[T]:
        polled = self._runner.poll(name, function, every_s=every_s, deadline_s=_DEADLINE_S)
        self._unread = self._unread or polled.unread
        return polled.fact

    def driver(self) -> Fact[Driver]:
        return self._runner.poll("driver", self._driver.read, every_s=_DRIVER_EVERY_S, deadline_s=2 * _DEADLINE_S).fact

    def gates(self, *, lock_intact: bool) -> tuple[Gate, ...]:
        """The conditions for a launch, as they stand now; none while a first answer is still on its way."""
        self._unread = False
        memory, disks = self.memory(), self.disks()
        if self._unread:
            return ()
        return (
            lock_gate(intact=lock_intact, path=str(self._folders.supervisor_lock)),
            memory_gate(memory, self._settings.memory.need_bytes),
            *(disk_gate(disk, self._settings.disk.need_bytes) for disk in disks),
        )

    def views(self) -> dict[str, CollectorView]:
        self.driver()
        return self._runner.views()

    def ask_afresh(self) -> None:
        """After a gap in our schedule: what was read before it is not believed any more."""
        self._runner.ask_afresh()

    def tend(self, watch: RunWatch | None, ledger: Ledger) -> None:
        """The chores, now and then, beside the loop."""
        log = None if watch is None else watch.folder.log
        living = None if watch is None else watch.record.run_id
        limit = self._settings.log.limit_bytes

        def chores() -> Fact[int]:
            released, unable = 0, ""
            if log is not None:
                with contextlib.suppress(FileNotFoundError):
                    try:
                        released = punch_front(log, limit)
                    except OSError as error:
                        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                            raise
                        unable = "the file system under the output log cannot punch holes: the log is not bounded"
            ledger.tend()
            drop_old_runs(self._folders.state / "runs", self._settings.log.runs, living)
            if unable:
                return Unknown(unable)
            return Known(released, self._clock.monotonic())

        self._runner.poll("chores", chores, every_s=_CHORES_EVERY_S, deadline_s=_DEADLINE_S)


def drop_old_runs(folder: Path, keep: int, living: str | None) -> None:
    """Delete run folders beyond the newest `keep`: logs, beats and exit records of runs long over. Raises OSError.

    The newest by time, not by number: numbers begin anew when a ledger is lost. The living run's is never touched.
    """
    try:
        folders = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    runs = [entry for entry in folders if entry.name.split("-")[0].isdigit()]  # what is no run is somebody else's
    old = sorted(runs, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)[:-keep]
    for entry in old:
        if entry.name != living:
            shutil.rmtree(entry.path)


def absent_or(fact: Fact[Driver]) -> str | None:
    """The sentence that is said once on a host without a driver."""
    return "no NVIDIA driver: GPU checks are absent, not passed" if isinstance(fact, Absent) else None
