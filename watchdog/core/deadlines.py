"""Deadlines that learn: how long each phase may go without a beat, from what this job's own runs have taken. Pure.

Responsible for what is learned from the beats of a run (`hear`), for what of it is worth a record (`news`), and for the
deadlines that follow from what is recorded (`Rule.learned_s`): a restart that replays the ledger has the same ones.
docs/decisions/0016-learned-deadlines.md has the reasons.
Refuses to learn where it cannot be sure: across an absence of ours, from a process that is stopped or held, while a
stop is under way (a stall that TERM ends never becomes the normal), and from who tells no steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from watchdog.contract import PHASES
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen
from watchdog.core.state import Record, RunState, State

# What ends with a beat, so that its length is seen. Not `drain` and `finished` (they end with the process), and not the
# time before the first beat: nothing says in it what it is spent on.
LEARNED: tuple[str, ...] = ("import", "prepare", "load", "compile", "first_step", "train", "evaluate", "save")
# Below these nothing is learned, seconds: caches were warm, the first start had nothing to load. The floor of `train`
# is a setting.
FLOORS_S: Mapping[str, float] = {
    "import": 150.0,
    "prepare": 300.0,
    "load": 300.0,
    "compile": 900.0,
    "first_step": 300.0,
    "evaluate": 120.0,
    "save": 120.0,
}
# How often a phase is seen before it counts: the save of step 0 has no optimizer state, one step is no habit.
_LEAST: Mapping[str, int] = {"train": 20, "evaluate": 3, "save": 3}
EXEMPT_STEPS = 5  # of each run: what they take is not learned (autotuning, recompiling, cold caches)
SETTLED_STEPS = 25  # of each run: until then its steps have the whole deadline, whatever older runs took
_NEWS = 1.1  # a maximum that grew by less is no news; with it the number of records is bounded


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What was configured. `ceilings_s`: the deadline of each phase, longer than which none is learned.

    `stated`: phases whose deadline a person has chosen: it is taken as it is.
    """

    learn: bool
    factor: float
    ceilings_s: Mapping[str, float]
    step_floor_s: float
    stated: frozenset[str] = frozenset()

    def learned_s(self, longest_s: Mapping[str, float], doubted: Mapping[str, int]) -> Mapping[str, float]:
        """The deadlines that are shorter than the configured ones, by phase.

        `longest_s`: the longest silence of each phase that is on record. `doubted`: see `History.doubted`. A step has
        one only once saves were seen, too: who announces none saves within a step, seldom, and for long.
        """
        if not self.learn:
            return {}
        found = {}
        for phase in LEARNED:
            taken_s = longest_s.get(phase)
            if taken_s is None or phase in self.stated or phase in doubted:
                continue
            if phase == "train" and "save" not in longest_s:
                continue
            floor_s = self.step_floor_s if phase == "train" else FLOORS_S[phase]
            allowed_s = max(floor_s, self.factor * taken_s)
            if allowed_s < self.ceilings_s[phase]:
                found[phase] = allowed_s
        return found

    def grace_s(self, longest_s: Mapping[str, float]) -> float:
        """What a run needs that is asked to leave: to finish its step and to save; 0 while that is not known.

        No longer than the deadline of the phase `drain`.
        """
        saving_s = longest_s.get("save")
        if not self.learn or saving_s is None:
            return 0.0
        return min(self.factor * (saving_s + longest_s.get("train", 0.0)), self.ceilings_s["drain"])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """What one supervisor has heard so far. `whole`: since the newest beat there was nothing that spoils a measure.

    `longest_s` and `times`: by phase, of all runs. `passed`: phases that the run went through to their end; for `train`
    with the step that it made.
    """

    run_id: str = ""
    newest: BeatSeen | None = None
    whole: bool = False
    longest_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    times: Mapping[str, int] = dataclasses.field(default_factory=dict)
    passed: Mapping[str, int] = dataclasses.field(default_factory=dict)


