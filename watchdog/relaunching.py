"""`watchdog relaunch`: ask for it, and follow it step by step as each is proven; its dry run is rehearsing.py.

With a supervisor everything is done there, through its gates; without one a hold is lifted, or a step gone back to, in
the ledger, with the lock in hand. Ctrl-C and the deadline end the following and never the relaunch. Refuses to launch
anything itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchdog.asking import ask, ever_was, how_to_start, living_view, not_done
from watchdog.control import NoSupervisorError, SilentError
from watchdog.core.branching import NO_REASON, branched, refusal_of, said_by
from watchdog.core.choice import NONE_LEFT
from watchdog.core.following import End, Following, Told, heard, seen
from watchdog.core.history import Event, History, fold
from watchdog.core.relaunchplan import FINISHED, Wish
from watchdog.core.smaller import whole
from watchdog.errors import (
    EXIT_FAILURE,
    EXIT_HOLD,
    EXIT_OK,
    ControlError,
    NotBackError,
    SettingsError,
    StateError,
)
from watchdog.folders import JobFolders
from watchdog.ledger import parse_line, read_events
from watchdog.masking import mask_text
from watchdog.places import folders_of, job_options, require_visible
from watchdog.render import duration
from watchdog.settings import Settings

if TYPE_CHECKING:
    from watchdog.clock import Clock
    from watchdog.core.identity import Host
    from watchdog.core.runrecord import RunRecord
    from watchdog.ledger import Ledger

_LOOK_EVERY_S = 0.1
_PID_LOOKS = 20
_TOLD_CHARACTERS = 120  # of a hold that is lifted
_EXIT_INTERRUPTED = 130
_BLOCK_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What became of asking. `by_supervisor`: it is under way there, and can be followed."""

    words: str
    by_supervisor: bool
    code: int = EXIT_OK  # of what was not followed


# --- asking -------------------------------------------------------------------------------------------------
def ask_relaunch(settings: Settings, argv: list[str], wish: Wish, why: str = "") -> Asked:
    """Through the socket, or in the ledger. Raises HeldError, ControlError, StateError, SettingsError."""
    folders = folders_of(settings)
    require_visible(folders)
    if wish.step is not None:
        _require_offered(settings, folders, wish.step)
    more: dict[str, Any] = {"force": True} if wish.afresh else {}
    if wish.step is not None:
        more |= {"from": wish.step, "by": _myself(), "why": why}
    try:
        answer = ask(folders, "relaunch", **more)
    except SilentError as error:
        raise not_done("relaunch", folders, error) from error
    except NoSupervisorError:
        return _in_the_ledger(settings, folders, argv, wish, why)
    return Asked(words=_words_of(settings, answer, wish), by_supervisor=True)


def _require_offered(settings: Settings, folders: JobFolders, step: int) -> None:
    """The same no with and without a supervisor, which reads it back all the same. Raises SettingsError, StateError."""
    from watchdog.goingback import claims_in, not_offered

    events, _ = read_events(folders.ledger)
    known, there = fold(events).known, claims_in(folders)
    refused = not_offered(step, events, known, there, level=settings.job.level, now_wall_s=time.time())
    if refused is not None:
        raise SettingsError(refused)


def _words_of(settings: Settings, answer: dict[str, Any], wish: Wish) -> str:
    job, look = settings.job.name, f"watchdog status{job_options(settings)}"
    if wish.step is not None:
        return f"job {job}: step {wish.step} is read back, and then the job goes on from there: {look}"
    if answer["state"] == "hold":
        return f"job {job}: the hold is lifted; the supervisor goes on: {look}"
    if answer.get("run") is not None:
        if settings.job.level < 2:  # it has no checkpoints that we could demand
            return f"job {job}: run {answer['run']} is asked to end, the next one starts from its beginning: {look}"
        return f"job {job}: run {answer['run']} saves and ends, the next one starts from its checkpoint: {look}"
    return f"job {job}: the supervisor goes on ({answer['state']}): {look}"


