"""Why a run ended, whose ledger it spends, and what is to be done about it: closed lists.

The cause is the label of `watchdog_runs_total` and the word in every incident.
"""

from __future__ import annotations

import enum


class Spends(enum.Enum):
    """Which ledger of failures without progress an end spends; each of the two is a budget of its own."""

    NOTHING = "nothing"
    TRAINER = "trainer"  # what is run: its code, its data, its settings
    HOST = "host"  # what it runs on: memory, disk, device, driver, people


class Cure(enum.Enum):
    """What has to be done before, or instead of, the next run. The value is for people."""

    NOTHING = "nothing"
    RELAUNCH = "relaunch"
    MAKE_ROOM = "make room in host memory, then relaunch"
    FREE_DISK = "free disk space, then relaunch"
    MEND_STORAGE = "look at the disk and the kernel log, then relaunch"
    SMALLER = "make room on the device, or a smaller batch, then relaunch"
    PROVE_DEVICE = "prove the device, then relaunch"
    WAIT_FOR_DRIVER = "wait for the driver, then relaunch"
    RESTART_HOST = "restart the host (wsl --shutdown), then relaunch"
    VERIFY = "verify the checkpoints anew, then relaunch"
    MEND_TRAINER = "mend the trainer"
    MEND_DATA = "mend the data"
    MEND_SETTINGS = "mend the settings"


class Cause(enum.Enum):
    """The value is the metric label."""

    FINISHED = "finished"  # the target step was reached and its checkpoint verified
    DRAINED = "drained"  # asked to stop, saved, exited
    STOPPED = "stopped"  # stopped on request without saving
    EXITED = "exited"  # a non-zero exit code, and nothing that says more
    SIGNALLED = "signalled"  # ended by a signal: its own fault (SIGSEGV), or one that was ours
    KILLED = "killed"  # KILL, TERM, INT and their like from outside: a person, or a program of theirs
    STALLED = "stalled"  # stopped by us: beats were stale
    EXIT_TOO_EARLY = "exit_too_early"  # exit 0 before the target step
    TARGET_UNKNOWN = "target_unknown"  # exit 0, and the trainer never said where it was going
    WALL_REACHED = "wall_reached"  # a limit of time, set by whoever lends the host
    HOST_MEMORY = "host_memory"  # memory of the host was refused, however it was said
    OOM_KILL = "oom_kill"  # the kernel killed it for memory
    CUDA_OUT_OF_MEMORY = "cuda_out_of_memory"
    CUDA_ERROR = "cuda_error"  # an error of CUDA that may well be the trainer's
    DEVICE_FAULT = "device_fault"  # an Xid, or CUDA's own word, that is the hardware's or the driver's
    DRIVER_GONE = "driver_gone"  # no driver, none that fits, or no device that answers
    BRIDGE_DEAD = "bridge_dead"  # the GPU bridge of WSL makes no processes any more
    DISK_FULL = "disk_full"
    STORAGE_FAILED = "storage_failed"  # an I/O error, a disk that went read-only, a network file system that is gone
    CHECKPOINT_REFUSED = "checkpoint_refused"  # the trainer refused what it was given
    DATA_ERROR = "data_error"  # the data cannot be used
    NUMERIC = "numeric"  # loss or gradient not finite, or beyond its limit
    CODE_ERROR = "code_error"  # an exception of the program itself; at the same place twice it is deterministic
    WRONG_RESTORE = "wrong_restore"  # acknowledged another step or digest than was verified
    FRESH_START = "fresh_start"  # began anew where a resume was due
    NOT_ACKNOWLEDGED = "not_acknowledged"  # took a step without saying what it had restored
    NOT_EXECUTED = "not_executed"  # the command could not be executed
    SHIM_KILLED = "shim_killed"  # the shim ended without its record
    NOT_STARTED = "not_started"  # the supervisor died, or could not write, before anything was started
    SHIM_FAILED = "shim_failed"  # the shim could not write its records, and started nothing
    HOST_RESTARTED = "host_restarted"  # the boot id changed under the run
    UNKNOWN = "unknown"

    @property
    def spends(self) -> Spends:
        return _MEANS[self][0]

    @property
    def cure(self) -> Cure:
        return _MEANS[self][1]

    @property
    def is_failure(self) -> bool:
        return self.spends is not Spends.NOTHING


