"""Hosts in order by the ten thousand, with all that varies on them: the whole catalogue warns of nothing.

The other half of test_no_false_alarm.py, which varies what a ghost could be taken for. Here a device is at work or at
rest as cards are, and everything around it moves within its bounds: memory, disks that are written and pruned, a noisy
loss, small batches that repeat a step, long phases, other people's troubles in the kernel log, clocks, WSL.
A seeded generator; a failure names its seed.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import (
    AT_S,
    GIB,
    TRAINER_PID,
    beat,
    disk,
    gpu,
    host,
    lock,
    memory,
    process,
    processes,
    progress,
    sample,
)
from watchdog.checks.catalogue import CATALOGUE, judge
from watchdog.core.devicefacts import (
    REASON_APPLICATIONS_CLOCKS,
    REASON_GPU_IDLE,
    REASON_SW_POWER_CAP,
    REASON_SYNC_BOOST,
    Device,
)
from watchdog.core.fact import Fact, Known
from watchdog.core.facts import (
    Absent,
    CgroupLimit,
    Clocks,
    Disk,
    Facts,
    Jump,
    KernelLine,
    KernelLog,
    Memory,
    OomKills,
    Pressure,
    Probe,
    Processes,
    Progress,
    ProgressPoint,
    RunProcess,
    Wsl,
)
from watchdog.core.findings import Severity, calls_for_a_stop
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

SEEDS, HOSTS = 10, 120
LIMITS = Limits()
PHASES = (("train", 120.0), ("evaluate", 600.0), ("save", 300.0), ("compile", 300.0), ("load", 300.0))
# What these two ask about is varied in test_no_false_alarm.py, or is there only where a run is not.
ELSEWHERE = {"sysmem-paging", "compute-floor", "wrong-product"}


def healthy(dice: random.Random) -> Facts:
    wsl = dice.random() < 0.3
    run = dice.random() < 0.85
    phase, allowed_s = dice.choice(PHASES)
    age_s = dice.uniform(0.0, 0.95) * (allowed_s if phase != "train" else 20.0)
    by_log = dice.random() < 0.3
    gone = Absent("no run of this job is alive")
    if dice.random() < 0.05:  # a trainer that asked for an hour, or promised nothing more
        allowed_s = dice.choice((3600.0, math.inf))
        age_s = dice.uniform(0.0, 3000.0)
    parts: dict[str, Any] = dict(
        memory=_memory(dice),
        pressure=_pressure(dice),
        oom=OomKills(host=dice.choice((None, 0, 7)), cgroup=dice.choice((None, 0, 3)), cgroup_path="/job"),
        disks=_disks(dice, wsl=wsl),
        locks=(lock("supervisor"), lock("run", held=run, holders=lock("run").holders if run else ())),
        devices=(_device(dice, wsl=wsl, at_work=run and phase in ("train", "evaluate")),),
        processes=_processes(dice, wsl=wsl, run=run),
        beat=beat(phase=phase, age_s=age_s, deadline_s=allowed_s),
        progress=_progress(dice, phase, age_s),
        kernel=_kernel(dice),
        clocks=_clocks(dice),
        wsl=_wsl(dice) if wsl else Absent("this is no WSL"),
        probe=Absent("a run is alive") if run else _probe(dice),
    )
    if by_log:
        parts |= dict(beat=Absent("this run does not beat"), progress=_log(dice))
    if not run:
        parts |= dict(beat=gone, progress=gone)
    return host(blind_s=dice.uniform(0.0, 60.0), **parts)


def _memory(dice: random.Random) -> Memory:
    total = dice.choice((16, 32, 64, 512)) * GIB
    available = int(total * dice.uniform(0.25, 0.95))
    limits = ()
    if dice.random() < 0.5:
        limit = int(total * dice.uniform(0.5, 1.0))
        limits = (CgroupLimit(cgroup="/job", limit_bytes=limit, held_bytes=int(limit * dice.uniform(0.01, 0.7))),)
        available = min(available, limit - limits[0].held_bytes)
    available = max(available, 5 * GIB)
    swap = dice.choice((0, 8 * GIB))
    return memory(
        total_bytes=total,
        available_bytes=available,
        host_available_bytes=max(available, int(total * 0.2)),
        limit_bytes=limits[0].limit_bytes if limits else None,
        limit_cgroup="/job" if limits else None,
        limits=limits,
        cached_bytes=int(total * dice.uniform(0.0, 0.7)),
        swap_total_bytes=swap,
        swap_free_bytes=int(swap * dice.random()),
    )


def _pressure(dice: random.Random) -> Pressure:
    some = dice.uniform(0.0, 20.0)
    if dice.random() < 0.7:
        return Pressure(from_psi=True, some_avg10_percent=some, full_avg10_percent=some * dice.uniform(0.0, 0.4))
    return Pressure(
        from_psi=False,
        major_faults_per_s=dice.choice((None, dice.uniform(0.0, 300.0))),
        swapped_in_per_s=dice.choice((None, 0.0, dice.uniform(0.0, 20.0))),
    )


def _disks(dice: random.Random, *, wsl: bool) -> tuple[Disk, ...]:
    """Written and pruned: checkpoints of one size come at any moment, and the oldest of them goes."""
    found = []
    for purpose in ("state", "checkpoints"):
        total = dice.choice((100, 500, 4000)) * GIB
        free = int(total * dice.uniform(0.3, 0.95))
        checkpoint, keeps = int(dice.uniform(0.01, 4.0) * GIB), dice.choice((1, 3))
        looks, there = [], 0
        for number in range(dice.choice((0, 3, 40, 120))):
            there = min(keeps, there + 1) if dice.random() < 0.03 else there
            drift = int(dice.gauss(0.0, 5.0)) * 1024**2
            looks.append((AT_S - 5.0 - number * 5.0, free - there * checkpoint + drift))
        found.append(
            disk(
                purpose,
                filesystem=dice.choice(("ext4", "xfs", "btrfs", "zfs")),
                total_bytes=total,
                free_bytes=free,
                free_inodes=dice.choice((None, 40_000, 30_000_000)),
                earlier=tuple(reversed(looks)),
            )
        )
    if wsl:
        found.append(disk("windows", filesystem="9p", free_bytes=int(dice.uniform(15, 800) * GIB), drvfs=True))
    return tuple(found)


def _device(dice: random.Random, *, wsl: bool, at_work: bool) -> Device:
    """As cards are: under load the link is as wide as it can be, at rest it is let down."""
    datacenter = not wsl and dice.random() < 0.4
    reasons = dice.choice((0, REASON_SW_POWER_CAP, REASON_APPLICATIONS_CLOCKS, REASON_SYNC_BOOST))
    # At rest between two steps, in any sample: then the link may be slow and the clocks low.
    samples = []
    for back in reversed(range(dice.choice((1, 5, 30)))):
        works = at_work and dice.random() < 0.8
        at_rest: dict[str, Any] = (
            {}
            if works
            else dict(
                utilization_percent=dice.randint(0, 40),
                power_watts=dice.uniform(9.0, 40.0),
                performance_state=dice.choice((5, 8)),
                pcie_generation=dice.choice((1, 2)),
                clocks_event_reasons=REASON_GPU_IDLE,
            )
        )
        shown = dict(
            utilization_percent=dice.randint(60, 100),
            power_watts=dice.uniform(90.0, 169.0),
            temperature_celsius=dice.randint(35, 84),
            clocks_event_reasons=reasons,
            processes=() if not at_work and dice.random() < 0.7 else (process(memory_bytes=None if wsl else 9 * GIB),),
        )
        if not at_work:
            shown |= dict(processes=(), memory_used_bytes=dice.randint(0, 900) * 1024**2)
        samples.append(sample(AT_S - back, **(shown | at_rest)))
    ecc: dict[str, Any] = {}
    if datacenter:
        ecc = dict(
            ecc_uncorrected=0,
            ecc_corrected=dice.choice((0, 3, 4000)),
            remapped_correctable=dice.choice((0, 2)),
            remapped_uncorrectable=0,
            remap_pending=False,
            remap_failed=False,
            recovery_action=0,
        )
    return gpu(recent=tuple(samples), xid_counts=Absent("no events") if wsl else {}, **ecc)


def _processes(dice: random.Random, *, wsl: bool, run: bool) -> Processes:
    """Data loaders that read disks, and short-lived children; somebody else's hang does not touch the run."""
    workers = tuple(
        RunProcess(pid=TRAINER_PID + number, command="python", state=dice.choice("SSRD"), stuck_s=dice.uniform(0, 9))
        for number in range(1, dice.choice((1, 3, 9)))
    )
    ended = RunProcess(pid=TRAINER_PID + 50, command="sh", state="Z", defunct_s=dice.uniform(0.0, 9.0))
    mine = (*processes().run, *workers, *((ended,) if dice.random() < 0.1 else ())) if run else ()
    strange = RunProcess(pid=77, command="nfsd", state="D", stuck_s=9000.0)
    return processes(
        initial_namespace=None if wsl else dice.choice((True, True, False)),
        run=mine,
        holders=processes().holders if run and not wsl else (),
        unreadable=dice.choice((0, 30)),
        stuck=(strange,) if dice.random() < 0.1 else (),
    )


