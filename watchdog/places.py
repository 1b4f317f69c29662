"""From settings to a job's folders. Light to import: every command begins here."""

from __future__ import annotations

from watchdog.collectors.filesystems import filesystem_of, has_true_flock
from watchdog.folders import JobFolders, job_folders
from watchdog.settings import DEFAULT_JOB, Settings


def folders_of(settings: Settings) -> JobFolders:
    """The job's folders. Touches nothing: what lies under the checkpoints is read from mountinfo."""
    try:
        native = has_true_flock(filesystem_of(settings.job.checkpoints))
    except (OSError, ValueError):
        native = False
    return job_folders(
        state=settings.state.folder,
        job=settings.job.name,
        checkpoints=settings.job.checkpoints,
        native_checkpoints=native,
    )


def the_only_job(settings: Settings) -> str | None:
    """The name of the one job that was ever supervised here, when none was named and the default one never was.

    `watchdog run -- python train.py` makes a job called "train"; a plain `watchdog status` afterwards means that one.
    """
    if settings.job.name != DEFAULT_JOB or settings.config_file is not None or settings.job_folder.exists():
        return None
    try:
        jobs = [path.parent.name for path in settings.state.folder.glob("*/ledger.jsonl")]
    except OSError:
        return None
    return jobs[0] if len(jobs) == 1 else None
