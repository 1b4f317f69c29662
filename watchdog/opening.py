"""Taking a job: its folders, its supervisor lock, its ledger, and the run that may still be alive.

Everything that must be right before the loop begins, in the order in which it is safe: the lock first, so that
nothing is written into a job that somebody else supervises.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from watchdog import contract
from watchdog.actuators.locks import (
    SupervisorLock,
    make_control_folder,
    require_true_flock,
    take_run_lock,
    take_supervisor_lock,
)
from watchdog.classify.ends import Evidence, classify
from watchdog.clock import Clock
from watchdog.collectors.locks import read_lock
from watchdog.collectors.processes import ancestry, is_alive, marked_processes, this_host
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch, read_exit, read_last_words, read_start
from watchdog.collectors.runcgroup import pids_by_name
from watchdog.core.causes import Cause
from watchdog.core.endrecord import hidden, left_by
from watchdog.core.ettr import Account
from watchdog.core.facts import Known
from watchdog.core.history import Event, History, fold
from watchdog.core.identity import Host, ProcessId
from watchdog.core.runrecord import RunRecord
from watchdog.core.seen import EndSeen, Shim
from watchdog.core.state import Ended
from watchdog.errors import StateError
from watchdog.folders import JobFolders, RunFolder
from watchdog.ledger import Ledger
from watchdog.masking import mask_command, secret_values
from watchdog.places import folders_of, job_options
from watchdog.settings import Settings


@dataclasses.dataclass(kw_only=True, slots=True)
class OpenJob:
    """A job that is ours: nobody else supervises it as long as `lock` is open."""

    folders: JobFolders
    lock: SupervisorLock
    ledger: Ledger
    history: History
    host: Host
    watch: RunWatch | None
    account: Account = dataclasses.field(default_factory=Account)

    def tell(self, event: Event) -> None:
        """An event that was written: remember it."""
        self.history = fold([event], self.history)
        self.account.add(event)


def take(folders: JobFolders, clock: Clock, argv: list[str], options: str = "") -> SupervisorLock:
    """The supervisor lock. Raises HeldError with who has it, StateError for a path that cannot be used."""
    require_true_flock(folders.control)
    make_control_folder(folders.control)
    wall_s = clock.wall()
    me = os.getpid()
    return take_supervisor_lock(
        folders.supervisor_lock,
        me=ProcessId(me, contract.start_ticks(me)),
        wall_s=wall_s,
        command=f"{' '.join(mask_command(argv))} (in {os.getcwd()})",
        when=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s)),
        options=options,
    )


def open_ledger(folders: JobFolders, clock: Clock, host: Host) -> Ledger:
    """The job's ledger, in a state folder that is made if need be. Raises StateError."""
    require_true_flock(folders.state)
    try:
        folders.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StateError(
            f"cannot make the state folder {folders.state}: {error.strerror}; set [state] folder to one you may write"
        ) from error
    return Ledger(folders.ledger, folders.ballast, clock=clock, boot_id=host.boot_id)


def host_or_error() -> Host:
    """Boot and pid namespace. Raises StateError where `/proc` does not tell."""
    try:
        return this_host()
    except OSError as error:
        raise StateError(f"/proc cannot be read ({error.strerror}): without it no process is proven ours") from error


