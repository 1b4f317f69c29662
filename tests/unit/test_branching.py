"""Going back in a living supervisor: asked, read back, recorded, and only then followed; on a real folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from watchdog import contract
from watchdog.branching import Branching
from watchdog.checkpoints.verifier import Found, Knowledge, Verifier
from watchdog.core.branching import GoBack
from watchdog.core.choice import Known, Line, back_to
from watchdog.core.seen import Request
from watchdog.core.state import Record
from watchdog.errors import RecordingError

Wait = Callable[..., object]


def save(folder: Path, step: int, run_id: str = "1-a") -> Known:
    content = f"{step} of {run_id}".encode()
    written = contract.write_durably(folder / f"c-{step}.bin", lambda file: file.write(content))
    manifest = contract.Manifest(step=step, files=(written,), run_id=run_id)
    contract.write_json_durably(folder / f"c-{step}{contract.MANIFEST_SUFFIX}", manifest.to_record())
    return Known(step=step, digest=manifest.digest, run_id=run_id)


class Bed:
    """A folder with the steps 10, 20 and 30, all of them known; what was recorded, and a disk that may refuse."""

    def __init__(self, folder: Path, wait_until: Wait, level: int = 2) -> None:
        self.folder, self.wait_until = folder, wait_until
        self.known = tuple(save(folder, step) for step in (10, 20, 30))
        self.records: list[Record] = []
        self.troubles: list[str] = []
        self.full = False
        self.line = Line()
        self.verifier = Verifier(folder, folder / "lineage")
        self.branching = Branching(level, self.verifier, self.record, self.troubles.append)

    def record(self, records: Sequence[Record]) -> None:
        if self.full:
            raise RecordingError("the disk is full")
        self.records += records

    @property
    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(known=self.known, run_ids=("1-a",), refused_runs=frozenset(), ledger_knew=True, line=self.line)

    def result(self) -> Found:
        found: list[Found] = []

        def look() -> bool:
            found.extend(self.verifier.results())
            return bool(found)

        self.wait_until(look, "the verifier's word")
        return found[0]


@pytest.fixture
def bed(tmp_path: Path, wait_until: Wait) -> Bed:
    bed = Bed(tmp_path, wait_until)
    bed.branching.look(bed.knowledge)
    return bed


def wish(step: int, *, afresh: bool = False) -> GoBack:
    return GoBack(step=step, by="joe", why="the loss jumped", afresh=afresh)


@pytest.mark.parametrize(("afresh", "request_"), [(False, Request.RELAUNCH), (True, Request.RELAUNCH_AFRESH)])
def test_it_is_read_back_before_the_run_is_asked_to_end(bed: Bed, afresh: bool, request_: Request) -> None:
    assert bed.branching.wish(wish(20, afresh=afresh)) is None
    assert bed.kinds == []
    bed.branching.look(bed.knowledge)
    assert bed.kinds == ["branch_asked"]
    found = bed.result()
    assert bed.branching.take(Found(order=found.order + 1)) is None, "another order's result"
    assert bed.branching.take(found) is request_
    assert bed.kinds == ["branch_asked", "branched"]
    assert (bed.records[1].data["step"], bed.records[1].data["digest"]) == (20, bed.known[1].digest)
    assert bed.branching.take(found) is None, "once"


def test_what_was_never_verified_is_refused_at_once(bed: Bed) -> None:
    assert "verified are 10, 20, 30" in str(bed.branching.wish(wish(25)))
    bed.branching.look(bed.knowledge)
    assert bed.kinds == []


def test_a_job_without_checkpoints_has_no_earlier_step(tmp_path: Path, wait_until: Wait) -> None:
    assert "of level 1" in str(Bed(tmp_path, wait_until, level=1).branching.wish(wish(20)))


@pytest.mark.parametrize("harm", ["changed", "gone", "swapped"])
def test_what_is_not_what_it_was_is_recorded_and_not_followed(bed: Bed, harm: str) -> None:
    """Also a checkpoint whose manifest and files agree, of a run that is none of this job."""
    match harm:
        case "changed":
            (bed.folder / "c-20.bin").write_bytes(b"another thing")
        case "gone":
            (bed.folder / f"c-20{contract.MANIFEST_SUFFIX}").unlink()
        case "swapped":
            save(bed.folder, 20, "9-of-another-job")
    bed.branching.wish(wish(20))
    bed.branching.look(bed.knowledge)
    assert bed.branching.take(bed.result()) is None
    assert bed.kinds == ["branch_asked", "branch_refused"]
    assert "nothing was stopped" in bed.records[1].sentence


def test_what_cannot_be_recorded_is_not_done(bed: Bed) -> None:
    bed.branching.wish(wish(20))
    bed.full = True
    bed.branching.look(bed.knowledge)
    assert (bed.kinds, bed.troubles) == ([], ["the disk is full"])
    bed.full = False
    bed.branching.look(bed.knowledge)
    found = bed.result()
    bed.full = True
    assert bed.branching.take(found) is None
    assert bed.kinds == ["branch_asked"]


def test_the_choice_keeps_to_the_line(bed: Bed) -> None:
    """What was left is neither read nor moved; nothing before what was asked for is taken instead."""
    bed.line = back_to(Line(), bed.known[1], ["1-a"], "joe: w")
    (bed.folder / "c-30.bin").write_bytes(b"it is not even looked at")
    bed.verifier.choose(bed.knowledge)
    choice = bed.result().choice
    assert choice is not None
    assert choice.chosen is not None
    assert (choice.chosen.step, choice.refused) == (20, ())
    (bed.folder / "c-20.bin").write_bytes(b"damaged")
    bed.verifier.choose(bed.knowledge)
    choice = bed.result().choice
    assert choice is not None
    assert (choice.chosen, choice.first_start) == (None, False)
    assert "step 20, which was asked for (joe: w), cannot be verified now" in choice.why