def _progress(dice: random.Random, phase: str, age_s: float) -> Progress:
    """Steps of one length with some noise, a loss that falls noisily; small batches that repeat the step."""
    # The last: ten minutes a step, of which 64 small batches tell.
    step_s, micro = dice.choice(((0.05, 1), (1.0, 1), (8.0, 1), (8.0, 4), (600.0, 64)))
    is_young = step_s > 8.0 or dice.random() < 0.3
    level, noise = dice.uniform(0.2, 11.0), dice.uniform(0.001, 0.15)
    loss_scaling = dice.random() < 0.1
    words = dice.choice((1, 6, 60, 200))
    found = []
    for number in range(words):
        back = words - 1 - number
        norm = dice.lognormvariate(0.0, 1.0)
        found.append(
            ProgressPoint(
                at_s=AT_S - age_s - back * step_s / micro,
                step=1000 - back // micro,
                tokens=(4000 - back) * 1024,
                loss=max(0.01, level * (1 + 0.001 * back) + level * dice.gauss(0.0, noise)),
                gradient_norm=math.inf if loss_scaling and dice.random() < 0.02 else norm,
                phase="train" if back else phase,
            )
        )
    return progress(
        points=tuple(found),
        step_changed_s=max(found[0].at_s, AT_S - age_s - (micro - 1) * step_s / micro),
        heard_s=AT_S - age_s,
        typical_step_s=None if is_young else step_s,
        recent_step_s=None if is_young else step_s * dice.uniform(0.6, 1.7),
    )


