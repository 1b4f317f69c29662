"""Starting a run, in the order that Invariant 1 demands.

run lock exclusively; write the run record; downgrade to shared; start the shim; close our own copy. The shim holds
the share from its first instruction (it inherits the descriptor), so there is no moment at which a run is being
started and the lock is free.
Refuses to choose a checkpoint or to judge a gate: it is told what to launch, and asks once more, while nobody else can
hold the run lock, whether that is still what should be launched.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from watchdog import contract
from watchdog.actuators.locks import take_run_lock
from watchdog.collectors.notify import address_of
from watchdog.core.runrecord import RunRecord
from watchdog.errors import HeldError, StaleError, StateError
from watchdog.folders import JobFolders, RunFolder

SHIM = Path(__file__).parent.parent / "shim.py"
# The supervisor's own service manager must not be notified by the trainer.
_MANAGERS_ENVIRONMENT = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOrder:
    """Everything a launch needs. `manifest`: the verified checkpoint's manifest, None for a fresh start.

    `beat_deadline_s` is told to trainers that beat through the notify socket, as WATCHDOG_USEC. `batch_halvings`: how
    often the trainer is to halve its micro-batch.
    """

    record: RunRecord
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    manifest: Path | None
    beat_deadline_s: float
    batch_halvings: int = 0


def trainer_environment(base: Mapping[str, str], order: LaunchOrder, folders: JobFolders) -> dict[str, str]:
    """The trainer's environment: `base` without our names and its service manager's, the job's own, the contract."""
    record = order.record
    environment = {
        name: value
        for name, value in base.items()
        if not name.startswith(contract.ENV_PREFIX) and name not in _MANAGERS_ENVIRONMENT
    }
    environment.update(order.environment)
    run = RunFolder(path=Path(record.folder))
    environment[contract.ENV_RUN_ID] = record.run_id
    environment[contract.ENV_JOB] = record.job
    environment[contract.ENV_BEAT_FILE] = str(run.beat)
    environment[contract.ENV_ACK_FILE] = str(run.acknowledgement)
    environment[contract.ENV_FAILURE_FILE] = str(run.failure)
    environment[contract.ENV_CHECKPOINTS] = str(folders.checkpoints)
    environment[contract.ENV_RUN_LOCK] = str(folders.run_lock)
    environment[contract.ENV_RUN_RECORD] = str(folders.run_record)
    if order.batch_halvings:
        environment[contract.ENV_BATCH_HALVINGS] = str(order.batch_halvings)
    # The same as systemd's own: trainers that beat through sd_notify(3) need to know nothing of us.
    environment["NOTIFY_SOCKET"] = address_of(record.run_id)
    environment["WATCHDOG_USEC"] = str(int(order.beat_deadline_s * 1e6))
    if record.level == 2:
        fresh = record.expectation.fresh
        environment[contract.ENV_RESUME] = contract.RESUME_FRESH if fresh else contract.RESUME_REQUIRE
        if order.manifest is not None:
            environment[contract.ENV_RESUME_MANIFEST] = str(order.manifest)
    return environment


def ticks_now() -> int:
    """Clock ticks since boot, the unit of a process's start time, one tick early to be a lower bound."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")) - 1


def remember_lineage(path: Path, run_id: str) -> None:
    """Append the run id to the lineage of the checkpoint folder, durably. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, f"\n{run_id}\n".encode())  # the first newline closes a torn last line
        os.fsync(fd)
    finally:
        os.close(fd)


def launch(
    order: LaunchOrder, folders: JobFolders, why_stale: Callable[[], str | None] = lambda: None
) -> subprocess.Popen[bytes]:
    """Start the shim, and with it the run. Returns the shim, our child.

    `why_stale` is asked under the run lock: who held it before may have saved until then. Raises HeldError when a
    process holds the run lock, StaleError with its answer, StateError when a record cannot be written: then nothing was
    started.
    """
    run = RunFolder(path=Path(order.record.folder))
    lock = take_run_lock(folders.run_lock)
    if lock is None:
        raise HeldError(f"{folders.run_lock} is held: some process of an earlier run, or a run started by hand, lives")
    log_fd = -1
    try:
        try:
            if (stale := why_stale()) is not None:
                raise StaleError(stale)
            run.path.mkdir(parents=True, exist_ok=True)
            remember_lineage(folders.lineage, order.record.run_id)
            contract.write_json_durably(folders.run_record, order.record.to_record())
            log_fd = os.open(run.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"cannot record run {order.record.number}, so it is not started: {error}") from error
        lock.downgrade()
        try:
            return subprocess.Popen(
                shim_command(run, lock.fd, order.record.run_id, order.command, _entrance(order.record)),
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                cwd=order.directory,
                env=trainer_environment(os.environ, order, folders),
                pass_fds=(lock.fd,),
                start_new_session=True,
            )
        except OSError as error:
            raise StateError(f"cannot start the shim in {order.directory}: {error}") from error
    finally:
        lock.close()
        if log_fd >= 0:
            os.close(log_fd)


def _entrance(record: RunRecord) -> str:
    return "" if record.cgroup is None else f"{record.cgroup.path}/cgroup.procs"


def shim_command(run: RunFolder, lock_fd: int, run_id: str, command: Sequence[str], cgroup: str = "") -> list[str]:
    """The command line of the shim: isolated (-I), without site (-S)."""
    shim = [sys.executable, "-I", "-S", str(SHIM)]
    return [*shim, str(run.start), str(run.exit), str(lock_fd), run_id, cgroup, "--", *command]
