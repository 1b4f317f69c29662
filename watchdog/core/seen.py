"""What one turn of the loop has seen of a job: the frozen input of core/decide.py.

Gathered afresh in the turn that decides; a time is CLOCK_MONOTONIC in seconds.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from watchdog.contract import Acknowledgement, Beat
from watchdog.core.causes import Cause
from watchdog.core.choice import Choice
from watchdog.core.facts import Absent, Fact
from watchdog.core.findings import Finding
from watchdog.core.identity import Process


class Shim(enum.Enum):
    """The state of the run's proof."""

    NONE = "none"  # no run was launched
    STARTING = "starting"  # launched, and has not written its start file yet
    ALIVE = "alive"
    ENDED = "ended"  # its record says complete: nothing of the run lives
    NEVER = "never"  # it ended before it started anything
    LOST = "lost"  # it was killed: cross-checks decide


class Request(enum.Enum):
    """What a person, a signal or the control socket asked for."""

    DRAIN = "drain"
    STOP = "stop"
    RELAUNCH = "relaunch"
    RELAUNCH_AFRESH = "relaunch-afresh"  # and with a new budget


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BeatSeen:
    """A valid beat of this run, and its process: `alive` = the very process that beat (start time compared)."""

    beat: Beat
    alive: bool
    stopped: bool  # state T
    extended_until_s: float = 0.0  # it asked for time until then (EXTEND_TIMEOUT_USEC)
    promised: bool = True  # it will beat again; who only says READY promises nothing


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EndSeen:
    """How the run, or its leader, ended. `permanent`: trying again cannot help.

    `likely`: what was seen may mean something else as well. `fault`: what failed and where, "TypeError at train.py:12".
    """

    cause: Cause
    words: str
    permanent: bool = False
    error: str | None = None  # the trainer's last words
    likely: bool = False
    fault: str | None = None
    died_wall_s: float | None = None  # when the process that speaks for the run ended
    left: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for the record: see core/endrecord.py

    @property
    def confidence(self) -> str | None:
        """In the cause: "certain" or "likely"; None where there is none: of an exit code alone nobody knows why."""
        if self.cause in (Cause.UNKNOWN, Cause.EXITED):
            return None
        return "likely" if self.likely else "certain"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """Whether what a leader left behind works on: its output grows, it uses a device or CPU time. None: not known."""

    works: bool | None
    words: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A condition for launching, with its figures. `words` is a sentence either way.

    `short`: host memory is known to be below the need, and cache given back might open it. `full`: a disk is known to
    have less room than it needs, and old checkpoints deleted might open it. `hopeless`: nothing that this host could do
    or wait for opens it.
    """

    name: str
    open: bool
    words: str
    short: bool = False
    full: bool = False
    hopeless: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """An action that could not be done, and why. `passing`: it may be possible a little later, with no hand raised."""

    words: str
    passing: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One turn's facts about the job."""

    now_s: float
    gap: bool = False  # the loop itself was away for over two periods
    shim: Shim = Shim.NONE
    leader_alive: bool = False
    end: EndSeen | None = None
    end_awaited: bool = False  # what tells of the end is still being read; bounded in time by who reads
    members: tuple[Process, ...] = ()  # living, proven ours
    unclear: tuple[Process, ...] = ()  # can be neither proven ours nor excluded; only when the shim is lost
    traced: tuple[int, ...] = ()  # members that a debugger holds
    run_lock_free: bool | None = None  # asked only when the shim is lost
    lock_holders: str | None = None  # who holds it then, in words
    left: Left | None = None  # of a run whose leader is gone
    shim_stopped: Process | None = None  # the living shim, where it is stopped or traced (state T or t)
    beat: Fact[BeatSeen] = dataclasses.field(default_factory=Absent)
    acknowledgement: Fact[Acknowledgement] = dataclasses.field(default_factory=Absent)
    choice: Choice | None = None
    choice_error: str | None = None
    gates: tuple[Gate, ...] = ()
    room_made: bool = False  # the try to make room is over, whatever came of it
    pruned: bool = False  # the same of the try to make room on the disk
    stacks_over: bool = False  # nobody is asked any more where the run stands
    request: Request | None = None
    trouble: Trouble | None = None
    findings: tuple[Finding, ...] = ()  # what the checks made of host and run
    judged_s: float = float("-inf")  # when they did
    luck: float = 0.0  # drawn anew each turn, from 0 to below 1: what a wait is drawn with
