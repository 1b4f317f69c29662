"""The catalogue of drills: what is done, in which phases it can be done, what it needs, and what must come of it.

Responsible for the list alone: how each is made stands in making.py. Refuses a fault that product code would have to
know of.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Callable, Mapping
from typing import Any

from watchdog.core.causes import Cause
from watchdog.drills import making
from watchdog.drills.damage import DAMAGES
from watchdog.drills.making import Ring
from watchdog.drills.places import why_no_disk, why_no_memory_limit, why_no_read_only


class Outcome(enum.Enum):
    """What becomes of a job after a fault."""

    RECOVERED = "recovered"  # a run ended, another one went on to the end
    HELD = "held"  # it waits for a person, who mends what was wrong; then it goes on to the end
    UNHARMED = "unharmed"  # the same run went on to the end


class Need(enum.Enum):
    """What a fault takes beyond an ordinary user's rights."""

    DISK = "a disk of its own"
    READ_ONLY = "a folder that is read-only"
    MEMORY_LIMIT = "a memory cgroup of its own"

    def why_not(self) -> str:
        """Why this host does not give it; empty when it does."""
        match self:
            case Need.DISK:
                return why_no_disk()
            case Need.MEMORY_LIMIT:
                return why_no_memory_limit()
            case Need.READ_ONLY:
                return why_no_read_only()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One line of the catalogue. The first of `phases` is the usual one.

    `causes`: what the ledger may call the end of the run. `hold`: words of it. `options`: of the job.
    `alone`: not beside another drill, whose end it could be taken for.
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

    def causes_in(self, phase: str) -> frozenset[Cause]:
        """A run that was asked to leave has ended for that reason, whatever befell it on its way."""
        return frozenset({Cause.STOPPED}) if phase == "drain" else self.causes

    def why_not(self) -> str:
        """Why this host cannot run it; empty when it can."""
        return "; ".join(why for need in self.needs if (why := need.why_not()))


