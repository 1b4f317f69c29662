"""Why a run ended: a closed list, the label of `watchdog_runs_total` and the word in every incident."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """The value is the metric label; `is_failure` says whether it spends the failure budget."""

    FINISHED = "finished"  # the target step was reached and its checkpoint verified
    DRAINED = "drained"  # asked to stop, saved, exited
    STOPPED = "stopped"  # stopped on request without saving
    EXITED = "exited"  # a non-zero exit code
    SIGNALLED = "signalled"  # ended by a signal that was not ours
    STALLED = "stalled"  # stopped by us: beats were stale
    EXIT_TOO_EARLY = "exit_too_early"  # exit 0 before the target step
    TARGET_UNKNOWN = "target_unknown"  # exit 0, and the trainer never said where it was going
    CHECKPOINT_REFUSED = "checkpoint_refused"  # the trainer refused what it was given
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
    def is_failure(self) -> bool:
        return self not in (Cause.FINISHED, Cause.DRAINED, Cause.STOPPED, Cause.NOT_STARTED)