# Unknown spends the trainer's: what nobody understands must not look like bad luck of the host.
_MEANS: dict[Cause, tuple[Spends, Cure]] = {
    Cause.FINISHED: (Spends.NOTHING, Cure.NOTHING),
    Cause.DRAINED: (Spends.NOTHING, Cure.NOTHING),
    Cause.STOPPED: (Spends.NOTHING, Cure.NOTHING),
    Cause.NOT_STARTED: (Spends.NOTHING, Cure.RELAUNCH),
    Cause.EXITED: (Spends.TRAINER, Cure.RELAUNCH),
    Cause.SIGNALLED: (Spends.TRAINER, Cure.RELAUNCH),
    Cause.KILLED: (Spends.HOST, Cure.RELAUNCH),
    Cause.STALLED: (Spends.TRAINER, Cure.PROVE_DEVICE),
    Cause.EXIT_TOO_EARLY: (Spends.TRAINER, Cure.RELAUNCH),
    Cause.TARGET_UNKNOWN: (Spends.TRAINER, Cure.MEND_SETTINGS),
    Cause.WALL_REACHED: (Spends.HOST, Cure.RELAUNCH),
    Cause.HOST_MEMORY: (Spends.HOST, Cure.MAKE_ROOM),
    Cause.OOM_KILL: (Spends.HOST, Cure.MAKE_ROOM),
    Cause.CUDA_OUT_OF_MEMORY: (Spends.TRAINER, Cure.SMALLER),
    Cause.CUDA_ERROR: (Spends.TRAINER, Cure.PROVE_DEVICE),
    Cause.DEVICE_FAULT: (Spends.HOST, Cure.PROVE_DEVICE),
    Cause.DRIVER_GONE: (Spends.HOST, Cure.WAIT_FOR_DRIVER),
    Cause.BRIDGE_DEAD: (Spends.HOST, Cure.RESTART_HOST),
    Cause.DISK_FULL: (Spends.HOST, Cure.FREE_DISK),
    Cause.STORAGE_FAILED: (Spends.HOST, Cure.MEND_STORAGE),
    Cause.CHECKPOINT_REFUSED: (Spends.TRAINER, Cure.VERIFY),
    Cause.DATA_ERROR: (Spends.TRAINER, Cure.MEND_DATA),
    Cause.NUMERIC: (Spends.TRAINER, Cure.RELAUNCH),
    Cause.CODE_ERROR: (Spends.TRAINER, Cure.MEND_TRAINER),
    Cause.WRONG_RESTORE: (Spends.TRAINER, Cure.MEND_TRAINER),
    Cause.FRESH_START: (Spends.TRAINER, Cure.MEND_TRAINER),
    Cause.NOT_ACKNOWLEDGED: (Spends.TRAINER, Cure.MEND_TRAINER),
    Cause.NOT_EXECUTED: (Spends.TRAINER, Cure.MEND_SETTINGS),
    Cause.SHIM_KILLED: (Spends.HOST, Cure.RELAUNCH),
    Cause.SHIM_FAILED: (Spends.HOST, Cure.FREE_DISK),
    Cause.HOST_RESTARTED: (Spends.HOST, Cure.RELAUNCH),
    Cause.UNKNOWN: (Spends.TRAINER, Cure.RELAUNCH),
}

# Of these the same error at the same place and step is no bad luck: a third try would be the second one again.
REPEATS_ITSELF = frozenset({Cause.CODE_ERROR, Cause.DATA_ERROR})
