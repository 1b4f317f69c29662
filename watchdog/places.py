"""From settings to a job's folders. Light to import: every command begins here."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from watchdog.collectors.filesystems import filesystem_of, has_true_flock
from watchdog.errors import SettingsError, StateError
from watchdog.folders import JobFolders, job_folders
from watchdog.settings import DEFAULT_JOB, Settings
from watchdog.settings_shape import JOB_NAME_PATTERN


def folders_of(settings: Settings) -> JobFolders:
    """The job's folders. Touches nothing: what lies under the checkpoints is read from mountinfo."""
    try:
        native = has_true_flock(filesystem_of(settings.job.checkpoints))
    except PermissionError:
        native = True  # what is closed to us is not elsewhere: whoever looks is refused, and says so
    except (OSError, ValueError):
        native = False
    return job_folders(
        state=settings.state.folder,
        job=settings.job.name,
        checkpoints=settings.job.checkpoints,
        native_checkpoints=native,
    )


def require_visible(folders: JobFolders) -> None:
    """A folder that is closed to us is not an empty one. Raises StateError."""
    for folder in (folders.control, folders.state):
        try:
            os.stat(folder / "any")
        except PermissionError as error:
            from watchdog.control import unseen

            raise StateError(unseen(folder, error)) from error
        except OSError:
            continue  # there is none, or it is told by whoever uses it


def job_options(settings: Settings) -> str:
    """What must follow a command so that it means this very job: nothing, or ` --config PATH`, ` --job NAME`."""
    options = ""
    if settings.config_file is not None and settings.config_file != Path.cwd() / "watchdog.toml":
        options += f" --config {shlex.quote(str(settings.config_file))}"
    if settings.job.name != DEFAULT_JOB:
        options += f" --job {settings.job.name}"
    return options


def known_jobs(settings: Settings) -> list[str]:
    """The jobs that were ever supervised in this state folder."""
    try:
        names = sorted(path.parent.name for path in settings.state.folder.glob("*/ledger.jsonl"))
        return [name for name in names if re.match(JOB_NAME_PATTERN, name)]
    except OSError:
        return []


def require_known(settings: Settings) -> None:
    """Raises SettingsError for a --job that has neither a configuration nor a trace here, while others have."""
    name, jobs = settings.job.name, known_jobs(settings)
    if name in (DEFAULT_JOB, *jobs) or not jobs or settings.config_file is not None or not settings.job.built_in:
        return
    try:
        if settings.job_folder.exists():  # it is just beginning
            return
    except OSError:
        return  # whoever looks into it tells why
    from watchdog.settings_meta import did_you_mean

    hint = did_you_mean(name, jobs)
    there = "" if "known are" in hint else f"; here are {', '.join(jobs)}"
    raise SettingsError(f"--job {name}: no such job{hint}{there}")


class WhichJobError(SettingsError):
    """Several jobs could be meant."""


def which_job(settings: Settings, busy: Callable[[list[str]], list[str]] | None) -> str | None:
    """The name of the job that is meant when none was named; None: the settings' own.

    `watchdog run -- python train.py` makes a job called "train"; a plain `watchdog status` afterwards means that one.
    `busy`: which of several run, are held or wait; None before acting, where nobody guesses. Raises WhichJobError.
    """
    if settings.job.name != DEFAULT_JOB or settings.config_file is not None:
        return None
    jobs = known_jobs(settings)
    if jobs == [DEFAULT_JOB] or not jobs:
        return None
    if len(jobs) == 1:
        return jobs[0]
    if busy is not None and len(alone := busy(jobs)) == 1:
        print(f"job {alone[0]} (of {len(jobs)}: {', '.join(jobs)}; --job chooses)", file=sys.stderr)
        return alone[0]
    raise WhichJobError(f"which job? There are {', '.join(jobs)}: add --job NAME")
