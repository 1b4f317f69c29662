"""`watchdog prune`: delete by hand what `[retention]` lets go, with the reason for each and the bytes given back.

Responsible for the plan as a person reads it, for doing it with the supervisor lock in hand and the ledger open, and
for naming what else takes space and is left alone. Refuses to delete while somebody supervises the job or a run of it
is alive: then the plan is shown, and the supervisor goes by `[retention]` itself.
Where the job never ran, or none of its checkpoints is to be seen, nothing is made: no lock, no ledger, no folder.
Exit codes: 0 done, or nothing to do; 1 something could not be deleted (then nothing more is), or none of the verified
checkpoints lies there and the disk may not be mounted; 2 usage; 4 a supervisor or a run has the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from watchdog.actuators.prune import PrunableFolder
from watchdog.actuators.seen_folder import TORN
from watchdog.checkpoints.catalogue import ARCHIVE_FOLDER, find_candidates
from watchdog.checks.figures import size
from watchdog.clock import SystemClock
from watchdog.contract import MANIFEST_SUFFIX
from watchdog.core.history import Event, History, fold
from watchdog.core.retention import HIDDEN, Plan, Reason, Standing
from watchdog.core.state import Record
from watchdog.errors import EXIT_FAILURE, EXIT_HELD, EXIT_OK, CheckpointError, HeldError, StateError
from watchdog.folders import JobFolders
from watchdog.ledger import Ledger, read_events
from watchdog.opening import host_or_error, open_ledger, read_run_record, run_lock_is_free, take
from watchdog.places import folders_of, job_options
from watchdog.retaining import planned, planned_record, pruned_record, rules_of, standing_by, what
from watchdog.settings import Settings

_OURS = re.compile(r".+\.tmp")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What is told of one pruning, or of what it would be."""

    exit_code: int
    lines: tuple[str, ...]
    record: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Done:
    reason: Reason
    freed_bytes: int | None  # None: it is still there
    problem: str = ""


def prune_by_hand(settings: Settings, *, dry_run: bool, argv: list[str]) -> Report:
    """Raises StateError, RecordingError, CheckpointError."""
    folders, clock = folders_of(settings), SystemClock()
    if not folders.ledger.exists():
        return _nothing(f"job {settings.job.name} has no ledger in {folders.state}: it never ran", EXIT_OK, dry_run)
    if lost := _lost(folders):
        words = f"{lost} verified checkpoints of the ledger are not in {folders.checkpoints}"
        if not _is_the_jobs_own(folders):
            return _nothing(f"{words}: is its disk mounted?", EXIT_FAILURE, dry_run)
        words += ", and the watchdog did not delete them; the job's own records are there, so its disk is"
        return _nothing(words, EXIT_OK, dry_run, _without_any(settings, folders))
    folder = PrunableFolder(folders.checkpoints, clock)
    if dry_run:
        events, _ = read_events(folders.ledger)
        return _told(settings, folders, _plan(settings, folders, folder, fold(events)), (), "dry run")
    try:
        with _taken(settings, folders, clock, argv) as (ledger, history):
            if not run_lock_is_free(folders):
                raise HeldError("a run of this job is alive; watchdog run adopts it, and prunes by itself")
            found, done = _pruned(settings, folders, folder, ledger, history)
    except HeldError as error:
        events, _ = read_events(folders.ledger)
        return _told(settings, folders, _plan(settings, folders, folder, fold(events)), (), str(error), EXIT_HELD)
    return _told(settings, folders, found, done, "")


def _lost(folders: JobFolders) -> int:
    """How many checkpoints should lie there where not one does; 0 where any is seen. Raises StateError."""
    try:
        if find_candidates(folders.checkpoints):
            return 0
    except OSError as error:
        raise StateError(f"the checkpoints in {folders.checkpoints} cannot be looked at: {error.strerror}") from error
    events, _ = read_events(folders.ledger)
    return len({each.digest for each in fold(events).known} - _gone(events))


