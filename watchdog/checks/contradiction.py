"""Questions about samples that several checks ask: is it busy for so little power, do steps advance, is it a ghost?

Responsible for one answer to each, so that one fault gives one finding. Refuses to judge: it makes no finding, and what
it cannot see is an answer of its own, never a good one.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable

from watchdog.checks.figures import duration
from watchdog.checks.owners import comparable, judged, lists_wanted, lost, may_use, of_run, owners, used_by_others
from watchdog.core.facts import (
    Device,
    DeviceProcess,
    DeviceSample,
    Facts,
    Known,
    Processes,
    Progress,
    Unknown,
    value_of,
)
from watchdog.core.limits import Limits
from watchdog.core.progress import changed_s, still_since

PATIENCE_S = 15.0  # a step younger than this, or than PATIENCE_STEPS of its kind, advances
PATIENCE_STEPS = 3
STILL_STEPS = 20  # of its own, in which a run that beats has to say something new
_CADENCE = 20  # words of the run, to tell how often it speaks


# --- samples --------------------------------------------------------------------------------------------------
def contradictory(sample: DeviceSample, device: Device, limits: Limits) -> bool:
    """Busy all the time for a power at which no load runs. A reading that is not known proves nothing.

    Without a power limit (laptops) it is never so: 35 W are a ghost on one card and a small model's training on the
    next, and no other figure says which.
    """
    if value_of(device.mig):
        return False  # utilization means nothing then (dcgm-exporter#216)
    busy, power = value_of(sample.utilization_percent), value_of(sample.power_watts)
    most = value_of(device.power_limit_watts)
    if busy is None or power is None or most is None:
        return False
    codecs = (value_of(sample.encoder_percent), value_of(sample.decoder_percent))
    if any(codec is not None and codec > limits.codec_percent for codec in codecs):
        return False
    return busy >= limits.busy_percent and power < limits.contradiction_power_fraction * most


def fills(sample: DeviceSample, device: Device, fraction: float) -> bool:
    """Whether at least this share of the device's memory is in use, as far as it is known."""
    used, total = value_of(sample.memory_used_bytes), value_of(device.memory_total_bytes)
    return used is not None and total is not None and used >= fraction * total


def looks_wanted(device: Device, looks: int, suspicious: Callable[[DeviceSample], bool]) -> int | None:
    """0: all of the last `looks` samples are suspicious; more: all there are, and so many are missing; None: not so.

    Utilization, power and memory are read anew in each sample, and so are processes wherever memory has changed or one
    of them is gone, so that samples can be counted.
    """
    window = device.recent[-looks:]
    return looks - len(window) if all(suspicious(sample) for sample in window) else None


def contradiction(device: Device, limits: Limits) -> int | None:
    """As `looks_wanted`, for the contradiction alone."""
    return looks_wanted(device, limits.looks, lambda sample: contradictory(sample, device, limits))


def figures(device: Device, limits: Limits) -> str:
    """`100 % utilization at 61 W of 170 W for 4 s (5 of 5 samples)`: least and most of the window; "" if not known."""
    window = device.recent[-limits.looks :]
    busy = [sample.utilization_percent.value for sample in window if isinstance(sample.utilization_percent, Known)]
    power = [sample.power_watts.value for sample in window if isinstance(sample.power_watts, Known)]
    most = value_of(device.power_limit_watts)
    if not busy or not power or most is None:
        return ""
    said = f"{min(busy)} % utilization at {max(power):.0f} W of {most:.0f} W"
    count = sum(contradictory(sample, device, limits) for sample in window)
    if not count:
        return said
    return f"{said} for {window[-1].at_s - window[0].at_s:.0f} s ({count} of {len(window)} samples)"


# --- steps ----------------------------------------------------------------------------------------------------
class Steps(enum.Enum):
    """What is known about the run's steps; only STOPPED and NO_RUN say that nothing advances."""

    ADVANCE = "advance"  # seen to change, the last time lately
    PHASE = "phase"  # a phase without steps that may last this long, or watched too shortly to have seen a change
    LATE = "late"  # longer than usual, and still allowed
    STOPPED = "stopped"  # longer than was ever allowed
    NO_RUN = "no run"
    UNSEEN = "unseen"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """`since_s`: STOPPED since that moment (CLOCK_MONOTONIC). `beats`: by the run's beats, which know of phases."""

    steps: Steps
    words: str
    since_s: float = 0.0
    beats: bool = True


