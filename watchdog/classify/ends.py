"""How a run ended, told from its exit record alone. Pure."""

from __future__ import annotations

import dataclasses
import signal

from watchdog import contract
from watchdog.core.causes import Cause


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of one process: exit code or signal, one of them None."""

    pid: int
    code: int | None
    signal: int | None
    wall_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExitRecord:
    """The shim's record. `complete`: no descendant lives. `exec_error`: (errno, text, file)."""

    run_id: str
    complete: bool
    leader: End | None
    exec_error: tuple[int, str, str] | None
    others: tuple[End, ...] = ()

    def decisive(self, beat_pid: int | None) -> End | None:
        """The end that speaks for the run: the beating process's where it is known, else the leader's."""
        for end in self.others:
            if end.pid == beat_pid:
                return end
        return self.leader


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the bare number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify(record: ExitRecord | None, *, beat_pid: int | None) -> tuple[Cause, str]:
    """Cause and words. Exit 0 is FINISHED here; whether the target was reached is weighed with the checkpoints."""
    if record is None:
        return Cause.UNKNOWN, "how it ended is not known"
    if record.exec_error is not None:
        _, text, file = record.exec_error
        return Cause.NOT_EXECUTED, f"cannot execute {file!r}: {text}"
    end = record.decisive(beat_pid)
    if end is None:
        return Cause.UNKNOWN, "how it ended is not known"
    if end.signal is not None:
        return Cause.SIGNALLED, f"died of {signal_name(end.signal)}, which was not ours"
    match end.code:
        case 0:
            return Cause.FINISHED, "exit 0"
        case contract.EXIT_CHECKPOINT_REFUSED:
            return Cause.CHECKPOINT_REFUSED, "the trainer refused the checkpoint"
        case contract.EXIT_DATA:
            return Cause.EXITED, "the trainer says that its data cannot be used"
        case contract.EXIT_DIVERGED:
            return Cause.EXITED, "the trainer says that it diverged"
        case _:
            return Cause.EXITED, f"exit {end.code}"


def is_permanent(record: ExitRecord | None) -> bool:
    """Trying again cannot help: the command cannot be executed, or the data cannot be used."""
    if record is None:
        return False
    return record.exec_error is not None or (record.leader is not None and record.leader.code == contract.EXIT_DATA)
