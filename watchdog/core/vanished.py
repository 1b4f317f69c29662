"""A verified checkpoint that is gone although nobody of us removed it: found by comparing two looks. Pure.

Only the newest counts, which no retention removes while nothing newer lies there. Refuses to judge what cannot be read:
a manifest that says nothing may be the one that is missed.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog.core.choice import Known
from watchdog.core.history import History
from watchdog.core.state import Record


def vanished(history: History, listed: Sequence[Known | None], manifest: str | None = None) -> Record | None:
    """The record of it; None where all is in order. `listed`: what each manifest in the folder claims to be.

    `manifest`: the path of the newest, where it was seen in the look before. One that became the newest only because a
    later one was refused may have been gone for long: it counts only if it was seen.

    What is saved anew, at the same step or beyond, stands for what it replaced, good or bad: that is judged by itself.
    """
    newest = history.newest
    if newest is None or None in listed or (manifest is None and history.newest_wall_s is None):
        return None
    there = [claim for claim in listed if claim is not None and not history.line.abandons(claim)]
    if any(claim.step >= newest.step for claim in there):
        return None
    known = set(history.known)
    still = max((claim for claim in there if claim in known), key=lambda claim: claim.step, default=None)
    words = f"step {newest.step} {newest.digest[:12]}… was verified and is gone (not by us): "
    words += "removed, renamed, or its disk is not mounted"
    if still is None:
        words += "; no other verified one lies there"
    else:
        words += f"; the newest verified one that lies there is step {still.step}"
    data = {"step": newest.step, "digest": newest.digest, "run_id": newest.run_id}
    data |= {"manifest": manifest, "still": None if still is None else [still.step, still.digest, still.run_id]}
    return Record("checkpoint_vanished", words, data)