def pace_of(facts: Facts, limits: Limits, device: Device | None = None) -> Pace:
    """Do steps advance? With `device`: there? A run that uses other devices only excuses nothing on this one."""
    pace = _pace(facts, limits)
    if device is None or pace.steps is Steps.NO_RUN or may_use(device, facts, limits):
        return pace
    return Pace(steps=Steps.NO_RUN, words="the run of this job does not use this device")


def _pace(facts: Facts, limits: Limits) -> Pace:
    """Answered from progress, else from the beat; a freeze of us all is not held against a run."""
    progress, processes = value_of(facts.progress), value_of(facts.processes)
    usual_s = 0.0 if progress is None else _usual_s(progress)
    patience_s = max(PATIENCE_STEPS * usual_s, PATIENCE_S)
    # One word alone is no change: who has just begun to look sees it "change" at that moment.
    moved_s = None if progress is None else changed_s(progress)
    words = "" if progress is None else _last_step(progress, facts.at_s)
    by_log = progress is not None and progress.source != "beats"
    if moved_s is not None and facts.at_s - moved_s <= patience_s:
        return Pace(steps=Steps.ADVANCE, words=words, beats=not by_log)
    beat = facts.beat
    alive = isinstance(beat, Known) and beat.value.alive is not False
    if not (processes is not None and processes.run) and not alive:
        if processes is None and not isinstance(beat, Known):
            return Pace(steps=Steps.UNSEEN, words="whether a run is alive cannot be seen")
        return Pace(steps=Steps.NO_RUN, words="no run of this job is alive")
    if isinstance(beat, Known) and math.isfinite(beat.value.deadline_s):
        heard_s = beat.at_s - beat.value.age_s
        late_s = heard_s + beat.value.deadline_s + _frozen_s(facts, heard_s)
        words = words or f"run {beat.value.run_id}: last beat {duration(beat.value.age_s)} ago"
        words += f", phase {beat.value.phase}, which is allowed {duration(beat.value.deadline_s)}"
        if beat.value.phase == "finished":
            return Pace(steps=Steps.PHASE, words=words)
        if beat.at_s > late_s:
            return Pace(steps=Steps.STOPPED, words=words, since_s=late_s)
        if beat.value.phase != "train":
            return Pace(steps=Steps.PHASE if beat.value.alive is not False else Steps.LATE, words=words)
        still_s = None if progress is None or by_log else _still_in_sight(progress)
        if still_s is not None:
            allowed_s = max(allowed_still_s(progress, limits), limits.steps_frozen_factor * beat.value.deadline_s)
            end_s = still_s + max(allowed_s, PATIENCE_STEPS * usual_s) + _frozen_s(facts, still_s)
            if facts.at_s > end_s:
                return Pace(steps=Steps.STOPPED, words=words, since_s=end_s)
        if beat.value.step is None and (progress is None or progress.step_changed_s is None):
            return Pace(steps=Steps.UNSEEN, words=words)
        if moved_s is None and beat.value.age_s <= patience_s:
            return Pace(steps=Steps.PHASE, words=words)
        return Pace(steps=Steps.LATE, words=words, beats=not by_log)
    if progress is None or isinstance(beat, Unknown) or not by_log:
        # Beats that are not in facts.beat went to the supervisor alone (sd_notify), and so did what they promised.
        return Pace(steps=Steps.UNSEEN, words="the run says nothing of its steps", beats=False)
    spoke_s = max((s for s in (progress.step_changed_s, progress.heard_s) if s is not None), default=None)
    if spoke_s is None:
        return Pace(steps=Steps.UNSEEN, words="the run says nothing of its steps", beats=False)
    end_s = spoke_s + max(limits.steps_frozen_factor * limits.train_deadline_s, PATIENCE_STEPS * usual_s)
    end_s += _frozen_s(facts, spoke_s)
    return Pace(steps=Steps.STOPPED if facts.at_s > end_s else Steps.LATE, words=words, since_s=end_s, beats=False)


