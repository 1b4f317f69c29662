"""Making room in host memory: what may be given back, in which order, and when it is enough. Pure.

The order goes from what touches least to what touches all: the cgroups of the job from the own one upwards, each by
what it lacks; then the widest of them for what the host lacks; then the page cache of the host; on WSL the pages are
put together at last, since Windows is told of freed memory in blocks.
Refuses to reclaim from a cgroup that is neither the job's own nor above it (a layout holds no others), to drop the
page cache of a living run unless it is asked to, and to drop anything for a goal that no dropping can reach.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from msgspec import Struct

from watchdog.core.figures import gib


class How(enum.Enum):
    """What the kernel is told. The value is the name of its file."""

    RECLAIM = "memory.reclaim"  # cgroup v2: so many bytes of a group
    FORCE_EMPTY = "memory.force_empty"  # cgroup v1: all that a group can give
    DROP_CACHES = "drop_caches"  # clean page cache of the whole host
    COMPACT = "compact_memory"


class Group(Struct, frozen=True, kw_only=True):
    """The job's cgroup, or one above it. `path` is below the mount; bytes.

    `file_bytes` are file pages, which count as available already; `kernel_bytes` is what the kernel may give up beside
    them (v2: reclaimable slab; v1 tells no better than all of its own memory) and counts as held until it does.
    `control` is the file to write to, "" where the kernel has none; `swaps`: it would swap out processes, too.
    """

    path: str
    usage_bytes: int
    limit_bytes: int | None = None
    file_bytes: int = 0
    kernel_bytes: int = 0
    control: str = ""
    writable: bool = False
    swaps: bool = False

    @property
    def free_bytes(self) -> int | None:
        """Below the limit and unused; None without a limit."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.usage_bytes)


class Switch(Struct, frozen=True, kw_only=True):
    """A file below /proc/sys/vm. `writable`: by us, or through the helper that a person installed."""

    path: str
    writable: bool


class Layout(Struct, frozen=True, kw_only=True):
    """The host's memory and what could be told to give back. `groups`: the job's own first, then those above it."""

    available_bytes: int  # what a job can get, page cache counted as free: MemAvailable and every limit above us
    host_available_bytes: int
    host_free_bytes: int  # MemFree
    cached_bytes: int  # of the host
    version: int | None = None  # of the memory controller; None where there is none to be seen
    groups: tuple[Group, ...] = ()
    drop_caches: Switch | None = None
    compact: Switch | None = None
    wsl: bool = False

    @property
    def free_bytes(self) -> int:
        """What is unused now: the least of MemFree and of what each limit leaves."""
        left = [group.free_bytes for group in self.groups if group.free_bytes is not None]
        return min([self.host_free_bytes, *left])

    @property
    def tightest(self) -> Group | None:
        """The group that leaves least."""
        limited = [group for group in self.groups if group.limit_bytes is not None]
        return min(limited, key=lambda group: group.free_bytes or 0, default=None)

    @property
    def best_available_bytes(self) -> int:
        """What could be available at most when all cache were gone; more needs the end of a process."""
        host = max(self.host_available_bytes, self.host_free_bytes + self.cached_bytes)
        left = [
            (group.free_bytes or 0) + group.file_bytes + group.kernel_bytes
            for group in self.groups
            if group.limit_bytes is not None
        ]
        return min([host, *left])


class Goal(Struct, frozen=True, kw_only=True):
    """`target_bytes` are to be had. For a launch: available, as its gate counts, or nothing is dropped in vain.

    By hand (`free`): unused. Page cache is available as it is, so dropping it hardly moves that figure, and only what
    is unused can be given back to Windows.
    """

    target_bytes: int
    free: bool = False
    run_lives: bool = False
    beside_run: bool = False  # a person asked for it all the same

    def is_met(self, layout: Layout) -> bool:
        return (layout.free_bytes if self.free else layout.available_bytes) >= self.target_bytes


