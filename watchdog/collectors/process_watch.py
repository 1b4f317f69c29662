"""The process table, look after look: what the run's threads do, who is stuck, who holds a device.

Responsible for one pass over `/proc/*/stat`, for the threads of the run, and for how long a process was seen in state
D (uninterruptible, in the kernel) or Z: a state is a moment, so time counts from look to look, for the same process
(pid and start time) in the same state. And for the CPU time of the run: of a process that ended between two looks what
whoever waited for it was given, so that it is rather too much than too little.
Refuses to read more than `stat`, `wchan` and `fd` (on a sick process the rest can hang), to signal, and to judge: a
thread that waits for its disk at every look looks the same as one that will never wake.

Known limits: below `hidepid` other users' processes are not seen at all, so that a pid of NVML's which is not in our
`/proc` proves nothing: then the pids count as not comparable. What woke and slept again between two looks
counts as stuck throughout. Threads are looked at up to a bound, and a process beyond it has no `states`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection

from msgspec.structs import replace

from watchdog.clock import Clock
from watchdog.collectors.holders import read_holders
from watchdog.collectors.processes import INITIAL_PID_NAMESPACE, parse_stat, process_table
from watchdog.collectors.roots import Roots
from watchdog.contract import printable
from watchdog.core.facts import CpuLook, Fact, Known, Processes, RunProcess
from watchdog.core.identity import Process, ProcessId, descendants

_MOST_PROCESSES = 200  # of the run, whose threads are looked at
_MOST_THREADS = 4000  # of all of them together
_MOST_TOLD = 20  # of the host's stuck
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPU_EVERY_S, _CPU_KEPT = 8.0, 100  # tables come each ten seconds: a quarter of an hour
_MOST_GONE = 200


class ProcessWatch:
    """Looks again and again; remembers since when whom. For use from one thread."""

    def __init__(self, roots: Roots, clock: Clock) -> None:
        self._roots = roots
        self._clock = clock
        self._since: dict[tuple[ProcessId, str], float] = {}  # first look of a row that found it in this state
        self._seen: dict[tuple[ProcessId, str], float] = {}  # the same, being gathered by this look
        self._shim: ProcessId | None = None  # whose run the rest is about
        self._ticks: dict[ProcessId, int] = {}  # of the look before
        self._cpu: list[CpuLook] = []
        self._gone: dict[ProcessId, None] = {}  # of the run, seen alive

    def forget(self) -> None:
        """After a gap in our own schedule: nobody was watched meanwhile, so every duration begins anew."""
        self._since = {}
        self._cpu = []

    def read(self, shim: ProcessId | None, *, leave_out: Collection[int] = ()) -> Fact[Processes]:
        """One look. The run is what descends from `shim`; None: no run is known.

        `leave_out` are pids that hold a device on our own behalf. Raises OSError, ValueError.
        """
        proc = self._roots.proc
        with open(f"{proc}/sys/kernel/pid_max", encoding="ascii") as file:
            pid_max = int(file.read())
        now_s, self._seen = self._clock.monotonic(), {}
        table = process_table(proc)
        ours = () if shim is None else tuple(descendants(shim, table))
        self._count_cpu(shim, ours, table, now_s)
        run = self._look_at_run(ours, now_s)
        userland = _without_kernel_threads(table)
        stuck = [self._without_threads(process, now_s) for process in userland if process.state == "D"]
        self._since = self._seen  # who is not in that state any more is forgotten
        found = read_holders(self._roots, run={process.id.pid for process in ours}, leave_out=leave_out)
        return Known(
            Processes(
                initial_namespace=_in_initial_namespace(proc),
                pid_max=pid_max,
                run=run,
                holders=found.holders,
                unreadable=found.unreadable,
                stuck=self._longest_stuck(stuck),
                cpu=tuple(self._cpu),
                gone=self._gone_of(table),
            ),
            now_s,
        )

    def _count_cpu(
        self, shim: ProcessId | None, ours: tuple[Process, ...], table: tuple[Process, ...], now_s: float
    ) -> None:
        if shim != self._shim:
            self._shim, self._ticks, self._cpu, self._gone = shim, {}, [], {}
        # The shim, too: it waits for whoever lost its parent, and is given that time.
        members = (*ours, *(each for each in table if each.id == shim))
        ticks = {each.id: each.cpu_ticks for each in members}
        told = {identity: count for identity, count in ticks.items() if count is not None}
        if not ours or len(told) < len(ticks):
            self._cpu, self._ticks = [], {}
            return
        used = sum(max(0, count - self._ticks.get(identity, 0)) for identity, count in told.items())
        self._ticks = told
        if not self._cpu:
            self._cpu = [CpuLook(at_s=now_s, seconds=0.0)]
            return
        look = CpuLook(at_s=now_s, seconds=self._cpu[-1].seconds + used / _TICKS_PER_S)
        if len(self._cpu) > 1 and now_s - self._cpu[-2].at_s < _CPU_EVERY_S:
            del self._cpu[-1]
        self._cpu = [*self._cpu[-_CPU_KEPT + 1 :], look]

    def _gone_of(self, table: tuple[Process, ...]) -> tuple[int, ...]:
        """A number that somebody else has by now names nobody of the run."""
        for identity in self._ticks:
            self._gone.setdefault(identity)
        living = {each.id.pid for each in table if each.living}
        gone = [identity for identity in self._gone if identity.pid not in living and identity != self._shim]
        for identity in gone[:-_MOST_GONE]:
            del self._gone[identity]
        return tuple(sorted({identity.pid for identity in gone[-_MOST_GONE:]}))

    def _lasting(self, identity: ProcessId, state: str, now_s: float) -> float:
        """For how long, as far as our looks go."""
        key = (identity, state)
        self._seen[key] = self._since.get(key, now_s)
        return now_s - self._seen[key]

    def _without_threads(self, process: Process, now_s: float) -> RunProcess:
        lasting_s = self._lasting(process.id, process.state, now_s) if process.state in "DZ" else 0.0
        return RunProcess(
            pid=process.id.pid,
            command=printable(process.command),
            state=process.state,
            stuck_s=lasting_s if process.state == "D" else 0.0,
            defunct_s=lasting_s if process.state == "Z" else 0.0,
        )

    def _look_at_run(self, members: tuple[Process, ...], now_s: float) -> tuple[RunProcess, ...]:
        found, threads_left = [], _MOST_THREADS
        for number, process in enumerate(members):
            threads = self._threads(process.id.pid, threads_left) if number < _MOST_PROCESSES else []
            threads_left -= len(threads)
            whole = self._with_threads(process, threads, now_s) if threads else self._without_threads(process, now_s)
            found.append(whole)
        return tuple(found)

    def _threads(self, pid: int, most: int) -> list[Process]:
        """All threads of a process, none when they are more than `most` or it is gone."""
        folder = f"{self._roots.proc}/{pid}/task"
        try:
            names = os.listdir(folder)
        except OSError:
            return []
        if len(names) > most:
            return []
        threads = []
        for name in names:
            try:
                with open(f"{folder}/{name}/stat", "rb") as file:
                    threads.append(parse_stat(file.read()))
            except OSError:  # ended while we looked
                continue
        return threads

    def _with_threads(self, process: Process, threads: list[Process], now_s: float) -> RunProcess:
        pid = process.id.pid
        states = Counter(thread.state for thread in threads)
        state = next((thread.state for thread in threads if thread.id.pid == pid), process.state)
        stuck = {thread.id: self._lasting(thread.id, "D", now_s) for thread in threads if thread.state == "D"}
        longest = max(stuck, key=lambda identity: stuck[identity], default=None)
        defunct = state == "Z" and set(states) <= set("ZXx")
        return RunProcess(
            pid=pid,
            command=printable(process.command),
            state=state,
            states=tuple(sorted(states.items())),
            wait_channel="" if longest is None else self._wait_channel(f"{pid}/task/{longest.pid}"),
            stuck_s=0.0 if longest is None else stuck[longest],
            defunct_s=self._lasting(process.id, "Z", now_s) if defunct else 0.0,
        )

    def _wait_channel(self, task: str) -> str:
        """The kernel function that a task sleeps in; "" where the kernel does not say, or not to us (it writes 0)."""
        try:
            with open(f"{self._roots.proc}/{task}/wchan", encoding="ascii", errors="replace") as file:
                name = file.read(100).strip()
        except OSError:
            return ""
        return "" if name == "0" else name

    def _longest_stuck(self, stuck: list[RunProcess]) -> tuple[RunProcess, ...]:
        longest = sorted(stuck, key=lambda each: -each.stuck_s)[:_MOST_TOLD]
        return tuple(replace(each, wait_channel=self._wait_channel(str(each.pid))) for each in longest)


def _without_kernel_threads(table: tuple[Process, ...]) -> list[Process]:
    """Kernel threads rest in state D for days. Where there are none (a pid namespace), number 2 is anybody."""
    if not any(process.id.pid == 2 and process.command == "kthreadd" and process.ppid == 0 for process in table):
        return list(table)
    return [process for process in table if process.id.pid != 2 and process.ppid != 2]


def _in_initial_namespace(proc: str) -> bool | None:
    """Whether our pids are the kernel's own, as NVML gives them. A WSL distribution has a namespace of its own.

    None as well where some of them are hidden from us. Process 1 tells: it is always there, and a stat of it answers
    ENOENT below hidepid 2 and 4, unless we are root or of the mount's group (measured; proc(5), hidepid).
    """
    if not os.path.exists(f"{proc}/1"):
        return None
    try:
        name = os.readlink(f"{proc}/self/ns/pid")
    except OSError:
        return None
    return name == INITIAL_PID_NAMESPACE if name.startswith("pid:[") else None
