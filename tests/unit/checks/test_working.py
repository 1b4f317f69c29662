"""Who works for the run: by power and CPU time alone, and never "nobody" where something could not be seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.checks.ghosts import WSL
from tests.unit.checks.host import AT_S, beat, gpu, host, process, processes
from tests.unit.checks.standstill import IDLE, cpu
from watchdog.checks import steps_frozen
from watchdog.checks.working import CPU_FRACTION, Work, worker
from watchdog.core.facts import Absent, Facts, Known, ProgressPoint, RunProcess, Unknown, value_of
from watchdog.core.findings import calls_for_a_stop
from watchdog.core.limits import Limits

REST = IDLE["devices"][0]
STUCK = (RunProcess(pid=4711, command="python", state="D", stuck_s=20.0),)
NEIGHBOUR = gpu(uuid="GPU-other", index=1, processes=(process(99),))


def who(since_s: float = 400.0, **changes: Any) -> Work:
    return worker(host(**IDLE | changes), Limits(), AT_S - since_s).work


@pytest.mark.parametrize(
    ("changes", "work"),
    [
        (dict(), Work.NOBODY),
        (dict(devices=Absent("no GPU")), Work.NOBODY),
        (dict(devices=(gpu(),)), Work.DEVICE),
        (dict(devices=(gpu(utilization_percent=11, power_watts=30.0),)), Work.DEVICE),
        (dict(devices=(gpu(utilization_percent=0, power_watts=120.0),)), Work.DEVICE),
        # nobody can say how little power is too little
        (dict(devices=(gpu(utilization_percent=100, power_watts=61.0, power_limit_watts=Absent()),)), Work.DEVICE),
        (dict(devices=(gpu(utilization_percent=100, power_watts=61.0),)), Work.NOBODY),
        # a neighbour's work is not ours where NVML names us elsewhere, and may be ours where it does not, or cannot
        (dict(devices=(REST, NEIGHBOUR)), Work.NOBODY),
        (dict(devices=(REST, NEIGHBOUR), wsl=WSL), Work.DEVICE),
        (dict(devices=(gpu(utilization_percent=0, power_watts=21.0, processes=()), NEIGHBOUR)), Work.DEVICE),
        (dict(devices=(gpu(utilization_percent=Unknown("x"), power_watts=21.0),)), Work.UNSEEN),
        (dict(devices=(gpu(samples=4, utilization_percent=0, power_watts=21.0),)), Work.UNSEEN),
        (dict(devices=(gpu(utilization_percent=0, power_watts=21.0, mig=True),)), Work.UNSEEN),
        (dict(devices=(gpu(utilization_percent=0, power_watts=21.0, lost_code=15),)), Work.UNSEEN),
        (dict(devices=(gpu(utilization_percent=0, power_watts=21.0, missing=True),)), Work.UNSEEN),
        (dict(devices=Unknown("the driver hangs")), Work.UNSEEN),
        (dict(processes=processes(cpu=cpu(CPU_FRACTION))), Work.CPU),
        (dict(processes=processes(cpu=cpu(8.0))), Work.CPU),
        (dict(processes=processes(cpu=cpu(8.0)), devices=Unknown("the driver hangs")), Work.CPU),
        (dict(processes=processes(cpu=cpu(0.9 * CPU_FRACTION))), Work.NOBODY),
        (dict(processes=processes(cpu=())), Work.UNSEEN),
        (dict(processes=processes(cpu=cpu()[:-4])), Work.UNSEEN),  # no table for 40 s
        (dict(processes=processes(cpu=cpu(for_s=300.0))), Work.UNSEEN),
        (dict(processes=processes(cpu=cpu(), run=())), Work.UNSEEN),
        (dict(processes=processes(cpu=cpu(), run=STUCK)), Work.UNSEEN),
        (dict(processes=processes(cpu=cpu(), initial_namespace=None)), Work.UNSEEN),
        (dict(processes=Unknown("x")), Work.UNSEEN),
        (dict(beat=beat(alive=None)), Work.UNSEEN),
        (dict(beat=beat(alive=False)), Work.UNSEEN),  # the work may be another container's
        (dict(beat=Absent("level 0")), Work.UNSEEN),
    ],
)
def test_every_answer(changes: dict[str, Any], work: Work) -> None:
    assert who(**changes) is work


def test_work_at_any_of_the_samples_is_work() -> None:
    recent = (*gpu(samples=9).recent[:1], *gpu(samples=8, utilization_percent=0, power_watts=21.0).recent)
    assert who(devices=(gpu(recent=recent),)) is Work.DEVICE


def test_ten_minutes_without_work_are_enough() -> None:
    assert who(since_s=9000.0) is Work.NOBODY
    assert who(since_s=9000.0, processes=processes(cpu=cpu(for_s=500.0))) is Work.UNSEEN


@pytest.mark.parametrize("seed", range(4))
def test_a_run_is_called_a_fake_only_where_it_is_seen_that_nobody_works(seed: int) -> None:
    """The evidence is worked out here anew, by other means."""
    dice, ended = random.Random(seed), 0
    for _ in range(1500):
        facts, at_rest = _still(dice)
        found = steps_frozen.check(facts, Limits())
        stops = any(calls_for_a_stop(each) for each in (found if isinstance(found, tuple) else (found,)))
        assert at_rest or not stops, facts
        ended += stops
    assert ended > 20, "else this proves nothing"


def _still(dice: random.Random) -> tuple[Facts, bool]:
    """A run that says one word for 100 to 3,000 s; and whether it is known that nobody works."""
    still_s = dice.uniform(100.0, 3000.0)
    count = int(still_s / 10)
    words = tuple(ProgressPoint(at_s=AT_S - 10 * back, step=420, phase="train") for back in reversed(range(count + 1)))
    busy, watts = dice.choice((0, 0, 5, 40, 97, 100)), dice.choice((21.0, 21.0, 61.0, 151.0))
    cores, for_s = dice.choice((0.0, 0.01, 0.04, 0.06, 1.0)), dice.choice((900.0, 900.0, 200.0, 20.0))
    hidden = dice.choice(("", "", "", "", "devices", "processes", "beat"))
    device = gpu(utilization_percent=busy, power_watts=watts)
    changes: dict[str, Any] = dict(
        devices=dice.choice(((device,), (device,), Absent("no GPU"))), processes=processes(cpu=cpu(cores, for_s=for_s))
    )
    if hidden:
        changes[hidden] = Unknown("x")
    facts = host(**changes)
    assert isinstance(facts.progress, Known)
    told = dict(points=words, step_changed_s=words[0].at_s, heard_s=AT_S, typical_step_s=1.0)
    facts = host(**changes, progress=type(facts.progress.value)(run_id="7-abc", source="beats", **told))
    idle_card = watts < 0.45 * 170.0 and (busy <= 10 or busy >= 90)
    rests = value_of(facts.devices) is None or idle_card
    return facts, not hidden and rests and cores < 0.05 and for_s >= min(still_s, 600.0) - 30.0
