"""What a fault is: how it is made, when it can be, what it needs of the host, and what must come of it.

Responsible for the words of the catalogue (faults.py). Refuses to know any one fault.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from watchdog.core.causes import Cause
from watchdog.drills.making import Ring
from watchdog.drills.places import why_no_disk, why_no_memory_limit, why_no_number, why_no_read_only


class Outcome(enum.Enum):
    """What becomes of a job after a fault."""

    RECOVERED = "recovered"  # a run ended, another one went on to the end
    HELD = "held"  # it waits for a person, who mends what was wrong; then it goes on to the end
    UNHARMED = "unharmed"  # the same run went on to the end


class Need(enum.Enum):
    """What a fault takes beyond an ordinary user's rights."""

    DISK = "a disk of its own for the checkpoints"
    LOG_DISK = "a disk of its own for ledger and logs"
    NUMBER = "the choice of the next process's number"
    READ_ONLY = "a folder that is read-only"
    MEMORY_LIMIT = "a memory cgroup of its own"

    def why_not(self) -> str:
        """Why this host does not give it; empty when it does."""
        match self:
            case Need.DISK | Need.LOG_DISK:
                return why_no_disk()
            case Need.NUMBER:
                return why_no_number()
            case Need.MEMORY_LIMIT:
                return why_no_memory_limit()
            case Need.READ_ONLY:
                return why_no_read_only()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One line of the catalogue. The first of `phases` is the usual one.

    `causes`: what the ledger may call the end of the run. `hold`: words of it. `options`: of the job.
    `alone`: not beside another drill, whose end it could be taken for. `any_trainer`: from outside the trainer alone;
    the others need the data or the habits of the quick job.
    """

    name: str
    words: str
    make: Callable[[Ring], None]
    outcome: Outcome = Outcome.RECOVERED
    or_else: Outcome | None = None  # as right; which it is depends on what is seen first
    phases: tuple[str, ...] = ("train",)
    causes: frozenset[Cause] = frozenset()
    later: frozenset[Cause] = frozenset()  # ends of the runs after it
    refused: bool = False  # the newest checkpoint must not be resumed from
    hold: str = ""
    finding: str = ""  # the check that tells of it, where nothing ends
    mend: Callable[[Ring], None] | None = None
    options: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    alone: bool = False
    any_trainer: bool = False
    changes_data: bool = False  # for good: what an undisturbed run ends with is another

    def causes_in(self, phase: str) -> frozenset[Cause]:
        """A run that was asked to leave has ended for that reason, whatever befell it on its way."""
        return frozenset({Cause.STOPPED}) if phase == "drain" else self.causes

    def why_not(self) -> str:
        """Why this host cannot run it; empty when it can."""
        return "; ".join(why for need in self.needs if (why := need.why_not()))
