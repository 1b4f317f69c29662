"""From settings to a job's folders. Light to import: every command begins here."""

from __future__ import annotations

from watchdog.collectors.filesystems import filesystem_of, has_true_flock
from watchdog.folders import JobFolders, job_folders
from watchdog.settings import Settings


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
