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


class Room(enum.Enum):
    """The one try to make room, in host memory or on the disk, that a stay at the gates is worth."""

    UNTRIED = "untried"
    UNDER_WAY = "under way"
    TRIED = "tried"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Troubled:
    """Launches that came to nothing, in one stay at the gates, by what may pass."""

    since_s: float
    tries: int
    again_s: float  # not before
    words: str


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
    held: Terminate | None = None  # sent when its stacks are kept, at `held_until_s` in any case
    held_until_s: float = 0.0
    faking: str = ""  # the check by whose word it is stopped, and which must say so anew before it is asked to end
    judged_s: float = 0.0  # when it said so last
    told: tuple[str, int | None, int | None] | None = None  # phase, step and tokens of the newest beat then


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
    faking_look_s: float | None = None  # when a check first said that it only fakes being alive
    leader_gone_s: float | None = None
    shim_continued: bool = False  # its shim was stopped, and was sent CONT: once
    last_step: int | None = None
    first_step: int | None = None  # the first that was seen of it in the phase train
    flaps: tuple[float, ...] = ()  # when it was late and went on at the last look, within the last hour
    flapped_by: str = ""  # the check by whose word it was nearly ended last; "": its beats were late
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
    confidence: str | None = None  # in the cause: "certain" or "likely"; None where nothing told of it
    fault: str | None = None  # what failed and where


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything that is carried from turn to turn."""

    phase: Phase
    since_s: float
    wish: Wish = Wish.RUN
    relaunch_asked: bool = False  # by a person, of a run that is being ended or weighed: no wait before the next
    failures: int = 0  # of the trainer, in a row without progress
    host_failures: int = 0  # of the host, the same
    fault: str | None = None  # what failed last, where and at which step, if it was the program's own error
    hold: str | None = None
    until_gone: str | None = None  # the run that the hold is for: it ends with the run's proven end
    retry_at_s: float = 0.0
    room: Room = Room.UNTRIED  # begins anew with each phase
    pruning: Room = Room.UNTRIED  # the same on the disk
    troubled: Troubled | None = None  # the same for launches that came to nothing
    waited: bool = False  # at a closed gate, or in a pause, since the checkpoints were chosen
    hopeless_s: float | None = None  # since when every look found a gate that nothing opens
    batch_halvings: int = 0  # of the micro-batch, in the newest run or the one after it
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
    prunes: bool = False  # old checkpoints may be deleted when a disk lacks room
    reclaims: bool = True  # the kernel may be asked to give cache back when a launch lacks memory
    shrink_batch: int = 0  # how often the micro-batch may be halved after device memory ran out
    remnant_s: float = 2.0  # how long what the leader left behind may take to end by itself
    idle_left_s: float = 60.0  # the same at level 0 after exit 0, where nobody of what is left works
    learned_s: Mapping[str, float] = dataclasses.field(default_factory=dict)  # shorter deadlines, see core/deadlines.py
    learned_grace_s: float = 0.0  # what finishing a step and saving needs, as far as it is known

    def grace_for(self, cause: Cause) -> float:
        """From TERM to KILL. What was learned is for a run that is asked to leave, not for one that hangs."""
        asked = cause in (Cause.DRAINED, Cause.STOPPED)
        return max(self.grace_s, self.learned_grace_s) if asked else self.grace_s


# --- actions ------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, slots=True)
class Choose:
    """Verify the checkpoints anew, beside the loop; the result comes as `Seen.choice`.

    `sparing`: what was read back before stands where nothing in the folder has changed since.
    """

    sparing: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """Start a run from this checkpoint; None = a first start (or a job without checkpoints)."""

    checkpoint: Checkpoint | None


@dataclasses.dataclass(frozen=True, slots=True)
class MakeRoom:
    """Have the kernel give cache back, beside the loop; that it is over comes as `Seen.room_made`."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeepStacks:
    """Keep where the run's processes stand, beside the loop; that it is over comes as `Seen.stacks_over`."""

    beating: ProcessId | None


@dataclasses.dataclass(frozen=True, slots=True)
class Prune:
    """Delete old checkpoints by the policy, beside the loop; that it is over comes as `Seen.pruned`."""


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
class ContinueShim:
    """CONT to the run's own shim, which somebody has stopped: it hears no end as long as it stands."""


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


Action = (
    Choose
    | Launch
    | MakeRoom
    | Prune
    | KeepStacks
    | Terminate
    | TerminateRest
    | ContinueShim
    | Kill
    | Quarantine
    | Leave
)


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
