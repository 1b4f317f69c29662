"""Healthy hosts by the ten thousand: no check of a device calls for a stop. And the ghost, put in, is always found.

More than 100,000 samples in 26,000 windows of what cards in order show. Windows are made from a seeded generator by
hand, since one from hypothesis costs milliseconds; a failure names its seed.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import AT_S, GIB, TRAINER_PID, UUID, host, points
from watchdog.checks import (
    compute_floor,
    foreign_process,
    ghost_context,
    lost_pid,
    memory_unowned,
    sysmem_paging,
    utilization_power,
    wrong_product,
)
from watchdog.checks.catalogue import judge
from watchdog.core.facts import (
    Absent,
    BeatFact,
    Clocks,
    Device,
    DeviceHolder,
    DeviceProcess,
    DeviceSample,
    Fact,
    Facts,
    Jump,
    Known,
    Probe,
    Processes,
    Progress,
    RunProcess,
    Unknown,
)
from watchdog.core.findings import Finding, Severity, calls_for_a_stop
from watchdog.core.limits import Limits

CHECKS = (
    compute_floor,
    foreign_process,
    ghost_context,
    lost_pid,
    memory_unowned,
    sysmem_paging,
    utilization_power,
    wrong_product,
)
SEEDS, WINDOWS, SAMPLES = 20, 1300, 5
LIMITS = Limits()
BASE = host()
POINTS = points(6)


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory_bytes: int
    limit_watts: float
    idle_watts: float


CARDS = (
    Card("NVIDIA GeForce RTX 3060", 12 * GIB, 170.0, 12.0),
    Card("Tesla T4", 15 * GIB, 70.0, 9.0),
    Card("NVIDIA GeForce RTX 4090 Laptop GPU", 16 * GIB, 80.0, 3.0),
    Card("NVIDIA H200", 141 * GIB, 700.0, 75.0),
)
# What the run does: its utilization and power as shares, the beat's phase, the seconds its beat may be old.
DOINGS: tuple[tuple[str, tuple[int, int], tuple[float, float], str, float], ...] = (
    ("training", (85, 100), (0.6, 1.0), "train", 3.0),
    ("small model", (97, 100), (0.3, 0.45), "train", 3.0),
    ("tiny kernels", (90, 100), (0.12, 0.4), "train", 3.0),
    ("idle collective", (96, 96), (0.03, 0.12), "train", 14.0),
    ("a long step", (90, 100), (0.15, 0.9), "train", 110.0),
    ("compiling", (0, 100), (0.05, 0.5), "compile", 290.0),
    ("loading", (0, 30), (0.05, 0.3), "load", 290.0),
    ("evaluating", (60, 100), (0.2, 0.6), "evaluate", 590.0),
    ("saving", (0, 5), (0.05, 0.3), "save", 290.0),
    ("waiting for data", (0, 60), (0.05, 0.5), "train", 60.0),
)
ALLOWED_S = {"train": 120.0, "evaluate": 600.0}


def spotty(dice: random.Random, fact: Fact[Any]) -> Fact[Any]:
    """Now and then a reading is not to be had."""
    luck = dice.random()
    return fact if luck > 0.02 else Unknown("the call failed") if luck > 0.01 else Absent("not on this card")


def healthy(dice: random.Random) -> Facts:
    """A host on which nothing is wrong that a relaunch would help."""
    card, place = dice.choice(CARDS), dice.choice(("bare", "bare", "container", "wsl"))
    _, busy, power, phase, oldest_s = dice.choice(DOINGS)
    share = dice.uniform(0.03, 0.999)
    step_s = dice.choice((0.02, 0.3, 1.0, 8.0, 40.0))
    age_s = dice.uniform(0.0, oldest_s)
    frozen_s = dice.choice((0.0,) * 9 + (200.0,)) if age_s > 1 else 0.0
    allowed_s = ALLOWED_S.get(phase, 300.0)
    lost = dice.random() < (0.2 if place == "bare" else 0.6)
    names_us = dice.random() < (0.95 if place == "bare" else 0.3)

    def listed(back: int) -> tuple[DeviceProcess, ...]:
        mine = int(share * card.memory_bytes * 0.95) if place == "bare" else None
        found = []
        if names_us:
            found.append(DeviceProcess(pid=TRAINER_PID, kind="compute", memory_bytes=mine, here=True, command="python"))
        if lost and (place != "bare" or back == dice.randrange(SAMPLES)):  # on bare metal: it ended between two reads
            kind = dice.choice(("graphics", "compute"))
            found.append(DeviceProcess(pid=8123, kind=kind, memory_bytes=None, here=False))
        if dice.random() < 0.1:
            found.append(DeviceProcess(pid=900 + back, kind="compute", memory_bytes=GIB, here=True, command="guest"))
        return tuple(found)

    recent = []
    for back in reversed(range(SAMPLES)):
        at_s = AT_S - back
        watts = max(card.idle_watts, card.limit_watts * dice.uniform(*power))
        recent.append(
            DeviceSample(
                at_s=at_s,
                memory_used_bytes=spotty(dice, Known(int(share * card.memory_bytes), at_s)),
                power_watts=spotty(dice, Known(watts, at_s)),
                utilization_percent=spotty(dice, Known(dice.randint(*busy), at_s)),
                encoder_percent=Known(0, at_s) if dice.random() < 0.9 else Absent(),
                decoder_percent=Known(0, at_s),
                processes=spotty(dice, Known(listed(back), at_s)),
            )
        )
    device = Device(
        uuid=UUID,
        index=0,
        recent=tuple(recent[dice.choice((0, 0, 0, 0, 3)) :]),
        name=Known(card.name, AT_S),
        memory_total_bytes=spotty(dice, Known(card.memory_bytes, AT_S)),
        power_limit_watts=spotty(dice, Known(card.limit_watts, AT_S)),
        mig=Known(False, AT_S) if dice.random() < 0.5 else Absent(),
    )
    beat = BeatFact(
        run_id="7-abc",
        pid=TRAINER_PID,
        phase=phase,
        age_s=age_s + frozen_s,
        deadline_s=allowed_s,
        step=420,
        target_step=1000,
        alive=True,
    )
    changed_s = AT_S - age_s - frozen_s - dice.choice((0.0, 0.0, 400.0 if phase != "train" else 0.0))
    source = dice.choice(("beats", "beats", "beats", "log (huggingface)"))
    progress = Progress(
        run_id="7-abc",
        source=source,
        points=POINTS[: dice.choice((1, 2, 6))],
        step_changed_s=changed_s,
        heard_s=changed_s,
        typical_step_s=dice.choice((None, step_s)),
        recent_step_s=dice.choice((None, step_s)),
    )
    processes = Processes(
        initial_namespace={"bare": True, "container": False, "wsl": dice.choice((None, False))}[place],
        pid_max=4_194_304,
        run=(RunProcess(pid=TRAINER_PID, command="python", state="S"),),
        holders=(
            DeviceHolder(
                pid=TRAINER_PID,
                command="python",
                nodes=("/dev/dxg" if place == "wsl" else "/dev/nvidia0",),
                of_run=True,
            ),
        ),
        unreadable=dice.choice((0, 0, 40)),
    )
    jumps = (Jump(kind="freeze", at_s=AT_S - min(0.5, age_s / 2), seconds=frozen_s),) if frozen_s else ()
    by_log = source != "beats"
    return replace(
        BASE,
        devices=Known((device,), AT_S),
        processes=spotty(dice, Known(processes, AT_S)),
        beat=Absent("this run does not beat") if by_log else spotty(dice, Known(beat, AT_S)),
        progress=spotty(dice, Known(progress, AT_S)),
        clocks=Known(Clocks(boot_id="b", asleep_s=0.0, watched_s=600.0, jumps=jumps), AT_S),
        wsl=Known(WSL, AT_S) if place == "wsl" else BASE.wsl,
        probe=Known((_probe(card, dice),), AT_S) if dice.random() < 0.1 else Absent("a run is alive"),
    )


def _probe(card: Card, dice: random.Random) -> Probe:
    tflops = dice.uniform(0.5, 700.0)
    return Probe(
        device=UUID,
        name=card.name,
        tflops=tflops,
        dtype="float16",
        size=4096,
        seconds=0.01,
        correct=dice.random() < 0.9,
        worst_error=0.01,
        baseline_tflops=dice.choice((None, tflops)),
        baseline_count=dice.randrange(5),
    )


def haunted(dice: random.Random, facts: Facts) -> Facts:
    """The same host with the ghost's figures put in: no run alive, or one long past its deadline."""
    assert isinstance(facts.devices, Known)
    [device] = facts.devices.value
    card = next(each for each in CARDS if isinstance(device.name, Known) and each.name == device.name.value)
    ghost = DeviceProcess(pid=8123, kind="compute", memory_bytes=None, here=False)
    recent = tuple(
        DeviceSample(
            at_s=AT_S - back,
            memory_used_bytes=Known(int(card.memory_bytes * dice.uniform(0.5, 1.0)) + 1, AT_S - back),
            power_watts=Known(card.limit_watts * dice.uniform(0.05, 0.44), AT_S - back),
            utilization_percent=Known(dice.randint(90, 100), AT_S - back),
            processes=Known((ghost,), AT_S - back),
        )
        for back in reversed(range(dice.choice((5, 8))))
    )
    device = replace(
        device,
        recent=recent,
        memory_total_bytes=Known(card.memory_bytes, AT_S),
        power_limit_watts=Known(card.limit_watts, AT_S),
    )
    bare = isinstance(facts.wsl, Absent)
    alive = dice.random() < 0.5
    run = (RunProcess(pid=TRAINER_PID, command="python", state="S"),) if alive else ()
    node = DeviceHolder(pid=TRAINER_PID, command="python", nodes=("/dev/nvidia0" if bare else "/dev/dxg",), of_run=True)
    processes = Processes(
        initial_namespace=bare,
        pid_max=4_194_304,
        run=run,
        holders=(node,) if alive else (),
        unreadable=dice.choice((0, 9)),
        gone=(8123,) if alive else (),
    )
    age_s = dice.uniform(1000.0, 9000.0)
    changes: dict[str, Any] = dict(beat=Absent("none"), progress=Absent("none"))
    if alive:
        assert isinstance(BASE.beat, Known)
        assert isinstance(BASE.progress, Known)
        phase = dice.choice(("train", "evaluate", "save"))
        beat = replace(BASE.beat.value, age_s=age_s, phase=phase, deadline_s=dice.choice((120.0, 600.0)))
        progress = replace(BASE.progress.value, step_changed_s=AT_S - age_s, heard_s=AT_S - age_s)
        changes = dict(beat=Known(beat, AT_S), progress=Known(progress, AT_S))
    return replace(
        facts, devices=Known((device,), AT_S), processes=Known(processes, AT_S), clocks=BASE.clocks, **changes
    )


