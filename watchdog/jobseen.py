"""What a job is, at the head of a diagnosis: held, finished, stopped, watched by nobody, or going on.

Asks the job's supervisor, else its ledger. Refuses to judge the host, to write, and to take a lock.
"""

from __future__ import annotations

from watchdog.core.diagnosis import JobSeen
from watchdog.core.findings import Severity
from watchdog.core.view import StatusView
from watchdog.errors import ControlError, StateError
from watchdog.places import folders_of, job_options, require_visible
from watchdog.settings import Settings

NEVER = "never started"
_ASK_S = 2.0
_OVER = ("finished", "stopped", NEVER)


def job_seen(settings: Settings) -> JobSeen:
    """What can be told of the job; whatever stands in the way of it is told, too."""
    name = settings.job.name
    try:
        folders = folders_of(settings)
        require_visible(folders)
        if not folders.ledger.exists():  # most hosts that are looked at: nothing more is imported
            return JobSeen(name=name, state=NEVER, severity=Severity.OK, reason="no supervisor ever had it")
        from watchdog.asking import start_command, status_of

        view = status_of(settings, _ASK_S)
        return of_view(view, start_command(settings) if view.supervisor_pid is None else "")
    except (StateError, ControlError, OSError, ValueError) as error:  # ValueError: a path in the ledger that is none
        return not_seen(settings, str(error))


def is_busy(settings: Settings) -> bool:
    """Whether a question without a name may mean this job: it runs, waits or is held, or that cannot be told."""
    from watchdog.asking import status_of

    try:
        view = status_of(settings, _ASK_S)
    except (StateError, ControlError, OSError, ValueError):
        return True
    alive = view.run is not None and view.run.alive is not False
    return alive or view.supervisor_pid is not None or view.state not in _OVER


def not_seen(settings: Settings, why: str) -> JobSeen:
    """Nothing could be told of the job."""
    look = f"watchdog status{job_options(settings)}"
    return JobSeen(name=settings.job.name, state="unknown", severity=Severity.UNKNOWN, reason=why, next=look)


def of_view(view: StatusView, start: str) -> JobSeen:
    """A view in a line. `start` is the command that supervises the job again."""
    from watchdog.render import masked

    view = masked(view)
    severity, evidence, next_step, reason = Severity.OK, [], "", view.sentence
    run = view.run
    if view.state == "hold":
        from watchdog.render import after_hold

        # Nothing trains until a person has acted, however well the host is.
        severity, reason, next_step = Severity.CRITICAL, view.hold_reason or view.sentence, after_hold(view.options)
        if view.last_error:
            evidence.append(f"last error: {view.last_error}")
        if run is not None and run.alive:
            evidence.append(f"run {run.number} is alive")
    elif view.state == "finished":
        reason = "its last run ended with exit 0"
        if view.checkpoint_step is not None:
            reason = f"step {view.checkpoint_step:,} is its newest verified checkpoint"
    elif view.state == "running" and run is not None:
        reason = f"run {run.number} is alive" + ("" if run.step is None else f", at step {run.step:,}")
    elif view.state == "stopped":
        next_step = start
    elif view.state == "unsupervised" and view.supervisor_pid is not None:
        reason = f"its supervisor, pid {view.supervisor_pid}, is another user's or has another state folder"
    elif view.silence is not None and view.state in ("unsupervised", "unanswered"):
        # It waits for a person, or cannot be seen from here: neither is "nobody watches it".
        severity = Severity.UNKNOWN if view.supervisor_pid is None else Severity.WARNING
        reason = view.silence
        if run is not None:
            lives = "is over" if run.alive is False else "is alive" if run.alive else f"may be alive: {run.status}"
            evidence.append(f"run {run.number} {lives}")
    elif view.state == "unsupervised":
        next_step = start
        if run is not None and run.alive:
            reason = f"run {run.number} lives, and no supervisor watches it"  # lock-holder warns of that
        else:
            severity = Severity.WARNING
            reason = "no supervisor watches it: nothing brings it back"
            evidence.append(f"the last that was said: {view.sentence}")
            if run is not None and run.alive is None:
                reason = f"no supervisor watches it, and run {run.number} may be alive: {run.status}"
    elif view.waiting_for:
        reason = f"the next run waits for: {view.waiting_for}"
    elif view.next_launch_s is not None:
        reason = f"the next run starts in {view.next_launch_s:.0f} s"
    if view.silence is not None and reason != view.silence:
        severity = max(severity, Severity.UNKNOWN)
        evidence.append(view.silence)
    for finding in view.findings:
        if finding.check == "ledger":  # of the job itself; the host's own are told below
            severity = max(severity, Severity.UNKNOWN)
            evidence.append(finding.reason)
    return JobSeen(
        name=view.job,
        state=view.state,
        severity=severity,
        reason=reason,
        evidence=tuple(evidence),
        next=next_step,
        start=start,
    )
