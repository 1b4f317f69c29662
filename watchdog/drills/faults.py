"""The catalogue of drills: what is done, in which phases it can be done, what it needs, and what must come of it.

Responsible for the list alone: how each is made stands in making.py. Refuses a fault that product code would have to
know of.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from watchdog.core.causes import Cause
from watchdog.drills import making
from watchdog.drills.damage import DAMAGES
from watchdog.drills.kinds import Fault, Need, Outcome

__all__ = ["FAULTS", "NOT_MADE", "Fault", "Need", "Outcome", "by_name"]


_LIVING = ("train", "import", "load", "first_step", "save", "evaluate")
# (name, the record after which it is killed, what the trainer is sent, words)
_MIDWAY = (
    ("stopping", "run_stopping", signal.SIGSTOP, "is killed while it stops the run"),
    ("ended", "run_ended", signal.SIGKILL, "right after it saw the end"),
    ("weighed", "run_weighed", signal.SIGKILL, "right after it weighed the end"),
    ("launching", "run_launching", signal.SIGKILL, "right before it launches the next run"),
    ("beats", "run_beats", signal.SIGKILL, "at the first beat of the next run"),
)
_THREE = {"relaunch": {"failures": 3}}

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="kill",
        words="the trainer is killed (SIGKILL)",
        make=making.signalled(signal.SIGKILL),
        phases=(*_LIVING, "drain"),
        causes=frozenset({Cause.KILLED}),
        any_trainer=True,
    ),
    Fault(
        name="stop",
        words="the trainer is stopped (SIGSTOP): alive, and no beats",
        make=making.signalled(signal.SIGSTOP),
        phases=(*_LIVING, "drain"),
        causes=frozenset({Cause.STALLED}),
        any_trainer=True,
    ),
    Fault(
        name="segv",
        words="the trainer crashes in native code (SIGSEGV)",
        make=making.signalled(signal.SIGSEGV),
        phases=_LIVING,
        causes=frozenset({Cause.SIGNALLED}),
        any_trainer=True,
    ),
    Fault(
        name="abort",
        words="the trainer gives up in native code (SIGABRT)",
        make=making.signalled(signal.SIGABRT),
        causes=frozenset({Cause.SIGNALLED}),
        any_trainer=True,
    ),
    Fault(
        name="term",
        words="somebody else asks the trainer to leave (SIGTERM)",
        make=making.signalled(signal.SIGTERM),
        phases=_LIVING,
        causes=frozenset({Cause.KILLED, Cause.EXIT_TOO_EARLY}),  # killed before it has a handler
        any_trainer=True,
    ),
    Fault(
        name="cpu-limit",
        words="a limit of CPU time is used up (SIGXCPU)",
        make=making.signalled(signal.SIGXCPU),
        causes=frozenset({Cause.WALL_REACHED}),
        any_trainer=True,
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
        any_trainer=True,
    ),
    Fault(
        name="ghost",
        words="the trainer is stopped with the run lock in its hand, and the shim is killed",
        make=making.ghost,
        phases=("train", "save"),
        causes=frozenset({Cause.SHIM_KILLED}),
        any_trainer=True,
    ),
    Fault(
        name="pid-reused",
        words="supervisor and trainer are killed, and the trainer's number goes to a stranger with the same words",
        make=making.take_number,
        causes=frozenset({Cause.KILLED}),
        needs=(Need.NUMBER,),
        any_trainer=True,
    ),
    Fault(
        name="supervisor",
        words="the supervisor is killed and started again",
        make=making.kill_supervisor,
        outcome=Outcome.UNHARMED,
        phases=("train", "load", "save", "evaluate"),
        any_trainer=True,
    ),
    Fault(
        name="supervisor-trainer",
        words="supervisor and trainer are killed",
        make=making.kill_supervisor_and_trainer,
        phases=("train", "save"),
        causes=frozenset({Cause.KILLED}),
        any_trainer=True,
    ),
    Fault(
        name="supervisor-shim",
        words="supervisor and shim are killed",
        make=making.kill_supervisor_and_shim,
        causes=frozenset({Cause.SHIM_KILLED}),
        any_trainer=True,
    ),
    Fault(
        name="everybody",
        words="supervisor, shim and trainer are killed",
        make=making.kill_everybody,
        phases=("train", "save"),
        causes=frozenset({Cause.SHIM_KILLED}),
        any_trainer=True,
    ),
    *(
        Fault(
            name=f"supervisor-{name}",
            words=f"the trainer is {'stopped' if how is signal.SIGSTOP else 'killed'}, and the supervisor {words}",
            make=making.kill_supervisor_after(event, how),
            causes=frozenset({Cause.STALLED if how is signal.SIGSTOP else Cause.KILLED}),
            any_trainer=True,
        )
        for name, event, how, words in _MIDWAY
    ),
    Fault(
        name="freeze",
        words="everything stands still for 3 s and goes on, as after a suspend",
        make=making.freeze_everybody,
        outcome=Outcome.UNHARMED,
        any_trainer=True,
    ),
    Fault(
        name="second-supervisor",
        words="somebody starts a second supervisor for the same job",
        make=making.second_supervisor,
        outcome=Outcome.UNHARMED,
        any_trainer=True,
    ),
    Fault(
        name="metrics-port",
        words="the supervisor is killed, and its metrics port is taken when it is started again",
        make=making.take_port,
        outcome=Outcome.UNHARMED,
        any_trainer=True,
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
        name="log-disk-full",
        words="the disk of ledger and logs is filled to the last byte, and the trainer is killed",
        make=making.fill_log_disk,
        causes=frozenset({Cause.KILLED}),
        or_else=Outcome.HELD,
        mend=making.nothing,
        needs=(Need.LOG_DISK,),
        settings={"disk": {"need": "3MiB"}},
    ),
    Fault(
        name="read-only",
        words="the folder of the checkpoints becomes read-only",
        make=making.read_only,
        outcome=Outcome.HELD,
        hold="/bed/checkpoints",
        mend=making.writable,
        needs=(Need.READ_ONLY,),
        any_trainer=True,
    ),
    *(
        Fault(
            name=f"checkpoint-{name}",
            words=f"the newest checkpoint is spoiled ({words}), and the trainer is killed",
            make=making.damage(how),
            causes=frozenset({Cause.KILLED}),
            refused=name != "unlisted",  # without its manifest it is no checkpoint any more
            any_trainer=name not in ("flipped", "replaced"),  # these write into the quick job's own weights
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
        any_trainer=True,
    ),
    Fault(
        name="beats-garbled",
        words="the beat file is overwritten with rubbish",
        make=making.garble_beats,
        outcome=Outcome.UNHARMED,
        any_trainer=True,
    ),
    Fault(
        name="data-hangs",
        words="what reads the data never comes back",
        make=making.block_data,
        causes=frozenset({Cause.STALLED}),
    ),
    Fault(
        name="steps-frozen",
        words="no step is made any more, although beats come; where nobody works for the run it is ended",
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
        any_trainer=True,
    ),
    Fault(
        name="ledger-torn",
        words="the supervisor is killed in the middle of a line of its ledger",
        make=making.tear_ledger,
        outcome=Outcome.UNHARMED,
        any_trainer=True,
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
        name="loss-frozen",
        words="the loss is the very same in each step",
        make=making.flatten_loss,
        outcome=Outcome.UNHARMED,
        finding="loss-frozen",
        settings={"limits": {"loss_frozen_points": 5}},
        changes_data=True,
    ),
    Fault(
        name="loss-exploding",
        words="loss and gradient climb from step to step",
        make=making.raise_loss,
        outcome=Outcome.UNHARMED,
        finding="loss-exploding",
        options=("--delay", "0.15", "--pause", "0.05"),  # each step is to be seen
        changes_data=True,
    ),
    Fault(
        name="exit-early",
        words="the data is over before the target step, and the trainer leaves as if it had finished (exit 0)",
        make=making.cut_data,
        options=("--hasty",),
        causes=frozenset({Cause.EXIT_TOO_EARLY}),
    ),
    Fault(
        name="fresh-start",
        words="the trainer is killed, and begins anew where it has to resume",
        make=making.signalled(signal.SIGKILL),
        outcome=Outcome.HELD,
        options=("--forgetful",),
        causes=frozenset({Cause.KILLED}),
        later=frozenset({Cause.FRESH_START}),
        hold="anew",
        mend=making.mend_command,
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
        any_trainer=True,
    ),
    Fault(
        name="lock-replaced",
        words="the supervisor's lock file is replaced by another, and the trainer is killed",
        make=making.replace_lock,
        outcome=Outcome.HELD,
        causes=frozenset({Cause.KILLED}),
        hold="unlinked or replaced",
        mend=making.nothing,
        settings={"relaunch": {"gate_wait": "1s"}},
        any_trainer=True,
    ),
    Fault(
        name="run-lock-gone",
        words="the run's lock file is removed while the run holds it, and the trainer is killed",
        make=making.remove_run_lock,
        causes=frozenset({Cause.KILLED}),
        any_trainer=True,
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
    "a GPU that is lost, a driver that hangs or does not fit, an Xid, sentinel values": "not on a real device without "
    "harm; bench.recovery makes them on a stand-in driver",
    "CUDA out of memory, an endless kernel, a ghost that holds device memory": "they take a GPU: tests/gpu/run",
    "a thread that keeps Python's lock (GIL)": "not from outside; for the watchdog it is stop: alive, and no beats",
    "memory refused while a checkpoint is loaded": "the window is a hundredth of a second; memory-refused is its twin",
    "a clock that jumps, a suspended host": "it would reach every program of the host; freeze stands in for it",
    "a lock on 9p": "it takes WSL or another host's disk; diagnose looks at the file system before each launch",
    "a session's wall reached during a save": "no session is lent here; cpu-limit stands in for the limit",
    "power cuts": "they cannot be made without harm",
}


def by_name(name: str) -> Fault | None:
    return next((fault for fault in FAULTS if fault.name == name), None)
