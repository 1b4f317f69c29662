"""Going back to an earlier step: who asks for what, and the words of it. Pure; what follows from it is in choice.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from watchdog.core.choice import Checkpoint, Choice, Known
from watchdog.core.state import Record

NO_REASON = "no reason was given"
_SHOWN_STEPS = 20
_SAID_CHARACTERS = 300


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GoBack:
    """Who asks for which step, and why. `afresh`: with a new budget."""

    step: int
    by: str
    why: str
    afresh: bool = False


def said_by(text: object, instead: str) -> str:
    """What a person wrote, as it is recorded and shown: cut, and without what moves a terminal's cursor."""
    cut = "" if text is None else str(text)[:_SAID_CHARACTERS]
    return "".join(each if each.isprintable() else "?" for each in cut) or instead


def unverified(
    step: int,
    known: Iterable[Known],
    *,
    there: Collection[Known] | None = None,
    pruned: Mapping[int, str] | None = None,
) -> str | None:
    """Why a step cannot be asked for: it was never verified, or is gone since. None when it can be.

    `there`: what lies in the folder; None where nobody looked. `pruned`: steps with when that was, in words.
    """
    known = tuple(known)
    ever = {each.step for each in known}
    steps = sorted({each.step for each in known if there is None or each in there})
    if step in steps:
        return None
    if not ever:
        return f"--from {step}: no step of this job was ever verified"
    if step in ever:
        when = (pruned or {}).get(step)
        gone = f"was pruned at {when}" if when else "was verified, and its checkpoint is not in the folder any more"
        if not steps:
            return f"--from {step}: step {step} {gone}; no other is left"
        shown = ", ".join(str(each) for each in steps[-_SHOWN_STEPS:])
        return f"--from {step}: step {step} {gone}; verified and there are {shown}"
    if not steps:
        return f"--from {step}: step {step} was never verified; of those that were none is left in the folder"
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
        f"back to step {checkpoint.step} {checkpoint.digest[:12]}… ({by}: {why}); what was saved beyond it is not "
        "chosen any more; [retention] lets go all but its newest"
    )
    data = {"step": checkpoint.step, "digest": checkpoint.digest, "run_id": checkpoint.run_id, "by": by, "why": why}
    return Record("branched", words, data)