def unattended(dice: random.Random, facts: Facts) -> Facts:
    """The same device, used by somebody else: no run of ours, and their steps are not to be seen."""
    assert isinstance(facts.devices, Known)
    [device] = facts.devices.value
    bare, wsl = isinstance(facts.wsl, Absent) and dice.random() < 0.5, isinstance(facts.wsl, Known)

    def theirs(sample: DeviceSample) -> tuple[DeviceProcess, ...]:
        used = sample.memory_used_bytes.value if isinstance(sample.memory_used_bytes, Known) else None
        if bare:  # a neighbour's training
            return (DeviceProcess(pid=99, kind="compute", memory_bytes=used, here=True, command="python"),)
        kind = "graphics" if wsl else "compute"  # WSLg, beside a game of Windows; another container
        return (DeviceProcess(pid=8123, kind=kind, memory_bytes=None, here=False),)

    recent = tuple(
        replace(sample, processes=spotty(dice, Known(theirs(sample), sample.at_s))) for sample in device.recent
    )
    return replace(
        facts,
        devices=Known((replace(device, recent=recent),), AT_S),
        processes=Known(Processes(initial_namespace=bare, pid_max=4_194_304, run=(), holders=()), AT_S),
        beat=Absent("no run of this job is alive"),
        progress=Absent("no run of this job is alive"),
        probe=Absent("none yet"),
    )


