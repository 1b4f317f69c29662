"""The run's progress, turn by turn: from beats, or from a real log that is read beside the loop."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.handclock import HandClock
from tests.unit.checks.host import host
from tests.unit.core.world import make_beat, make_policy, make_run
from watchdog.checks import beat_stale
from watchdog.collectors.run import RunWatch
from watchdog.core.decide import decide
from watchdog.core.fact import Absent, Fact, Known, Unknown
from watchdog.core.facts import Progress
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits
from watchdog.core.phase import Phase
from watchdog.core.progress import still_since
from watchdog.core.seen import BeatSeen, Seen, Shim
from watchdog.core.state import State
from watchdog.folders import RunFolder
from watchdog.lookout import OfRun
from watchdog.progressing import ProgressEyes

NO_BEAT: Fact[BeatSeen] = Absent("no beat yet")


class Eyes:
    """The eyes of one loop over runs that each have a folder."""

    def __init__(self, folder: Path, pattern: str = "nanogpt") -> None:
        self.folder = folder
        self.clock = HandClock()
        self.eyes = ProgressEyes(pattern, self.clock)

    def log(self, run_id: str) -> Path:
        (self.folder / run_id).mkdir(exist_ok=True)
        return self.folder / run_id / "output.log"

    def write(self, run_id: str, *lines: str) -> None:
        with open(self.log(run_id), "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def turn(
        self,
        run_id: str | None = "1-a",
        beat: Fact[BeatSeen] = NO_BEAT,
        *,
        shim: Shim = Shim.ALIVE,
        after_s: float = 2.0,
    ) -> OfRun:
        self.clock.now_s += after_s
        seen = Seen(now_s=self.clock.now_s, shim=shim, beat=beat)
        if run_id is None:
            return self.eyes.look(None, seen, make_policy(), None)
        folder = RunFolder(path=self.log(run_id).parent)
        watch = cast(RunWatch, SimpleNamespace(record=SimpleNamespace(run_id=run_id), folder=folder))
        return self.eyes.look(watch, seen, make_policy(), make_run(run_id=run_id, launched_s=900.0))

    def until(self, wanted: Callable[[Fact[Progress]], bool], run_id: str = "1-a") -> Fact[Progress]:
        """Turn after turn until the progress is as wanted: the log is read in a thread."""
        deadline_s = time.monotonic() + 10
        while not wanted(progress := self.turn(run_id).progress):
            assert time.monotonic() < deadline_s, progress
            time.sleep(0.005)
        return progress


@pytest.fixture
def eyes(tmp_path: Path) -> Eyes:
    return Eyes(tmp_path)


def known(fact: Fact[Progress]) -> Progress:
    assert isinstance(fact, Known), fact
    return fact.value


def steps(fact: Fact[Progress]) -> list[int | None]:
    return [point.step for point in known(fact).points]


def is_known(fact: Fact[Progress]) -> bool:
    """The first words are known; that anything was printed is known before."""
    return isinstance(fact, Known) and bool(fact.value.points)


@pytest.mark.parametrize("shim", [Shim.NONE, Shim.ENDED, Shim.NEVER, Shim.LOST])
def test_without_a_living_run_there_is_nothing(eyes: Eyes, shim: Shim) -> None:
    assert isinstance(eyes.turn(None).beat, Absent)
    of_run = eyes.turn(shim=shim, beat=make_beat(1000.0))
    assert isinstance(of_run.beat, Absent)
    assert isinstance(of_run.progress, Absent)
    assert eyes.eyes.newest is None


def test_beats_are_the_progress_of_who_makes_them(eyes: Eyes) -> None:
    eyes.write("1-a", "iter 99: loss 9.0")
    for step in (3, 4, 4, 5):
        of_run = eyes.turn(beat=make_beat(eyes.clock.now_s, step=step, loss=2.0, seq=step))
    assert steps(of_run.progress) == [3, 4, 5]
    assert known(of_run.progress).source == "beats"
    assert eyes.eyes.newest == known(of_run.progress)
    assert isinstance(of_run.beat, Known)
    beat = of_run.beat.value
    assert (beat.run_id, beat.pid, beat.step, beat.age_s, beat.alive) == ("1-a", 501, 5, 2.0, True)
    assert beat.deadline_s == make_policy().deadlines_s["train"]


def test_the_age_of_a_beat_counts_from_a_grace_that_began_anew(eyes: Eyes) -> None:
    watch = cast(RunWatch, SimpleNamespace(record=SimpleNamespace(run_id="1-a"), folder=RunFolder(path=eyes.folder)))
    seen = Seen(now_s=1000.0, shim=Shim.ALIVE, beat=make_beat(500.0))
    of_run = eyes.eyes.look(watch, seen, make_policy(), make_run(grace_from_s=990.0))
    assert isinstance(of_run.beat, Known)
    assert of_run.beat.value.age_s == 10.0


def test_without_beats_the_log_tells(eyes: Eyes) -> None:
    assert isinstance(eyes.turn().progress, Absent)
    eyes.write("1-a", "iter 1: loss 3.0", "iter 2: loss 2.9")
    progress = eyes.until(is_known)
    assert steps(progress) == [1, 2]
    assert known(progress).source == "log (nanogpt)"
    eyes.write("1-a", "iter 3: loss nan")
    progress = eyes.until(lambda fact: steps(fact)[-1] == 3)
    assert steps(progress) == [1, 2, 3], "each word once"
    loss = known(progress).points[-1].loss
    assert loss is not None
    assert math.isnan(loss)


def test_off_reads_no_log(tmp_path: Path) -> None:
    eyes = Eyes(tmp_path, "off")
    eyes.write("1-a", "iter 1: loss 3.0")
    for _ in range(3):
        assert isinstance(eyes.turn().progress, Absent)
    assert not eyes.eyes._runner.views(), "nothing was started"


def test_the_last_words_of_one_run_are_none_of_the_next(eyes: Eyes, wait_until: Callable[..., object]) -> None:
    """A read that was under way when its run ended: its nan would end the run that comes after."""
    eyes.write("1-a", "iter 7: loss nan")
    eyes.turn("1-a")
    wait_until(eyes.eyes._runner.views, "the log of the first run to be read")
    eyes.turn(None)
    for _ in range(3):
        assert isinstance(eyes.turn("2-b", after_s=0.1).progress, Absent)
    eyes.write("2-b", "iter 1: loss 3.0")
    assert steps(eyes.until(is_known, "2-b")) == [1]


@pytest.mark.parametrize("spoilt_later", [False, True])
def test_a_log_that_cannot_be_read_is_no_run_that_stands_still(eyes: Eyes, spoilt_later: bool) -> None:
    path = eyes.log("1-a")
    if spoilt_later:
        eyes.write("1-a", "iter 1: loss 3.0")
        eyes.until(is_known)
        path.rename(path.with_suffix(".aside"))
    os.mkfifo(path)
    progress = eyes.until(lambda fact: isinstance(fact, Unknown))
    assert isinstance(progress, Unknown)
    assert str(path) in progress.why
    path.unlink()
    if spoilt_later:
        path.with_suffix(".aside").rename(path)
    eyes.write("1-a", "iter 2: loss 2.0")
    eyes.until(lambda fact: isinstance(fact, Known) and steps(fact)[-1] == 2)


def test_an_own_pattern_tells_until_it_takes_too_long_and_then_nothing_is_known(tmp_path: Path) -> None:
    eyes = Eyes(tmp_path, r"step (a|aa)+(?P<step>\d+)$")
    eyes.write("1-a", "step aa3")
    assert steps(eyes.until(is_known)) == [3]
    eyes.write("1-a", "step " + "a" * 4000)
    # The clock of this test runs ahead of the child, so before that it is a read that has not answered.
    progress = eyes.until(lambda fact: isinstance(fact, Unknown) and "more than 2 s" in fact.why)
    assert isinstance(progress, Unknown)
    assert progress.why.startswith("the pattern of [job] progress took more than 2 s for the run's output")
    eyes.write("1-a", "step a4")
    for _ in range(5):
        assert eyes.turn().progress == progress
    eyes.write("2-b", "step a1")
    assert steps(eyes.until(is_known, "2-b")) == [1], "the next run is another matter"


def test_a_beat_that_cannot_be_believed_leaves_what_was_known_and_invents_nothing(eyes: Eyes) -> None:
    torn: Fact[BeatSeen] = Unknown("the beat file cannot be believed")
    of_run = eyes.turn(beat=torn)
    assert (of_run.beat, of_run.progress) == (torn, torn)
    heard_s = eyes.clock.now_s
    eyes.turn(beat=make_beat(heard_s, step=3))
    later = known(eyes.turn(beat=torn, after_s=50.0).progress)
    assert ([point.step for point in later.points], later.heard_s) == ([3], heard_s)


def test_time_in_which_nobody_watched_is_no_silence_of_the_run(eyes: Eyes) -> None:
    eyes.eyes.skip(5.0)  # before there is anything
    eyes.turn(beat=make_beat(1001.0, step=3))
    eyes.clock.now_s += 500.0
    eyes.eyes.skip(500.0)
    progress = known(eyes.turn(beat=make_beat(1001.0, step=3), after_s=1.0).progress)
    assert progress.step_changed_s == 1501.0


def notified(now_s: float, **changes: Any) -> Known[BeatSeen]:
    """As collectors/notify.py has it: no step, ever."""
    seen = make_beat(now_s, step=None).value
    return Known(dataclasses.replace(seen, **changes), now_s)


@pytest.mark.parametrize("silent_s", [59.0, 61.0, 121.0, 299.0, 301.0, 9000.0])
@pytest.mark.parametrize(
    "changes", [{}, {"extended_until_s": 1300.0}, {"extended_until_s": 1001.0}, {"promised": False}]
)
def test_the_checks_call_late_what_the_supervisor_calls_late(
    eyes: Eyes, silent_s: float, changes: dict[str, Any]
) -> None:
    policy = make_policy(level=1)
    eyes.clock.now_s = 1000.0 + silent_s
    beat = notified(1000.0, **changes)
    state = State(phase=Phase.RUNNING, since_s=0.0, run=make_run(level=1, launched_s=900.0, grace_from_s=900.0))
    for _ in range(2):
        eyes.clock.now_s += policy.period_s / 100
        seen = Seen(now_s=eyes.clock.now_s, shim=Shim.ALIVE, leader_alive=True, beat=beat)
        _, plan = decide(state, seen, policy)
    fact = eyes.turn(beat=beat, after_s=0.0).beat
    found = beat_stale.check(host(beat=fact), Limits())
    assert (found.severity >= Severity.WARNING) is (plan.rule == "stale once"), (found, plan)


def test_who_is_only_ready_is_still_read_and_beats_with_steps_end_that(eyes: Eyes) -> None:
    ready: Fact[BeatSeen] = notified(1000.0, promised=False)
    eyes.write("1-a", "iter 1: loss 3.0", "iter 2: loss 2.9")
    deadline_s = time.monotonic() + 10
    while not (isinstance(progress := eyes.turn(beat=ready).progress, Known) and steps(progress) == [1, 2]):
        assert time.monotonic() < deadline_s, progress
        time.sleep(0.005)
    assert known(progress).source == "log (nanogpt)"
    later = eyes.turn(beat=make_beat(eyes.clock.now_s, step=7)).progress
    assert (steps(later), known(later).source) == ([None, 7], "beats")
    again = eyes.turn(beat=make_beat(eyes.clock.now_s, step=None, phase="evaluate")).progress
    assert known(again).source == "beats", "it told a step once"


def test_the_history_of_steps_outlives_a_relaunch_that_prints_before_it_beats(eyes: Eyes) -> None:
    for step in range(1, 60):
        eyes.turn(beat=make_beat(eyes.clock.now_s + 2.0, step=step, seq=step))
    before = known(eyes.turn(beat=make_beat(eyes.clock.now_s, step=60)).progress).typical_step_s
    assert before is not None
    eyes.turn(None)
    eyes.write("2-b", "iter 1: loss 3.0")
    eyes.until(is_known, "2-b")
    after = known(eyes.turn("2-b", beat=make_beat(eyes.clock.now_s, step=61, run_id="2-b")).progress)
    assert (after.source, after.typical_step_s) == ("beats", before)


def test_of_a_run_that_tells_no_step_the_age_of_its_output_is_known(eyes: Eyes) -> None:
    eyes.write("1-a", "epoch")
    told = known(eyes.until(lambda fact: isinstance(fact, Known)))
    assert (told.points, told.step_changed_s) == ((), None)
    first_s = told.printed_s
    assert first_s is not None
    assert known(eyes.until(lambda fact: eyes.clock.now_s > first_s + 60)).printed_s == first_s
    eyes.write("1-a", "more")
    eyes.until(lambda fact: (known(fact).printed_s or 0.0) > first_s + 60)
    assert eyes.eyes.newest is None


def test_the_history_of_steps_is_forgotten_when_the_next_ones_are_of_another_kind(eyes: Eyes) -> None:
    """Else a run with smaller pieces would be told to be slow, by the measure of the larger ones."""
    for step in range(60):
        eyes.turn(beat=make_beat(eyes.clock.now_s, step=step, seq=step))
    assert known(eyes.turn(beat=make_beat(eyes.clock.now_s, step=60)).progress).typical_step_s is not None
    eyes.turn(None)
    eyes.eyes.forget()
    after = known(eyes.turn("2-b", make_beat(eyes.clock.now_s, run_id="2-b", step=40)).progress)
    assert (after.run_id, after.typical_step_s) == ("2-b", None)


@pytest.mark.parametrize("blind", [Unknown("the beat file cannot be read: Input/output error"), Absent("no beat")])
def test_what_could_not_be_read_is_not_held_against_the_run(eyes: Eyes, blind: Fact[BeatSeen]) -> None:
    """It may have evaluated meanwhile: neither its silence nor its one word counts from before."""
    for step in range(1, 11):
        eyes.turn(beat=make_beat(eyes.clock.now_s, step=step, seq=step), after_s=1.0)
    for _ in range(400):
        eyes.turn(beat=blind, after_s=1.0)
    back_s = eyes.clock.now_s + 0.5
    told = known(eyes.turn(beat=make_beat(back_s, step=10, seq=60), after_s=1.0).progress)
    assert still_since(told) == told.watched_from_s == eyes.clock.now_s
    assert told.heard_s is not None
    assert eyes.clock.now_s - told.heard_s <= 1.0
    for seconds in range(1, 300):  # and from then on it counts again
        told = known(eyes.turn(beat=make_beat(eyes.clock.now_s, step=10, seq=60 + seconds), after_s=1.0).progress)
    assert still_since(told) == eyes.clock.now_s - 299.0


def test_blindness_to_the_run_before_is_none_to_this_one(eyes: Eyes) -> None:
    eyes.turn(beat=make_beat(eyes.clock.now_s, step=10), after_s=1.0)
    eyes.turn(beat=Unknown("x"), after_s=50.0)
    told = known(eyes.turn("2-b", beat=make_beat(eyes.clock.now_s, step=10, run_id="2-b"), after_s=1.0).progress)
    assert told.watched_from_s is None


def test_what_the_ledger_knows_of_a_step_is_told_until_the_next_run_is_of_another_kind(eyes: Eyes) -> None:
    eyes.eyes = ProgressEyes("off", eyes.clock, 31.0)
    told = known(eyes.turn(beat=make_beat(eyes.clock.now_s, step=10)).progress)
    assert (told.typical_step_s, told.ledger_step_s) == (None, 31.0)
    eyes.eyes.forget()
    assert known(eyes.turn(beat=make_beat(eyes.clock.now_s, step=11)).progress).ledger_step_s is None
