"""Moving refused checkpoints aside, recorded before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog.checkpoints.quarantine import quarantine
from watchdog.core.choice import Refusal


def move_refused(refused: tuple[Refusal, ...], note: Callable[..., Any]) -> None:
    """`note(kind, sentence, **data)` writes to the ledger. A move that fails is said; the checkpoint stays refused."""
    for refusal in refused:
        manifest = Path(refusal.manifest)
        step = "a checkpoint" if refusal.step is None else f"step {refusal.step}"
        data = {"step": refusal.step, "manifest": refusal.manifest, "why": refusal.why}
        words = f"{step} is not resumed from: {refusal.why}"
        note("checkpoint_refused", words, **data, movable=refusal.movable)  # from here on a move may be cut short
        if not refusal.movable:
            continue
        try:
            place = quarantine(manifest)
        except FileNotFoundError:
            continue
        except OSError as error:
            note("checkpoint_stays", f"{manifest} could not be moved aside: {error.strerror}", **data)
            continue
        note("checkpoint_moved", f"{step} now lies in {place.parent}", **data, place=str(place))
