"""Choosing what to launch from: pure rules over what the verifier found.

A candidate is resumed from only when its bytes were verified, its lineage is this job's, and it is not a changed
version of something that was verified before.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A verified checkpoint. `manifest` is the manifest's path."""

    step: int
    digest: str
    manifest: str
    run_id: str | None = None
    target_step: int | None = None
    tokens: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A candidate that is not resumed from, and why. `step` None where the manifest cannot even be read.

    `movable` False: it could not be read at all, which may pass (a bridge that hangs, a disk that fails), so it stays.
    """

    manifest: str
    step: int | None
    why: str
    movable: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What to launch from. `chosen` None and `first_start` False: nothing may be launched, `why` says it."""

    chosen: Checkpoint | None
    first_start: bool
    refused: tuple[Refusal, ...]
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the ledger knows about one verified checkpoint."""

    step: int
    digest: str
    run_id: str | None


def lineage_problem(
    *,
    step: int,
    digest: str,
    run_id: str | None,
    lineage: tuple[str, ...] | None,
    known: tuple[Known, ...],
    refused_runs: frozenset[str],
) -> str | None:
    """Why a candidate whose bytes agree with its manifest is still not ours; None when it is.

    `lineage`: ids of all runs that ever trained into this folder, oldest first, None when the folder has no such
    record. A step that was verified may have other bytes later only if a later run of this job saved it anew; a
    checkpoint without a run id (trained by hand) never replaces a verified one.
    """
    if run_id is not None and run_id in refused_runs:
        return f"it was saved by run {run_id}, which had not restored what it should have"
    if Known(step=step, digest=digest, run_id=run_id) in known:
        return None  # these very bytes were verified before, whatever became of the lineage
    if lineage is not None and run_id is not None and run_id not in lineage:
        return f"it was saved by run {run_id}, which is no run of this job"
    before = [entry for entry in known if entry.step == step]
    if not before or digest in {entry.digest for entry in before}:
        return None
    age = _age(run_id, lineage)
    if age < 0 or any(_age(entry.run_id, lineage) >= age for entry in before):
        return f"it was {before[-1].digest[:12]}… when it was verified and is {digest[:12]}… now"
    return None


def _age(run_id: str | None, lineage: tuple[str, ...] | None) -> int:
    """The place of a run in the lineage; -1 for one that has none."""
    return lineage.index(run_id) if lineage is not None and run_id is not None and run_id in lineage else -1


def conclude_choice(*, chosen: Checkpoint | None, refused: tuple[Refusal, ...], ever_knew: bool) -> Choice:
    """Invariant 3: a first start only if neither ledger nor folder ever knew a checkpoint."""
    if chosen is not None:
        return Choice(chosen=chosen, first_start=False, refused=refused, why=f"step {chosen.step} verified")
    if not ever_knew:
        return Choice(chosen=None, first_start=True, refused=refused, why="first start")
    reasons = "; ".join(f"step {refusal.step}: {refusal.why}" for refusal in refused[:3])
    return Choice(
        chosen=None,
        first_start=False,
        refused=refused,
        why="this job had checkpoints, and none can be verified now" + (f" ({reasons})" if reasons else ""),
    )
