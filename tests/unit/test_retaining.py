"""Pruning beside the loop: looked at, recorded, done, recorded, one at a time; in that order or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from tests.host.test_prune import known
from tests.unit.checkpoints.disk import write
from tests.unit.core.world import make_run
from watchdog import retaining
from watchdog.actuators.prune import PrunableFolder
from watchdog.actuators.seen_folder import Looked
from watchdog.checkpoints.catalogue import find_candidates
from watchdog.clock import SystemClock
from watchdog.core.choice import Checkpoint, Choice, Known
from watchdog.core.history import Event, History, can_fold, fold
from watchdog.core.phase import Phase
from watchdog.core.retention import Held
from watchdog.core.runrecord import Expectation
from watchdog.core.state import Record, State
from watchdog.errors import RecordingError
from watchdog.retaining import Pruner, standing_of
from watchdog.settings import load

Wait = Callable[..., object]
GATING = State(phase=Phase.GATING, since_s=0.0)
RUNNING = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(expectation=Expectation(fresh=True)))


class SmallDisk(PrunableFolder):
    """The folder as on a disk of so many bytes that nobody else writes to."""

    size_bytes = 0

    def look(self) -> Looked:
        looked = super().look()
        used = sum(each.size_bytes for each in looked.held)
        return dataclasses.replace(looked, free_bytes=max(0, self.size_bytes - used))


class Bed:
    """A folder of six checkpoints, a ledger in memory that may refuse, and a pruner over both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "checkpoints"
        for step in range(10, 70, 10):
            write(self.folder, step)
        self.history = self.history_of(known(self.folder))
        self.records: list[Record] = []
        self.there: list[set[int]] = []  # the steps that lay there when each record came
        self.refused_from = 1000
        self.said: list[str] = []
        self.verifying = False
        self.on_record: Callable[[Record], None] = lambda _: None

    def history_of(self, claims: Sequence[Known]) -> History:
        kinds = [{"step": each.step, "digest": each.digest, "run_id": each.run_id} for each in claims]
        return fold(
            Event(seq=number, wall_s=0.0, kind="checkpoint_verified", sentence="", data=data)
            for number, data in enumerate(sorted(kinds, key=lambda data: str(data["step"])), start=1)
        )

    def steps(self) -> set[int]:
        return {each.step for each in find_candidates(self.folder)}

    def record(self, records: Sequence[Record]) -> None:
        if len(self.records) >= self.refused_from:
            raise RecordingError("the disk is full")
        self.records += records
        self.there.append(self.steps())
        self.on_record(self.records[-1])

    def pruner(
        self, when: str, *, need: str = "0B", place: PrunableFolder | None = None, **retention: object
    ) -> Pruner:
        config = self.root / "watchdog.toml"
        lines = [f'when = "{when}"', *(f"{key} = {value}" for key, value in retention.items())]
        job = f'[job]\nname = "t"\ncommand = ["true"]\ncheckpoints = "{self.folder}"\n'
        config.write_text(job + f'[disk]\nneed = "{need}"\n[retention]\n' + "\n".join(lines) + "\n")
        settings = load(config=config, job=None, command=(), overrides={}, environ={}, home=self.root, cwd=self.root)
        clock = SystemClock()
        return Pruner(settings, place or PrunableFolder(self.folder, clock), clock, self.record, self.said.append)

    def turns(
        self, pruner: Pruner, state: State, until: Callable[[], bool], wait: Wait, choice: Choice | None = None
    ) -> None:
        def turn() -> bool:
            pruner.look(state, self.history, choice, verifying=self.verifying)
            return until()

        wait(turn, "the pruner")


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_each_is_recorded_before_and_after_and_alone(bed: Bed, wait_until: Wait) -> None:
    pruner = bed.pruner("always")
    bed.turns(pruner, RUNNING, lambda: len(bed.records) == 6, wait_until)
    assert [(record.kind, record.data["step"]) for record in bed.records] == [
        (kind, step) for step in (10, 20, 30) for kind in ("prune_planned", "pruned")
    ]
    everything = {10, 20, 30, 40, 50, 60}
    assert bed.there == [everything - gone for gone in (set(), {10}, {10}, {10, 20}, {10, 20}, {10, 20, 30})]
    assert all(record.data["freed_bytes"] > 12000 for record in bed.records[1::2])
    assert (
        bed.records[0].sentence == "step 10 (step-10.manifest.json) is to be deleted: beyond the newest 3 that are kept"
    )
    assert bed.said == []


