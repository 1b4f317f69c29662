"""The exception tree of the supervisor, and the exit codes of the command.

    WatchdogError                  anything we say in one line, without a traceback
    ├── SettingsError         (2)  configuration, command line, environment override
    ├── StateError            (2)  state folder, ledger or lock path that cannot be used
    │   └── LockPathError     (2)  a lock path without true flock
    ├── NotBackError          (3)  a verified step that cannot be verified now: nobody goes back to it
    ├── HeldError             (4)  somebody else supervises this job, or a run of it is alive
    ├── StaleError            (1)  what was chosen to launch from is not the newest any more
    ├── RecordingError        (1)  what could not be recorded is not done
    ├── ControlError          (1)  the control socket: no supervisor, no answer, not ours
    └── CheckpointError       (1)  a checkpoint that is not what its manifest says
        └── UnreadableError   (1)  a checkpoint that cannot be read now, and may be later

Every text says what happened, the value seen, and what to do.
"""

from __future__ import annotations

EXIT_OK = 0  # finished; or the question was answered
EXIT_FAILURE = 1  # a failure of our own
EXIT_USAGE = 2  # configuration or command line; nothing was started
EXIT_HOLD = 3  # a person must look: watchdog relaunch lifts it
EXIT_HELD = 4  # another supervisor has this job
EXIT_STOPPED = 5  # stopped on request before the job was finished


class WatchdogError(Exception):
    """Base of everything that is told in one line."""

    exit_code = EXIT_FAILURE


class SettingsError(WatchdogError):
    """One or more problems of the configuration, a line each in `problems`."""

    exit_code = EXIT_USAGE

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StateError(WatchdogError):
    """The state folder, the ledger or a lock path cannot be used."""

    exit_code = EXIT_USAGE


class LockPathError(StateError):
    """A lock path on a file system without true flock."""


class NotBackError(WatchdogError):
    """The step was verified once and cannot be verified now: as in a supervisor, a person must look."""

    exit_code = EXIT_HOLD


class StaleError(WatchdogError):
    """What was chosen to launch from is not what it was: somebody saved, or took something away, meanwhile."""


class HeldError(WatchdogError):
    """Somebody else holds the job."""

    exit_code = EXIT_HELD


class RecordingError(WatchdogError):
    """The ledger could not take a record, so the action it was for is not done."""


class ControlError(WatchdogError):
    """The control socket did not answer, or what it answered is no answer."""


class CheckpointError(WatchdogError):
    """A checkpoint that is not what its manifest says."""


class UnreadableError(CheckpointError):
    """A checkpoint that cannot be read now, and may be later."""
