"""`watchdog run`: from settings to a supervised job and its closing words."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from watchdog.checkpoints.quarantine import archive
from watchdog.clock import Clock, SystemClock
from watchdog.contract import ContractError, read_json
from watchdog.core.history import fold
from watchdog.core.phase import Phase
from watchdog.core.view import StatusView
from watchdog.errors import EXIT_FAILURE, EXIT_OK, ControlError, HeldError, SettingsError, StateError
from watchdog.folders import JobFolders
from watchdog.launching import command_digest, command_of
from watchdog.ledger import read_events
from watchdog.ledgerview import view_of_ledger
from watchdog.opening import OpenJob, open_job, run_lock_holders, run_lock_is_free
from watchdog.places import folders_of, job_options
from watchdog.render import after_hold, duration, summary_lines
from watchdog.screen import Screen
from watchdog.settings import Settings

_DETACH_PATIENCE_S = 30.0


def require_command(settings: Settings) -> None:
    """A trainer that cannot be executed is told now, before anything is started. Raises SettingsError."""
    if settings.job.built_in:
        missing = [name for name in ("torch", "tokenizers", "numpy") if importlib.util.find_spec(name) is None]
        if missing:
            raise SettingsError(
                f"the built-in job needs {', '.join(missing)}, which this Python does not have; "
                "pip install 'gpuhost-watchdog[trainer]', or give a command: watchdog run -- python train.py"
            )
        return
    program = settings.job.command[0]
    path = settings.job.environment.get("PATH", os.environ.get("PATH", os.defpath))
    found = shutil.which(settings.job.directory / program) if "/" in program else shutil.which(program, path=path)
    if found is None:
        raise SettingsError(f"the trainer command {program!r} does not exist or is not executable; nothing was started")
    if not settings.job.directory.is_dir():
        raise SettingsError(f"[job] directory = {settings.job.directory}: is no folder; nothing was started")


def supervise(settings: Settings, *, argv: list[str], new: bool, leave_on_hold: bool, quiet: bool) -> int:
    """Run the job to its end. Returns the exit code; raises WatchdogError."""
    require_command(settings)
    screen = Screen(quiet=quiet)
    with contextlib.closing(screen):
        return _supervise(settings, screen, argv=argv, new=new, leave_on_hold=leave_on_hold)


def _supervise(settings: Settings, screen: Screen, *, argv: list[str], new: bool, leave_on_hold: bool) -> int:
    clock = SystemClock()
    job = open_job(settings, clock, argv)
    screen.log_to(job.folders.screen_log)
    if new:
        begin_anew(job, clock, screen)
    else:
        require_same_command(settings, job)
    if job.watch is None and job.history.finished is not None and job.history.hold is None:
        say_finished(
            settings,
            job.folders,
            job,
            screen,
            "was finished before; the same command with --new archives it and begins again",
        )
        job.ledger.close()
        return EXIT_OK
    # Only now: these cost the time and memory that status and --help must not have.
    from prometheus_client.registry import CollectorRegistry

    from watchdog.metrics import Metrics, serve
    from watchdog.policy import policy_from
    from watchdog.supervisor import Supervisor

    registry = CollectorRegistry()
    metrics = Metrics(registry, states=[phase.value for phase in Phase], version=_version())
    server = None if settings.metrics.port == "off" else serve(registry, int(settings.metrics.port))
    try:
        url = None if server is None else server.url
        introduce(settings, job, screen, url)
        job.ledger.events = ()  # they were folded; a long job has many
        policy = policy_from(settings, leave_on_hold=leave_on_hold)
        supervisor = Supervisor(settings, job, policy, clock=clock, screen=screen, metrics=metrics, metrics_url=url)
        code = supervisor.run()
    finally:
        if server is not None:
            server.close()
    say_goodbye(settings, job, screen, supervisor.view, code)
    return code


def require_same_command(settings: Settings, job: OpenJob) -> None:
    """A job that got its name from its program is not mistaken for another one of that name. Raises SettingsError.

    Another folder is another job; another command in the same folder may be a correction, unless the job is finished.
    """
    launches = [event.data for event in job.ledger.events if event.kind == "run_launching"]
    if not launches:
        return
    before = launches[-1]
    if settings.job.built_in and before.get("built_in", True):
        return
    other_kind = bool(before.get("built_in", False)) != settings.job.built_in
    other_folder = str(before.get("directory", settings.job.directory)) != str(settings.job.directory)
    digest = command_digest(command_of(settings))
    other_command = before.get("command_sha256", digest) != digest
    finished = job.history.finished is not None
    if other_kind or (other_folder and settings.config_file is None) or (other_command and finished):
        shown = before.get("command")
        was = shlex.join(str(part) for part in shown) if isinstance(shown, list) else "another command"
        raise SettingsError(
            f"job {settings.job.name} was started as {was} in {before.get('directory', '?')}; give this one a name of "
            "its own (watchdog run --job NAME -- ...), or archive the other and begin again: --new"
        )


def begin_anew(job: OpenJob, clock: Clock, screen: Screen) -> None:
    """`--new`: move what there is aside, recorded before and after. Raises HeldError while a run lives."""
    if job.watch is not None:
        raise HeldError(f"run {job.watch.record.number} of this job is alive; end it first: watchdog stop")
    if not run_lock_is_free(job.folders):
        holders = run_lock_holders(str(job.folders.run_lock), clock)
        raise HeldError(f"a run of this job that was started by hand is alive ({holders}); end it first")
    event = job.ledger.record("archiving", "a person asked for a new beginning")
    try:
        place = archive(job.folders.checkpoints, clock.wall())
    except OSError as error:
        raise StateError(f"cannot archive {job.folders.checkpoints}: {error.strerror}") from error
    done = job.ledger.record("archived", f"what there was now lies in {place}", place=str(place))
    job.tell(event)
    job.tell(done)
    screen.line("archived", f"what there was now lies in {place}")


def introduce(settings: Settings, job: OpenJob, screen: Screen, url: str | None) -> None:
    """The first lines: job and folders. The host follows with the first answers, which the loop does not wait for."""
    metrics = f" · metrics {url}" if url else ""
    screen.line("watchdog", f"job {settings.job.name} · state {job.folders.state}{metrics}")
    if settings.config_file is not None:
        screen.line("settings", ", ".join(settings.source))


def say_goodbye(settings: Settings, job: OpenJob, screen: Screen, view: StatusView, code: int) -> None:
    """The last lines: a summary, or what to do about a hold."""
    if view.hold_reason is not None:
        if view.last_error:
            screen.line("error", view.last_error)
        screen.line("next", after_hold(job_options(settings)))
    elif code == EXIT_OK:
        say_finished(settings, job.folders, job, screen, None)
    elif code != EXIT_FAILURE:
        if view.last_error:
            screen.line("error", view.last_error)
        screen.line("next", "go on with the same command")


def say_finished(settings: Settings, folders: JobFolders, job: OpenJob, screen: Screen, addition: str | None) -> None:
    """The summary of a finished job."""
    events, _ = read_events(folders.ledger)
    history = fold(events)
    summary = read_summary(folders.checkpoints)
    wall_s = None
    if history.first_launch_wall_s is not None and addition is None:
        wall_s = time.time() - history.first_launch_wall_s
    if addition is not None:
        screen.line("finished", f"job {settings.job.name} {addition}")
    view = view_of_ledger(settings, folders, history, events)
    for number, line in enumerate(summary_lines(view, summary, wall_s)):
        screen.line("" if number or addition else "finished", line)


def read_summary(checkpoints: Path) -> dict[str, Any] | None:
    """What the bundled trainer says of its own end; None where a trainer leaves nothing of the kind."""
    keys = ("steps", "tokens", "first_loss", "last_loss", "validation_loss", "ratio")
    try:
        summary = read_json(checkpoints / "summary.json", "summary")
        return summary if all(isinstance(summary.get(key), int | float) for key in keys) else None
    except (OSError, ContractError, OverflowError):
        return None


def detach(settings: Settings, arguments: list[str]) -> int:
    """Start ourselves in a session of our own, and wait until the new supervisor answers. Returns the exit code."""
    from watchdog.control import request

    folders, options = folders_of(settings), job_options(settings)
    position = arguments.index("run") + 1
    arguments = [*arguments[:position], "--detached", *arguments[position:]]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", "from watchdog.cli import main; main()", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        deadline = time.monotonic() + _DETACH_PATIENCE_S
        while time.monotonic() < deadline:
            code = child.poll()
            if code is not None:
                errors.seek(0)
                sys.stderr.write(errors.read(64 * 1024).decode("utf-8", "replace"))
                if code == EXIT_OK:
                    print(f"job {settings.job.name} is finished: watchdog status{job_options(settings)}")
                return code
            with contextlib.suppress(ControlError):
                answer = request(folders.socket, {"command": "status"}, 1.0)
                if answer.get("status", {}).get("supervisor_pid") == child.pid:
                    words = f"watchdog status{options}, watchdog logs -f{options}"
                    print(f"supervisor pid {child.pid} goes on in the background: {words}")
                    return EXIT_OK
            time.sleep(0.05)
    print(
        f"supervisor pid {child.pid} was started and does not answer after {duration(_DETACH_PATIENCE_S)}; "
        f"see {folders.screen_log}",
        file=sys.stderr,
    )
    return EXIT_FAILURE


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpuhost-watchdog")
    except PackageNotFoundError:
        return "unknown"