@pytest.mark.parametrize("refused_from", [0, 1])
def test_what_cannot_be_recorded_is_not_deleted(bed: Bed, wait_until: Wait, refused_from: int) -> None:
    """Without the record before it nothing goes; without the one after it nothing more goes."""
    bed.refused_from = refused_from
    pruner = bed.pruner("always")
    bed.turns(pruner, RUNNING, lambda: bool(bed.said), wait_until)
    assert bed.said == ["nothing is deleted that cannot be recorded: the disk is full"]
    assert pruner._part is None
    for _ in range(50):
        pruner.look(RUNNING, bed.history, None, verifying=False)
    assert pruner._part is None
    assert bed.steps() == {10, 20, 30, 40, 50, 60} - ({10} if refused_from else set())


def test_nothing_goes_while_checkpoints_are_verified(bed: Bed, wait_until: Wait) -> None:
    bed.verifying = True
    pruner = bed.pruner("always")
    bed.turns(pruner, RUNNING, lambda: pruner.needs_quiet, wait_until)
    for _ in range(20):
        pruner.look(RUNNING, bed.history, None, verifying=True)
    assert not bed.records
    bed.verifying = False
    bed.turns(pruner, RUNNING, lambda: len(bed.records) == 6, wait_until)


def test_after_a_wait_for_the_verifier_the_folder_is_looked_at_anew(bed: Bed, wait_until: Wait) -> None:
    """It may have read for half an hour; meanwhile the trainer's own retention took what was to stay."""
    bed.verifying = True
    pruner = bed.pruner("always", keep_last=2)
    bed.turns(pruner, RUNNING, lambda: pruner.needs_quiet, wait_until)
    for step in (50, 60):
        for path in bed.folder.glob(f"step-{step}*"):
            path.unlink()
    bed.verifying = False
    bed.turns(pruner, RUNNING, lambda: bed.steps() == {30, 40}, wait_until)
    assert [record.data["step"] for record in bed.records if record.kind == "prune_planned"] == [10, 20]
    assert bed.said == []


def test_a_verifier_that_is_always_at_it_again_does_not_keep_it_from_deleting(bed: Bed, wait_until: Wait) -> None:
    """A slow disk: it begins anew whenever it may, and is not done when the look is."""
    pruner = bed.pruner("always")

    def busy() -> bool:
        bed.verifying = not pruner.needs_quiet
        return len(bed.records) == 6

    bed.turns(pruner, RUNNING, busy, wait_until)
    assert bed.steps() == {40, 50, 60}


def test_what_must_stay_and_is_gone_at_the_deletion_ends_the_pass(bed: Bed, wait_until: Wait) -> None:
    def take_away(record: Record) -> None:
        if record.kind == "prune_planned":
            for path in bed.folder.glob("step-60*"):
                path.unlink()

    bed.on_record = take_away
    pruner = bed.pruner("always")
    bed.turns(pruner, RUNNING, lambda: bool(bed.said), wait_until)
    [words] = bed.said
    assert "step-60.manifest.json is gone, of step-60.manifest.json, which must stay; nothing is deleted" in words
    assert bed.steps() == {10, 20, 30, 40, 50}


@pytest.mark.parametrize(
    "state",
    [
        GATING,
        State(phase=Phase.RUNNING, since_s=0.0, run=make_run(acknowledged=False)),
        State(phase=Phase.STOPPING, since_s=0.0, run=make_run()),
        State(phase=Phase.BACKOFF, since_s=0.0),
    ],
    ids=["gating", "loading", "stopping", "backoff"],
)
def test_nothing_goes_beside_a_run_that_loads_or_ends(bed: Bed, state: State) -> None:
    pruner = bed.pruner("always")
    assert not pruner.look(state, bed.history, None, verifying=False)
    assert pruner._part is None
    assert not bed.records


