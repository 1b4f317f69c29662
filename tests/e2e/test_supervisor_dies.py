"""The supervisor or the shim dies, or everything freezes: nothing is started twice and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from bench.campaign_bed import Bed, wait_for
from bench.campaign_observer import is_living

SEED = 20261129


def test_supervisor_killed_ten_times(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """At seeded random moments of its life; three times the trainer dies while nobody watches."""
    chance = random.Random(SEED)
    bed = real_bed(delay_s=0.06)
    alone = set(chance.sample(range(10), 3))
    for number in range(10):
        supervisor = bed.start()
        with contextlib.suppress(Exception):
            supervisor.wait(chance.uniform(0.15, 1.0))
        bed.kill_supervisor(supervisor)
        run = bed.living()
        if number in alone and run is not None:
            bed.harm(run.trainer)
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert bed.kinds("run_adopted"), "no moment was hit in which a run had to be adopted"
    ends_as_undisturbed(bed)


def test_shim_killed(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """Once under the eyes of its supervisor, once while there is none; an escapee lives both times."""
    bed = real_bed(disturbed=("--escapee",), delay_s=0.03)
    supervisor = bed.start()
    run = bed.run_at_step(12)
    bed.harm(run.shim)
    run = bed.run_at_step(22, after=run.number)
    bed.kill_supervisor(supervisor)
    bed.harm(run.shim)
    wait_for(lambda: is_living(run.shim, None) is None, "the end of the shim")
    assert bed.ended(bed.start()) == 0, bed.tell()
    causes = [event["data"]["cause"] for event in bed.kinds("run_ended")]
    assert causes == ["shim_killed", "shim_killed", "finished"], bed.tell()
    ends_as_undisturbed(bed)


@pytest.mark.parametrize("first", ["supervisor", "trainer"])
def test_everything_freezes(first: str, real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """A freeze longer than the deadline is not the trainer's fault, whoever wakes first."""
    bed = real_bed(delay_s=0.05, settings={"deadlines": {"train": "2s"}})
    supervisor = bed.start()
    run = bed.run_at_step(15)
    order = [supervisor.pid, run.shim, run.trainer]
    for pid in order:
        bed.harm(pid, signal.SIGSTOP)
    frozen_s = time.monotonic()
    wait_for(lambda: time.monotonic() - frozen_s > 3.0, "three seconds in the ice", every_s=0.1)
    for pid in order if first == "supervisor" else reversed(order):
        bed.harm(pid, signal.SIGCONT)
        woken_s = time.monotonic()
        wait_for(lambda: time.monotonic() - woken_s > 0.15, "the next one to wake later", every_s=0.01)  # noqa: B023
    assert bed.ended(supervisor) == 0, bed.tell()
    assert bed.kinds("gap"), bed.tell()
    assert not bed.kinds("run_stopping"), bed.tell()
    assert len(bed.kinds("run_launching")) == 1
    ends_as_undisturbed(bed)


def test_supervisor_killed_while_it_stops_a_run(counter_bed: Callable[..., Bed]) -> None:
    """The stop that was begun is finished by the next one, and the run is not launched twice."""
    bed = counter_bed("--steps", "60", "--delay", "0.05", "--ignore-term", settings={"stop": {"grace": "3s"}})
    bed.observe()
    supervisor = bed.start()
    bed.run_at_step(5)
    assert bed.call("relaunch").returncode == 0
    bed.wait_event("run_stopping")
    bed.kill_supervisor(supervisor)
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert not bed.problems(), bed.tell()


def test_trainer_and_supervisor_die_and_the_numbers_are_reused(
    counter_bed: Callable[..., Bed], bystander: Callable[..., int]
) -> None:
    """Bystanders that were given the numbers of the dead shim and trainer are not taken for them."""
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        pytest.skip("needs the right to choose the next process number (ns_last_pid)")
    bed = counter_bed("--steps", "60", "--delay", "0.03")
    bed.observe()
    supervisor = bed.start()
    run = bed.run_at_step(10)
    bed.kill_supervisor(supervisor)
    for pid in (run.shim, run.trainer):
        bed.harm(pid)
    wait_for(lambda: not os.path.exists(f"/proc/{run.shim}") and not os.path.exists(f"/proc/{run.trainer}"), "free numbers")
    others = [bystander(pid=run.shim), bystander(pid=run.trainer)]
    if others != [run.shim, run.trainer]:
        pytest.skip(f"the numbers {run.shim}, {run.trainer} were not given again: {others}")
    assert os.getpgid(run.trainer) == run.trainer
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert not bed.problems(), bed.tell()
    for pid in others:
        assert is_living(pid, None) is not None, f"bystander {pid} was harmed\n{bed.tell()}"


def test_bystanders_are_never_touched(real_bed: Callable[..., Bed], bystander: Callable[..., int]) -> None:
    """A copy of the command line, older and younger than the run, while trainer, shim and supervisor die."""
    bed = real_bed(delay_s=0.03)
    others = [bystander(like=bed)]
    supervisor = bed.start()
    run = bed.run_at_step(12)
    others.append(bystander(like=bed))
    bed.harm(run.shim)
    run = bed.run_at_step(22, after=run.number)
    bed.kill_supervisor(supervisor)
    bed.harm(run.shim)
    assert bed.ended(bed.start()) == 0, bed.tell()
    named = {pid for event in bed.kinds("run_killing") for pid in event["data"]["pids"]}
    for pid in others:
        assert is_living(pid, None) is not None, f"bystander {pid} was harmed\n{bed.tell()}"
        assert pid not in named
    assert not bed.problems(), bed.tell()


def test_under_a_debugger(real_bed: Callable[..., Bed], debugger: Callable[[int], Callable[[], None]],
                          ends_as_undisturbed: Callable[..., None]) -> None:
    """A trainer that a debugger holds still is silent, and left alone; afterwards it goes on."""
    bed = real_bed(delay_s=0.03, settings={"deadlines": {"train": "1s"}})
    supervisor = bed.start()
    run = bed.run_at_step(15)
    let_go = debugger(run.trainer)
    silent_s = time.monotonic()
    wait_for(lambda: time.monotonic() - silent_s > 3.0, "three deadlines of silence", every_s=0.1)
    assert is_living(run.trainer, None) is not None
    let_go()
    assert bed.ended(supervisor) == 0, bed.tell()
    assert not bed.kinds("run_killing"), bed.tell()
    ends_as_undisturbed(bed)
