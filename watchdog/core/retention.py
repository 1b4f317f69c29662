"""Which checkpoints may go: which, in which order, and why each. Pure.

The newest two verified ones never go, and nothing goes before both were read back from disk; two manifests of the same
bytes are one. Nor does one that the ledger does not know as verified (unknown is not ours to delete), one that the
living run was launched from or that is about to be, one that somebody has open, or a milestone. What a deletion that
was cut short has left is finished first, if the ledger knows of that deletion.
Refuses to look at a disk; whoever does says what lies there, and looks again before each deletion.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterator, Sequence

from watchdog.core.choice import Known, Line
from watchdog.core.figures import gib

KEPT_ALWAYS = 2
HIDDEN = ".deleting-"  # before the name of what is being deleted
OLD_S = 86400.0  # before that, what looks like a leftover may be in use
_MOVE_S = 3600.0  # a move takes milliseconds; what came to quarantine/ later than this after its record was laid there


class Kind(enum.Enum):
    """What lies in the checkpoint folder."""

    CHECKPOINT = "checkpoint"
    UNFINISHED = "unfinished deletion"  # renamed by us, and not gone yet
    REFUSED = "refused checkpoint"  # moved to quarantine/ by us
    STRANDED = "file of a refused checkpoint"  # that should have followed its manifest there
    TORN = "torn save"  # the temporary file of a save that never ended


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One thing in the folder, as it lies there. `name`: of its manifest or file, below the folder.

    `proven`: its bytes were read back and are what its manifest says. `wrong`: why it is no whole checkpoint; "" where
    nothing speaks against it. `open_by`: who has one of its files open. `size_bytes`: of what only it names; `files`:
    all that it names, and what the disk has again of each. `origin`: the manifest in quarantine/ that names it.
    `touched_wall_s`: when it was last written, or (of what was not moved) renamed; 0 where that does not count.
    `renamed_wall_s`: when it was last renamed, at the latest.
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
    files: frozenset[tuple[str, int]] = frozenset()
    origin: str = ""
    touched_wall_s: float = 0.0
    renamed_wall_s: float = 0.0

    @property
    def file_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.files)


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

    `line`: which of them the job goes on from, since a person may have gone back to an earlier step. `deleting`: (name,
    digest) of the deletions that were begun and have no end. `moved`: manifests that were moved to quarantine/.
    `moving`: (name, wall clock) of the moves that were begun and have no end.
    """

    known: tuple[Known, ...]
    refused_runs: frozenset[str] = frozenset()
    line: Line = dataclasses.field(default_factory=Line)
    in_use: frozenset[tuple[int, str]] = frozenset()
    deleting: frozenset[tuple[str, str]] = frozenset()
    moved: frozenset[str] = frozenset()
    moving: frozenset[tuple[str, float]] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """One thing, and why it goes or stays."""

    held: Held
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`deletions` in their order. `unproven`: what must be read back first; until then nothing goes.

    `stays`: names of the newest two, without which none of the deletions may be done.
    `why_not`: why nothing goes, or why it is not enough; "" where the plan does all that is wanted.
    """

    deletions: tuple[Reason, ...] = ()
    kept: tuple[Reason, ...] = ()
    unproven: tuple[Held, ...] = ()
    stays: tuple[str, ...] = ()
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


def plan(
    held: Sequence[Held], standing: Standing, rules: Rules, *, free_bytes: int | None, at_gate: bool = False
) -> Plan:
    """What goes now. `free_bytes`: of the disk, where only its need counts; None: everything beyond the policy.

    `at_gate`: [disk] need is what a launch waits for; beside a run it is room for the next save.
    """
    good, left = verified(held, standing)
    wanted: tuple[int, ...] = (0,)
    if free_bytes is not None:
        # Also room for the next checkpoint: a gate that opens for a run that cannot save has helped nobody. Where no
        # deletion gives that much, the lesser of both is worth it.
        next_bytes = good[0].size_bytes if good else 0
        most, less = max(rules.need_bytes, next_bytes), rules.need_bytes if at_gate else next_bytes
        wanted = (max(0, most - free_bytes), max(0, less - free_bytes))
    remains, kept, spare = _sorted_out(held, good, left, standing, rules)
    if free_bytes is not None and not wanted[0]:
        spare = ()
        if not remains:
            return Plan()
    lacking, why = wanted[0], ""
    gains = list(_gains(held, spare))
    can_bytes = sum(gains) + sum(each.held.size_bytes for each in remains)
    if lacking and not spare:
        why = f"[retention] keeps all {len(good) + len(left)} verified checkpoints"
    elif can_bytes < lacking:
        lacking = next((each for each in wanted if each <= can_bytes), 0)
        if not lacking:
            spare, lacking = (), wanted[-1] or wanted[0]
            why = f"all that may go would give {_size(can_bytes)}, and the disk lacks {_size(lacking)}"
            why += ": no checkpoint is deleted"
        else:
            why = f"[disk] need lacks {_size(wanted[0])}, and all that may go would give {_size(can_bytes)}"
    if not spare and not remains:
        return Plan(kept=kept, lacking_bytes=lacking, why_not=why)
    newest = [place[0] for place in _places(good)][:KEPT_ALWAYS]
    if len(newest) < KEPT_ALWAYS:
        # Remains as well: bytes that were renamed can still be taken back by a person, if it comes to that.
        why = f"{len(newest)} verified checkpoints lie there, and {KEPT_ALWAYS} must stay"
        return Plan(kept=kept, lacking_bytes=lacking, why_not=why)
    if unproven := tuple(each for each in newest if not each.proven):
        return Plan(kept=kept, unproven=unproven, lacking_bytes=lacking, why_not="what stays is not read back yet")
    deletions, short = list(remains), lacking - sum(each.held.size_bytes for each in remains)
    for each, gain in zip(spare, gains, strict=False):  # none is spare where none is worth it
        if free_bytes is not None and short <= 0:
            break
        deletions.append(each)
        short -= gain
    stays = tuple(each.name for each in newest)
    return Plan(deletions=tuple(deletions), kept=kept, stays=stays, lacking_bytes=lacking, why_not=why)


def _size(size_bytes: int) -> str:
    return f"{gib(size_bytes)} GiB" if size_bytes >= 1024**3 else f"{size_bytes / 1024**2:.2f} MiB"


def _gains(held: Sequence[Held], spare: Sequence[Reason]) -> Iterator[int]:
    """What each gives back when it goes in this order: a file goes with the last manifest that names it."""
    names = Counter(name for each in held if each.kind is Kind.CHECKPOINT for name in each.file_names)
    shared = {name for name, times in names.items() if times > 1}
    for reason in spare:
        gain = reason.held.size_bytes
        for name, size_bytes in reason.held.files:
            names[name] -= 1
            if name in shared and not names[name]:
                gain += size_bytes
        yield gain


def _share(one: Held, other: Held) -> bool:
    """Whether one of both names nothing that the other does not."""
    names, others = one.file_names, other.file_names
    return bool(names) and bool(others) and (names <= others or others <= names)


def _places(good: Sequence[Held]) -> list[list[Held]]:
    """By what lies on the disk: manifests that name the same files, or the same bytes, are one place."""
    places: list[list[Held]] = []
    for each in good:
        for place in places:
            if any(each.digest == other.digest or _share(each, other) for other in place):
                place.append(each)
                break
        else:
            places.append([each])
    return places


def _sorted_out(
    held: Sequence[Held], good: Sequence[Held], left: Sequence[Held], standing: Standing, rules: Rules
) -> tuple[tuple[Reason, ...], tuple[Reason, ...], tuple[Reason, ...]]:
    """(remains, what stays, what may go in its order): leftovers first, worth nothing, then the oldest step."""
    remains: list[Reason] = []
    kept: list[Reason] = []
    spare: list[Reason] = []
    leftovers: list[Reason] = []
    last = max(rules.keep_last, KEPT_ALWAYS)
    for number, place in enumerate(_places(good)):
        for each in place:
            if why := _why_kept(number, each, standing, rules, last):
                kept.append(Reason(each, why))
            else:
                spare.append(Reason(each, f"beyond the newest {last} that are kept"))
    for number, each in enumerate(left):
        tip = "the newest of the branches that were left: the way back to them" if number == 0 else ""
        if why := tip or _why_kept(last, each, standing, rules, last):
            kept.append(Reason(each, why))
        else:
            spare.append(Reason(each, "of a branch that was left, and not its newest"))
    for each in held:
        if each.kind is Kind.CHECKPOINT and each not in good and each not in left:
            kept.append(Reason(each, each.wrong or "the ledger does not know it as verified"))
    while bound := [(each, by) for each in spare for by in kept if _share(each.held, by.held)]:
        reason, by = bound[0]
        spare.remove(reason)
        kept.append(Reason(reason.held, f"its files are those of {by.held.name}, which stays"))
    spare.sort(key=lambda each: (each.held.step, -each.held.age_s))
    for each in held:
        if each.kind is Kind.UNFINISHED:
            if (each.name.removeprefix(HIDDEN), each.digest) in standing.deleting:
                remains.append(Reason(each, "its deletion was cut short"))
            else:
                kept.append(Reason(each, "the ledger knows nothing of its deletion"))
        elif each.kind in (Kind.REFUSED, Kind.STRANDED, Kind.TORN):
            why = _why_left(each, standing, rules)
            (kept if why else leftovers).append(Reason(each, why or f"a {each.kind.value}, older than a day"))
    # The manifest in quarantine/ goes last: it is what tells whose the files are.
    leftovers.sort(key=lambda each: (each.held.name.endswith(f"/{each.held.origin}"), -each.held.age_s, each.held.name))
    return tuple(remains), tuple(kept), (*leftovers, *spare)


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


def _why_left(held: Held, standing: Standing, rules: Rules) -> str:
    if held.kind is not Kind.TORN and not _was_moved(held, standing):
        return "the ledger knows nothing of its being moved there"
    if not rules.leftovers:
        return f"a {held.kind.value}; [retention] leftovers = true lets it go"
    if held.age_s < OLD_S:
        return f"a {held.kind.value}, and younger than a day"
    return f"{held.open_by} has it open" if held.open_by else ""


def _was_moved(held: Held, standing: Standing) -> bool:
    """By the ledger: moved, or begun to be, by a move that a crash cut short; what was written since is another's, and
    so is what a person laid into quarantine/ later."""
    if held.kind is Kind.REFUSED and held.origin in standing.moved:
        return True
    return any(
        _is_place_of(held.origin, name)
        and held.touched_wall_s <= begun_wall_s
        and (held.kind is Kind.STRANDED or held.renamed_wall_s <= begun_wall_s + _MOVE_S)
        for name, begun_wall_s in standing.moving
    )


def _is_place_of(place: str, name: str) -> bool:
    """quarantine.py numbers what is there already: `x.manifest.json`, `x.manifest.json.2`."""
    return place == name or (place.startswith(f"{name}.") and place.removeprefix(f"{name}.").isdecimal())
