"""The view: what status, metrics and the screen show of one job. Frozen; the loop makes one each turn.

Wall-clock times are seconds since the epoch (for people); ages and durations are seconds on the monotonic clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """The living run, or the last one."""

    number: int
    run_id: str
    alive: bool | None  # None: it cannot be told from here
    shim_pid: int | None = None
    leader_pid: int | None = None
    beat_pid: int | None = None
    started_wall_s: float | None = None
    adopted: bool = False
    resume_step: int | None = None  # what it was told to resume from; None = fresh
    acknowledged: bool = False
    phase: str | None = None
    progress: float | None = None
    status: str | None = None
    step: int | None = None
    target_step: int | None = None
    tokens: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    beat_age_s: float | None = None
    beat_deadline_s: float | None = None
    log: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectorView:
    """How one collector fared last time."""

    duration_s: float
    success: bool
    last_success_wall_s: float | None
    why: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StatusView:
    """One job at one moment."""

    job: str
    state: str  # a value of core.decide.Phase
    since_wall_s: float
    now_wall_s: float
    sentence: str  # the last decision, in words
    hold_reason: str | None = None
    last_error: str | None = None
    supervisor_pid: int | None = None
    run: RunView | None = None
    runs_by_cause: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failures: int = 0  # in a row, without a new checkpoint
    failure_limit: int = 3
    restarts: int = 0
    steps_repeated: int = 0
    next_launch_s: float | None = None
    waiting_for: str | None = None  # the gates that are closed, in words
    checkpoint_step: int | None = None  # newest verified
    checkpoint_digest: str | None = None
    checkpoint_age_s: float | None = None
    memory_available_bytes: int | None = None
    memory_need_bytes: int | None = None
    collectors: Mapping[str, CollectorView] = dataclasses.field(default_factory=dict)
    checkpoints: str = ""
    ledger: str = ""
    metrics_url: str | None = None
    options: str = ""  # what a command needs to mean this job