def findings(facts: Facts) -> list[Finding]:
    return [finding for each in CHECKS for finding in each.check(facts, LIMITS)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_healthy_window_calls_for_a_stop(seed: int) -> None:
    dice = random.Random(seed)
    for window in range(WINDOWS):
        facts = healthy(dice)
        for found in judge(facts, LIMITS):  # the whole catalogue: nobody may ask for a healthy run's end
            assert not calls_for_a_stop(found), f"seed {seed}, window {window}: {found}\n{facts}"
            if found.check == ghost_context.NAME:
                assert (found.severity, found.looks_wanted) == (Severity.OK, 0), (
                    f"seed {seed}, window {window}: {found}"
                )


@pytest.mark.parametrize("seed", range(4))
def test_a_neighbour_at_work_is_never_critical(seed: int) -> None:
    dice = random.Random(seed)
    for window in range(WINDOWS):
        for found in findings(unattended(dice, healthy(dice))):
            assert found.severity <= Severity.WARNING, f"seed {seed}, window {window}: {found}"


def test_the_generator_reaches_every_answer() -> None:
    """Otherwise the test above would prove nothing: each check speaks, and those that may warn do warn."""
    dice = random.Random(0)
    said: dict[str, set[Severity]] = {}
    contradictions = 0
    for _ in range(2000):
        for found in findings(healthy(dice)):
            said.setdefault(found.check, set()).add(found.severity)
            contradictions += found.check == utilization_power.NAME and "5 of 5 samples" in found.reason
    assert set(said) == {each.NAME for each in CHECKS}
    assert {Severity.OK, Severity.WARNING} <= said[utilization_power.NAME]
    assert Severity.WARNING in said[sysmem_paging.NAME]
    assert contradictions > 200


@pytest.mark.parametrize("seed", range(4))
def test_the_ghost_put_in_is_found_every_time_and_told_once(seed: int) -> None:
    dice = random.Random(seed)
    for window in range(500):
        facts = haunted(dice, healthy(dice))
        assert isinstance(facts.processes, Known)
        told = [found for found in findings(facts) if found.severity >= Severity.WARNING and found.device == UUID]
        told = [found for found in told if found.check not in (compute_floor.NAME, wrong_product.NAME)]
        assert [found.check for found in told] == [ghost_context.NAME], f"seed {seed}, window {window}: {told}\n{facts}"
        # On WSL a pid alone proves no dead process, and a run past its deadline needs no such proof.
        proven = bool(facts.processes.value.run) or isinstance(facts.wsl, Absent)
        assert told[0].severity is (Severity.CRITICAL if proven else Severity.WARNING)
        assert calls_for_a_stop(told[0]) is bool(facts.processes.value.run)