def hear(heard: Heard, beat: BeatSeen | None, state: State, *, gap: bool, held: bool) -> Heard:
    """One look later. `beat` None: none that can be believed. `gap`: we were away. `held`: a debugger holds the run.

    What lies between two beats that were seen is the longest that any silence between them can have been.
    """
    run = state.run
    if run is not None and run.run_id != heard.run_id:
        heard = dataclasses.replace(heard, run_id=run.run_id, newest=None, passed={})
    before = heard.newest
    fit = run is not None and run.stop is None and state.phase is Phase.RUNNING
    sound = fit and not gap and not held and beat is not None and beat.promised and not beat.stopped
    if beat is None or not sound or beat.extended_until_s > 0:
        return dataclasses.replace(heard, newest=beat or before, whole=False)
    assert run is not None
    if before is not None and (before.beat.seq, before.beat.pid) == (beat.beat.seq, beat.beat.pid):
        return heard
    measured = heard.whole
    heard = dataclasses.replace(heard, newest=beat, whole=True)
    if before is None or not measured or before.beat.pid != beat.beat.pid:
        return heard
    one, other = before.beat, beat.beat
    took_s = other.monotonic_s - one.monotonic_s
    if other.seq < one.seq or not took_s >= 0:
        return heard
    if one.phase in LEARNED and one.phase != "train":
        heard = _with(heard, one.phase, took_s)
        if other.phase != one.phase:
            heard = dataclasses.replace(heard, passed={**heard.passed, one.phase: 0})
    elif one.phase == "train" and other.step is not None and is_past(run, other.step, EXEMPT_STEPS):
        heard = _with(heard, "train", took_s)
        heard = dataclasses.replace(heard, passed={**heard.passed, "train": other.step})
        if other.phase == "train" and one.checkpoint_step != other.checkpoint_step and other.seq - one.seq > 1:
            heard = _with(heard, "save", took_s)  # a save that began and ended between two looks
    return heard


def is_past(run: RunState, step: int | None, steps: int) -> bool:
    """Whether the run is `steps` beyond the first step that was seen of it."""
    return step is not None and run.first_step is not None and step - run.first_step >= steps


def _with(heard: Heard, phase: str, took_s: float) -> Heard:
    longest_s = max(heard.longest_s.get(phase, 0.0), took_s)
    return dataclasses.replace(
        heard,
        longest_s={**heard.longest_s, phase: longest_s},
        times={**heard.times, phase: heard.times.get(phase, 0) + 1},
    )


def news(heard: Heard, longest_s: Mapping[str, float], doubted: Mapping[str, int], run: RunState) -> list[Record]:
    """What is worth a record: a phase that is known now, that took longer than ever, or that is in doubt no more.

    `longest_s` and `doubted`: what is on record.
    """
    records = []
    for phase in LEARNED:
        taken_s, known_s = heard.longest_s.get(phase), longest_s.get(phase)
        if taken_s is None:
            continue
        settled = phase in doubted and heard.passed.get(phase, -1) > doubted[phase]
        if known_s is None:
            if heard.times[phase] < _LEAST.get(phase, 1):
                continue
            why = "is known now"
        elif taken_s > known_s * _NEWS:
            why = "took longer than ever"
        elif settled:
            why = "was gone through"
        else:
            continue
        longest = round(max(taken_s, known_s or 0.0), 3) or 0.001
        data = {"run_id": run.run_id, "phase": phase, "longest_s": longest, "settled": settled}
        records.append(Record("phase_time", f"phase {phase} {why}: {longest:g} s without a beat at most", data))
    return records


def doubt(run: RunState, beat: BeatSeen, ceiling_s: float) -> Record:
    """To be recorded with a stop for a silence that only a learned deadline calls too long.

    Whether the run hung or the deadline was too short shows when a run gets past the place; until then the phase has
    its configured deadline. Otherwise a long silence that comes seldom would stop every run at the same place.
    """
    phase, step = beat.beat.phase, beat.beat.step
    words = f"the deadline of phase {phase} was learned; until a run is past it, {ceiling_s:g} s are allowed"
    data = {"run_id": run.run_id, "phase": phase, "step": step if phase == "train" else None}
    return Record("deadline_doubted", words, data)


def time_from(data: Mapping[str, object]) -> tuple[str, float] | None:
    """(phase, seconds) of a `phase_time` record; None for what is none, whoever wrote it."""
    phase, longest_s = data.get("phase"), data.get("longest_s")
    if phase not in PHASES or not isinstance(longest_s, int | float) or isinstance(longest_s, bool):
        return None
    return (str(phase), float(longest_s)) if math.isfinite(longest_s) and longest_s > 0 else None
