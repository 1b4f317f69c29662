"""Which checkpoints may go: which, in which order, and why each. Pure.

The newest two verified ones never go, and nothing goes before both were read back from disk. Nor does one that the
ledger does not know as verified (unknown is not ours to delete), one that the living run was launched from or that is
about to be, one that somebody has open, or a milestone. What a deletion that was cut short has left is finished first.
Refuses to look at a disk; whoever does says what lies there, and looks again before each deletion.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from watchdog.core.choice import Known, Line
from watchdog.core.figures import gib

KEPT_ALWAYS = 2
OLD_S = 86400.0  # before that, what looks like a leftover may be in use


class Kind(enum.Enum):
    """What lies in the checkpoint folder."""

    CHECKPOINT = "checkpoint"
    UNFINISHED = "unfinished deletion"  # renamed by us, and not gone yet
    REFUSED = "refused checkpoint"  # moved to quarantine/ by us
    TORN = "torn save"  # the temporary file of a save that never ended


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One thing in the folder, as it lies there. `name`: of its manifest or file, below the folder.

    `proven`: its bytes were read back and are what its manifest says. `wrong`: why it is no whole checkpoint; "" where
    nothing speaks against it. `open_by`: who has one of its files open.
    """

    name: str
    kind: Kind
    size_bytes: int
    age_s: float
    step: int = -1
    digest: str = ""
    run_id: str | None = None
    proven: bool = False
    wrong: str = ""
    open_by: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What `[retention]` says. `keep_last` below two counts as two. `need_bytes`: of [disk]."""

    keep_last: int
    keep_every: int | None
    leftovers: bool
    need_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What the ledger and the loop know. `in_use`: (step, digest) that a run was launched from, or is about to be.

    `line`: which of them the job goes on from, since a person may have gone back to an earlier step.
    """

    known: tuple[Known, ...]
    refused_runs: frozenset[str] = frozenset()
    line: Line = dataclasses.field(default_factory=Line)
    in_use: frozenset[tuple[int, str]] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """One thing, and why it goes or stays."""

    held: Held
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`deletions` in their order. `unproven`: what must be read back first; until then nothing but remains goes.

    `why_not`: why nothing goes, or why it is not enough; "" where the plan does all that is wanted.
    """

    deletions: tuple[Reason, ...] = ()
    kept: tuple[Reason, ...] = ()
    unproven: tuple[Held, ...] = ()
    lacking_bytes: int = 0
    why_not: str = ""


def verified(held: Sequence[Held], standing: Standing) -> tuple[list[Held], list[Held]]:
    """Those that the ledger knows as verified and that are whole, newest first: (what is resumed from, what was left).

    What was left lies on a branch that a person went back from: nothing is launched from it, however new it is.
    """
    known = frozenset(standing.known)
    good = [
        each
        for each in held
        if each.kind is Kind.CHECKPOINT
        and not each.wrong
        and each.run_id not in standing.refused_runs
        and _claim(each) in known
    ]
    good.sort(key=lambda each: (-each.step, each.age_s, each.name))
    left = [each for each in good if standing.line.abandons(_claim(each))]
    return [each for each in good if each not in left], left


def _claim(held: Held) -> Known:
    return Known(step=held.step, digest=held.digest, run_id=held.run_id)


def plan(held: Sequence[Held], standing: Standing, rules: Rules, *, free_bytes: int | None) -> Plan:
    """What goes now. `free_bytes`: of the disk, where only its need counts; None: everything beyond the policy."""
    good, left = verified(held, standing)
    remains = tuple(Reason(each, "its deletion was cut short") for each in held if each.kind is Kind.UNFINISHED)
    lacking = 0
    if free_bytes is not None:
        # Also room for the next checkpoint: a gate that opens for a run that cannot save has helped nobody.
        need = max(rules.need_bytes, good[0].size_bytes if good else 0)
        lacking = max(0, need - free_bytes)
        if not lacking:
            return Plan(deletions=remains)
    kept, spare = _sorted_out(held, good, left, standing, rules)
    if not spare:
        why = "" if free_bytes is None else f"[retention] keeps all {len(good) + len(left)} verified checkpoints"
        return Plan(deletions=remains, kept=kept, lacking_bytes=lacking, why_not=why)
    if len(good) < KEPT_ALWAYS:
        why = f"{len(good)} verified checkpoints lie there, and {KEPT_ALWAYS} must stay"
        return Plan(deletions=remains, kept=kept, lacking_bytes=lacking, why_not=why)
    if unproven := tuple(each for each in good[:KEPT_ALWAYS] if not each.proven):
        why = "what stays is not read back yet"
        return Plan(deletions=remains, kept=kept, unproven=unproven, lacking_bytes=lacking, why_not=why)
    deletions, short = list(remains), lacking - sum(each.held.size_bytes for each in remains)
    for each in spare:
        if free_bytes is not None and short <= 0:
            break
        deletions.append(each)
        short -= each.held.size_bytes
    why = ""
    if free_bytes is not None and short > 0:
        why = f"the disk lacks {gib(short)} GiB more, and [retention] keeps the rest"
    return Plan(deletions=tuple(deletions), kept=kept, lacking_bytes=lacking, why_not=why)


def _sorted_out(
    held: Sequence[Held], good: Sequence[Held], left: Sequence[Held], standing: Standing, rules: Rules
) -> tuple[tuple[Reason, ...], tuple[Reason, ...]]:
    """(what stays, what may go in its order): leftovers first, which are worth nothing, then the oldest step."""
    kept: list[Reason] = []
    spare: list[Reason] = []
    leftovers: list[Reason] = []
    last = max(rules.keep_last, KEPT_ALWAYS)
    for place, each in enumerate(good):
        why = _why_kept(place, each, standing, rules, last)
        if why:
            kept.append(Reason(each, why))
        else:
            spare.append(Reason(each, f"beyond the newest {last} that are kept"))
    for place, each in enumerate(left):
        tip = "the newest of the branches that were left: the way back to them" if place == 0 else ""
        if why := tip or _why_kept(last, each, standing, rules, last):
            kept.append(Reason(each, why))
        else:
            spare.append(Reason(each, "of a branch that was left, and not its newest"))
    spare.sort(key=lambda each: (each.held.step, -each.held.age_s))
    for each in held:
        if each.kind is Kind.CHECKPOINT and each not in good and each not in left:
            kept.append(Reason(each, each.wrong or "the ledger does not know it as verified"))
        elif each.kind in (Kind.REFUSED, Kind.TORN):
            why = _why_left(each, rules)
            (kept if why else leftovers).append(Reason(each, why or f"a {each.kind.value}, older than a day"))
    leftovers.sort(key=lambda each: (-each.held.age_s, each.held.name))
    return tuple(kept), (*leftovers, *spare)


def _why_kept(place: int, held: Held, standing: Standing, rules: Rules, last: int) -> str:
    if place < last:
        return "the newest verified" if place == 0 else f"one of the newest {last}"
    if (held.step, held.digest) in standing.in_use:
        return "a run was launched from it, or is about to be"
    if _claim(held) == standing.line.asked:
        return "a person went back to it"
    if held.open_by:
        return f"{held.open_by} has it open"
    if rules.keep_every and held.step > 0 and held.step % rules.keep_every == 0:
        return f"a milestone of every {rules.keep_every} steps"
    return ""


def _why_left(held: Held, rules: Rules) -> str:
    if not rules.leftovers:
        return f"a {held.kind.value}; [retention] leftovers = true lets it go"
    if held.age_s < OLD_S:
        return f"a {held.kind.value}, and younger than a day"
    return f"{held.open_by} has it open" if held.open_by else ""
