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


def passed(seconds: float) -> None:
    """Let time pass while something is frozen: here the time itself is the fault."""
    since_s = time.monotonic()
    wait_for(lambda: time.monotonic() - since_s > seconds, f"{seconds} s to pass", every_s=0.02)


def test_supervisor_killed_ten_times(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """At seeded random moments of its life; three times the trainer dies while nobody watches.

    On a busy machine a second is less than it takes to begin: then it goes on, with longer lives, until it was born to
    a living run.
    """
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
    for _ in range(10):
        if bed.kinds("run_adopted"):
            break
        supervisor = bed.start()
        with contextlib.suppress(Exception):
            supervisor.wait(chance.uniform(1.0, 4.0))
        bed.kill_supervisor(supervisor)
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert bed.kinds("run_adopted"), "no moment was hit in which a run had to be adopted"
    ends_as_undisturbed(bed)


def test_shim_killed_and_bystanders_are_never_touched(
    real_bed: Callable[..., Bed], bystander: Callable[..., int], ends_as_undisturbed: Callable[..., None]
) -> None:
    """Once under the eyes of its supervisor, once while there is none. Beside it stand copies of the trainer's command
    line, one older and one younger than the run: they live on and are named nowhere."""
    bed = real_bed(delay_s=0.03)
    others = [bystander(like=bed)]
    supervisor = bed.start()
    run = bed.run_at_step(12)
    others.append(bystander(like=bed))
    bed.harm(run.shim)
    run = bed.run_at_step(22, after=run.number)
    bed.kill_supervisor(supervisor)
    bed.harm(run.shim)
    wait_for(lambda: is_living(run.shim, None) is None, "the end of the shim")
    assert bed.ended(bed.start()) == 0, bed.tell()
    causes = [event["data"]["cause"] for event in bed.kinds("run_ended")]
    assert causes == ["shim_killed", "shim_killed", "finished"], bed.tell()
    named = {pid for event in bed.kinds("run_killing") for pid in event["data"]["pids"]}
    for pid in others:
        assert is_living(pid, None) is not None, f"bystander {pid} was harmed\n{bed.tell()}"
        assert pid not in named
    ends_as_undisturbed(bed)


def test_shim_and_supervisor_die_and_an_escapee_lives(
    real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]
) -> None:
    """The last proof is gone and a process without marks lives: it is ended where somebody saw it in time, else it is
    a hold that names it. Never a second run beside it."""
    bed = real_bed(disturbed=("--escapee",), delay_s=0.03, settings={"stop": {"kill_wait": "1s"}})
    supervisor = bed.start()
    run = bed.run_at_step(12)
    escapee = next(pid for pid in bed.ours() if pid not in (run.shim, run.trainer, supervisor.pid))
    bed.kill_supervisor(supervisor)
    bed.harm(run.shim)
    code = bed.ended(bed.start())
    if code == 3:
        assert f"{escapee} (python" in bed.kinds("hold")[0]["data"]["reason"], bed.tell()
        assert is_living(escapee, None) is not None
        bed.harm(escapee)
        assert bed.call("relaunch").returncode == 0
        code = bed.ended(bed.start())
    assert code == 0, bed.tell()
    assert is_living(escapee, None) is None
    ends_as_undisturbed(bed)


def test_everything_freezes(real_bed: Callable[..., Bed], ends_as_undisturbed: Callable[..., None]) -> None:
    """A freeze longer than the deadline is not the trainer's fault, whoever wakes first."""
    bed = real_bed(delay_s=0.05, settings={"deadlines": {"train": "2s"}})
    supervisor = bed.start()
    for step, last_to_wake in ((10, "trainer"), (25, "supervisor")):
        run = bed.run_at_step(step)
        order = [supervisor.pid, run.shim, run.trainer]
        for pid in order:
            bed.harm(pid, signal.SIGSTOP)
        passed(3.0)
        for pid in order if last_to_wake == "trainer" else reversed(order):
            bed.harm(pid, signal.SIGCONT)
            passed(0.15)
    assert bed.ended(supervisor) == 0, bed.tell()
    assert len(bed.kinds("gap")) == 2, bed.tell()
    assert not bed.kinds("run_stopping"), bed.tell()
    assert len(bed.kinds("run_launching")) == 1
    ends_as_undisturbed(bed)


def test_supervisor_killed_while_it_stops_a_run(counter_bed: Callable[..., Bed]) -> None:
    """The stop that was begun is finished by the next one, and the run is not launched twice."""
    bed = counter_bed("--steps", "60", "--delay", "0.05", "--ignore-term", settings={"stop": {"grace": "3s"}})
    bed.observe()
    supervisor = bed.start()
    bed.run_at_step(5)
    assert bed.call("relaunch", "--no-wait").returncode == 0
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
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (run.shim, run.trainer)), "free numbers")
    others = [bystander(pid=run.shim), bystander(pid=run.trainer)]
    if others != [run.shim, run.trainer]:
        pytest.skip(f"the numbers {run.shim}, {run.trainer} were not given again: {others}")
    assert os.getpgid(run.trainer) == run.trainer
    assert bed.ended(bed.start()) == 0, bed.tell()
    assert not bed.problems(), bed.tell()
    for pid in others:
        assert is_living(pid, None) is not None, f"bystander {pid} was harmed\n{bed.tell()}"


def test_under_a_debugger(
    real_bed: Callable[..., Bed],
    debugger: Callable[[int], Callable[[], None]],
    ends_as_undisturbed: Callable[..., None],
) -> None:
    """A trainer that a debugger holds still is silent, and left alone; afterwards it goes on."""
    bed = real_bed(delay_s=0.03, settings={"deadlines": {"train": "1s"}})
    supervisor = bed.start()
    run = bed.run_at_step(15)
    let_go = debugger(run.trainer)
    passed(3.0)
    assert is_living(run.trainer, None) is not None
    let_go()
    assert bed.ended(supervisor) == 0, bed.tell()
    assert not bed.kinds("run_killing"), bed.tell()
    ends_as_undisturbed(bed)
