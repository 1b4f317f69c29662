"""What is known of a job's run from outside: its records, its last beat, and what its supervisor remembers.

Apart from diagnosing.py, since a host without any run need not import all of it. Refuses to judge and to act.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from watchdog.clock import Clock
from watchdog.collectors.beats import see_beat
from watchdog.collectors.processes import this_host
from watchdog.collectors.run import read_exit, read_start
from watchdog.contract import ContractError
from watchdog.control import NoSupervisorError, SilentError, request_and_pid, words_of_silence
from watchdog.core.fact import Absent, Fact, Known, Unknown
from watchdog.core.facts import BeatFact, Facts, Progress, Supervisor
from watchdog.core.identity import ProcessId
from watchdog.core.runrecord import RunRecord
from watchdog.errors import ControlError, StateError
from watchdog.folders import JobFolders, RunFolder
from watchdog.lookout import OfRun
from watchdog.opening import read_run_record
from watchdog.remembered import Remembered, from_record, with_memory
from watchdog.settings import Settings

_ASK_S = 2.0


def of_run(
    settings: Settings, folders: JobFolders, clock: Clock
) -> tuple[Callable[[Facts], Facts], OfRun, ProcessId | None]:
    """(what puts the supervisor's memory into a snapshot, what is known of the run, the root of its process tree)."""
    memory, supervisor = _remembered(folders)
    run, root = _run_of(settings, folders, clock, memory)
    run = replace(run, supervisor=supervisor)
    if not isinstance(memory, str):
        run = replace(run, limits=memory.with_devices)
    return (lambda facts: facts if isinstance(memory, str) else with_memory(facts, memory)), run, root


def _run_of(
    settings: Settings, folders: JobFolders, clock: Clock, remembered: Remembered | str
) -> tuple[OfRun, ProcessId | None]:
    """What is known of the job's run, and the root of its process tree."""
    try:
        record = read_run_record(folders.run_record)
        if record is None:
            return _no_run("no run was ever launched"), None
        run = RunFolder(path=Path(record.folder))
        exit_record = read_exit(run)
        if exit_record is not None and exit_record.complete:
            return _no_run(f"run {record.number} is over"), None
        start = read_start(run)
    except (OSError, StateError, ContractError) as error:
        return OfRun(beat=Unknown(str(error)), progress=Unknown(str(error))), None
    root = None if start is None else start.shim
    beat = see_beat(run.beat, run_id=record.run_id, now=clock.monotonic, shim=root)
    progress = _progress(remembered, record.run_id)
    blind_s = 0.0 if isinstance(remembered, str) else remembered.blind_s
    told = None if isinstance(remembered, str) else _beat_told(remembered, record.run_id, clock.monotonic())
    if isinstance(beat, Absent):  # of a run that beats by sd_notify its supervisor alone knows
        return OfRun(beat=told or beat, progress=progress, blind_s=blind_s), root
    if not isinstance(beat, Known):
        return OfRun(beat=beat, progress=progress, blind_s=blind_s), root
    value = beat.value.beat
    fact = BeatFact(
        run_id=value.run_id,
        pid=value.pid,
        phase=value.phase,
        age_s=max(0.0, beat.at_s - value.monotonic_s),
        deadline_s=_deadline_s(settings, told, value.phase),
        step=value.step,
        target_step=value.target_step,
        alive=beat.value.alive or (False if _can_see(record) else None),
    )
    return OfRun(beat=Known(fact, beat.at_s), progress=progress, blind_s=blind_s), root


def _deadline_s(settings: Settings, told: Known[BeatFact] | None, phase: str) -> float:
    """What the supervisor holds the run to: it may have learned a shorter one than was configured."""
    same = told is not None and told.value.phase == phase
    return told.value.deadline_s if told is not None and same else settings.deadlines.for_phase(phase)


def _beat_told(remembered: Remembered, run_id: str, now_s: float) -> Known[BeatFact] | None:
    beat = remembered.beat
    if beat is None or beat.run_id != run_id:
        return None
    return Known(replace(beat, age_s=beat.age_s + max(0.0, now_s - remembered.at_s)), now_s)


def _can_see(record: RunRecord) -> bool:
    """Whether a process of the run would be in our `/proc`: the same namespace, and nobody hides other users' ones."""
    try:
        here = this_host()
    except OSError:
        return False
    same = (here.boot_id, here.pid_namespace) == (record.boot_id, record.pid_namespace)
    return same and os.path.exists("/proc/1")


def _no_run(why: str) -> OfRun:
    return OfRun(beat=Absent(why), progress=Absent(why))


def _progress(remembered: Remembered | str, run_id: str) -> Fact[Progress]:
    if isinstance(remembered, str):
        return Unknown(f"the progress of run {run_id} over time is not known: {remembered}")
    if remembered.progress is not None and remembered.progress.run_id != run_id:
        return Unknown(f"the supervisor speaks of run {remembered.progress.run_id}")
    if remembered.progress is None:
        return Absent("the run has shown no progress that could be read")
    return Known(remembered.progress, remembered.at_s)


def _remembered(folders: JobFolders) -> tuple[Remembered | str, Supervisor | None]:
    """What the living supervisor remembers, or why that is not to be had; and who it is."""
    supervisor: Supervisor | None = None
    try:
        answer, pid = request_and_pid(folders.socket, {"command": "facts"}, _ASK_S)
        supervisor = None if pid == 0 else Supervisor(pid=pid)  # 0: it counts its processes elsewhere
        return from_record(answer.get("facts")), supervisor
    except NoSupervisorError:
        nobody = Supervisor(pid=None, silence=f"nobody listens at {folders.socket}")
        return "it has no supervisor that remembers; watchdog run adopts it", nobody
    except SilentError as error:
        words = words_of_silence(error.pid, error)
        return words, Supervisor(pid=None, silence=words)
    except ContractError as error:
        return str(error), supervisor
    except (ControlError, OSError) as error:
        may_not_ask = isinstance(error.__cause__, PermissionError)  # another user's socket is no silence
        return str(error), None if may_not_ask else Supervisor(pid=None, silence=str(error))