def _is_the_jobs_own(folders: JobFolders) -> bool:
    """Whether it is the folder that runs trained into, and no empty mount point; False where that is not to be told."""
    return folders.control.parent == folders.checkpoints and folders.lineage.exists()


def _without_any(settings: Settings, folders: JobFolders) -> str:
    """What it means for the job that its checkpoints are gone."""
    if fold(read_events(folders.ledger)[0]).finished is not None:
        return "the job is finished, and what it trained is not there any more"
    return f"the next launch holds for it; to begin anew: watchdog run{job_options(settings)} --new"


def _gone(events: Iterable[Event]) -> set[str]:
    """Digests of those that were deleted by us."""
    planned_digest, gone = {}, set()
    for event in events:
        name = str(event.data.get("name")).removeprefix(HIDDEN)
        if event.kind == "prune_planned" and event.data.get("digest"):
            planned_digest[name] = str(event.data["digest"])
        elif event.kind == "pruned" and event.data.get("freed_bytes") is not None and name in planned_digest:
            gone.add(planned_digest[name])
    return gone


def _nothing(words: str, code: int, dry_run: bool, warning: str = "") -> Report:
    record: dict[str, Any] = {"dry_run": dry_run, "not_done": words, "exit_code": code, "why_not": words}
    record |= {"warning": warning or None}
    record |= {"kept": [], "deletions": [], "deleted": [], "freed_bytes": 0, "left": []}
    lines = (f"nothing   {words}", *((f"warning   {warning}",) if warning else ()))
    return Report(exit_code=code, lines=lines, record=record)


@contextlib.contextmanager
def _taken(
    settings: Settings, folders: JobFolders, clock: SystemClock, argv: list[str]
) -> Iterator[tuple[Ledger, History]]:
    """The job, for as long as nobody supervises it. Raises HeldError, StateError."""
    lock = take(folders, clock, argv, job_options(settings))
    try:
        ledger = open_ledger(folders, clock, host_or_error())
        with contextlib.closing(ledger):
            yield ledger, fold(ledger.events)
    finally:
        lock.close()


def _standing(folders: JobFolders, history: History) -> Standing:
    """What the last run was launched from stays, whether or not it is over. Raises StateError."""
    record = read_run_record(folders.run_record)
    in_use = set()
    if record is not None and record.expectation.step is not None and record.expectation.digest is not None:
        in_use.add((record.expectation.step, record.expectation.digest))
    return standing_by(history, frozenset(in_use))


def _plan(settings: Settings, folders: JobFolders, folder: PrunableFolder, history: History) -> Plan:
    try:
        return planned(folder, _standing(folders, history), rules_of(settings), only_if_needed=False)
    except OSError as error:
        raise StateError(f"the checkpoints in {folders.checkpoints} cannot be looked at: {error.strerror}") from error


def _pruned(
    settings: Settings, folders: JobFolders, folder: PrunableFolder, ledger: Ledger, history: History
) -> tuple[Plan, tuple[_Done, ...]]:
    """Look, record, delete one, record, and look again; until nothing may go, or one did not."""
    first: Plan | None = None
    done: list[_Done] = []
    while True:
        found = _plan(settings, folders, folder, history)
        first = first or found
        if not found.deletions or (done and done[-1].problem):
            return first, tuple(done)
        reason = found.deletions[0]
        _record(ledger, planned_record(reason, 0))
        try:
            one = _Done(reason, folder.delete(reason.held, found.stays))
        except CheckpointError as error:
            one = _Done(reason, None, str(error))
        except OSError as error:
            one = _Done(reason, None, error.strerror or str(error))
        done.append(one)
        _record(ledger, pruned_record(reason, one.freed_bytes, one.problem))


def _record(ledger: Ledger, record: Record) -> None:
    ledger.record(record.kind, record.sentence, **record.data)


