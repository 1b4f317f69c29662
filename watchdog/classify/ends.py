"""How a run ended: from its exit record, its failure record, the end of its output, and what the kernel says. Pure.

The order of belief: an OOM kill and a fault of the device are the kernel's to tell; a shortage of memory or disk is
believed before the exit code that the trainer put on it (it is no fault of the checkpoint); then the exit codes of the
contract; then the words of the exception. What nobody can tell stays `exited` or `signalled`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import signal

from watchdog import contract
from watchdog.checks.xid_table import ACTION, WORDS
from watchdog.classify.log_tail import (
    WORKER_GONE,
    WORKER_KILLED,
    Failure,
    Meaning,
    failure_in,
    first_line,
    meaning_of,
    meaning_of_lines,
    plain_lines,
    signalled_worker,
    worker_pids,
)
from watchdog.core.advice import AMPLE
from watchdog.core.causes import Cause
from watchdog.core.figures import gib
from watchdog.core.kernel import KernelKind, KernelLine
from watchdog.core.seen import EndSeen

_XID_WINDOW_S, _OOM_WINDOW_S, _AFTER_S = 600.0, 60.0, 10.0
_OOM_CLOSE_S = 5.0  # so close to a death that it can be meant where pids cannot be compared
_ERROR_LENGTH = 400
_AMPLE_BYTES, _AMPLE_FRACTION = 1 << 30, 0.25  # so much left, and it was not the others who took it

# From outside: a person, a service manager, a batch system. What a program does to itself (SEGV, ABRT) is not among it.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Xids that only say what an application did, or that ask for nothing.
_OF_THE_TRAINER = frozenset({"restart", "log", "ignore"})
_OF_DEVICES = frozenset({Cause.CUDA_ERROR, Cause.DRIVER_GONE, Cause.DEVICE_FAULT, Cause.CUDA_OUT_OF_MEMORY})
_OF_MEMORY = frozenset({Cause.HOST_MEMORY, Cause.OOM_KILL})
_OF_THE_HOST = _OF_MEMORY | {
    *(Cause.DISK_FULL, Cause.STORAGE_FAILED, Cause.DRIVER_GONE, Cause.DEVICE_FAULT, Cause.WALL_REACHED)
}
_OF_WORKERS = frozenset({WORKER_KILLED, WORKER_GONE})
_TRACE_OF_C = re.compile(r"^frame #\d+: ")  # below the words that matter


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of one process: exit code or signal, one of them None. `monotonic_s`: when it was reaped."""

    pid: int
    code: int | None
    signal: int | None
    wall_s: float | None = None
    monotonic_s: float | None = None


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """What the kernel said while the run lived. `lines` None: its log cannot be read.

    `kills`: processes that it killed for memory since shortly before the end, on the whole host or in our cgroup; None
    where nobody counts. The counters decide only where the log cannot be read: they do not say who it was.
    """

    lines: tuple[KernelLine, ...] | None = None
    kills: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything that is known about the end of a run. `ours`: we had begun to end it ourselves."""

    record: ExitRecord | None
    beat_pid: int | None = None
    failure: Failure | None = None  # the trainer's own failure record
    log: str = ""  # the end of its output
    kernel: Kernel = Kernel()
    ours: bool = False
    memory: tuple[int, int] | None = None  # host memory, (available, in total), at the last look while it lived


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the bare number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def asks_the_kernel(record: ExitRecord | None, *, beat_pid: int | None, log: str) -> bool:
    """Whether the kernel's newest words may change the verdict: a KILL, a signal, an error of the device."""
    end = None if record is None else record.decisive(beat_pid)
    if end is None or end.code == 0:
        return False
    if end.signal is not None or end.code == 128 + signal.SIGKILL or signalled_worker(log) is not None:
        return True
    told = _told(Evidence(record=record, log=log))
    return told is None or told.cause in (Cause.OOM_KILL, Cause.EXITED, *_OF_DEVICES) or bool(worker_pids(log))


