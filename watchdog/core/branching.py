"""Going back to an earlier step: who asks for what, and the words of it. Pure; what follows from it is in choice.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from watchdog.core.choice import Checkpoint, Choice, Known
from watchdog.core.state import Record

_SHOWN_STEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GoBack:
    """Who asks for which step, and why. `afresh`: with a new budget."""

    step: int
    by: str
    why: str
    afresh: bool = False


def unverified(step: int, known: Iterable[Known]) -> str | None:
    """Why a step cannot be asked for: it was never verified. None when it was."""
    steps = sorted({each.step for each in known})
    if step in steps:
        return None
    if not steps:
        return f"--from {step}: no step of this job was ever verified"
    shown = ", ".join(str(each) for each in steps[-_SHOWN_STEPS:])
    more = f" and {len(steps) - _SHOWN_STEPS} before them" if len(steps) > _SHOWN_STEPS else ""
    return f"--from {step}: step {step} was never verified; verified are {shown}{more}"


def refusal_of(step: int, choice: Choice | None, error: str | None) -> str:
    """Why a step that had been verified cannot be gone back to now."""
    if error is not None:
        reason = f"the checkpoints cannot be read: {error}"
    elif choice is not None and choice.refused:
        reason = "; ".join(refusal.why for refusal in choice.refused[:3])
    else:
        reason = "its checkpoint is not in the folder any more"
    return f"nobody goes back to step {step}, and nothing was stopped: {reason}"


def branched(checkpoint: Checkpoint, *, by: str, why: str) -> Record:
    """The record that makes it so."""
    words = (
        f"back to step {checkpoint.step} {checkpoint.digest[:12]}… ({by}: {why}); what was saved beyond it stays where "
        "it is and is not chosen"
    )
    data = {"step": checkpoint.step, "digest": checkpoint.digest, "run_id": checkpoint.run_id, "by": by, "why": why}
    return Record("branched", words, data)
