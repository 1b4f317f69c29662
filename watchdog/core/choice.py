"""Choosing what to launch from: pure rules over what the verifier found.

A candidate is resumed from only when its bytes were verified, its lineage is this job's, and it is not a changed
version of something that was verified before. Where a person went back to an earlier step (`watchdog relaunch --from`),
what had been saved beyond it is of an abandoned branch and is not chosen, see docs/decisions/0020.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

NONE_LEFT = (
    "this job had checkpoints, and none can be verified now: none lies in its folder any more; is its disk mounted? "
    "Else bring back a copy; or, to begin anew: watchdog run --new"
)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it was: whoever writes it anew, or renames another one over it, gives it another stamp.

    Without its inode: some network file systems give a file another one at each look, and then nothing would launch.
    """

    name: str
    mtime_ns: int
    size_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What to launch from. `chosen` None and `first_start` False: nothing may be launched, `why` says it.

    `listed`: the manifests that lay there when it was made; `files`: what was chosen, its manifest and its files.
    """

    chosen: Checkpoint | None
    first_start: bool
    refused: tuple[Refusal, ...]
    why: str
    listed: frozenset[Stamp] = frozenset()
    files: tuple[Stamp, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the ledger knows about one verified checkpoint."""

    step: int
    digest: str
    run_id: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What these runs saved beyond the step is of an abandoned branch."""

    step: int
    runs: frozenset[str]

    def covers(self, checkpoint: Known) -> bool:
        """A checkpoint without a run id was there, or may have been: it is of no branch that goes on."""
        return checkpoint.step > self.step and (checkpoint.run_id is None or checkpoint.run_id in self.runs)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Which checkpoints the job goes on from. `asked`: the one that a person went back to last; None: nobody ever did.

    `words`: who asked for it, and why.
    """

    asked: Known | None = None
    cuts: tuple[Cut, ...] = ()
    words: str = ""

    def abandons(self, checkpoint: Known) -> bool:
        """Whether it lies on a branch that was left. What was asked for itself never does."""
        return any(cut.covers(checkpoint) for cut in self.cuts) and checkpoint != self.asked

    def abandons_run(self, run_id: str) -> bool:
        """Whether that run trains on a branch that was left: nothing that it saves from now on is chosen."""
        return any(run_id in cut.runs for cut in self.cuts)

    def is_below(self, step: int) -> bool:
        """Whether launching from there would go back further than was asked for."""
        return self.asked is not None and step < self.asked.step


def back_to(line: Line, asked: Known, runs: Collection[str], words: str) -> Line:
    """The line after a person went back to `asked`. `runs`: all that were launched until now.

    Asking for what lies on an abandoned branch turns to that branch again: then it is the other side that is left.
    """
    undone = [cut for cut in line.cuts if cut.covers(asked)]
    cuts = [cut for cut in line.cuts if cut not in undone]
    cuts += [Cut(step=cut.step, runs=frozenset(runs) - cut.runs) for cut in undone]
    cuts.append(Cut(step=asked.step, runs=frozenset(runs)))
    return Line(asked=asked, cuts=tuple(cuts), words=words)


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


def conclude_choice(
    *,
    chosen: Checkpoint | None,
    refused: tuple[Refusal, ...],
    ever_knew: bool,
    line: Line | None = None,
    empty: bool = False,
) -> Choice:
    """Invariant 3: a first start only if neither ledger nor folder ever knew a checkpoint.

    Nor is anything older launched from than what a person went back to: that would be another choice than theirs.
    `empty`: no manifest lies in the folder, so there is no other one to name, either.
    """
    if empty and chosen is None and ever_knew:
        return Choice(chosen=None, first_start=False, refused=refused, why=NONE_LEFT)
    if line is not None and line.asked is not None and (chosen is None or line.is_below(chosen.step)):
        reasons = "; ".join(f"step {refusal.step}: {refusal.why}" for refusal in refused[:3])
        why = (
            f"step {line.asked.step}, which was asked for ({line.words}), cannot be verified now"
            + (f" ({reasons})" if reasons else "")
            + ("" if chosen is None else f"; step {chosen.step} is the newest before it")
            + "; name another one: watchdog relaunch --from STEP"
        )
        return Choice(chosen=None, first_start=False, refused=refused, why=why)
    if chosen is not None:
        return Choice(chosen=chosen, first_start=False, refused=refused, why=f"step {chosen.step} verified")
    if not ever_knew:
        return Choice(chosen=None, first_start=True, refused=refused, why="first start")
    reasons = "; ".join(f"step {refusal.step}: {refusal.why}" for refusal in refused[:3])
    return Choice(
        chosen=None,
        first_start=False,
        refused=refused,
        why="this job had checkpoints, and none can be verified now"
        + (f" ({reasons})" if reasons else "")
        + "; to begin anew: watchdog run --new",
    )