def classify(evidence: Evidence) -> EndSeen:
    """Cause, words and what else is known. Exit 0 is FINISHED here; the target is weighed with the checkpoints."""
    record = evidence.record
    if record is None:
        return EndSeen(cause=Cause.UNKNOWN, words="how it ended is not known", error=last_error(evidence))
    if record.exec_error is not None:
        _, text, file = record.exec_error
        words = f"cannot execute {file!r}: {text}"
        return EndSeen(cause=Cause.NOT_EXECUTED, words=words, permanent=True, error=last_error(evidence))
    end = record.decisive(evidence.beat_pid)
    if end is None:
        return EndSeen(cause=Cause.UNKNOWN, words="how it ended is not known", error=last_error(evidence))
    if end.code == 0:
        seen = EndSeen(cause=Cause.FINISHED, words="exit 0")
    else:
        seen = _of_signal(evidence, end, end.signal) if end.signal is not None else _of_code(evidence, end)
    if seen.cause is Cause.HOST_MEMORY and evidence.memory is not None:
        available, total = evidence.memory
        words = f"{seen.words}; {gib(available)} of {gib(total)} GiB were available"
        ample = available >= max(_AMPLE_BYTES, _AMPLE_FRACTION * total)
        seen = dataclasses.replace(seen, words=f"{words}: {AMPLE}" if ample else words)
    # What a wrapper left with may be something else than what the trainer said.
    says_data = contract.EXIT_DATA in (end.code, None if record.leader is None else record.leader.code)
    permanent = says_data and seen.cause not in _OF_THE_HOST
    died_wall_s = end.wall_s if end.wall_s is not None and math.isfinite(end.wall_s) else None
    return dataclasses.replace(seen, permanent=permanent, error=last_error(evidence), died_wall_s=died_wall_s)


# --- ended by a signal ----------------------------------------------------------------------------------------
def _of_signal(evidence: Evidence, end: End, number: int, *, by: str = "died of") -> EndSeen:
    said = f"{by} {signal_name(number)}"
    if number == signal.SIGKILL and not evidence.ours and (killed := _oom_kill(evidence, end)) is not None:
        words, likely = killed
        return EndSeen(cause=Cause.OOM_KILL, words=f"{said}: {words}", likely=likely)
    if number == signal.SIGXCPU:
        return EndSeen(cause=Cause.WALL_REACHED, words=f"{said}: its limit of CPU time is used up")
    if number in _FROM_OUTSIDE:
        said += ", which was not ours"
        if evidence.ours:
            return EndSeen(cause=Cause.SIGNALLED, words=said)
        wall = meaning_of_lines(evidence.log)
        if wall is not None and wall.cause is Cause.WALL_REACHED:
            return EndSeen(cause=Cause.WALL_REACHED, words=f"{said}: {wall.words} ({wall.line})")
        blind = evidence.kernel.lines is None and evidence.kernel.kills is None
        if number == signal.SIGKILL and blind:
            words = f"{said}; whether the kernel did it for memory cannot be seen here"
            return EndSeen(cause=Cause.KILLED, words=words, likely=True)
        return EndSeen(cause=Cause.KILLED, words=said)
    told = meaning_of_lines(evidence.log)
    if told is not None and told.cause in (Cause.HOST_MEMORY, *_OF_DEVICES):
        return _of_meaning(evidence, end, told, said)
    if (fault := _device_fault(evidence, end)) is not None:
        return EndSeen(cause=Cause.DEVICE_FAULT, words=f"{said}: {fault}", likely=True)
    why = "" if told is None else f": {told.words} ({told.line})" if told.words else f": {told.line}"
    return EndSeen(cause=Cause.SIGNALLED, words=f"{said}, which was not ours{why}")