class Step(Struct, frozen=True, kw_only=True):
    """One thing to tell the kernel. `amount_bytes` 0: the file takes none; `expected_bytes` at most is given back."""

    how: How
    path: str
    where: str  # "cgroup /user.slice", "the host"
    expected_bytes: int
    amount_bytes: int = 0
    permitted: bool = True

    @property
    def words(self) -> str:
        if self.how is How.COMPACT:
            return f"{self.how.value}: put free pages of the host together, so that Windows can have them"
        asked = f" {gib(self.amount_bytes)} GiB" if self.amount_bytes else ""
        return f"{self.how.value}{asked} of {self.where}: up to {gib(self.expected_bytes)} GiB"


class Plan(Struct, frozen=True, kw_only=True):
    """What to do, in this order, each only while the goal is not met; `why_not`: why there is nothing to do at all.

    `left_out` are ways that exist and are not taken, with the reason.
    """

    steps: tuple[Step, ...] = ()
    left_out: tuple[str, ...] = ()
    why_not: str = ""
    run_in_the_way: bool = False


def plan(layout: Layout, goal: Goal, done: Collection[tuple[How, str]] = ()) -> Plan:
    """The steps from here to the goal; without those that were done (by how and path)."""
    if goal.is_met(layout):
        if done and (last := _compact(layout)) is not None and (last.how, last.path) not in done:
            return Plan(steps=(last,))  # what was freed on the way here
        return Plan(why_not="there is room enough")
    if goal.run_lives and not goal.beside_run:
        return Plan(why_not="a run is alive, or may be: its page cache is not dropped", run_in_the_way=True)
    best = layout.best_available_bytes
    if not goal.free and best < goal.target_bytes:
        words = f"all cache given back would leave {gib(best)} GiB at most, {gib(goal.target_bytes)} are needed"
        return Plan(why_not=f"nothing is dropped in vain: {words}")
    steps: list[Step] = []
    left_out: list[str] = []
    for group in layout.groups:
        free = group.free_bytes
        if free is not None and free < goal.target_bytes:
            _of_group(group, goal.target_bytes - free, steps, left_out)
    short = goal.target_bytes - layout.host_free_bytes
    if short > 0:
        widest = _widest(layout)
        if widest is not None and all(step.path != widest.control for step in steps):
            _of_group(widest, short, steps, left_out)
        _of_host(layout, steps)
    remaining = tuple(step for step in steps if (step.how, step.path) not in done)
    return Plan(
        steps=remaining,
        left_out=tuple(dict.fromkeys(left_out)),
        why_not="" if remaining else "no cache is left that could be given back",
    )


def _of_group(group: Group, short_bytes: int, steps: list[Step], left_out: list[str]) -> None:
    gives = group.file_bytes + group.kernel_bytes
    if not gives:
        return
    if not group.control:
        left_out.append(f"cgroup {group.path}: this kernel has no memory.reclaim (Linux 5.19 and newer have it)")
        return
    how = How.RECLAIM if group.control.endswith(How.RECLAIM.value) else How.FORCE_EMPTY
    if group.swaps:
        left_out.append(f"{how.value} of cgroup {group.path}: it would push processes into swap as well")
        return
    amount = min(short_bytes, gives)
    steps.append(
        Step(
            how=how,
            path=group.control,
            where=f"cgroup {group.path}",
            expected_bytes=amount if how is How.RECLAIM else gives,
            amount_bytes=amount if how is How.RECLAIM else 0,
            permitted=group.writable,
        )
    )


def _widest(layout: Layout) -> Group | None:
    """The highest group that we may write to, else the highest: it covers all below it. v1's root refuses."""
    groups = [group for group in layout.groups if group.control and (layout.version != 1 or group.path != "/")]
    permitted = [group for group in groups if group.writable]
    return next(reversed(permitted or groups), None)


def _of_host(layout: Layout, steps: list[Step]) -> None:
    drop = layout.drop_caches
    if drop is not None and layout.cached_bytes:
        steps.append(
            Step(
                how=How.DROP_CACHES,
                path=drop.path,
                where="the host",
                expected_bytes=layout.cached_bytes,
                permitted=drop.writable,
            )
        )
    if steps and (last := _compact(layout)) is not None:
        steps.append(last)


def _compact(layout: Layout) -> Step | None:
    compact = layout.compact
    if compact is None or not layout.wsl:
        return None
    return Step(how=How.COMPACT, path=compact.path, where="the host", expected_bytes=0, permitted=compact.writable)
