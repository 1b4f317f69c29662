"""All eyes on one host: which collectors there are, how often each looks, and the snapshot they make together.

Used alike by the loop (`poll`: the newest facts, at once) and by a diagnosis (`gather`: ask everybody, wait). Whatever
hangs becomes a fact; nothing here waits for a driver or a disk longer than it is told.
Refuses to judge, and to know of jobs: paths, the run's root and its progress are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from watchdog.clock import Clock
from watchdog.collectors.clocks import ClockWatch
from watchdog.collectors.devices import DeviceWatch
from watchdog.collectors.disks import DiskReader, windows_drive
from watchdog.collectors.kernel_log import KernelLogReader
from watchdog.collectors.locks import read_locks
from watchdog.collectors.memory import read_memory
from watchdog.collectors.oom import OomReader
from watchdog.collectors.pressure import PressureReader
from watchdog.collectors.process_watch import ProcessWatch
from watchdog.collectors.roots import Roots
from watchdog.collectors.runner import Runner
from watchdog.collectors.wsl import WslReader
from watchdog.core.collectorview import CollectorView
from watchdog.core.fact import Absent, Fact, Known, Unknown
from watchdog.core.facts import BeatFact, Clocks, Device, Driver, Facts, Lock, Probed, Progress, Supervisor
from watchdog.core.identity import ProcessId
from watchdog.core.limits import Limits

_NOT_MEASURED = Absent("not measured")
NOT_ASKED = Absent("not looked at: no check that was asked for needs it")
_NO_GPU = Absent("the job uses no GPU")
_Call = Callable[[], Fact[Any]]
# Seconds between two looks of the loop. What costs a scan of /proc/*/fd comes seldom.
_EVERY_S = {
    "memory": 1.0,
    "pressure": 5.0,
    "oom": 5.0,
    "disk": 5.0,
    "kernel": 5.0,
    "processes": 10.0,
    "locks": 60.0,
    "wsl": 600.0,
}
_DEADLINE_S = 10.0
# Samples of the devices to one question in calm times: each is as old as that then, and a loop that is woken with cold
# caches speaks to the child a twentieth as often.
CALM_SAMPLES = 20


class Targets(Struct, frozen=True):
    """What to look at: (path, purpose) pairs. Disks: state, checkpoints. Locks: supervisor, run.

    A purpose names a collector, so each is there once. `root` is the shim of the living run.
    """

    disks: Sequence[tuple[str, str]] = ()
    locks: Sequence[tuple[str, str]] = ()
    root: ProcessId | None = None

    def __post_init__(self) -> None:
        for pairs in (self.disks, self.locks):
            purposes = [purpose for _, purpose in pairs]
            if len(set(purposes)) != len(purposes):
                raise ValueError(f"a purpose is given twice: {', '.join(purposes)}")


class OfRun(Struct, frozen=True, kw_only=True):
    """What is known of the run from elsewhere, and becomes a part of the snapshot."""

    beat: Fact[BeatFact]
    progress: Fact[Progress]
    probe: Fact[tuple[Probed, ...]] = _NOT_MEASURED
    blind_s: float = 0.0
    supervisor: Supervisor | None = None
    limits: Callable[[Limits], Limits] = lambda limits: limits  # as the job's supervisor has them


class Lookout:
    """For use from one thread. `calm`, set by the owner: what the devices say may come seconds late, but complete."""

    def __init__(
        self,
        targets: Targets,
        *,
        roots: Roots,
        clock: Clock,
        environ: Mapping[str, str],
        only: Collection[str] | None = None,
        uses_gpu: bool = True,
    ) -> None:
        """`only`: the facts that are wanted; None = all of them. Without `uses_gpu` no driver is asked."""
        self._root = targets.root
        self.calm = False
        self._targets = targets
        self._roots = roots
        self._clock = clock
        self._only = only
        self._uses_gpu = uses_gpu
        self._runner = Runner(clock)
        self._devices = DeviceWatch(roots, clock, environ)
        self._clocks = ClockWatch(roots, clock, is_wsl=_is_wsl(roots))
        self._processes = ProcessWatch(roots, clock)
        self._kernel = KernelLogReader(roots, clock)
        self._disks = {purpose: DiskReader(path, purpose, roots, clock) for path, purpose in targets.disks}
        windows = _windows_drive(roots)
        if windows is not None:
            self._disks["windows"] = DiskReader(windows, "windows", roots, clock)
        self._unread: set[str] = set()
        self._calls = self._all_calls(environ)  # nothing is started before the first look

    @property
    def root(self) -> ProcessId | None:
        """The shim of the living run. With another one the process table is read anew: else its ranks look foreign."""
        return self._root

    @root.setter
    def root(self, root: ProcessId | None) -> None:
        if root != self._root:
            self._root = root
            self._runner.soon("processes")
            self._runner.soon("locks")
            self._devices.soon()

    def _wants(self, *facts: str) -> bool:
        return self._only is None or any(fact in self._only for fact in facts)

    def _all_calls(self, environ: Mapping[str, str]) -> dict[str, _Call]:
        """What to call, by the collector's name as metrics and status show it."""
        roots, clock = self._roots, self._clock
        kernel, wsl = self._kernel, WslReader(roots, clock, environ)
        calls: dict[str, tuple[str, _Call]] = {
            "memory": ("memory", lambda: read_memory(roots, clock)),
            "pressure": ("pressure", PressureReader(roots, clock).read),
            "oom": ("oom", OomReader(roots, clock).read),
            "kernel": ("kernel", kernel.read),
            "wsl": ("wsl", lambda: wsl.read(_DEADLINE_S)),
            "processes": ("processes", lambda: self._processes.read(self._root, leave_out=self._own_pids())),
        }
        for purpose, reader in self._disks.items():
            calls[f"disk_{purpose}"] = ("disks", reader.read)
        if self._targets.locks:
            calls["locks"] = ("locks", lambda: read_locks(self._targets.locks, roots, clock))
        return {name: call for name, (fact, call) in calls.items() if self._wants(fact)}

    # --- once ----------------------------------------------------------------------------------------------
    def gather(self, run: OfRun, deadline_s: float) -> Facts:
        """Ask everybody, and wait; `deadline_s` and a second at most."""
        started_s = self._clock.monotonic()
        for name, call in self._calls.items():
            self._runner.start(name, call)
        self._ask_devices(1)
        # One second more than a child is given: its own word on what hung is worth more than ours.
        answers = {name: self._runner.wait(name, deadline_s + 1.0) for name in self._calls}
        self._devices.wait(max(0.0, deadline_s - (self._clock.monotonic() - started_s)))
        return self._snapshot(lambda name: answers.get(name, NOT_ASKED), run)

    # --- again and again -----------------------------------------------------------------------------------
    def poll(self, run: OfRun) -> Facts:
        """The newest facts, at once; what is due is asked in the background."""
        self._unread.clear()
        self._ask_devices(CALM_SAMPLES if self.calm else 1)
        return self._snapshot(self._newest, run)

    def _ask_devices(self, samples: int) -> None:
        if self._uses_gpu and self._wants("driver", "devices"):  # else no child is started, and none is waited for
            self._devices.ask(samples)

    def unread(self, *collectors: str) -> bool:
        """A first answer of one of these is still on its way: "memory", "disk", "driver", ...; without any: of all.

        For the driver also the first one after calm times.
        """
        if not collectors:
            return bool(self._unread)
        return any(name.split("_")[0] in collectors for name in self._unread)

    def _newest(self, name: str) -> Fact[Any]:
        call = self._calls.get(name)
        if call is None:
            return NOT_ASKED
        every_s = _EVERY_S[name.split("_")[0]]
        polled = self._runner.poll(name, call, every_s=every_s, deadline_s=_DEADLINE_S)
        if polled.unread:
            self._unread.add(name)
        return polled.fact

    def ask_kernel(self) -> None:
        """Something died: what the kernel said before that is not all of it."""
        for name in ("kernel", "oom"):
            self._runner.soon(name)

    def ask_room(self) -> None:
        """A run is over: what it took of memory and disks, and what it died of, is not in what was read before."""
        for name in ("memory", *(f"disk_{purpose}" for purpose in self._disks)):
            self._runner.soon(name)

    def ask_table(self) -> None:
        """The processes are read anew at once."""
        self._runner.soon("processes")

    def ask_disks(self) -> None:
        """Files were deleted on purpose: the disks are read at once, and their looks begin anew."""
        for purpose, reader in self._disks.items():
            self._runner.soon(f"disk_{purpose}")
            reader.forget()

    def ask_afresh(self, away_s: float) -> None:
        """After a gap in our own schedule: what was read before it is not believed any more, and nothing is calm."""
        self.calm = False
        self._runner.ask_afresh()
        self._devices.forget()
        self._processes.forget()
        self._clocks.froze(away_s)
        for reader in self._disks.values():
            reader.forget()

    def views(self) -> dict[str, CollectorView]:
        """How each collector fared last time."""
        return self._runner.views()

    def close(self) -> None:
        """Let the sampling child go, and the kernel log."""
        self._devices.close()
        self._kernel.close()

    # --- together ------------------------------------------------------------------------------------------
    def _snapshot(self, newest: Callable[[str], Fact[Any]], run: OfRun) -> Facts:
        driver, devices = self._seen_devices()
        return Facts(
            at_s=self._clock.monotonic(),
            wall_s=self._clock.wall(),
            memory=newest("memory"),
            pressure=newest("pressure"),
            oom=newest("oom"),
            disks=tuple(newest(f"disk_{purpose}") for purpose in self._disks) if self._wants("disks") else (),
            locks=self._seen_locks(newest("locks")),
            driver=driver,
            devices=devices,
            probe=run.probe,
            processes=newest("processes"),
            beat=run.beat,
            progress=run.progress,
            kernel=newest("kernel"),
            clocks=self._seen_clocks(),
            wsl=newest("wsl"),
            blind_s=run.blind_s,
            supervisor=run.supervisor,
        )

    def _own_pids(self) -> tuple[int, ...]:
        """The sampling child has the device nodes open on our behalf."""
        pid = self._devices.pid
        return () if pid is None else (pid,)

    def _seen_locks(self, read: Fact[Any]) -> tuple[Fact[Lock], ...]:
        if isinstance(read, Known):
            found: tuple[Fact[Lock], ...] = read.value
            return found
        return () if read is NOT_ASKED else tuple(read for _ in self._targets.locks)

    def _seen_clocks(self) -> Fact[Clocks]:
        if not self._wants("clocks"):
            return NOT_ASKED
        try:
            return self._clocks.look()
        except OSError as error:
            return Unknown(f"clocks: {error.filename}: {error.strerror}")

    def _seen_devices(self) -> tuple[Fact[Driver], Fact[tuple[Device, ...]]]:
        if not self._wants("driver", "devices"):
            return NOT_ASKED, NOT_ASKED
        if not self._uses_gpu:
            return _NO_GPU, _NO_GPU
        try:
            seen = self._devices.see()
            if self._devices.unread:
                self._unread.add("driver")
            return seen
        except OSError as error:  # no child to be had: no processes or descriptors left
            why = f"the driver cannot be asked: {error.strerror or error}"
            return Unknown(why), Unknown(why)


def _is_wsl(roots: Roots) -> bool:
    try:
        with open(f"{roots.proc}/sys/kernel/osrelease", encoding="utf-8", errors="replace") as file:
            return "microsoft" in file.read(1000).lower()
    except OSError:
        return False  # whether it is WSL is then told by the fact, as unknown


def _windows_drive(roots: Roots) -> str | None:
    try:
        return windows_drive(roots)
    except (OSError, ValueError):
        return None  # no mountinfo: every disk then says so itself