def open_job(settings: Settings, clock: Clock, argv: list[str]) -> OpenJob:
    """Take the job and find out what became of its last run. Raises HeldError, StateError, RecordingError."""
    folders = folders_of(settings)
    host = host_or_error()
    lock = take(folders, clock, argv, job_options(settings))
    try:
        ledger = open_ledger(folders, clock, host)
        try:
            folders.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot make the checkpoint folder {folders.checkpoints}: {error.strerror}") from error
        history = fold(ledger.events)
        account = Account()
        for event in ledger.events:
            account.add(event)
        watch, lost = find_run(folders, history, host)
        if watch is not None:
            require_outside(watch)
        if lost is not None:
            secrets = secret_values(os.environ, settings.job.environment)
            words = hidden(f"run {lost.number} {lost.words}; nothing of it lives", secrets) or ""
            left = read_last_words(folders.run(lost.run_id))
            kept = left_by(log=left.log, failure=left.told, secrets=secrets)
            told = {name: hidden(getattr(lost, name), secrets) for name in ("words", "error", "fault")}
            data = {**kept, **dataclasses.asdict(lost), **told, "cause": lost.cause.value}
            entries: list[tuple[str, str, dict[str, Any]]] = [("run_ended", words, data)]
            if history.until_gone == lost.run_id and _elsewhere(folders, host):
                entries = _held_on(history, entries[0], lost)
            events = ledger.record_all(entries)
            history = fold(events, history)
            for event in events:
                account.add(event)
    except BaseException:
        lock.close()
        raise
    return OpenJob(folders=folders, lock=lock, ledger=ledger, history=history, host=host, watch=watch, account=account)


def require_outside(watch: RunWatch) -> None:
    """Whoever watches a run is no part of it: stopping it would stop us, and nobody would let us go on.

    Raises StateError where this process was started below the shim or the trainer, carries the run's id, or is in the
    run's cgroup with an ancestor of its.
    """
    if watch.shim() in (Shim.ENDED, Shim.NEVER):
        return
    leader = None if watch.start is None else watch.start.leader
    roots, grouped = (watch.shim_id, leader), watch.pids_in_cgroup() or frozenset()
    above = [each.pid for each in ancestry() if each in roots or each.pid in grouped]
    marked = os.environ.get(contract.ENV_RUN_ID) == watch.record.run_id
    if above or marked:
        watch.close()
        where = f"pid {above[0]} of it is this process or above it" if above else "its run id is in the environment"
        raise StateError(
            f"this command was started inside run {watch.record.run_id} ({where}), and would be stopped with it: a run "
            "is watched from outside; start it from a shell or terminal that the job did not open"
        )


def _held_on(
    history: History, ended: tuple[str, str, dict[str, Any]], lost: Ended
) -> list[tuple[str, str, dict[str, Any]]]:
    """The end of a run that a hold waits for, told by its lock alone, from where its processes cannot be looked for.

    Whatever of it has closed its descriptors holds no lock: this hold does not lift itself any more.
    """
    reason = (
        f"run {lost.number} did not end, and was of another pid namespace (another container): its lock is free, but "
        "whether something of it lives cannot be seen from here; look there, then: watchdog relaunch"
    )
    weighed: dict[str, Any] = {"run_id": lost.run_id, "cause": lost.cause.value, "failures": history.failures}
    weighed |= {"host_failures": history.host_failures, "fault": history.fault}
    return [
        ("hold", f"HOLD: {reason}", {"reason": reason}),
        ended,
        ("run_weighed", "it ended as far as can be seen; the hold stays", weighed),
    ]


def _elsewhere(folders: JobFolders, host: Host) -> bool:
    """Whether the last run lived in another pid namespace of this boot."""
    record = read_run_record(folders.run_record)
    return record is not None and record.boot_id == host.boot_id and record.pid_namespace != host.pid_namespace


def read_run_record(path: Path) -> RunRecord | None:
    """The record of the last run, None when there never was one. Raises StateError for one that cannot be read."""
    try:
        return RunRecord.from_record(contract.read_json(path, "run record"))
    except FileNotFoundError:
        return None
    except (OSError, contract.ContractError) as error:
        raise StateError(f"the run record cannot be read: {error}") from error


def run_lock_is_free(folders: JobFolders) -> bool:
    """Nobody holds a share. Only the holder of the supervisor lock may ask."""
    with contextlib.suppress(FileNotFoundError):
        lock = take_run_lock(folders.run_lock)
        if lock is None:
            return False
        lock.close()
    return True


def run_lock_holders(path: str, clock: Clock) -> str:
    """Who holds the run lock, for a person who has to end it."""
    try:
        lock = read_lock(path, "run", Roots(), clock)
    except (OSError, ValueError) as error:
        return f"its holder cannot be seen: {error}"
    if isinstance(lock, Known) and lock.value.holders:
        return ", ".join(f"pid {holder.pid} {holder.command}".strip() for holder in lock.value.holders[:5])
    return "its holder cannot be seen from here; watchdog diagnose"