def _oom_kill(evidence: Evidence, end: End, *, named: bool = False) -> tuple[str, bool] | None:
    """(words, whether it is only likely) of a kill for memory that was meant for the run.

    `named`: only where the kernel names a process of the run.
    """
    lines = _recent(evidence, end, KernelKind.OOM_KILL, _OOM_WINDOW_S)
    record = evidence.record
    pids = {end.pid} | (set() if record is None else {other.pid for other in record.others})
    workers = worker_pids(evidence.log)
    for line in reversed(lines):
        if line.number in pids:
            return f"the kernel killed it for memory ({line.text})", False
        if line.number in workers:
            return f"the kernel killed its worker for memory ({line.text})", False
    if named:
        return None
    moment = end.monotonic_s
    for line in reversed(lines):  # from another pid namespace, or of a data worker
        if moment is None or abs(moment - line.at_s) <= _OOM_CLOSE_S:
            return f"the kernel killed for memory at that moment ({line.text})", True
    if evidence.kernel.lines is None and evidence.kernel.kills:
        return f"the kernel killed for memory meanwhile ({evidence.kernel.kills} by its counter)", True
    return None


# --- ended by itself ------------------------------------------------------------------------------------------
def _of_code(evidence: Evidence, end: End) -> EndSeen:
    said = f"exit {end.code}"
    if end.code == 128 + signal.SIGKILL and not evidence.ours and (killed := _oom_kill(evidence, end)) is not None:
        return EndSeen(cause=Cause.OOM_KILL, words=f"{said}: {killed[0]}", likely=killed[1])
    worker = signalled_worker(evidence.log)
    if worker is not None and evidence.failure is None and end.code not in _CODES:
        number, pid = worker
        return _of_signal(evidence, dataclasses.replace(end, pid=pid), number, by=f"{said}: pid {pid} died of")
    told = _told(evidence)
    if told is not None and told.words in _OF_WORKERS:
        return _of_worker(evidence, end, told, said)
    if told is not None and told.cause in _OF_THE_HOST and not (told.likely and end.code in _CODES):
        return _of_meaning(evidence, end, told, said)
    if end.code in _CODES:
        cause, words = _CODES[end.code]
        return EndSeen(cause=cause, words=words)
    # The words of a program that lost a process of its own may be anything.
    certain = told is not None and told.cause is not Cause.EXITED
    if not evidence.ours and (killed := _oom_kill(evidence, end, named=certain)) is not None:
        return EndSeen(cause=Cause.OOM_KILL, words=f"{said}: {killed[0]}", likely=killed[1])
    if told is not None:
        return _of_meaning(evidence, end, told, said)
    if (fault := _device_fault(evidence, end)) is not None:
        return EndSeen(cause=Cause.DEVICE_FAULT, words=f"{said}: {fault}", likely=True)
    if end.code is not None and end.code - 128 in _FROM_OUTSIDE:
        # A shell's word for the signal that its child died of; a program that chose this code by itself is rare.
        number = end.code - 128
        seen = _of_signal(evidence, end, number, by=f"{said}, a shell's word for")
        return dataclasses.replace(seen, likely=True)
    return EndSeen(cause=Cause.EXITED, words=said)


def _of_worker(evidence: Evidence, end: End, told: Meaning, said: str) -> EndSeen:
    """A process of the run was killed, and its parent tells it: the kernel may know better who did that."""
    if (killed := _oom_kill(evidence, end)) is not None:
        return EndSeen(cause=Cause.OOM_KILL, words=f"{said}: {killed[0]}; {told.line}", likely=killed[1])
    if evidence.kernel.lines is None and evidence.kernel.kills is None:
        return _of_meaning(evidence, end, told, said)
    words = f"{said}: {told.words}, and not by the kernel for memory ({told.line})"
    # One that is only gone may as well have crashed: that is no bad luck of the host.
    cause = Cause.EXITED if told.words == WORKER_GONE else Cause.KILLED
    return EndSeen(cause=cause, words=words, likely=True)


