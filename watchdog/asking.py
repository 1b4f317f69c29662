"""The commands that ask or tell a job something: status, stop; and what relaunching.py shares with them.

With a supervisor they speak through its socket; without one they read the ledger, or do with the lock in hand what is
sensible. Light to import: `watchdog status` must answer at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchdog.contract import ContractError
from watchdog.control import LeavingError, NoSupervisorError, SilentError, request, words_of_silence
from watchdog.core.history import Event, fold
from watchdog.errors import EXIT_FAILURE, EXIT_HOLD, EXIT_OK, EXIT_STOPPED, ControlError, SettingsError, StateError
from watchdog.folders import JobFolders
from watchdog.ledger import END_BYTES, read_events, read_ledger
from watchdog.ledgerview import view_of_ledger
from watchdog.places import folders_of, require_visible
from watchdog.render import duration, view_from_record
from watchdog.settings import DEFAULT_JOB, Settings

if TYPE_CHECKING:
    from watchdog.core.view import RunView, StatusView

_SAY_EVERY_S = 10.0
_LEAVING_S = 10.0  # so long a supervisor may take to end after it stopped answering


def ask(folders: JobFolders, command: str, wait_s: float = 5.0, **more: Any) -> dict[str, Any]:
    """One question to the supervisor. Raises NoSupervisorError, SilentError, ControlError; SettingsError for a no."""
    answer = request(folders.socket, {"command": command, **more}, wait_s)
    if answer.get("ok") is not True:
        if answer.get("usage") is True:
            raise SettingsError(str(answer.get("error")))
        raise ControlError(str(answer.get("error", "the supervisor gave no reason")))
    return answer


def status_of(settings: Settings, wait_s: float = 5.0) -> StatusView:
    """The living supervisor's view, else what the ledger says. Raises StateError, ControlError."""
    folders = folders_of(settings)
    require_visible(folders)
    try:
        view = living_view(folders, wait_s)
    except NoSupervisorError:
        view = _view_from_outside(settings, folders)
        pid = _other_supervisor(folders)
        hidden = None if pid is not None else _hidden_supervisor(folders)
        view = dataclasses.replace(view, supervisor_pid=pid, silence=hidden)
    except SilentError as error:
        view = _view_from_outside(settings, folders)
        pid = error.pid or _other_supervisor(folders)
        state = "unanswered" if view.state == "unsupervised" else view.state
        view = dataclasses.replace(view, state=state, supervisor_pid=pid, silence=words_of_silence(pid, error))
    return _with_damage(view, folders)


def _view_from_outside(settings: Settings, folders: JobFolders) -> StatusView:
    """What the ledger says, and what is seen of the run. Raises StateError."""
    events, _ = read_events(folders.ledger)
    view = view_of_ledger(settings, folders, fold(events), events)
    return view if view.run is None else dataclasses.replace(view, run=_unwatched(view.run, folders))


def _hidden_supervisor(folders: JobFolders) -> str | None:
    """Why it cannot be told from here whether anybody supervises; None where that is seen."""
    from watchdog.collectors.processes import INITIAL_PID_NAMESPACE, this_host

    try:
        if this_host().pid_namespace == INITIAL_PID_NAMESPACE or not folders.supervisor_lock.exists():
            return None
    except OSError:
        return None  # without /proc nothing of the run is told, either
    from watchdog.clock import SystemClock
    from watchdog.collectors.locks import read_lock
    from watchdog.collectors.roots import Roots
    from watchdog.core.fact import Unknown

    try:
        fact = read_lock(str(folders.supervisor_lock), "supervisor", Roots(), SystemClock())
    except (OSError, ValueError) as error:
        return f"whether a supervisor lives cannot be told: {error}"
    return f"whether a supervisor lives cannot be told: {fact.why}" if isinstance(fact, Unknown) else None


def _with_damage(view: StatusView, folders: JobFolders) -> StatusView:
    """A ledger whose end is no record is told, whoever answered: the next supervisor will know no better."""
    try:
        damage = read_ledger(folders.ledger, END_BYTES).damage
    except StateError as error:
        damage = str(error)
    if not damage:
        return view
    from watchdog.core.view import FindingView

    mend = "bring back a copy of it before the supervisor ends" if view.supervisor_pid else "bring back a copy of it"
    found = FindingView(check="ledger", severity="critical", subject="ledger", reason=damage, next=mend)
    return dataclasses.replace(view, findings=(found, *view.findings))


def living_view(folders: JobFolders, wait_s: float = 5.0) -> StatusView:
    """The view of the supervisor that answers. Raises NoSupervisorError, ControlError."""
    record = ask(folders, "status", wait_s).get("status")
    try:
        return view_from_record(record)
    except (AttributeError, KeyError, TypeError, ValueError, ContractError) as error:
        raise ControlError(f"the supervisor's answer cannot be read: {error}; is it another version?") from error