def _log(dice: random.Random) -> Progress:
    """Every ten steps or so a line, its loss rounded."""
    points = tuple(
        ProgressPoint(at_s=AT_S - 20.0 * back - 3.0, step=5000 - 10 * back, loss=round(2.5 + dice.gauss(0, 0.3), 4))
        for back in reversed(range(dice.choice((1, 40, 200))))
    )
    spoke_s = AT_S - 3.0
    return Progress(run_id="7-abc", source="log (huggingface)", points=points, step_changed_s=spoke_s, heard_s=spoke_s)


def _kernel(dice: random.Random) -> Fact[KernelLog]:
    """Old troubles, and other people's."""
    old_s = AT_S - LIMITS.xid_window_s - dice.uniform(10.0, 5000.0)
    lines = [
        KernelLine(at_s=old_s, kind=KernelKind.XID, text="NVRM: Xid 79", number=79, subject="0000:01:00.0"),
        KernelLine(at_s=old_s, kind=KernelKind.OOM_KILL, text="Killed process 4000", number=4000, subject="chrome"),
        KernelLine(at_s=old_s, kind=KernelKind.DXG_RESIDENCY, text="dxgk: residency"),
        KernelLine(at_s=old_s, kind=KernelKind.IO_ERROR, text="I/O error, dev sda", subject="sda"),
        KernelLine(at_s=AT_S - 60, kind=KernelKind.HUNG_TASK, text="task nfsd:77 blocked", number=77, subject="nfsd"),
    ]
    return Known(KernelLog(lines=tuple(line for line in lines if dice.random() < 0.2), since_s=0.0), AT_S)


def _clocks(dice: random.Random) -> Clocks:
    old_s = AT_S - LIMITS.jump_window_s - dice.uniform(1.0, 900.0)
    jumps = (
        Jump(kind="suspend", at_s=old_s, seconds=3600.0),
        Jump(kind="step", at_s=AT_S - 30.0, seconds=dice.uniform(-1.0, 1.0)),  # as NTP sets it
    )
    seen = tuple(jump for jump in jumps if dice.random() < 0.2)
    return Clocks(boot_id="b", asleep_s=0.0, watched_s=dice.uniform(0.0, 1e6), jumps=seen)


def _wsl(dice: random.Random) -> Wsl:
    more = dice.choice(({}, {"wsl2.memory": "24GB"}, {"experimental.automemoryreclaim": "dropcache"}))
    windows = {"general.instanceidletimeout": "-1", "wsl2.vmidletimeout": "-1"} | more
    guest = {"boot.systemd": "true"}
    return replace(WSL, guest_settings=Known(guest, AT_S), windows_settings=Known(windows, AT_S))


def _probe(dice: random.Random) -> tuple[Probe, ...]:
    before = dice.uniform(8.0, 800.0)
    return (
        Probe(
            device="GPU-3f1c0a52-7d11-4c1e-9a43-0c5e6f7a8b90",
            name="NVIDIA GeForce RTX 3060",
            tflops=before * dice.uniform(0.7, 1.2),
            dtype="bfloat16",
            size=8192,
            seconds=0.05,
            correct=True,
            worst_error=0.004,
            baseline_tflops=before,
            baseline_count=dice.randrange(1, 9),
        ),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_said_against_a_host_in_order(seed: int) -> None:
    dice = random.Random(1000 + seed)
    for number in range(HOSTS):
        facts = healthy(dice)
        for found in judge(facts, LIMITS):
            where = f"seed {seed}, host {number}: {found}\n{facts}"
            assert not calls_for_a_stop(found), where
            assert found.severity in (Severity.OK, Severity.UNKNOWN), where


def test_the_generator_reaches_every_check() -> None:
    """Otherwise the test above would prove nothing of the silent ones."""
    dice = random.Random(0)
    spoke = {found.check for _ in range(2000) for found in judge(healthy(dice), LIMITS)}
    assert {check.name for check in CATALOGUE} - ELSEWHERE <= spoke