# --- what is told -------------------------------------------------------------------------------------------
def _told(
    settings: Settings, folders: JobFolders, found: Plan, done: tuple[_Done, ...], not_done: str, code: int = EXIT_OK
) -> Report:
    # Before a long list of what would go, and not behind it: nobody must take it for what has gone.
    lines = [f"nothing was done ({not_done}); what would stay and go:"] if not_done and found.deletions else []
    lines += [_line("keep", each.held.size_bytes, f"{what(each)} · {each.why}") for each in found.kept]
    freed = sum(each.freed_bytes or 0 for each in done)
    failed = [each for each in done if each.freed_bytes is None]
    if done:
        for each in done:
            words = f"{what(each.reason)} · {each.problem or each.reason.why}"
            size_bytes = each.reason.held.size_bytes if each.freed_bytes is None else each.freed_bytes
            lines.append(_line("failed" if each.problem else "deleted", size_bytes, words))
        lines.append(f"freed     {size(freed) if freed else 'nothing'}")
        if failed:
            lines.append("nothing more is deleted until that is mended; then: watchdog prune" + job_options(settings))
    else:
        lines += [_line("delete", each.held.size_bytes, f"{what(each)} · {each.why}") for each in found.deletions]
        if not found.deletions:
            kept = "all that lies there is kept by [retention]" if found.kept else "no checkpoint lies there"
            lines.append(f"nothing   {found.why_not or kept}")
    others = _others(folders, {each.held.name for each in (*found.kept, *found.deletions)})
    lines += [_line("left", size_bytes, f"{name} · not deleted by the watchdog") for name, size_bytes in others]
    if not_done == "dry run" and found.deletions:
        lines.append(f"next      watchdog prune{job_options(settings)}")
    code = code if found.deletions or done else EXIT_OK
    record = {
        "dry_run": not_done == "dry run",
        "not_done": not_done,
        "exit_code": EXIT_FAILURE if failed else code,
        "why_not": found.why_not,
        "warning": None,
        "kept": [_as_record(each) for each in found.kept],
        "deletions": [_as_record(each) for each in found.deletions],
        "deleted": [
            {"name": each.reason.held.name, "freed_bytes": each.freed_bytes, "problem": each.problem or None}
            for each in done
        ],
        "freed_bytes": freed,
        "left": [{"name": name, "size_bytes": size_bytes} for name, size_bytes in others],
    }
    return Report(exit_code=EXIT_FAILURE if failed else code, lines=tuple(lines), record=record)


def _line(word: str, size_bytes: int, words: str) -> str:
    return f"{word:<9} {size(size_bytes):>9}  {words}"


def _as_record(reason: Reason) -> dict[str, Any]:
    held = reason.held
    return {
        "name": held.name,
        "what": held.kind.value,
        "step": held.step if held.step >= 0 else None,
        "digest": held.digest or None,
        "size_bytes": held.size_bytes,
        "why": reason.why,
    }


def _others(folders: JobFolders, judged_names: set[str]) -> list[tuple[str, int]]:
    """What else takes space of what is ours or seems to be, and is in no plan: named, and left alone."""
    found = []
    archive = folders.checkpoints / ARCHIVE_FOLDER
    if size_bytes := sum(_size(path) for path in _files(archive)):
        found.append((f"{archive} (jobs that were archived)", size_bytes))
    named = {file.name for each in _candidates(folders) if each.manifest for file in each.manifest.files}
    try:
        entries = sorted(os.scandir(folders.checkpoints), key=lambda entry: entry.name)
    except OSError:
        entries = []
    for entry in entries:
        judged = entry.name.endswith(MANIFEST_SUFFIX) or entry.name.startswith(HIDDEN) or TORN.fullmatch(entry.name)
        told = entry.name in named or entry.name in judged_names or judged
        if entry.is_file(follow_symlinks=False) and not told:
            found.append((f"{entry.path} (no manifest names it)", _size(Path(entry.path))))
    for path in _files(folders.state):
        if folders.checkpoints not in path.parents and _OURS.fullmatch(path.name):
            found.append((f"{path} (a temporary file)", _size(path)))
    return found


def _candidates(folders: JobFolders) -> tuple[Any, ...]:
    try:
        return find_candidates(folders.checkpoints)
    except OSError:
        return ()


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _size(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0