def test_a_pass_stops_when_the_run_does(bed: Bed, wait_until: Wait) -> None:
    pruner = bed.pruner("always")
    bed.turns(pruner, RUNNING, lambda: len(bed.records) == 1, wait_until)
    ending = State(phase=Phase.STOPPING, since_s=0.0, run=make_run())
    bed.turns(pruner, ending, lambda: len(bed.records) == 2, wait_until)
    for _ in range(20):
        pruner.look(ending, bed.history, None, verifying=False)
    assert [record.kind for record in bed.records] == ["prune_planned", "pruned"], "what was begun is told, no more"


def test_what_the_run_was_launched_from_stays_and_so_does_what_is_chosen(bed: Bed, wait_until: Wait) -> None:
    baseline = next(each for each in known(bed.folder) if each.step == 20)
    expected = Expectation(fresh=False, step=20, digest=baseline.digest)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(expectation=expected))
    bed.turns(bed.pruner("always"), state, lambda: len(bed.records) == 4, wait_until)
    assert bed.steps() == {20, 40, 50, 60}
    old = next(each for each in known(bed.folder) if each.step == 40)
    choice = Choice(chosen=Checkpoint(step=40, digest=old.digest, manifest="x"), first_start=False, refused=(), why="")
    bed.turns(bed.pruner("always", keep_last=2), RUNNING, lambda: len(bed.records) == 6, wait_until, choice)
    assert bed.steps() == {40, 50, 60}


def test_what_is_chosen_while_the_folder_is_looked_at_stays(bed: Bed, wait_until: Wait) -> None:
    """The plan was made before it was: it is made anew."""
    old = next(each for each in known(bed.folder) if each.step == 10)
    choice = Choice(chosen=Checkpoint(step=10, digest=old.digest, manifest="x"), first_start=False, refused=(), why="")
    pruner = bed.pruner("always")
    pruner.look(RUNNING, bed.history, None, verifying=False)
    assert pruner._part is not None
    bed.turns(pruner, RUNNING, lambda: len(bed.records) == 4, wait_until, choice)
    assert bed.steps() == {10, 40, 50, 60}


@pytest.mark.parametrize("when", ["never", "needed"])
def test_nothing_goes_where_the_policy_or_the_disk_does_not_want_it(bed: Bed, wait_until: Wait, when: str) -> None:
    pruner = bed.pruner(when)
    pruner.look(RUNNING, bed.history, None, verifying=False)
    assert (pruner._part is not None) == (when == "needed")
    bed.turns(pruner, RUNNING, lambda: pruner._part is None, wait_until)
    assert not bed.records


@pytest.mark.parametrize("state", [RUNNING, GATING], ids=["beside a run", "at a gate"])
def test_after_one_that_cannot_be_deleted_nothing_more_goes_and_it_is_told(
    bed: Bed, wait_until: Wait, state: State
) -> None:
    """Somebody opens it after it was looked at."""
    with contextlib.ExitStack() as opened:

        def open_it(record: Record) -> None:
            if record.kind == "prune_planned" and record.data["step"] == 20:
                opened.enter_context(open(bed.folder / "step-20-model.pt", "rb"))

        bed.on_record = open_it
        place = SmallDisk(bed.folder, SystemClock())
        place.size_bytes = 6 * 20480
        pruner = bed.pruner("always", need=f"{3 * 16384}B", place=place)
        if state is GATING:
            pruner.begin()
        bed.turns(pruner, state, lambda: bool(pruner.over or bed.said), wait_until)
        [words] = [pruner.words] if state is GATING else bed.said
        assert f"pid {os.getpid()} has step-20-model.pt open" in words
        assert words.endswith("nothing more is deleted until that is mended")
        assert bed.records[3].data["freed_bytes"] is None
        write(bed.folder, 70)
        bed.history = bed.history_of(known(bed.folder))  # also not when a new one comes
        for _ in range(50):
            pruner.look(state, bed.history, None, verifying=False)
            os.sched_yield()
        assert [record.data["step"] for record in bed.records] == [10, 10, 20, 20]
        assert bed.steps() == {20, 30, 40, 50, 60, 70}


