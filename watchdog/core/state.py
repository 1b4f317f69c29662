"""The supervisor's state between two turns, and what a turn may ask to be done. Frozen."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from watchdog.core.causes import Cause
from watchdog.core.choice import Checkpoint, Refusal
from watchdog.core.identity import ProcessId
from watchdog.core.phase import Phase
from watchdog.core.runrecord import Expectation


class Wish(enum.Enum):
    """What people want of the job."""

    RUN = "run"
    LEAVE = "leave"  # end the run and leave


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A stop under way. `kill_from_s`: when KILL begins; `give_up_s`: when it is called unkillable.

    `saving_until_s`: for so long its word that it saves keeps it from KILL, and for no longer than that is its word.
    """

    cause: Cause
    reason: str
    since_s: float
    kill_from_s: float
    give_up_s: float
    hold_after: bool = False
    asked: bool = True  # TERM was sent
    asked_of: ProcessId | None = None  # to whom; None = the leader
    saving_until_s: float = 0.0
    killing: bool = False  # KILL was sent at least once
    rest_asked: bool = False  # what the leader left behind got its TERM


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """The living run as the decisions need it."""

    number: int
    run_id: str
    level: int
    expectation: Expectation
    baseline_step: int
    launched_s: float
    grace_from_s: float  # no deadline begins before this
    acknowledged: bool = False
    beat_seen: bool = False
    cleared: bool = False  # a person said that no suspect belongs to it
    stale_looks: int = 0
    stale_look_s: float = 0.0
    leader_gone_s: float | None = None
    last_step: int | None = None
    stop: Stop | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A run that is proven over and not weighed yet."""

    number: int
    run_id: str
    cause: Cause
    words: str
    baseline_step: int
    last_step: int | None = None
    target_step: int | None = None
    permanent: bool = False
    hold_after: bool = False
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything that is carried from turn to turn."""

    phase: Phase
    since_s: float
    wish: Wish = Wish.RUN
    failures: int = 0
    hold: str | None = None
    retry_at_s: float = 0.0
    run: RunState | None = None
    ended: Ended | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The settings that decisions use; seconds."""

    level: int
    target_step: int | None
    deadlines_s: Mapping[str, float]  # per phase of the contract, and "start" for the time before the first beat
    period_s: float
    grace_s: float
    kill_wait_s: float
    failure_limit: int
    backoff_s: float
    backoff_limit_s: float
    gate_wait_s: float
    leave_on_hold: bool
    remnant_s: float = 2.0  # how long what the leader left behind may take to end by itself


# --- actions ------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, slots=True)
class Choose:
    """Verify the checkpoints anew, beside the loop; the result comes as `Seen.choice`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """Start a run from this checkpoint; None = a first start (or a job without checkpoints)."""

    checkpoint: Checkpoint | None


@dataclasses.dataclass(frozen=True, slots=True)
class Terminate:
    """TERM to one process. With `look_again`, only if the beat is still the one of that number, or still absent."""

    target: ProcessId | None  # None = the leader
    only_if_seq: int | None = None
    look_again: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TerminateRest:
    """TERM to every member: the leader is gone, nobody beats, and a wrapper may have left the one that can save."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """One round of KILL over everything that is proven ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quarantine:
    """Move refused checkpoints aside."""

    refused: tuple[Refusal, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """End the supervisor with this exit code."""

    code: int


Action = Choose | Launch | Terminate | TerminateRest | Kill | Quarantine | Leave


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """An event for the ledger, written before any action of the same plan is done."""

    kind: str
    sentence: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to write down and then to do, in this order, and the rule that fired. A quiet turn has neither."""

    rule: str = "quiet"
    records: tuple[Record, ...] = ()
    actions: tuple[Action, ...] = ()