_CODES: dict[int | None, tuple[Cause, str]] = {
    contract.EXIT_CHECKPOINT_REFUSED: (Cause.CHECKPOINT_REFUSED, "the trainer refused the checkpoint"),
    contract.EXIT_DATA: (Cause.DATA_ERROR, "the trainer says that its data cannot be used"),
    contract.EXIT_DIVERGED: (Cause.NUMERIC, "the trainer says that it diverged"),
    contract.EXIT_WRONG_RUN: (Cause.EXITED, "it belonged to a run that is no longer the job's"),
}


def _failure(evidence: Evidence) -> Failure | None:
    return evidence.failure if evidence.failure is not None else failure_in(evidence.log)


def _told(evidence: Evidence) -> Meaning | None:
    failure = _failure(evidence)
    if failure is None or not failure.chain:
        return meaning_of_lines(evidence.log)
    return meaning_of(failure)


def _of_meaning(evidence: Evidence, end: End, told: Meaning, said: str) -> EndSeen:
    cause, why, likely = told.cause, told.words, told.likely
    failure = _failure(evidence)
    place = None if failure is None else failure.place
    if cause in _OF_DEVICES:
        if bridge := _recent(evidence, end, KernelKind.DXG_BRIDGE, _XID_WINDOW_S):
            cause, why, likely = Cause.BRIDGE_DEAD, f"the GPU bridge of WSL is dead ({bridge[-1].text})", False
        elif _recent(evidence, end, KernelKind.DXG_RESIDENCY, _OOM_WINDOW_S):
            cause, why = Cause.CUDA_OUT_OF_MEMORY, f"{why}, and device memory could not be made resident"
        elif fault := _device_fault(evidence, end):
            cause, why, likely = Cause.DEVICE_FAULT, f"{why}, {fault}", False
        elif xids := _recent(evidence, end, KernelKind.XID, _XID_WINDOW_S):
            why += f" (Xid {xids[-1].number})"
    if cause is Cause.EXITED:
        return EndSeen(cause=cause, words=f"{said}: {told.line}")
    if cause is Cause.CODE_ERROR and place is not None:
        why = f"the program failed at {place}"
    fault_at = f"{_kind(failure)} at {place}" if place is not None else told.line
    return EndSeen(
        cause=cause,
        words=f"{said}: {'it seems that ' if likely else ''}{why} ({told.line})",
        likely=likely,
        fault=fault_at,
    )


def _kind(failure: Failure | None) -> str:
    return failure.chain[0].kind if failure is not None and failure.chain else "failure"


# --- what the kernel says -------------------------------------------------------------------------------------
def _recent(evidence: Evidence, end: End, kind: KernelKind, window_s: float) -> tuple[KernelLine, ...]:
    """Lines of one kind from shortly before the end, oldest first; without a moment of the end, all that are given."""
    moment = end.monotonic_s
    return tuple(
        line
        for line in evidence.kernel.lines or ()
        if line.kind is kind and (moment is None or -_AFTER_S <= moment - line.at_s <= window_s)
    )


def _device_fault(evidence: Evidence, end: End) -> str | None:
    """The newest Xid that is no application's doing, in words."""
    for line in reversed(_recent(evidence, end, KernelKind.XID, _XID_WINDOW_S)):
        number = -1 if line.number is None else line.number
        if ACTION.get(number, "depends") not in _OF_THE_TRAINER:
            words = f" ({WORDS[number]})" if number in WORDS else ""
            return f"Xid {number}{words} of GPU {line.subject} was logged"
    return None


def last_error(evidence: Evidence) -> str | None:
    """In the trainer's own words: of its failure record, its traceback, else its last line that says something."""
    failure = _failure(evidence)
    if failure is not None and failure.chain:
        return contract.printable(first_line(failure.chain[0]))[:_ERROR_LENGTH]
    if (told := meaning_of_lines(evidence.log)) is not None:
        return contract.printable(told.line)[:_ERROR_LENGTH]
    lines = [line.strip() for line in plain_lines(evidence.log)]
    lines = [line for line in lines if line and not _TRACE_OF_C.match(line)]
    return contract.printable(lines[-1])[:_ERROR_LENGTH] if lines else None
