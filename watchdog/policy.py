"""The settings that decisions use, as the pure core knows them. Refuses to read a file."""

from __future__ import annotations

from watchdog.core.state import Policy
from watchdog.learning import deadlines_of
from watchdog.retaining import when_of
from watchdog.settings import Settings


def policy_from(settings: Settings, *, leave_on_hold: bool) -> Policy:
    """What was learned is added by the loop (learning.py)."""
    return Policy(
        level=settings.job.level,
        target_step=settings.job.target_step,
        deadlines_s=deadlines_of(settings),
        period_s=settings.loop.period_s,
        grace_s=settings.stop.grace_s,
        kill_wait_s=settings.stop.kill_wait_s,
        failure_limit=settings.relaunch.failures,
        backoff_s=settings.relaunch.backoff_s,
        backoff_limit_s=settings.relaunch.backoff_limit_s,
        gate_wait_s=settings.relaunch.gate_wait_s,
        leave_on_hold=leave_on_hold,
        prunes=when_of(settings) != "never",
        reclaims=settings.memory.reclaim,
        shrink_batch=settings.job.shrink_batch,
    )