def _myself() -> str:
    """Who asks, for the record."""
    import pwd

    uid = os.getuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _in_the_ledger(settings: Settings, folders: JobFolders, argv: list[str], wish: Wish, why: str) -> Asked:
    """Nobody supervises: what was asked is put down for who does next."""
    job = f"job {settings.job.name}"
    if not ever_was(folders):
        words = f"{job} never ran, so nothing is held and nothing was done; start it: {how_to_start(settings, ())}"
        return Asked(words=words, by_supervisor=False, code=EXIT_FAILURE)
    from watchdog.clock import SystemClock
    from watchdog.opening import host_or_error, open_ledger, take

    clock = SystemClock()
    lock, host = take(folders, clock, argv, job_options(settings)), host_or_error()
    with contextlib.closing(lock):
        ledger = open_ledger(folders, clock, host)
        with contextlib.closing(ledger):
            history = fold(ledger.events)
            living, unseen = _living(folders, history, host)
            if history.finished is not None and history.hold is None and wish.step is None:
                return Asked(words=f"{job}: {FINISHED}", by_supervisor=False, code=EXIT_HOLD)
            in_vain = history.hold is not None and wish.step is None and living is None
            if in_vain and _none_left(settings, folders, history):
                words = f"{job}: the hold stays, nothing could be launched: {NONE_LEFT}"
                return Asked(words=words, by_supervisor=False, code=EXIT_HOLD)
            done = []
            if wish.step is not None:
                done.append(_go_back(settings, folders, ledger, history, wish.step, why))
            if history.hold is not None:
                ledger.record("lifted", "the hold is lifted by a person")
                done.append(f"the hold is lifted ({_beginning(mask_text(history.hold))})")
            elif wish.afresh and (history.failures or history.host_failures):
                counted = {"failures": history.failures, "host_failures": history.host_failures}
                ledger.record("budget_reset", "the failures that were counted are forgotten by a person", **counted)
                done.append("the failures that were counted are forgotten")
            if wish.afresh and history.batch_halvings:
                kind, sentence, data = whole(history.batch_halvings)
                ledger.record(kind, sentence, **data)
                done.append("the micro-batch is whole again")
            if history.hold is None and history.wait is not None:
                ledger.record("wait_cut", "what is left of the wait before the next run is cut short by a person")
                done.append("what is left of the wait before the next run is cut short")
            if living is not None:
                done.append(_owe(ledger, living, of_step=wish.step is not None))
            said = "; ".join(done) or "no supervisor runs, no run lives and nothing is held: nothing was done"
            said += f" ({unseen})" if unseen else ""
            words = f"{job}: {said}; start the supervisor: {how_to_start(settings, ledger.events)}"
            return Asked(words=words, by_supervisor=False, code=EXIT_OK if done else EXIT_FAILURE)


def _living(folders: JobFolders, history: History, host: Host) -> tuple[RunRecord | None, str]:
    """(the run that the next supervisor adopts, why that cannot be told). Only with the supervisor lock in hand."""
    from watchdog.core.seen import Shim
    from watchdog.opening import find_run

    try:
        watch, _ = find_run(folders, history, host)
    except StateError as error:
        return None, f"whether a run lives cannot be told, and none is ended for this: {error}"
    if watch is None:
        return None, ""
    with contextlib.closing(watch):
        return (watch.record if watch.shim() in (Shim.STARTING, Shim.ALIVE, Shim.LOST) else None), ""


def _beginning(words: str) -> str:
    """Enough to know it by: `watchdog status` told it whole before."""
    return words if len(words) <= _TOLD_CHARACTERS else f"{words[: _TOLD_CHARACTERS - 1]}…"


def _none_left(settings: Settings, folders: JobFolders, history: History) -> bool:
    """A hold that is lifted for nothing: the next supervisor would come to the same one. Raises StateError."""
    if settings.job.level < 2 or not history.knew_checkpoint:
        return False
    from watchdog.checkpoints.catalogue import find_candidates

    try:
        return not find_candidates(folders.checkpoints)
    except OSError:
        return False  # what cannot be read now may be when the next supervisor looks


def _owe(ledger: Ledger, living: RunRecord, *, of_step: bool) -> str:
    """The wish is put down: who adopts the run ends it, as it does with one of a branch that was left."""
    if not of_step:
        by = said_by(_myself(), "somebody")
        words = f"{by} asks for run {living.number} to be ended and followed; nobody supervises it now"
        ledger.record("relaunch_asked", words, run_id=living.run_id, number=living.number, by=by)
    return f"run {living.number} lives on, and whoever supervises next asks it to save and end before the next one"


