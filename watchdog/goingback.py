"""Which verified steps can be gone back to: what the ledger knows of them, and what lies in the folder now.

Reads only: `watchdog relaunch --from` asks it before anybody else is asked, and so does its dry run. Refuses to
promise: the checkpoint is read back before anything is done.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from watchdog.core.branching import unverified
from watchdog.core.choice import Known
from watchdog.core.history import Event
from watchdog.errors import StateError
from watchdog.folders import JobFolders


def claims_in(folders: JobFolders) -> tuple[Known, ...]:
    """What the manifests in the folder say that they are; nothing of it is read back. Raises StateError."""
    from watchdog.checkpoints.catalogue import find_candidates

    try:
        found = find_candidates(folders.checkpoints)
    except OSError as error:
        raise StateError(f"the checkpoints cannot be read: {folders.checkpoints}: {error.strerror}") from error
    return tuple(each.claims for each in found if each.claims is not None)


def not_offered(
    step: int,
    events: Iterable[Event],
    known: Iterable[Known],
    there: Collection[Known],
    *,
    level: int,
    now_wall_s: float,
) -> str | None:
    """Why nobody can go back to that step; None when it can be asked for. `level`: of the job."""
    if level < 2:
        return f"--from {step}: the job is of level {level}, which has no checkpoints that are verified"
    pruned = {}
    for event in events:
        if event.kind == "pruned" and event.data.get("freed_bytes") is not None:
            pruned[event.data.get("step")] = moment(event.wall_s, now_wall_s)
        elif event.kind == "checkpoint_verified":
            pruned.pop(event.data["step"], None)  # saved anew
    words = {at: when for at, when in pruned.items() if isinstance(at, int)}
    return unverified(step, known, there=there, pruned=words)


def moment(wall_s: float, now_wall_s: float) -> str:
    """`02:14:07` of today, else with its day."""
    when, now = time.localtime(wall_s), time.localtime(now_wall_s)
    return time.strftime("%H:%M:%S" if when[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", when)
