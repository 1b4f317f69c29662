"""Who a process is: beyond its number, which the kernel gives to others later.

Identity = boot id, pid namespace, pid, start time. Two processes that agree in all four are the same process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The boot and the pid namespace that our numbers belong to (the boot id is equal across containers)."""

    boot_id: str
    pid_namespace: str


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process of this boot and pid namespace. `start_ticks` is field 22 of `/proc/PID/stat` (10 ms grain)."""

    pid: int
    start_ticks: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One line of the process table, from `/proc/PID/stat` alone (see proc(5)); `state` is its letter."""

    id: ProcessId
    ppid: int
    session: int
    state: str
    command: str
    # User and system time of its threads and of the children it has waited for; None: the line does not tell.
    cpu_ticks: int | None = dataclasses.field(default=None, compare=False)

    @property
    def living(self) -> bool:
        """False for zombies and the dead: they hold nothing any more."""
        return self.state not in "ZXx"


def descendants(root: ProcessId, table: Iterable[Process]) -> tuple[Process, ...]:
    """All processes whose chain of parents leads to `root`, which is not among them.

    Proof of membership while the root is a living child subreaper: nothing can leave its tree. Empty when the
    process with the root's number is not the root.
    """
    children: dict[int, list[Process]] = {}
    found_root = False
    for process in table:
        children.setdefault(process.ppid, []).append(process)
        found_root = found_root or process.id == root
    if not found_root:
        return ()
    found: list[Process] = []
    todo = [root.pid]
    while todo:
        for process in children.get(todo.pop(), ()):
            found.append(process)
            todo.append(process.id.pid)
    return tuple(found)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    """What an orphan carries of a run. `run_id` None = its environment has none.

    `readable` False = its environment is empty or cannot be read, and it belongs to our own user. `lock_taker`: the pid
    that took the lock it holds, as the kernel tells it; 0 where it names none, which says nothing of who that was: one
    of another pid namespace, or, in any but the initial one, whoever has ended since, flock(1) as well as a supervisor.
    """

    readable: bool
    run_id: str | None
    holds_run_lock: bool
    lock_taker: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Orphans:
    """What is left of a run whose shim was killed: `ours` is proven, `unclear` can be neither proven nor excluded.

    `proofs`: by pid, what proves each of `ours`.
    """

    ours: tuple[Process, ...]
    unclear: tuple[Process, ...]
    proofs: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict, compare=False)


def orphans_of(
    *,
    run_id: str,
    started_ticks: int,
    table: Iterable[Process],
    traces: Mapping[ProcessId, Traces],
    seen_before: frozenset[ProcessId],
    reparented_to: int | None,
    own_children: frozenset[int],
    own_pid: int,
    adopters: frozenset[int] | None = None,
    in_cgroup: frozenset[int] = frozenset(),
    launcher: int | None = None,
) -> Orphans:
    """Tell the members of a run without its shim; a descendant of a member is a member.

    Proven: seen as a descendant of the shim while it lived; carries the run id; inherited the run lock; or became our
    child (`reparented_to` is our pid, we are a subreaper) without being one that we started; or is in the run's own
    cgroup and has a parent that orphans of the run can be given to.
    Inherited: it holds a share of the lock that `launcher` took, the supervisor that launched the run. Whoever took a
    share by himself (a backup that locks what it reads) is nobody's ghost, and a taker whom the kernel does not name
    proves nothing: `exec 9<run.lock; flock -s 9` leaves that behind, too.
    Unclear: holds a share that is not inherited; or is in that cgroup with another parent, for
    somebody may have moved it there; or started
    after the run began, its environment cannot be read or is empty, and its parent is one of `adopters` (None: anybody
    may be): the processes that orphans of the run can be given to. Nobody is unclear when orphans come to us.
    An older process is never either.
    """
    table = [process for process in table if process.living and process.id.pid != own_pid]
    ours: dict[int, Process] = {}
    unclear: dict[int, Process] = {}
    proofs: dict[int, tuple[str, ...]] = {}
    # Where orphans come to us, whoever is in there and did not come was moved there.
    by_cgroup = in_cgroup - own_children if reparented_to is None else frozenset()
    for process in table:
        if process.id in seen_before:
            ours[process.id.pid] = process
            proofs[process.id.pid] = ("seen below its shim",)
            continue
        trace = traces.get(process.id)
        if process.id.start_ticks < started_ticks or trace is None:
            continue
        adopted = reparented_to is not None and process.ppid == reparented_to and process.id.pid not in own_children
        grouped = process.id.pid in by_cgroup and adopters is not None and process.ppid in adopters
        orphaned = adopters is not None and process.ppid in adopters
        by_launcher = launcher is not None and trace.lock_taker == launcher != process.id.pid
        inherited = trace.holds_run_lock and by_launcher
        proof = tuple(
            words
            for holds, words in (
                (trace.run_id == run_id, "carries its run id"),
                (inherited, "started after it and holds the share of its run lock that its launcher took"),
                (adopted, "came to us as its orphans do"),
                (grouped, "is in its cgroup, and was orphaned as its own are"),
            )
            if holds
        )
        if proof:
            ours[process.id.pid] = process
            proofs[process.id.pid] = proof
        elif reparented_to is None and (
            trace.holds_run_lock or (not trace.readable and (adopters is None or orphaned))
        ):
            unclear[process.id.pid] = process
    grew = True
    while grew:
        grew = False
        for process in table:
            if process.ppid in ours and process.id.pid not in ours and process.id.start_ticks >= started_ticks:
                ours[process.id.pid] = process
                proofs[process.id.pid] = (f"child of pid {process.ppid}",)
                grew = True
    for process in table:
        if process.id.pid in by_cgroup and process.id.start_ticks >= started_ticks:
            unclear[process.id.pid] = process
    doubtful = tuple(process for pid, process in unclear.items() if pid not in ours)
    return Orphans(ours=tuple(ours.values()), unclear=doubtful, proofs=proofs)