def find_run(folders: JobFolders, history: History, host: Host) -> tuple[RunWatch | None, Ended | None]:
    """(the run to adopt or None, the end of a run that the ledger believes alive and is not or None).

    Raises StateError when a run lives that cannot be watched from here, or may do so.
    """
    open_run = history.open_run
    try:
        record = read_run_record(folders.run_record)
    except StateError as error:
        if not run_lock_is_free(folders):
            raise StateError(f"{error}; a run holds the run lock and cannot be adopted: end it by hand") from error
        record = None
    if record is None:
        return None, _never_started(open_run, folders)
    is_ours = open_run is not None and open_run["run_id"] == record.run_id
    # Ours was recorded and never started; the record on disk is then an older run's, or another supervisor's.
    stale = None if is_ours else _never_started(open_run, folders)
    if record.run_id in history.ended:
        # Proven over before, and what became of it is drawn: one whose shim was killed has no exit record to say so.
        return None, stale
    if record.boot_id != host.boot_id:
        gone = _gone(record, "was alive when the host went down", Cause.HOST_RESTARTED)
        return None, gone if is_ours else stale
    if record.pid_namespace != host.pid_namespace:
        if not run_lock_is_free(folders):
            raise StateError(
                f"run {record.run_id} lives in another pid namespace (another container) and cannot be watched "
                "from here; start the watchdog there, or end it there"
            )
        gone = _gone(record, "was alive in another pid namespace", Cause.UNKNOWN)
        return None, gone if is_ours else stale
    watch = RunWatch(record, lock_is_free=lambda: run_lock_is_free(folders))
    state = watch.shim()
    if state is Shim.NEVER and is_ours:
        watch.close()
        return None, _never_started(open_run, folders)
    if state in (Shim.ENDED, Shim.NEVER) and not is_ours:
        watch.close()
        return None, stale
    return watch, stale


def _never_started(open_run: object, folders: JobFolders) -> Ended | None:
    """The end of the ledger's open run, which the run record does not name: what its folder says, else not started."""
    if not isinstance(open_run, dict):
        return None
    run = folders.run(str(open_run["run_id"]))
    end = EndSeen(cause=Cause.NOT_STARTED, words="was recorded and never started")
    if run.start.exists():
        record = read_exit(run)
        complete = record is not None and record.complete and record.run_id == open_run["run_id"]
        if not complete:
            _require_nothing_left(run, str(open_run["run_id"]), folders)
        words = read_last_words(run)
        end = classify(Evidence(record=record if complete else None, failure=words.failure, log=words.log))
    return Ended(
        number=int(open_run["number"]),
        run_id=str(open_run["run_id"]),
        cause=end.cause,
        words=end.words,
        baseline_step=int(open_run["baseline_step"]),
        permanent=end.permanent,
        hold_after=end.permanent,
        error=end.error,
        confidence=end.confidence,
        fault=end.fault,
    )


def _require_nothing_left(run: RunFolder, run_id: str, folders: JobFolders) -> None:
    """The control folder was cleaned under a run that the ledger believes alive. Raises StateError while it may be."""
    marked = [process.id.pid for process, trace in marked_processes() if trace.run_id == run_id]
    with contextlib.suppress(contract.ContractError, OSError):
        start = read_start(run)
        if start is not None and is_alive(start.shim):
            marked.insert(0, start.shim.pid)
    marked += sorted(pids_by_name(run_id))
    if marked:
        pids = ", ".join(str(pid) for pid in dict.fromkeys(marked))
        raise StateError(
            f"run {run_id} is alive (pid {pids}), and its record {folders.run_record} was removed, so it cannot be "
            "adopted; end these processes, then start again"
        )


def _gone(record: RunRecord, words: str, cause: Cause) -> Ended:
    return Ended(
        number=record.number, run_id=record.run_id, cause=cause, words=words, baseline_step=record.baseline_step
    )