def _go_back(settings: Settings, folders: JobFolders, ledger: Ledger, history: History, step: int, why: str) -> str:
    """As watchdog/branching.py does it in a supervisor: recorded, read back, recorded. Raises NotBackError."""
    from watchdog.checkpoints.catalogue import choose, read_lineage

    by, why = said_by(_myself(), "somebody"), said_by(why, NO_REASON)
    ledger.record("branch_asked", f"{by} asks to go back to step {step} ({why})", step=step, by=by, why=why)
    error, choice = None, None
    try:
        choice = choose(
            folders.checkpoints,
            lineage=read_lineage(folders.lineage) or history.run_ids or None,
            known=history.known,
            refused_runs=history.refused_runs,
            ledger_knew=history.knew_checkpoint,
            only=step,
        )
    except OSError as problem:
        error = f"{problem.filename or folders.checkpoints}: {problem.strerror or problem}"
    if choice is None or choice.chosen is None:
        words = refusal_of(step, choice, error)
        ledger.record("branch_refused", words, step=step)
        raise NotBackError(words)
    record = branched(choice.chosen, by=by, why=why)
    ledger.record(record.kind, record.sentence, **record.data)
    return f"the next run goes on from step {step} {choice.chosen.digest[:12]}…"


# --- following ----------------------------------------------------------------------------------------------
class LedgerTail:
    """The events that are written from now on; reads only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        try:
            self._at = os.stat(path).st_size
        except FileNotFoundError:
            self._at = 0
        except OSError as error:
            raise StateError(f"cannot read the ledger {path}: {error.strerror}") from error

    def read(self) -> Iterator[Event]:
        """What came since the last time. Raises StateError."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                while block := file.read(_BLOCK_BYTES):
                    self._at += len(block)
                    *lines, self._rest = (self._rest + block).split(b"\n")
                    yield from filter(None, map(parse_line, lines))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"cannot read the ledger {self._path}: {error.strerror}") from error


def follow(settings: Settings, tail: LedgerTail, say: Callable[[Told], None], clock: Clock, wait_s: float) -> End:
    """Tell each step as it is proven, until the run has restored its checkpoint, or why not. Raises StateError."""
    folders, look = folders_of(settings), f"watchdog status{job_options(settings)}"
    following = Following(level=settings.job.level)
    deadline_s = clock.monotonic() + wait_s
    state, patience = "what it does is not known", _PID_LOOKS
    unheard: deque[Event] = deque()
    while True:
        gone = False
        try:
            view = living_view(folders, 1.0)
            state = f"{view.state}: {view.waiting_for or view.sentence}"
            following, lines = seen(following, view)
            for line in lines:
                say(line)
        except NoSupervisorError:
            gone = True
        except ControlError as error:  # a slow turn; what it does stands in the ledger
            state = str(error)
        unheard += tail.read()
        while unheard:
            if _is_next(unheard[0], following) and patience > 0:
                patience -= 1  # its process is told before the first word of it
                break
            following, lines = heard(following, unheard.popleft())
            for line in lines:
                say(line)
        if following.end is not None:
            return following.end
        if gone and not unheard:
            return End(code=EXIT_FAILURE, words=f"the supervisor is gone, and did not say why: {look}")
        if clock.monotonic() >= deadline_s:
            words = f"not within {duration(wait_s)}, and it goes on without being followed ({state}): {look}"
            return End(code=EXIT_FAILURE, words=words)
        clock.sleep(_LOOK_EVERY_S)


def _is_next(event: Event, following: Following) -> bool:
    """The first word of the run that was launched, while its process has not been told yet."""
    told = following.pid_told or event.data.get("run_id") != following.run_id
    return event.kind in ("run_beats", "run_acknowledged") and not told


def relaunch(
    settings: Settings, argv: list[str], wish: Wish, *, why: str, wait_s: float | None, say: Callable[[str], None]
) -> int:
    """The whole command but for its dry run; `wait_s` None: it is not followed. Returns the exit code."""
    from watchdog.clock import SystemClock
    from watchdog.render_relaunch import line_of

    folders = folders_of(settings)
    require_visible(folders)
    tail = LedgerTail(folders.ledger)
    asked = ask_relaunch(settings, argv, wish, why)
    say(mask_text(asked.words))
    if not asked.by_supervisor or wait_s is None:
        return asked.code
    try:
        end = follow(settings, tail, lambda told: say(line_of(told)), SystemClock(), wait_s)
    except KeyboardInterrupt:
        say(f"no longer followed; the relaunch goes on: watchdog status{job_options(settings)}")
        return _EXIT_INTERRUPTED
    if end.code != EXIT_OK:
        say(mask_text(end.words))
    return end.code