def _unwatched(run: RunView, folders: JobFolders) -> RunView:
    """A run that the ledger believes alive and nobody watches: what its own records and the process table say."""
    from watchdog.collectors.beats import read_beat_file
    from watchdog.collectors.processes import is_alive
    from watchdog.collectors.run import read_start

    folder = folders.run(run.run_id)
    if (elsewhere := _elsewhere(run, folders)) is not None:
        return elsewhere
    try:
        start = read_start(folder)
        beat = read_beat_file(folder.beat)
    except (OSError, ContractError) as error:
        return dataclasses.replace(run, alive=None, status=str(error))
    if start is None:
        return dataclasses.replace(run, alive=None, status="it left no start record; watchdog run finds out")
    leader = start.leader if start.leader is not None and is_alive(start.leader) else None
    seen = None if beat is None or beat.run_id != run.run_id else beat
    return dataclasses.replace(
        run,
        alive=leader is not None or is_alive(start.shim),
        shim_pid=start.shim.pid,
        leader_pid=None if leader is None else leader.pid,
        phase=None if seen is None else seen.phase,
        step=None if seen is None else seen.step,
        target_step=None if seen is None else seen.target_step,
        loss=None if seen is None else seen.loss,
        beat_age_s=None if seen is None else max(0.0, time.monotonic() - seen.monotonic_s),
    )


def _elsewhere(run: RunView, folders: JobFolders) -> RunView | None:
    """A run that counts its processes in another PID namespace: only its lock says something. None: it is of ours."""
    from watchdog.collectors.locks import ASK, read_lock
    from watchdog.collectors.processes import INITIAL_PID_NAMESPACE, this_host
    from watchdog.contract import read_json

    try:
        here = this_host()
    except OSError as error:
        return dataclasses.replace(run, alive=None, status=f"/proc cannot be read: {error.strerror}")
    try:
        record = read_json(folders.run_record, "run record")
    except (OSError, ContractError) as error:
        if here.pid_namespace == INITIAL_PID_NAMESPACE:
            return None  # nobody is hidden from us: its own records and the process table will do
        words = f"in which PID namespace it was started is not to be told ({error}); {ASK}"
        return dataclasses.replace(run, alive=None, status=words)
    theirs = record.get("pid_namespace")
    if record.get("run_id") != run.run_id or record.get("boot_id") != here.boot_id or theirs == here.pid_namespace:
        return None
    from watchdog.clock import SystemClock
    from watchdog.collectors.roots import Roots
    from watchdog.core.fact import Known

    try:
        lock = read_lock(str(folders.run_lock), "run", Roots(), SystemClock())
    except (OSError, ValueError) as error:
        return dataclasses.replace(run, alive=None, status=str(error))
    if not isinstance(lock, Known):
        words = f"it was started in another PID namespace ({theirs}) and cannot be seen from here; {ASK}"
        return dataclasses.replace(run, alive=None, status=words)
    holders = lock.value.holders
    return dataclasses.replace(run, alive=lock.value.held, shim_pid=holders[0].pid if holders else None)


def _other_supervisor(folders: JobFolders) -> int | None:
    """A supervisor that does not answer at our socket: another user's, or one with another state folder."""
    if not folders.supervisor_lock.exists():
        return None
    from watchdog.actuators.locks import read_holder
    from watchdog.collectors.processes import read_process

    holder = read_holder(folders.supervisor_lock)
    process = None if holder is None else read_process(holder.pid)
    if holder is None or process is None or process.id.start_ticks != holder.start_ticks or not process.living:
        return None
    return holder.pid


def not_done(command: str, folders: JobFolders, error: SilentError) -> ControlError:
    """The supervisor drops what it reads after its asker gave up (control_server.py): it will not be done later."""
    words = words_of_silence(error.pid or _other_supervisor(folders), error)
    return ControlError(f"{words}\nthe {command} was not carried out and will not be")


def how_to_start(settings: Settings, events: tuple[Event, ...]) -> str:
    """The command that supervises this very job again, from whatever folder it is typed in."""
    launches = [event.data for event in events if event.kind == "run_launching"]
    last = launches[-1] if launches else {}
    config = settings.config_file or _config_of(last)
    words = "watchdog run" if config is None else f"watchdog run --config {shlex.quote(str(config))}"
    if settings.job.name != DEFAULT_JOB:
        words += f" --job {settings.job.name}"
    command = last.get("command")
    # A configuration says by itself what to start; but not where the command was typed beside it.
    typed = config is None or (config == settings.config_file and settings.job.built_in)
    if last.get("built_in", False) or not typed or not isinstance(command, list):
        return words
    shown = [str(part) for part in command]
    words += f" -- {shlex.join(shown)}"
    if isinstance(folder := last.get("directory"), str):
        words = f"cd {shlex.quote(folder)} && {words}"
    if any("***" in part or part.endswith("…") for part in shown):
        words += " (with what is hidden or cut here put in again)"
    return words