def allowed_still_s(progress: Progress | None, limits: Limits) -> float:
    """For how long a run that says that it trains may say nothing new.

    What its steps take counts; before that is known, so does the deadline of the first one: a step of hundreds of
    micro-batches takes ten minutes, and a supervisor that has just begun has seen none of them.
    """
    allowed_s = limits.steps_frozen_factor * limits.train_deadline_s
    if progress is None or progress.typical_step_s is None:
        before_s = None if progress is None else progress.ledger_step_s
        return max(allowed_s, limits.steps_frozen_factor * limits.first_step_deadline_s, STILL_STEPS * (before_s or 0))
    return max(allowed_s, STILL_STEPS * progress.typical_step_s)


def _usual_s(progress: Progress) -> float:
    """What a step takes, or what lies between two words of it: a log may tell each hundredth step only."""
    told = [point.at_s for point in progress.points[-_CADENCE:] if point.step is not None]
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(told))
    cadence_s = gaps[len(gaps) // 2] if gaps else 0.0
    return max(progress.typical_step_s or 0.0, progress.recent_step_s or 0.0, cadence_s)


def _last_step(progress: Progress, at_s: float) -> str:
    step = next((point.step for point in reversed(progress.points) if point.step is not None), None)
    said = f"run {progress.run_id}: " + ("no step told" if step is None else f"at step {step:,}")
    return said if progress.step_changed_s is None else f"{said} for {duration(at_s - progress.step_changed_s)}"


def _still_in_sight(progress: Progress) -> float | None:
    """As core/progress.py has it; what lies before the words that are kept may have been an evaluation."""
    since_s = still_since(progress)
    return None if since_s is None or not progress.points else max(since_s, progress.points[0].at_s)


def _frozen_s(facts: Facts, since_s: float) -> float:
    """How long everything stood still since then: a beat grows old meanwhile, and nobody can help it."""
    clocks = value_of(facts.clocks)
    jumps = () if clocks is None else clocks.jumps
    return sum(jump.seconds for jump in jumps if jump.kind == "freeze" and jump.at_s > since_s)


# --- the two faults that a contradiction can be ------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ghost:
    """`looks_wanted` 0: proven. `certain`: what is busy there is a ghost, or our own run that stands still.

    `of_run`: it is our living run's, by its beats: one of its processes hangs there, or has died there. `dead`: the
    context outlived its process.
    """

    looks_wanted: int
    certain: bool
    of_run: bool
    dead: bool
    evidence: str
    pace: Pace


def ghost(device: Device, facts: Facts, limits: Limits) -> Ghost | None:
    """A device kept busy by nothing that lives, or by our own run long after its last step; else None."""
    processes = value_of(facts.processes)
    if processes is None:
        return None

    def suspicious(sample: DeviceSample) -> bool:
        return contradictory(sample, device, limits) and fills(sample, device, limits.ghost_memory_fraction)

    if not suspicious(device.now):
        return None
    pace = pace_of(facts, limits, device)
    if pace.steps not in (Steps.NO_RUN, Steps.STOPPED) or used_by_others(device, facts, limits):
        return None
    if pace.steps is Steps.NO_RUN and (born := _just_born(device, facts, limits, pace, suspicious)) is not None:
        return born
    wanted = looks_wanted(device, limits.looks, suspicious)
    if wanted is None:
        return None
    dead = [each for each in lost(device, limits, processes) if each.kind == "compute"]  # WSLg's Xwayland is graphics
    dead_for_sure = bool(dead) and (comparable(facts) or _was_ours(dead, facts))
    if dead:
        wanted = max(wanted, lists_wanted(device, limits))
    evidence = f"held by pid {', '.join(str(each.pid) for each in dead)}, which is not in /proc"
    window = device.recent[-limits.looks :]
    if pace.steps is Steps.STOPPED:
        # The contradiction must have been seen while nothing advanced: what was sampled before proves nothing.
        wanted = max(wanted, limits.looks - sum(sample.at_s >= pace.since_s for sample in device.recent))
        if not pace.beats:  # a log does not tell an evaluation from a hang: a run is not ended for what lies beside it
            if not (dead and comparable(facts)):
                return None
            return Ghost(looks_wanted=wanted, certain=False, of_run=False, dead=True, evidence=evidence, pace=pace)
        mine = _hangs_there(device, facts, processes)
        if mine is None and not any(each.pid in processes.gone for each in dead):
            if not dead_for_sure:
                return None
            # Somebody's: it has outlived another run, or another program.
            return Ghost(looks_wanted=wanted, certain=True, of_run=False, dead=True, evidence=evidence, pace=pace)
        # In a container our own run has another number in NVML: not to be found in /proc is not to be dead.
        said = evidence if dead_for_sure else f"held by pid {mine} of the run, which lives"
        if dead and not dead_for_sure:
            said += f"; {evidence.removeprefix('held by ')}, is listed"
        return Ghost(looks_wanted=wanted, certain=True, of_run=True, dead=dead_for_sure, evidence=said, pace=pace)
    if dead:
        certain = dead_for_sure
    elif all(value_of(each.processes) == () for each in window) and not processes.unreadable and not owners(processes):
        evidence, certain = "no process is listed, and none has a device node open", comparable(facts)
    else:
        return None
    return Ghost(looks_wanted=wanted, certain=certain, of_run=False, dead=True, evidence=evidence, pace=pace)


def _hangs_there(device: Device, facts: Facts, processes: Processes) -> int | None:
    """A process of our run that NVML names there; by an open node only on the one device there is."""
    if comparable(facts):
        ours = {each.pid for each in processes.run}
        return next((each.pid for each in value_of(device.now.processes) or () if each.pid in ours), None)
    return of_run(device, facts, processes) if len(judged(facts)) == 1 else None


def _just_born(
    device: Device, facts: Facts, limits: Limits, pace: Pace, suspicious: Callable[[DeviceSample], bool]
) -> Ghost | None:
    """One whose process has just died: what was sampled before its end shows a device at work, and it alive."""
    processes = value_of(facts.processes)
    listed = value_of(device.now.processes)
    if processes is None or listed is None:
        return None
    dead = {each.pid for each in listed if each.kind == "compute" and not each.here and each.pid <= processes.pid_max}

    def lists_one(sample: DeviceSample) -> bool:
        return any(each.pid in dead and not each.here for each in value_of(sample.processes) or ())

    wanted = limits.looks - _tail(device, suspicious)
    wanted = max(wanted, limits.lost_pid_looks - _tail(device, lists_one))
    if not dead or wanted <= 0:
        return None
    evidence = f"held by pid {', '.join(map(str, sorted(dead)))}, which is not in /proc any more"
    return Ghost(looks_wanted=wanted, certain=False, of_run=False, dead=True, evidence=evidence, pace=pace)


def _tail(device: Device, wanted: Callable[[DeviceSample], bool]) -> int:
    """How many of the newest samples in a row are so."""
    return sum(1 for _ in itertools.takewhile(wanted, reversed(device.recent)))


def _was_ours(dead: list[DeviceProcess], facts: Facts) -> bool:
    """On WSL: one of them has the number of the process of our run that beat last, and is known to be gone."""
    beat = value_of(facts.beat)
    if beat is None or beat.alive is not False or not isinstance(facts.wsl, Known):
        return False
    return any(each.pid == beat.pid for each in dead)


def paging(device: Device, facts: Facts, limits: Limits) -> int | None:
    """Windows moves device memory to host memory: full, contradictory, and steps advance. As `looks_wanted`."""
    if not isinstance(facts.wsl, Known) or pace_of(facts, limits).steps is not Steps.ADVANCE:
        return None
    return looks_wanted(
        device,
        limits.looks,
        lambda sample: contradictory(sample, device, limits) and fills(sample, device, limits.paging_memory_fraction),
    )
