"""The host beside the run: what the collectors see, what the checks make of it, and the gates of a launch.

Everything is read by the runner and the sampling child, never by the loop itself.

Also the small chores that touch a disk (keeping the output log and the run folders bounded), for the same reason:
what hangs there becomes a fact, and the loop goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from watchdog.actuators.outputlog import punch_front
from watchdog.checks import catalogue
from watchdog.checks.blind import unseen
from watchdog.checks.owners import comparable, judged, run_pids
from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch
from watchdog.collectors.runner import Runner
from watchdog.core.collectorview import CollectorView
from watchdog.core.devicegate import device_gate, held_by_run, uses_gpu
from watchdog.core.facts import Absent, Fact, Facts, Known, Supervisor, Unknown, value_of
from watchdog.core.findings import Finding, Severity
from watchdog.core.gates import disk_gate, lock_gate, memory_gate
from watchdog.core.identity import ProcessId
from watchdog.core.memoryneed import HostMemory, Learned
from watchdog.core.seen import Gate
from watchdog.folders import JobFolders
from watchdog.joblimits import limits_of
from watchdog.ledger import Ledger
from watchdog.lookout import Lookout, OfRun, Targets
from watchdog.settings import Settings

_JUDGE_EVERY_S = 1.0
_CHORES_EVERY_S = 5.0
_DEADLINE_S = 10.0
_OF_DEVICES = frozenset(check.name for check in catalogue.CATALOGUE if {"driver", "devices"} & set(check.needs))


class HostWatch:
    """The newest facts about the host, and what the checks make of them. For use from the loop alone."""

    def __init__(
        self,
        settings: Settings,
        folders: JobFolders,
        clock: Clock,
        environ: Mapping[str, str],
        *,
        used: frozenset[str] | None = None,
    ) -> None:
        """`used`: what a supervisor before us saw of it, see `used`."""
        self._settings = settings
        self._folders = folders
        self._clock = clock
        self._runner = Runner(clock)  # for the chores
        self.limits = limits_of(settings, environ)
        places = [(str(folders.state), "state"), (str(folders.checkpoints), "checkpoints")]
        locks = [(str(folders.supervisor_lock), "supervisor"), (str(folders.run_lock), "run")]
        targets, gpu = Targets(disks=places, locks=locks), self.limits.devices != ()
        self._lookout = Lookout(targets, roots=Roots(), clock=clock, environ=environ, uses_gpu=gpu)
        self._run = OfRun(beat=Absent("no run is alive"), progress=Absent("no run is alive"))
        self._facts: Facts | None = None
        self._unseen_since: dict[tuple[str, int], float] = {}  # each by itself: several in turn are no blindness
        self._self = Supervisor(pid=os.getpid())
        self.used = used  # devices that runs of this job were seen on, by UUID; None: none was seen with one open
        self.over_s = float("-inf")  # when the last run was found over
        self._judged_s: float | None = None
        self.findings: tuple[Finding, ...] = ()
        self.found_s = float("-inf")  # when they were made

    # --- each turn ------------------------------------------------------------------------------------------
    def look(self) -> Facts:
        """The newest facts of this turn, at once; about the run as it was when it was last judged."""
        facts = self._lookout.poll(self._run)
        self._unseen_since = {name: self._unseen_since.get(name, facts.at_s) for name in unseen(facts)}
        blind_s = max((facts.at_s - since_s for since_s in self._unseen_since.values()), default=0.0)
        self._facts = facts = replace(facts, blind_s=blind_s, supervisor=self._self)
        if (seen := used_by_run(facts)) is not None:
            self.used = seen if self.used is None else self.used | seen
        return facts

    def heard(self, anew: bool) -> Facts:
        """The newest facts; `anew`: after what just happened the kernel is asked once more, beside the loop."""
        if anew:
            self._lookout.ask_kernel()
        return self.look()

    @property
    def facts(self) -> Facts:
        """What `look` saw last."""
        return self.look() if self._facts is None else self._facts

    def run_is_over(self) -> None:
        """What was read until now was read beside a run: where its shim was killed, that outlives it."""
        self.over_s = self._clock.monotonic()
        self._lookout.ask_room()
        self._lookout.ask_table()

    def judge(self, run: OfRun, root: ProcessId | None) -> bool:
        """Judge the newest facts with what this turn knows of the run, once a second at most. True: it was done."""
        if root is None and self._lookout.root is not None:
            self.over_s = self._clock.monotonic()
            self._lookout.ask_room()
        self._run, self._lookout.root = run, root
        if root is None:  # a launch is weighed on what is read now
            self._lookout.calm = False
        now_s = self._clock.monotonic()
        if self._judged_s is not None and now_s - self._judged_s < _JUDGE_EVERY_S:
            return False
        self._judged_s = now_s
        self._facts = replace(self.facts, beat=run.beat, progress=run.progress)
        if not self._lookout.unread():
            self.findings, self.found_s = catalogue.judge(self._facts, self.limits), now_s
            self._lookout.calm = root is not None and calm(self._facts, self.findings)
        return True

    # --- what the loop asks -----------------------------------------------------------------------------------
    @property
    def memory_need_bytes(self) -> int:
        """Host memory that a launch needs, as it is known now."""
        return self.limits.memory_need(uses_gpu=uses_gpu(self.facts, self.limits))

    @property
    def memory_learned(self) -> Learned | None:
        """Where that need follows from the last run; None where it is the stated one."""
        return self.limits.learned_need(uses_gpu=uses_gpu(self.facts, self.limits))

    def remember(self, memory: HostMemory) -> None:
        """What the ledger knows of the last run's host memory."""
        if memory.learned != self.limits.memory_learned:
            self.limits = replace(self.limits, memory_learned=memory.learned)

    def gates(self, *, lock_intact: bool, tried: str = "", pruned: str = "") -> tuple[Gate, ...]:
        """The conditions for a launch, as they stand now; none while a first answer is still on its way.

        `tried`: what came of making room in host memory; `pruned`: what came of it on the disk.
        """
        facts = self.look()
        if self.unread("memory", "disk", "driver"):
            return ()
        if uses_gpu(facts, self.limits) and self._table_awaited(facts):  # without it no ghost can be told
            return ()
        launchable = [disk for disk in facts.disks if not isinstance(disk, Known) or disk.value.purpose != "windows"]
        if any(isinstance(fact, Known) and fact.at_s < self.over_s for fact in (facts.memory, *launchable)):
            return ()  # it may have died of a disk that filled up since
        return (
            lock_gate(intact=lock_intact, path=str(self._folders.supervisor_lock)),
            memory_gate(
                facts.memory,
                self.memory_need_bytes,
                learned=self.memory_learned,
                tried=tried,
                wsl=isinstance(facts.wsl, Known),
            ),
            *(disk_gate(disk, self._settings.disk.need_bytes, tried=pruned) for disk in launchable),
            *device_gate(
                facts,
                self.limits,
                catalogue.judge(facts, self.limits, catalogue.GATING),
                used_gpu=self.used is not None,
                used=self.used or (),
            ),
        )

    def _table_awaited(self, facts: Facts) -> bool:
        """A process table is on its way, the first one or the first without the run that is over."""
        old = isinstance(facts.processes, Known) and facts.processes.at_s < self.over_s
        return old or self.unread("processes")

    def unread(self, *collectors: str) -> bool:
        """A first answer of one of these is still on its way, as of the last look."""
        return self._lookout.unread(*collectors)

    def views(self) -> dict[str, CollectorView]:
        return self._lookout.views()

    def ask_disks(self) -> None:
        """Room was made on purpose: what was read before says nothing any more."""
        self._lookout.ask_disks()

    def ask_afresh(self, away_s: float) -> None:
        """After a gap of `away_s` in our schedule: what was read before it is not believed any more."""
        self._lookout.ask_afresh(away_s)
        self._unseen_since.clear()

    def close(self) -> None:
        """Let the sampling child go."""
        self._lookout.close()

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


def used_by_run(facts: Facts) -> frozenset[str] | None:
    """The devices on which NVML lists the run, by UUID; None: the run has none open. Empty: which one is not known."""
    if not held_by_run(facts):
        return None
    if not comparable(facts):
        return frozenset()
    ours = run_pids(facts)
    return frozenset(
        device.uuid
        for device in judged(facts)
        if any(each.pid in ours for each in value_of(device.now.processes) or ())
    )


def calm(facts: Facts, findings: Sequence[Finding]) -> bool:
    """The devices are seen, and no check that looks at them warns or wants to look again.

    What a platform never tells (Xids under WSL) is unknown for good and keeps nobody awake.
    """
    return isinstance(facts.devices, Known) and not any(
        finding.severity >= Severity.WARNING or finding.looks_wanted
        for finding in findings
        if finding.check in _OF_DEVICES
    )


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