_LIVING = ("train", "import", "load", "first_step", "save", "evaluate")
_THREE = {"relaunch": {"failures": 3}}

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="kill",
        words="the trainer is killed (SIGKILL)",
        make=making.signalled(signal.SIGKILL),
        phases=(*_LIVING, "drain"),
        causes=frozenset({Cause.KILLED}),
    ),
    Fault(
        name="stop",
        words="the trainer is stopped (SIGSTOP): alive, and no beats",
        make=making.signalled(signal.SIGSTOP),
        phases=(*_LIVING, "drain"),
        causes=frozenset({Cause.STALLED}),
    ),
    Fault(
        name="segv",
        words="the trainer crashes in native code (SIGSEGV)",
        make=making.signalled(signal.SIGSEGV),
        phases=_LIVING,
        causes=frozenset({Cause.SIGNALLED}),
    ),
    Fault(
        name="term",
        words="somebody else asks the trainer to leave (SIGTERM)",
        make=making.signalled(signal.SIGTERM),
        phases=_LIVING,
        causes=frozenset({Cause.KILLED, Cause.EXIT_TOO_EARLY}),  # killed before it has a handler
    ),
    Fault(
        name="cpu-limit",
        words="a limit of CPU time is used up (SIGXCPU)",
        make=making.signalled(signal.SIGXCPU),
        causes=frozenset({Cause.WALL_REACHED}),
    ),
    Fault(
        name="deaf",
        words="the trainer is stopped, and ignores TERM when it is woken",
        make=making.signalled(signal.SIGSTOP),
        options=("--deaf",),
        causes=frozenset({Cause.STALLED}),
    ),
    Fault(
        name="child",
        words="the trainer is killed and leaves a child in a session of its own that ignores TERM",
        make=making.signalled(signal.SIGKILL),
        options=("--child",),
        phases=("train", "save", "evaluate"),
        causes=frozenset({Cause.KILLED}),
    ),
    Fault(
        name="shim",
        words="the shim, which watches over the run, is killed",
        make=making.kill_shim,
        phases=("train", "load", "save"),
        causes=frozenset({Cause.SHIM_KILLED}),
    ),
    Fault(
        name="ghost",
        words="the trainer is stopped with the run lock in its hand, and the shim is killed",
        make=making.ghost,
        phases=("train", "save"),
        causes=frozenset({Cause.SHIM_KILLED}),
    ),
    Fault(
        name="supervisor",
        words="the supervisor is killed and started again",
        make=making.kill_supervisor,
        outcome=Outcome.UNHARMED,
        phases=("train", "load", "save", "evaluate"),
    ),
    Fault(
        name="supervisor-trainer",
        words="supervisor and trainer are killed",
        make=making.kill_supervisor_and_trainer,
        phases=("train", "save"),
        causes=frozenset({Cause.KILLED}),
    ),
    Fault(
        name="supervisor-shim",
        words="supervisor and shim are killed",
        make=making.kill_supervisor_and_shim,
        causes=frozenset({Cause.SHIM_KILLED}),
    ),
    Fault(
        name="everybody",
        words="supervisor, shim and trainer are killed",
        make=making.kill_everybody,
        phases=("train", "save"),
        causes=frozenset({Cause.SHIM_KILLED}),
    ),
    Fault(
        name="freeze",
        words="everything stands still for 3 s and goes on, as after a suspend",
        make=making.freeze_everybody,
        outcome=Outcome.UNHARMED,
    ),
    Fault(
        name="second-supervisor",
        words="somebody starts a second supervisor for the same job",
        make=making.second_supervisor,
        outcome=Outcome.UNHARMED,
    ),
    Fault(
        name="memory-refused",
        words="host memory is refused to the trainer (RLIMIT_AS)",
        make=making.refuse_memory,
        causes=frozenset({Cause.HOST_MEMORY}),
    ),
    Fault(
        name="disk-full",
        words="the disk of the checkpoints is filled to the last byte",
        make=making.fill_disk,
        causes=frozenset({Cause.DISK_FULL}),
        or_else=Outcome.HELD,
        mend=making.free_disk,
        needs=(Need.DISK,),
        settings={"disk": {"need": "3MiB"}},
    ),
    Fault(
        name="read-only",
        words="the folder of the checkpoints becomes read-only",
        make=making.read_only,
        outcome=Outcome.HELD,
        hold="PermissionError",
        mend=making.writable,
        needs=(Need.READ_ONLY,),
    ),
    *(
        Fault(
            name=f"checkpoint-{name}",
            words=f"the newest checkpoint is spoiled ({words}), and the trainer is killed",
            make=making.damage(how),
            causes=frozenset({Cause.KILLED}),
            refused=name != "unlisted",  # without its manifest it is no checkpoint any more
        )
        for name, (words, how) in DAMAGES.items()
    ),
    Fault(
        name="checkpoint-swapped",
        words="the checkpoint is swapped between its verification and its loading",
        make=making.swap_before_load,
        causes=frozenset({Cause.KILLED}),
        later=frozenset({Cause.WRONG_RESTORE}),
        refused=True,
    ),
    Fault(
        name="beats-gone",
        words="the beat file is removed: blind, which is no reason to end a run",
        make=making.remove_beats,
        outcome=Outcome.UNHARMED,
    ),
    Fault(
        name="beats-garbled",
        words="the beat file is overwritten with rubbish",
        make=making.garble_beats,
        outcome=Outcome.UNHARMED,
    ),
    Fault(
        name="steps-frozen",
        words="no step is made any more, although beats come",
        make=making.end_data,
        outcome=Outcome.UNHARMED,
        or_else=Outcome.RECOVERED,
        finding="steps-frozen",
        causes=frozenset({Cause.STALLED}),
    ),
    Fault(
        name="settings-broken",
        words="the configuration is broken while the job runs, and the trainer is killed",
        make=making.break_settings,
        causes=frozenset({Cause.KILLED}),
    ),
    Fault(
        name="ledger-torn",
        words="the supervisor is killed in the middle of a line of its ledger",
        make=making.tear_ledger,
        outcome=Outcome.UNHARMED,
    ),
    Fault(
        name="loss-nan",
        words="the data makes the loss NaN, each time anew",
        make=making.rewrite_lesson("nan"),
        outcome=Outcome.HELD,
        causes=frozenset({Cause.NUMERIC}),
        hold="3 runs in a row",
        mend=making.mend_data,
        settings=_THREE,
    ),
    Fault(
        name="error-repeated",
        words="the program fails at the same line of its data, each time anew",
        make=making.rewrite_lesson("rubbish"),
        outcome=Outcome.HELD,
        causes=frozenset({Cause.CODE_ERROR}),
        hold="twice the same: ValueError",
        mend=making.mend_data,
    ),
    Fault(
        name="data-gone",
        words="the data is removed while the job runs",
        make=making.remove_data,
        outcome=Outcome.HELD,
        causes=frozenset({Cause.DATA_ERROR}),
        hold="data",
        mend=making.mend_data,
    ),
    Fault(
        name="lock-held",
        words="a stopped process that is none of the job's holds its run lock, and the trainer is killed",
        make=making.foreign_holder,
        outcome=Outcome.HELD,
        causes=frozenset({Cause.KILLED}),
        hold="run.lock is held",
        mend=making.end_holder,
    ),
    # Last, since for a few seconds any other KILL could be taken for the kernel's.
    Fault(
        name="oom-kill",
        words="the kernel kills the trainer for memory (the kernel log keeps a line of it)",
        make=making.out_of_memory,
        causes=frozenset({Cause.OOM_KILL}),
        needs=(Need.MEMORY_LIMIT,),
        settings={"deadlines": {"train": "20s"}},  # the kernel may give cache back for a while before it kills
        alone=True,
    ),
)

# Faults of recovery.md's list that no drill makes, and why.
NOT_MADE: Mapping[str, str] = {
    "GPU faults (Xid, lost, hung driver, out of memory)": "they cannot be made on a real device without harm",
    "a clock that jumps, a suspended host": "it would reach every program of the host; freeze stands in for it",
    "power cuts": "they cannot be made without harm",
}


def by_name(name: str) -> Fault | None:
    return next((fault for fault in FAULTS if fault.name == name), None)
