"""Which checkpoints may go. Each law is tried with everything that hypothesis can put into a folder."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.branching import branched
from watchdog.core.choice import Checkpoint, Known, Line, back_to
from watchdog.core.retention import Held, Kind, Plan, Reason, Rules, Standing, plan

MIB = 1024**2
DAY_S = 86400.0
RULES = Rules(keep_last=3, keep_every=None, leftovers=False, need_bytes=100 * MIB)


def one(step: int, **changes: object) -> Held:
    name = f"step-{step}.manifest.json"
    plain = Held(
        name=name,
        kind=Kind.CHECKPOINT,
        size_bytes=10 * MIB,
        age_s=1000.0 - step,
        step=step,
        digest=f"d{step}",
        run_id="1-a",
        proven=True,
        files=frozenset({(f"step-{step}.pt", 10 * MIB)}),
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def standing(*held: Held, **changes: object) -> Standing:
    known = tuple(Known(step=each.step, digest=each.digest, run_id=each.run_id) for each in held)
    return dataclasses.replace(Standing(known=known), **changes)  # type: ignore[arg-type]


def steps(reasons: tuple[Reason, ...]) -> list[int]:
    return [each.held.step for each in reasons]


def test_everything_beyond_the_newest_goes_the_oldest_first_and_each_has_its_reason() -> None:
    held = [one(step) for step in (30, 10, 50, 20, 40)]
    found = plan(held, standing(*held), RULES, free_bytes=None)
    assert steps(found.deletions) == [10, 20]
    assert sorted(steps(found.kept)) == [30, 40, 50]
    assert all(each.why for each in (*found.deletions, *found.kept))


def test_milestones_stay_for_good_and_step_0_is_none() -> None:
    held = [one(step) for step in range(0, 100, 10)]
    found = plan(held, standing(*held), dataclasses.replace(RULES, keep_every=20), free_bytes=None)
    assert steps(found.deletions) == [0, 10, 30, 50]


def test_no_more_goes_than_the_disk_lacks() -> None:
    held = [one(step) for step in range(10)]
    assert plan(held, standing(*held), RULES, free_bytes=100 * MIB) == Plan()
    found = plan(held, standing(*held), RULES, free_bytes=75 * MIB)
    assert (steps(found.deletions), found.lacking_bytes, found.why_not) == ([0, 1, 2], 25 * MIB, "")


def test_where_all_of_it_would_not_do_nothing_goes_at_a_gate_and_beside_a_run_room_for_one_save() -> None:
    """Seventy MiB may go, a hundred are lacking: a launch that waits for them would wait all the same."""
    held = [one(step) for step in range(10)]
    found = plan(held, standing(*held), RULES, free_bytes=0, at_gate=True)
    assert not found.deletions
    assert found.why_not == (
        "all that may go would give 70.00 MiB, and the disk lacks 100.00 MiB: no checkpoint is deleted"
    )
    assert steps(plan(held, standing(*held), RULES, free_bytes=0).deletions) == [0]
    rules = dataclasses.replace(RULES, keep_last=20, leftovers=True)
    torn = Held(name=".b.12.tmp", kind=Kind.TORN, size_bytes=MIB, age_s=3 * DAY_S)
    for at_gate in (True, False):
        found = plan([*held, torn], standing(*held), rules, free_bytes=0, at_gate=at_gate)
        assert not found.deletions
        assert "would give 1.00 MiB" in found.why_not


# --- two manifests of the same bytes ------------------------------------------------------------------------
def alias(of: Held, **changes: object) -> Held:
    return dataclasses.replace(of, name="latest.manifest.json", **changes)  # type: ignore[arg-type]


def test_an_alias_takes_no_place() -> None:
    held = [one(step) for step in (10, 20, 30)]
    both = [*held, alias(held[-1])]
    found = plan(both, standing(*held), dataclasses.replace(RULES, keep_last=2), free_bytes=None)
    assert steps(found.deletions) == [10]
    two = [held[1], held[2], alias(held[2], digest="other")]
    assert not plan(two, standing(*two), dataclasses.replace(RULES, keep_last=2), free_bytes=None).deletions


def test_two_names_of_one_set_of_bytes_are_not_two_that_stay() -> None:
    held = [one(20), one(30, wrong="rotted")]
    found = plan([*held, alias(held[0]), one(10, age_s=1.0)], standing(*held), RULES, free_bytes=None)
    assert not found.deletions
    assert (
        "1 verified checkpoints lie there"
        in plan(
            [
                one(20),
                alias(one(20)),
                Held(name="quarantine/a", kind=Kind.REFUSED, size_bytes=1, age_s=DAY_S, origin="a"),
            ],
            standing(one(20), moved=frozenset({"a"})),
            dataclasses.replace(RULES, leftovers=True),
            free_bytes=None,
        ).why_not
    )


def test_while_an_alias_stays_none_of_its_files_goes() -> None:
    """Whatever keeps it: here nobody knows the alias, for it says another step."""
    held = [one(step) for step in (10, 20, 30, 40)]
    named = alias(held[0], step=15)
    found = plan([*held, named], standing(*held), dataclasses.replace(RULES, keep_last=2), free_bytes=None)
    assert steps(found.deletions) == [20]
    assert "its files are those of latest.manifest.json" in {each.held.step: each.why for each in found.kept}[10]


def test_an_alias_goes_with_its_place_and_what_they_share_counts_once() -> None:
    held = [one(step) for step in (10, 20, 30, 40)]
    first, also = one(10, size_bytes=0), alias(one(10), size_bytes=0)
    rules = dataclasses.replace(RULES, keep_last=2, need_bytes=25 * MIB)
    found = plan([first, also, *held[1:]], standing(*held), rules, free_bytes=5 * MIB, at_gate=True)
    assert steps(found.deletions) == [10, 10, 20]


# --- what a crash has left ----------------------------------------------------------------------------------
def test_remains_that_the_ledger_knows_nothing_of_stay_and_none_goes_before_two_are_proven() -> None:
    held = [one(step) for step in (10, 20, 30)]
    rest = Held(name=".deleting-x.manifest.json", kind=Kind.UNFINISHED, size_bytes=MIB, age_s=1.0, digest="x")
    ours = frozenset({("x.manifest.json", "x")})

    def gone(*things: Held, deleting: frozenset[tuple[str, str]] = ours, free_bytes: int | None = None) -> list[Held]:
        stands = standing(*held, deleting=deleting)
        return [each.held for each in plan([*things, rest], stands, RULES, free_bytes=free_bytes).deletions]

    assert gone(*held) == gone(*held, free_bytes=200 * MIB) == [rest]
    for strange in (frozenset[tuple[str, str]](), frozenset({("x.manifest.json", "y")}), frozenset({("y", "x")})):
        assert gone(*held, deleting=strange) == []
        kept = plan([*held, rest], standing(*held, deleting=strange), RULES, free_bytes=None).kept
        assert "the ledger knows nothing of its deletion" in [each.why for each in kept]
    assert gone(held[0]) == []
    unproven = [one(step, proven=False) for step in (20, 30)]
    assert gone(*unproven) == []
    found = plan([*unproven, rest], standing(*held, deleting=ours), RULES, free_bytes=200 * MIB)
    assert len(found.unproven) == 2


def test_room_for_one_more_checkpoint_is_a_need_too() -> None:
    held = [one(step, size_bytes=300 * MIB) for step in range(10)]
    assert steps(plan(held, standing(*held), RULES, free_bytes=150 * MIB).deletions) == [0]


def test_a_disk_that_is_full_of_what_stays_says_so() -> None:
    held = [one(step) for step in range(3)]
    found = plan(held, standing(*held), RULES, free_bytes=0)
    assert not found.deletions
    assert found.why_not == "[retention] keeps all 3 verified checkpoints"


def test_leftovers_go_only_when_the_policy_says_so_and_after_a_day() -> None:
    held = [one(step) for step in range(3)]
    refused = Held(name="quarantine/a.pt", kind=Kind.REFUSED, size_bytes=MIB, age_s=2 * DAY_S, origin="a.json")
    strange = dataclasses.replace(refused, name="quarantine/mine.pt", origin="")
    torn = Held(name=".b.12.tmp", kind=Kind.TORN, size_bytes=MIB, age_s=3 * DAY_S)
    young = dataclasses.replace(torn, name=".c.12.tmp", age_s=DAY_S / 2)
    in_use = dataclasses.replace(torn, name=".d.12.tmp", open_by="pid 7")
    everything = [*held, refused, strange, torn, young, in_use]
    assert not plan(everything, standing(*held), RULES, free_bytes=None).deletions
    stands = standing(*held, moved=frozenset({"a.json"}))
    found = plan(everything, stands, dataclasses.replace(RULES, leftovers=True), free_bytes=None)
    assert [each.held.name for each in found.deletions] == [".b.12.tmp", "quarantine/a.pt"]


def test_a_branch_that_was_left_counts_for_nothing_and_keeps_its_newest() -> None:
    """Three newer ones that nothing is launched from must not be the three that stay."""
    old = [one(step) for step in range(0, 60, 10)]
    asked = Known(step=20, digest="d20", run_id="1-a")
    new = one(30, digest="n30", run_id="2-b", name="again-30.manifest.json", files=frozenset({("again-30.pt", MIB)}))
    held = [*old, new]
    stands = standing(*held, line=back_to(Line(), asked, ["1-a"], "a person"))
    found = plan(held, stands, RULES, free_bytes=None)
    assert steps(found.deletions) == [0, 30, 40]
    assert all(each.held.run_id == "1-a" for each in found.deletions)
    kept = {each.held.digest: each.why for each in found.kept}
    assert set(kept) == {"n30", "d20", "d10", "d50"}
    assert "way back" in kept["d50"]


def test_who_goes_back_is_told_that_what_was_left_may_go() -> None:
    """It said that all of it stays, and all but its newest went."""
    words = branched(Checkpoint(step=20, digest="d20", manifest="x"), by="a person", why="loss").sentence
    assert "stays" not in words
    assert words.endswith("is not chosen any more; [retention] lets go all but its newest")


def test_what_a_person_went_back_to_stays() -> None:
    old = [one(step) for step in range(0, 60, 10)]
    new = [one(step, digest=f"n{step}", run_id="2-b") for step in (30, 40, 50, 60)]
    asked = Known(step=10, digest="d10", run_id="1-a")
    stands = standing(*old, *new, line=back_to(Line(), asked, ["1-a"], "a person"))
    found = plan([*old, *new], stands, RULES, free_bytes=None)
    assert "d10" not in {each.held.digest for each in found.deletions}


def test_what_a_run_was_launched_from_and_what_is_open_stays() -> None:
    held = [one(step, open_by="pid 7" if step == 20 else "") for step in range(0, 60, 10)]
    found = plan(held, standing(*held, in_use=frozenset({(10, "d10")})), RULES, free_bytes=None)
    assert steps(found.deletions) == [0]


def test_what_was_never_verified_is_not_ours_to_delete_and_is_none_that_stays() -> None:
    """Nor what a run saved that had not restored what it should, nor what is not whole."""
    held = [one(10), one(20), one(30), one(40)]
    strange, refused = one(50), one(60, run_id="2-b")
    broken = one(70, wrong="step-70.pt is missing")
    stands = standing(*held, refused, broken, refused_runs=frozenset({"2-b"}))
    found = plan([*held, strange, refused, broken], stands, RULES, free_bytes=None)
    assert steps(found.deletions) == [10]
    kept = {each.held.step: each.why for each in found.kept}
    assert kept[40] == "the newest verified"
    assert "does not know" in kept[50]
    assert "is missing" in kept[70]


@pytest.mark.parametrize("keep_last", [0, 1, 2])
def test_two_always_stay(keep_last: int) -> None:
    held = [one(step) for step in (10, 20, 30)]
    rules = dataclasses.replace(RULES, keep_last=keep_last)
    assert steps(plan(held, standing(*held), rules, free_bytes=None).deletions) == [10]
    assert not plan(held[:2], standing(*held), rules, free_bytes=0).deletions
    assert not plan(held[:1], standing(*held), rules, free_bytes=0).deletions
    assert not plan([], standing(), rules, free_bytes=0).deletions


def test_nothing_goes_before_the_newest_two_were_read_back() -> None:
    held = [one(step, proven=step == 20) for step in (10, 20, 30, 40, 50)]
    found = plan(held, standing(*held), RULES, free_bytes=None)
    assert not found.deletions
    assert [each.step for each in found.unproven] == [50, 40]


# --- the laws -----------------------------------------------------------------------------------------------
STEPS = st.integers(0, 8).map(lambda step: step * 5)
RUNS = st.sampled_from(["1-a"] * 4 + ["2-b", None])
DIGESTS = st.sampled_from(["a"] * 4 + ["b"])
FILES = st.frozensets(st.integers(0, 11), max_size=3)
EVERYTHING = [
    Known(step=step * 5, digest=f"{step * 5}{digest}", run_id=run_id)
    for step in range(9)
    for digest in "ab"
    for run_id in (None, "1-a", "2-b")
]


def helds() -> st.SearchStrategy[list[Held]]:
    one_held = st.builds(
        Held,
        name=st.uuids().map(str),
        kind=st.sampled_from([Kind.CHECKPOINT] * 12 + [Kind.UNFINISHED, Kind.REFUSED, Kind.STRANDED, Kind.TORN]),
        size_bytes=st.integers(0, 50 * MIB),
        age_s=st.floats(0, 4 * DAY_S),
        step=STEPS,
        digest=DIGESTS,
        run_id=RUNS,
        proven=st.sampled_from([True] * 5 + [False]),
        wrong=st.sampled_from([""] * 7 + ["is missing"]),
        open_by=st.sampled_from([""] * 7 + ["pid 7"]),
        files=FILES.map(lambda names: frozenset((str(name), name * MIB) for name in names)),
        origin=st.sampled_from(["", "moved", "moving", "moving.2", "moving.old"]),
        touched_wall_s=st.sampled_from([99.0, 100.0, 101.0]),
    ).map(lambda each: dataclasses.replace(each, digest=f"{each.step}{each.digest}"))
    return st.lists(one_held, min_size=2, max_size=14)


def alike(one: Held, other: Held) -> bool:
    names, others = {name for name, _ in one.files}, {name for name, _ in other.files}
    return bool(names and others) and (names <= others or others <= names)


def places(of: list[Held]) -> int:
    """So many of them at least hold bytes that no other of them holds."""
    apart: list[Held] = []
    for each in of:
        if not any(each.digest == other.digest or alike(each, other) for other in apart):
            apart.append(each)
    return len(apart)


def freed_bytes(gone: list[Held], held: list[Held]) -> int:
    """What is not named any more when these are gone, a file once."""
    checkpoints = [each for each in held if each.kind is Kind.CHECKPOINT]
    named = [name for each in checkpoints for name, _ in each.files]
    still = {name for each in checkpoints if each not in gone for name, _ in each.files}
    shared = {file for each in gone for file in each.files if named.count(file[0]) > 1 and file[0] not in still}
    return sum(each.size_bytes for each in gone) + sum(size for _, size in shared)


STANDINGS = st.builds(
    Standing,
    known=st.sets(st.sampled_from(EVERYTHING), max_size=12).map(
        lambda unknown: tuple(each for each in EVERYTHING if each not in unknown)
    ),
    refused_runs=st.sampled_from([frozenset(), frozenset({"2-b"})]),
    in_use=st.sets(st.tuples(STEPS, DIGESTS), max_size=2).map(
        lambda pairs: frozenset((step, f"{step}{digest}") for step, digest in pairs)
    ),
    line=st.sampled_from([Line(), back_to(Line(), Known(step=10, digest="10a", run_id="1-a"), ["1-a"], "a person")]),
    moved=st.sampled_from([frozenset(), frozenset({"moved"})]),
    moving=st.sampled_from([frozenset(), frozenset({("moving", 100.0)})]),
)
POLICIES = st.builds(
    Rules,
    keep_last=st.integers(0, 6),
    keep_every=st.sampled_from([None, 5, 15]),
    leftovers=st.booleans(),
    need_bytes=st.integers(0, 100 * MIB),
)


@given(helds(), STANDINGS, POLICIES, st.none() | st.integers(0, 100 * MIB), st.booleans(), st.booleans())
def test_no_law_is_broken(
    held: list[Held], stands: Standing, rules: Rules, free_bytes: int | None, at_gate: bool, begun: bool
) -> None:
    if begun:
        deleting = frozenset((each.name, each.digest) for each in held if each.kind is Kind.UNFINISHED)
        stands = dataclasses.replace(stands, deleting=deleting)
    found = plan(held, stands, rules, free_bytes=free_bytes, at_gate=at_gate)
    gone = [each.held for each in found.deletions]
    assert len({each.name for each in gone}) == len(gone)

    def is_verified(each: Held) -> bool:
        claim = Known(step=each.step, digest=each.digest, run_id=each.run_id)
        return claim in stands.known and each.run_id not in stands.refused_runs and not each.wrong

    def goes_on(each: Held) -> bool:
        return not stands.line.abandons(Known(step=each.step, digest=each.digest, run_id=each.run_id))

    checkpoints = [each for each in held if each.kind is Kind.CHECKPOINT]
    stays = [each for each in checkpoints if each not in gone and is_verified(each) and goes_on(each)]
    for each in gone:
        # Two that are newer or as new stay, verified, read back just now, and not of a branch that was left.
        proven = [other for other in stays if other.proven]
        assert places(sorted(proven, key=lambda other: -other.step)) >= 2
        if each.kind is Kind.UNFINISHED:
            assert begun
        elif each.kind is Kind.CHECKPOINT:
            assert not [other for other in checkpoints if other not in gone and alike(each, other)] or free_bytes
            assert is_verified(each)
            assert not each.open_by
            assert (each.step, each.digest) not in stands.in_use
            assert not (rules.keep_every and each.step and each.step % rules.keep_every == 0)
            if goes_on(each):
                newer = sorted((other for other in stays if other.step >= each.step), key=lambda other: -other.step)
                assert places(newer) >= 2
                assert len(newer) >= max(2, rules.keep_last)
        else:
            cut_short = stands.moving and each.origin in ("moving", "moving.2") and each.touched_wall_s <= 100.0
            whole = each.kind is Kind.REFUSED and each.origin in stands.moved
            assert each.kind is Kind.TORN or whole or cut_short
            assert rules.leftovers
            assert each.age_s >= DAY_S
            assert not each.open_by
    going_on = [each.step for each in checkpoints if is_verified(each) and goes_on(each)]
    if going_on:
        assert max(going_on) in [each.step for each in stays], "the newest verified went"
    assert not (found.unproven and gone)
    if free_bytes is not None:  # the last one was needed, too
        chosen = [each for each in gone if each.kind is not Kind.UNFINISHED]
        assert not chosen or freed_bytes(gone[:-1], held) < found.lacking_bytes
        assert not chosen or freed_bytes(gone, held) >= found.lacking_bytes, "it was in vain"


@given(helds(), STANDINGS, POLICIES)
def test_what_was_deleted_changes_nothing_for_the_rest(held: list[Held], stands: Standing, rules: Rules) -> None:
    """One at a time, planned again after each: the end is the same as that of the whole plan."""
    whole = plan(held, stands, rules, free_bytes=None)
    left, gone = list(held), []
    while (found := plan(left, stands, rules, free_bytes=None)).deletions:
        gone.append(found.deletions[0].held.name)
        left = [each for each in left if each.name != gone[-1]]
    assert gone == [each.held.name for each in whole.deletions]
