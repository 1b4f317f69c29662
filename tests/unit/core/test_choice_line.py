"""Going back to an earlier step: which branch is gone on from, whatever is asked for next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.world import digest_of, events_of, launching, make_checkpoint
from watchdog.core.branching import branched, refusal_of, unverified
from watchdog.core.choice import Choice, Known, Line, Refusal, back_to, conclude_choice
from watchdog.core.history import can_fold, fold
from watchdog.core.state import Record


def known(step: int, run_id: str | None = "1-a", version: int = 0) -> Known:
    return Known(step=step, digest=digest_of(step, version), run_id=run_id)


def test_what_was_saved_beyond_the_step_is_left_and_what_comes_after_is_not() -> None:
    line = back_to(Line(), known(40), ["1-a", "2-a"], "joe: the loss jumped")
    for left in (known(41), known(57), known(57, "2-a"), known(50, None)):
        assert line.abandons(left), left
    for stands in (known(40), known(30), known(0), known(40, "2-a"), known(41, "3-a"), known(57, "3-a")):
        assert not line.abandons(stands), stands
    assert line.abandons_run("2-a")
    assert not line.abandons_run("3-a")


def test_whoever_asks_for_a_branch_that_was_left_leaves_the_other_one() -> None:
    line = back_to(Line(), known(40), ["1-a", "2-a"], "w")
    line = back_to(line, known(57), ["1-a", "2-a", "3-a"], "it was better")
    for stands in (known(57), known(50), known(41), known(40)):
        assert not line.abandons(stands), stands
    for left in (known(50, "3-a"), known(90, "3-a"), known(58)):
        assert line.abandons(left), left
    assert not line.abandons(known(60, "4-a"))


def test_a_checkpoint_of_nobody_that_was_asked_for_is_taken() -> None:
    """Trained by hand, so of no run: it lies on every branch that was left, but for being asked for."""
    line = back_to(Line(), known(40), ["1-a"], "w")
    by_hand = known(57, None)
    assert line.abandons(by_hand)
    line = back_to(line, by_hand, ["1-a", "2-a"], "w")
    assert not line.abandons(by_hand)
    assert line.abandons(known(60, None))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=6))
def test_what_was_asked_for_last_always_stands_and_nothing_older_is_taken_instead(asked: list[tuple[int, int]]) -> None:
    line = Line()
    for count, (step, run) in enumerate(asked, start=1):
        runs = [f"{number}-a" for number in range(1, count + 1)]
        base = known(step, None if run == 0 else runs[min(run, count) - 1])
        line = back_to(line, base, runs, "w")
        assert not line.abandons(base)
        assert not line.is_below(base.step)
        for later in range(step + 1, 10):
            assert all(line.abandons(known(later, run_id)) for run_id in (*runs, None)), "beyond what was asked for"
            assert not line.abandons(known(later, f"{count + 1}-a")), "what the next run saves"


def test_nothing_older_than_what_was_asked_for_is_launched_from() -> None:
    """Else a damaged file would take a person further back than they had said."""
    line = back_to(Line(), known(40), ["1-a"], "joe: the loss jumped")
    refused = (Refusal(manifest="/c/step-40", step=40, why="model.pt is 12… and was 34…"),)
    for older in (make_checkpoint(30), None):
        choice = conclude_choice(chosen=older, refused=refused, ever_knew=True, line=line)
        assert (choice.chosen, choice.first_start) == (None, False)
        assert "step 40, which was asked for (joe: the loss jumped), cannot be verified now" in choice.why
        assert "model.pt is 12" in choice.why
    assert conclude_choice(chosen=make_checkpoint(40), refused=(), ever_knew=True, line=line).chosen is not None
    assert conclude_choice(chosen=make_checkpoint(45), refused=refused, ever_knew=True, line=line).chosen is not None
    assert conclude_choice(chosen=make_checkpoint(3), refused=(), ever_knew=True, line=Line()).chosen is not None


def test_where_nothing_is_left_nobody_is_told_to_name_another_one() -> None:
    """What was asked for once was carried out long ago: the true thing is that all of them are gone."""
    for line in (None, back_to(Line(), known(40), ["1-a"], "joe: the loss jumped")):
        choice = conclude_choice(chosen=None, refused=(), ever_knew=True, line=line, empty=True)
        assert (choice.chosen, choice.first_start) == (None, False)
        assert "name another one" not in choice.why
        assert "none lies in its folder any more; is its disk mounted?" in choice.why
        assert "to begin anew: watchdog run --new" in choice.why
    assert conclude_choice(chosen=None, refused=(), ever_knew=False, empty=True).first_start


def test_the_ledger_remembers_the_branch() -> None:
    def verified(step: int, run_id: str) -> Record:
        data = {"step": step, "digest": digest_of(step), "run_id": run_id}
        return Record("checkpoint_verified", "v", data)

    records = [launching(1, "1-a", -1), verified(40, "1-a"), verified(50, "1-a"), Record("finished", "f", {"step": 50})]
    history = fold(events_of(records))
    assert history.newest == known(50)
    back = branched(make_checkpoint(40), by="joe (uid 7)", why="the loss jumped")
    history = fold(events_of([*records, back]))
    assert (history.newest, history.finished) == (known(40), None)
    assert history.line.asked == known(40)
    assert history.line.words == "joe (uid 7): the loss jumped"
    # The run that was alive saves once more, and one of the new branch does.
    records += [back, verified(57, "1-a"), launching(2, "2-a", 40), verified(45, "2-a")]
    history = fold(events_of(records))
    assert history.newest == known(45, "2-a")
    assert known(57) in history.known, "it was verified, and can be asked for"
    refused = Record("checkpoint_refused", "r", {"step": 45})
    assert fold(events_of([*records, refused])).newest == known(40)
    assert fold(events_of([*records, Record("archived", "a")])).line == Line()


@pytest.mark.parametrize("missing", ["step", "digest", "by", "why"])
def test_a_branch_without_what_it_needs_is_no_record(missing: str) -> None:
    back = branched(make_checkpoint(40), by="joe", why="w")
    data = {name: value for name, value in back.data.items() if name != missing}
    assert can_fold(events_of([back])[0])
    assert not can_fold(events_of([Record("branched", "b", data)])[0])


def test_a_step_that_was_never_verified_is_told_with_those_that_were() -> None:
    assert unverified(40, [known(40), known(50)]) is None
    said = unverified(41, [known(50), known(40), known(40, "2-a", 1)])
    assert said == "--from 41: step 41 was never verified; verified are 40, 50"
    assert unverified(41, [known(step) for step in range(0, 30)]).endswith("29 and 10 before them")  # type: ignore[union-attr]
    left = unverified(40, [known(40), known(50)], there=[known(50)], pruned={40: "02:14:07"})
    assert left == "--from 40: step 40 was pruned at 02:14:07; verified and there are 50"
    assert unverified(41, [known(40)], there=[]).endswith("of those that were none is left in the folder")  # type: ignore[union-attr]
    assert unverified(0, []) == "--from 0: no step of this job was ever verified"


def test_why_nobody_goes_back() -> None:
    gone = Choice(chosen=None, first_start=False, refused=(), why="w")
    assert refusal_of(40, gone, None).endswith("its checkpoint is not in the folder any more")
    assert refusal_of(40, None, "c: Input/output error").endswith("cannot be read: c: Input/output error")
    damaged = Choice(chosen=None, first_start=False, refused=(Refusal(manifest="m", step=40, why="short"),), why="w")
    assert refusal_of(40, damaged, None) == "nobody goes back to step 40, and nothing was stopped: short"
