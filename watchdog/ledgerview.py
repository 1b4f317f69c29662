"""The view of a job from its ledger alone, when nobody supervises. Light to import: `watchdog status` waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from watchdog.core.ettr import ettr_fields, ettr_of_ledger
from watchdog.core.history import Event, History
from watchdog.core.phase import Phase
from watchdog.core.view import RunView, StatusView
from watchdog.folders import JobFolders
from watchdog.places import job_options
from watchdog.settings import Settings


def view_of_ledger(
    settings: Settings, folders: JobFolders, history: History, events: Iterable[Event] = ()
) -> StatusView:
    """What the ledger alone says of a job, when no supervisor runs. `events`: for the time that was lost."""
    newest = history.newest
    if history.hold is not None:
        state = Phase.HOLD.value
    elif history.finished is not None:
        state = Phase.FINISHED.value
    elif history.launches == 0:
        state = "never started"
    elif history.left is not None and history.open_run is None:
        state = "stopped"
    else:
        state = "unsupervised"
    run = None
    if history.open_run is not None:
        # Whether it lives is not known from the ledger.
        run = RunView(
            number=int(history.open_run["number"]),
            run_id=str(history.open_run["run_id"]),
            alive=None,
            log=str(folders.run(str(history.open_run["run_id"])).log),
        )
    wall_s = time.time()
    # Since when nobody supervises the ledger does not say: its last record may be far older than a supervisor's death.
    undated = state in ("never started", "unsupervised")
    return StatusView(
        job=settings.job.name,
        state=state,
        since_wall_s=None if undated else history.last_wall_s,
        now_wall_s=wall_s,
        sentence=history.left if state == "stopped" and history.left else history.last_sentence,
        hold_reason=history.hold,
        last_error=history.last_error,
        run=run,
        runs_by_cause=history.runs_by_cause,
        failures=max(history.failures, history.host_failures),
        failure_limit=settings.relaunch.failures,
        restarts=history.restarts,
        batch_halvings=history.batch_halvings,
        steps_repeated=history.steps_repeated,
        pruned=history.pruned,
        pruned_bytes=history.pruned_bytes,
        **ettr_fields(ettr_of_ledger(events, None if newest is None else newest.step, wall_s)),
        notifications=history.notifications,
        checkpoint_step=None if newest is None else newest.step,
        checkpoint_digest=None if newest is None else newest.digest,
        checkpoints=str(folders.checkpoints),
        ledger=str(folders.ledger),
        options=job_options(settings),
    )
