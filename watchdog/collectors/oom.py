"""Processes that the kernel killed for memory, counted.

Responsible for `/proc/vmstat` (the whole host, also out of a container) and for the counter of a cgroup of ours:
- v2, `memory.events`: counts the group and everything below it, so the nearest ancestor with a limit is taken, our own
  group first: it also sees a run that lives in a group beside ours. Without a limit, our own group.
- v1, `memory.oom_control`: counts the group alone, so our own is taken; a run in a group of its own shows in the
  host's counter only.
Refuses to say who was killed: the kernel log does (kernel_log.py).
"""

from __future__ import annotations

from msgspec import Struct

from watchdog.clock import Clock
from watchdog.collectors.cgroups import Controller, ancestors, own_controller, parse_counters, read_small
from watchdog.collectors.memory import read_limits
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Fact, Known, OomKills, Unknown

_APART_S = 60.0  # between the looks that are kept: 60 of them, not 3,600


class _Look(Struct, frozen=True, kw_only=True):
    at_s: float
    host: int  # kills since the first look
    cgroup: int


def parse_kills(text: str) -> int | None:
    """The line `oom_kill N` of vmstat, memory.events or memory.oom_control; None in a kernel before 4.13."""
    return parse_counters(text).get("oom_kill")


class OomReader:
    """Reads again and again. The deltas go back to the first look, and `window_s` seconds at most.

    Without that bound one kill would be told for as long as the watchdog lives.
    """

    def __init__(self, roots: Roots, clock: Clock, window_s: float = 3600.0) -> None:
        self._roots = roots
        self._clock = clock
        self._window_s = window_s
        self._looks: list[_Look] = []
        self._host: int | None = None
        self._cgroup: int | None = None
        self._path = ""
        self._kills = (0, 0)

    def read(self) -> Fact[OomKills]:
        """The counters as they are now. Raises OSError, ValueError."""
        vmstat = read_small(f"{self._roots.proc}/vmstat")
        host = None if vmstat is None else parse_kills(vmstat)
        controller = own_controller(self._roots)
        path, cgroup = ("", None) if controller is None else self._count(controller)
        if host is None and cgroup is None:
            return Unknown("neither /proc/vmstat nor a memory cgroup counts OOM kills here (a kernel before 4.13?)")
        # Another group than before is not compared with it.
        known = self._cgroup if path == self._path else None
        self._kills = (self._kills[0] + _more(self._host, host), self._kills[1] + _more(known, cgroup))
        self._host, self._cgroup, self._path = host, cgroup, path
        now_s = self._clock.monotonic()
        first = self._remember(_Look(at_s=now_s, host=self._kills[0], cgroup=self._kills[1]))
        return Known(
            OomKills(
                host=host,
                cgroup=cgroup,
                cgroup_path=path,
                since_host=self._kills[0] - first.host,
                since_cgroup=self._kills[1] - first.cgroup,
                watched_s=now_s - first.at_s,
            ),
            now_s,
        )

    def _count(self, controller: Controller) -> tuple[str, int | None]:
        group, name = controller.path, "memory.oom_control"
        if controller.version == 2:
            name = "memory.events"
            limits = read_limits(controller, self._roots)
            group = limits[0].cgroup if limits else group
        for path in ancestors(group):  # the root of v2 counts nothing
            text = read_small(f"{controller.folder(path, self._roots)}/{name}")
            if text is not None or controller.version == 1:
                return path, None if text is None else parse_kills(text)
        return "", None

    def _remember(self, look: _Look) -> _Look:
        """Keep it, when the last one kept is a minute old; give back the one to count from."""
        looks = self._looks
        while len(looks) > 1 and look.at_s - looks[0].at_s > self._window_s:
            del looks[0]
        if not looks or look.at_s - looks[-1].at_s >= _APART_S:
            looks.append(look)
        return looks[0]


def _more(before: int | None, now: int | None) -> int:
    """Kills between two looks. A counter that went back belongs to a group made anew: all it says is new."""
    if before is None or now is None:
        return 0
    return now - before if now >= before else now