class HangingDisk(PrunableFolder):
    """A deletion on it comes to an end when it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SystemClock())
        self.let = threading.Event()

    def delete(self, held: Held, stays: Iterable[str] | None = None) -> int:
        self.let.wait(30)
        return super().delete(held, stays)


def test_a_deletion_that_hangs_is_told_once_and_nothing_is_begun_beside_it(
    bed: Bed, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retaining, "_DELETE_S", 0.05)
    place = HangingDisk(bed.folder)
    pruner = bed.pruner("always", place=place)
    bed.turns(pruner, RUNNING, lambda: bool(bed.said), wait_until)
    for _ in range(50):
        pruner.look(RUNNING, bed.history, None, verifying=False)
    [words] = bed.said
    assert words.startswith("pruning the checkpoints: ")
    for _ in range(2):  # each try at the gates ends for it, and says so
        pruner.begin()
        bed.turns(pruner, GATING, lambda: pruner.over, wait_until)
        assert pruner.words == words
    assert [record.kind for record in bed.records] == ["prune_planned"]
    pruner.forget()
    place.let.set()
    bed.turns(pruner, RUNNING, lambda: len(bed.records) == 6, wait_until)
    assert bed.said == [words]


def test_at_the_gates_no_more_goes_than_the_disk_lacks_and_the_words_say_what_came(bed: Bed, wait_until: Wait) -> None:
    place = SmallDisk(bed.folder, SystemClock())
    each_bytes = place.look().held[0].size_bytes
    place.size_bytes = 6 * each_bytes
    pruner = bed.pruner("needed", need=f"{2 * each_bytes - 100}B", place=place)
    pruner.begin()
    bed.turns(pruner, GATING, lambda: pruner.over, wait_until)
    assert bed.steps() == {30, 40, 50, 60}
    assert re.fullmatch(r"[0-9.]+ KiB came back from pruning checkpoints", pruner.words)
    assert "the disk lacks " in bed.records[0].sentence
    pruner.forget()
    assert (pruner.over, pruner.words) == (False, "")


def test_at_the_gates_nothing_goes_where_all_of_it_would_not_open_them(bed: Bed, wait_until: Wait) -> None:
    place = SmallDisk(bed.folder, SystemClock())
    each_bytes = place.look().held[0].size_bytes
    place.size_bytes = 6 * each_bytes
    pruner = bed.pruner("needed", need=f"{3 * each_bytes + 1}B", place=place)
    pruner.begin()
    bed.turns(pruner, GATING, lambda: pruner.over, wait_until)
    assert bed.steps() == {10, 20, 30, 40, 50, 60}
    assert not bed.records
    assert re.fullmatch(
        r"all that may go would give 0\.\d\d MiB, and the disk lacks 0\.\d\d MiB: no checkpoint is deleted",
        pruner.words,
    )


def test_saves_that_come_faster_than_a_look_do_not_keep_it_from_deleting(bed: Bed, wait_until: Wait) -> None:
    """At each turn the ledger knows one more than when the look was begun."""
    pruner = bed.pruner("always")
    claims = list(known(bed.folder))

    def faster() -> bool:
        claims.append(Known(step=1000 + len(claims), digest=f"n{len(claims)}", run_id="1-a"))
        bed.history = bed.history_of(claims)
        return len(bed.records) == 6

    bed.turns(pruner, RUNNING, faster, wait_until)
    assert bed.steps() == {40, 50, 60}


def test_when_others_are_the_newest_two_by_now_they_are_read_back_first(bed: Bed, wait_until: Wait) -> None:
    """A run was refused while the folder was looked at: what it saved is none that stays."""
    for step in (50, 60):
        write(bed.folder, step, run_id="2-b")
    for step in (30, 40):
        with open(bed.folder / f"step-{step}-model.pt", "r+b") as file:
            file.write(b"rot")
    bed.history = bed.history_of(known(bed.folder))
    pruner = bed.pruner("always", keep_last=2)
    pruner.look(RUNNING, bed.history, None, verifying=False)
    bed.history = dataclasses.replace(bed.history, refused_runs=frozenset({"2-b"}))
    bed.turns(pruner, RUNNING, lambda: pruner._part is None, wait_until)
    assert bed.steps() == {10, 20, 30, 40, 50, 60}, "10 and 20 alone hold"


def test_a_disk_that_lacks_nothing_ends_the_try_with_nothing_said(bed: Bed, wait_until: Wait) -> None:
    pruner = bed.pruner("needed")
    pruner.begin()
    bed.turns(pruner, GATING, lambda: pruner.over, wait_until)
    assert (pruner.words, bed.records) == ("", [])


def test_without_two_that_hold_nothing_goes(bed: Bed, wait_until: Wait) -> None:
    """30, 20 and 10 are the newest whose bytes are what they were."""
    for step in (40, 50, 60):
        with open(bed.folder / f"step-{step}-model.pt", "r+b") as file:
            file.write(b"rot")
    pruner = bed.pruner("needed", need="1000TiB")
    pruner.begin()
    bed.turns(pruner, GATING, lambda: pruner.over, wait_until)
    assert bed.steps() == {10, 20, 30, 40, 50, 60}
    assert not bed.records


def test_a_folder_that_is_gone_is_told(bed: Bed, wait_until: Wait) -> None:
    os.rename(bed.folder, bed.root / "moved")
    bed.folder.write_text("no folder")
    pruner = bed.pruner("needed")
    pruner.begin()
    bed.turns(pruner, GATING, lambda: pruner.over, wait_until)
    assert "Not a directory" in pruner.words


def test_the_ledger_says_which_deletion_has_no_end_and_what_was_moved_aside() -> None:
    told = [
        ("prune_planned", {"name": "a.manifest.json", "digest": "a"}),
        ("prune_planned", {"name": "b.manifest.json", "digest": "b"}),
        ("pruned", {"name": "b.manifest.json", "freed_bytes": None}),
        ("prune_planned", {"name": "c.manifest.json", "digest": "c"}),
        ("pruned", {"name": "c.manifest.json", "freed_bytes": 7}),
        ("prune_planned", {"name": "quarantine/x", "digest": None}),
        ("prune_planned", {"name": ".deleting-a.manifest.json", "digest": "a"}),
        ("checkpoint_refused", {"manifest": "/somewhere/d.manifest.json", "movable": True}),
        ("checkpoint_refused", {"manifest": "/somewhere/e.manifest.json", "movable": True}),
        ("checkpoint_refused", {"manifest": "/somewhere/f.manifest.json", "movable": False}),
        (
            "checkpoint_moved",
            {"manifest": "/somewhere/d.manifest.json", "place": "/somewhere/quarantine/d.manifest.json.2"},
        ),
        ("checkpoint_refused", {"manifest": "/somewhere/g.manifest.json", "movable": True}),
        ("checkpoint_stays", {"manifest": "/somewhere/g.manifest.json"}),
    ]
    events = [
        Event(seq=number, wall_s=float(number), kind=kind, sentence="", data=data)
        for number, (kind, data) in enumerate(told, start=1)
    ]
    history = fold(events)
    assert (history.pruned, history.pruned_bytes) == (0, 7), "what has no step is no checkpoint"
    stands = standing_of(history, GATING, None)
    assert stands.deleting == {("a.manifest.json", "a"), ("b.manifest.json", "b")}
    assert stands.moved == {"d.manifest.json.2"}
    assert stands.moving == {("e.manifest.json", 9.0)}, "begun, and with no end"
    gone = {"name": "quarantine/d.manifest.json.2", "freed_bytes": 3}
    pruned = Event(seq=14, wall_s=14.0, kind="pruned", sentence="", data=gone)
    assert not standing_of(fold([pruned], history), GATING, None).moved, "another one of that name is another's"
    archived = Event(seq=15, wall_s=12.0, kind="archived", sentence="", data={})
    assert not standing_of(fold([archived], history), GATING, None).moving
    assert fold(events[4:], fold(events[:4])) == history
    end = Event(seq=9, wall_s=0.0, kind="pruned", sentence="", data={"name": told[6][1]["name"], "freed_bytes": 3})
    assert standing_of(fold([end], history), GATING, None).deleting == {("b.manifest.json", "b")}
    whole = Event(seq=10, wall_s=0.0, kind="pruned", sentence="", data={"name": "e", "step": 0, "freed_bytes": 30})
    counted = fold([end, whole], history)
    assert (counted.pruned, counted.pruned_bytes) == (1, 40)
    assert not can_fold(dataclasses.replace(whole, data={"name": "e", "freed_bytes": "30"}))