def _config_of(launch: Mapping[str, Any]) -> Path | None:
    """The configuration of a run's launch, where it is still there."""
    path = launch.get("config")
    return Path(path) if isinstance(path, str) and Path(path).is_file() else None


def start_command(settings: Settings) -> str:
    """As above, with what the ledger remembers of the command. Raises StateError."""
    return how_to_start(settings, read_events(folders_of(settings).ledger)[0])


def stop_job(settings: Settings, *, now: bool, argv: list[str]) -> int:
    """End run and supervisor and wait for it. Returns the exit code."""
    folders = folders_of(settings)
    require_visible(folders)
    pid: int | None = None
    asked, until_s = False, time.monotonic() + _LEAVING_S
    while True:
        try:
            pid = living_view(folders).supervisor_pid
            asked = True  # an answer that is lost says nothing of what was asked: it is looked at below
            ask(folders, "stop-now" if now else "stop")
            break
        except SilentError as error:
            raise not_done("stop", folders, error) from error
        except NoSupervisorError:
            if asked and _was_stopped(folders):
                print(f"job {settings.job.name}: stopped")
                return EXIT_OK
            return _stop_unsupervised(settings, folders, now=now, argv=argv)
        except LeavingError:  # it ends, by our asking or by itself: what came of it is seen when it is gone
            if time.monotonic() >= until_s:
                raise
        time.sleep(0.1)
    started = said = answered_s = time.monotonic()
    held: str | None = None
    while True:
        try:
            view = living_view(folders)
            answered_s = time.monotonic()
        except NoSupervisorError:
            if held is not None:
                return EXIT_HOLD
            if (left := _left_alive(settings, folders)) is not None:  # it may have left between two looks at it
                print(f"HOLD: {left}", file=sys.stderr)
                return EXIT_HOLD
            print(f"job {settings.job.name}: stopped")
            return EXIT_OK
        except SilentError as error:
            print(f"{words_of_silence(error.pid, error)}\nit took the stop, and goes on with it then", file=sys.stderr)
            return EXIT_FAILURE
        except LeavingError as error:
            if time.monotonic() - answered_s >= _LEAVING_S:
                print(f"{error}\nit took the stop, and has not ended", file=sys.stderr)
                return EXIT_FAILURE
            time.sleep(0.1)
            continue
        except ControlError as error:
            print(error, file=sys.stderr)
            return EXIT_FAILURE
        if view.supervisor_pid != pid:
            print("stopped; another supervisor has taken the job since")
            return EXIT_OK
        # A hold without a living run is as stopped as can be; with one, nothing was ended.
        alive = view.run is not None and view.run.alive
        if view.state == "hold" and alive and view.hold_reason != held:
            held = view.hold_reason
            print(f"HOLD: {held}", file=sys.stderr)
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            print(f"still {view.state} after {duration(said - started)}: {view.sentence}", file=sys.stderr)
        time.sleep(0.1)


def _left_alive(settings: Settings, folders: JobFolders) -> str | None:
    """The hold of a run that did not end and is not seen to be gone; None: nothing of the kind. Raises StateError."""
    view = _view_from_outside(settings, folders)
    return view.hold_reason if view.run is not None and view.run.alive is not False else None


def _was_stopped(folders: JobFolders) -> bool:
    """The supervisor said that it leaves because a person asked, and no run of it is left. Raises StateError."""
    history = fold(read_events(folders.ledger)[0])
    return history.left is not None and history.open_run is None


def ever_was(folders: JobFolders) -> bool:
    """Somebody supervised this job before: else a mistyped name would make the folders of a new one."""
    return folders.ledger.exists() or folders.run_record.exists()


def _stop_unsupervised(settings: Settings, folders: JobFolders, *, now: bool, argv: list[str]) -> int:
    """No supervisor: a run may live all the same. Adopt it, end it with proof, leave."""
    if not ever_was(folders):
        print(f"nothing to stop: job {settings.job.name} never ran")
        return EXIT_OK
    from watchdog.clock import SystemClock
    from watchdog.opening import open_job

    clock = SystemClock()
    job = open_job(settings, clock, argv)
    if job.watch is None:
        job.ledger.close()
        job.lock.close()
        print("nothing to stop: no supervisor runs and no run is alive")
        return EXIT_OK
    from watchdog.core.seen import Request
    from watchdog.policy import policy_from
    from watchdog.screen import Screen
    from watchdog.supervisor import Supervisor

    screen = Screen()
    screen.log_to(job.folders.screen_log)
    supervisor = Supervisor(settings, job, policy_from(settings, leave_on_hold=True), clock=clock, screen=screen)
    supervisor.ask(Request.STOP if now else Request.DRAIN)
    with contextlib.closing(screen):
        code = supervisor.run()
    return EXIT_OK if code == EXIT_STOPPED else code
