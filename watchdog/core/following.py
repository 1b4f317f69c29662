"""Following a relaunch through the ledger: each event that proves a step, in words, and when it is over. Pure.

Over means: the run has acknowledged what it restored (level 2), beats (level 1) or lived for a while (level 0); or why
not. A run of level 0 that ends before that has nothing more to say: what it ended with is the answer.
Refuses to take a wish for a proof: what was only asked for is told without a mark.
"""

from __future__ import annotations

import dataclasses

from watchdog.core.history import Event
from watchdog.core.view import StatusView

_OK, _FAILURE, _HOLD, _STOPPED = 0, 1, 3, 5  # as in errors.py, which the core must not know
# Which word each kind is told with, and whether it proves something.
_LABELS = {
    "branch_asked": ("choose", False),
    "branched": ("choose", True),
    "lifted": ("lift", True),
    "budget_reset": ("budget", True),
    "batch_shrunk": ("batch", False),
    "batch_whole": ("batch", True),
    "wait_cut": ("wait", True),
    "run_stopping": ("stop", False),
    "run_goes_on": ("stop", False),
    "signal_sent": ("stop", False),
    "shim_continued": ("stop", False),
    "launch_troubled": ("gate", False),
    "run_killing": ("stop", False),
    "run_killed": ("stop", False),
    "checkpoint_refused": ("choose", False),
    "checkpoint_vanished": ("choose", False),
    "reclaiming": ("memory", False),
    "reclaimed": ("memory", True),
}
_LIVES_S = 3.0  # a command that cannot work is over by then, as a rule: a script that is not there, a wrong import
_WELL = ("finished", "drained", "stopped")  # ends that are no failure of the run
_NO_FIGURES = str.maketrans("", "", "0123456789.")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """One line. `proven`: what it says has been seen."""

    label: str
    words: str
    proven: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """What the relaunch came to, and the exit code for it."""

    code: int
    words: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """How far it has come. `run_id`: the run that was launched last; None: none since, or it is over."""

    level: int
    run_id: str | None = None
    number: int = 0
    pid_told: bool = False
    told_wall_s: float = 0.0  # when its process was told
    waiting: str = ""
    end: End | None = None


def heard(following: Following, event: Event) -> tuple[Following, tuple[Told, ...]]:
    """After one more event of the ledger; what comes after the end is not heard."""
    if following.end is not None:
        return following, ()
    data, words = event.data, event.sentence
    match event.kind:
        case "run_launching":
            after = dataclasses.replace(
                following, run_id=str(data["run_id"]), number=int(data["number"]), pid_told=False, waiting=""
            )
            told = [Told(label="gate", words=str(each), proven=True) for each in data.get("gates") or ()]
            if data.get("digest"):
                chosen = f"step {data.get('resume_step')} {str(data['digest'])[:12]}… read back, and chosen"
                told.insert(0, Told(label="choose", words=chosen, proven=True))
            return after, (*told, Told(label="launch", words=words))
        case "run_ended":
            if data.get("run_id") != following.run_id:
                return following, (Told(label="proof", words=words, proven=True),)
            after = dataclasses.replace(following, run_id=None, pid_told=False)
            if following.level == 0 and data.get("cause") not in _WELL:
                return _ended(after, _FAILURE, words), ()
            return after, (Told(label=f"run {data['number']}", words=words),)
        case "run_weighed":
            wait_s = data.get("wait_s")
            if isinstance(wait_s, int | float) and wait_s > 0:
                return following, (Told(label="wait", words=f"{words}; the next run in {wait_s:.1f} s"),)
            return following, ()
        case "run_beats" if data.get("run_id") == following.run_id:
            return _ends_if(following, min(following.level, 1), words), (Told(label="beats", words=words, proven=True),)
        case "run_acknowledged" if data.get("run_id") == following.run_id:
            return _ends_if(following, 2, words), (Told(label="restored", words=words, proven=True),)
        case "hold":
            return _ended(following, _HOLD, words), ()
        case "branch_refused":
            return _ended(following, _HOLD, words), ()
        case "finished":
            return _ended(following, _OK, words), ()
        case "supervisor_leaving":
            return _ended(following, _STOPPED, words), ()
        case kind if kind in _LABELS:
            label, proven = _LABELS[kind]
            return following, (Told(label=label, words=words, proven=proven),)
    return following, ()


def seen(following: Following, view: StatusView) -> tuple[Following, tuple[Told, ...]]:
    """After a look at the supervisor: the process that was started, and the gates that are closed."""
    if following.end is not None:
        return following, ()
    run = view.run
    if run is not None and run.run_id == following.run_id and run.leader_pid is not None and not following.pid_told:
        words = f"run {run.number}: pid {run.leader_pid}, shim {run.shim_pid}"
        after = dataclasses.replace(following, pid_told=True, told_wall_s=view.now_wall_s)
        return after, (Told(label="launched", words=words, proven=True),)
    if run is not None and run.run_id == following.run_id and following.pid_told and run.alive:
        lived_s = view.now_wall_s - following.told_wall_s
        if lived_s >= _LIVES_S or run.step is not None:
            return _ends_if(following, 0, f"run {run.number}: pid {run.leader_pid} lives"), ()
    if following.run_id is None and view.waiting_for:
        kind = view.waiting_for.translate(_NO_FIGURES)  # figures that move are no news
        if kind != following.waiting:
            return dataclasses.replace(following, waiting=kind), (
                Told(label="gate", words=f"closed: {view.waiting_for}"),
            )
    return following, ()


def _ends_if(following: Following, level: int, words: str) -> Following:
    return _ended(following, _OK, words) if following.level == level else following


def _ended(following: Following, code: int, words: str) -> Following:
    return dataclasses.replace(following, end=End(code=code, words=words))
