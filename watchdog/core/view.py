"""The view: what status, metrics and the screen show of one job. Frozen; the loop makes one each turn.

Wall-clock times are seconds since the epoch (for people); ages and durations are seconds on the monotonic clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from watchdog.core.collectorview import CollectorView

__all__ = ["CollectorView", "DeviceView", "FindingView", "GateView", "RunView", "StatusView", "VerdictView"]


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
class VerdictView:
    """How the job is: a value of core.verdict.Kind, the rule that fired, and what it rests on."""

    kind: str
    rule: str
    reason: str
    since_wall_s: float
    subject: str
    evidence: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FindingView:
    """A warning or worse that stands now. `severity` is "warning" or "critical", `next` the remedy in words."""

    check: str
    severity: str
    subject: str
    reason: str
    next: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateView:
    """A condition for a launch as it stands now, with its figures in words. `hopeless`: it is not waited for."""

    name: str
    open: bool
    words: str
    hopeless: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceView:
    """One GPU as it was sampled last; what is not known is None. `xids`: events by number since sampling began."""

    uuid: str
    name: str
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    xids: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StatusView:
    """One job at one moment."""

    job: str
    state: str  # a value of core.decide.Phase; from the ledger alone, what ledgerview.py says
    since_wall_s: float | None  # None: since when it is so is not known
    now_wall_s: float
    sentence: str  # the last decision, in words
    hold_reason: str | None = None
    leaving: bool = False  # a person had the job stopped: no run follows the one that is ended
    last_error: str | None = None
    supervisor_pid: int | None = None
    silence: str | None = None  # why none answered where one lives, or may live, and what to do
    run: RunView | None = None
    verdict: VerdictView | None = None  # None: nobody judges
    runs_by_cause: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failures: int = 0  # in a row, without a new checkpoint: the ledger of the two that is spent further
    failure_limit: int = 3
    restarts: int = 0
    batch_halvings: int = 0  # of the micro-batch, in the newest run or the one after it
    steps_repeated: int = 0
    pruned: int = 0  # checkpoints that were deleted by us
    pruned_bytes: int = 0  # what that and the deletion of leftovers gave back
    notifications: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)  # event, outcome: number
    next_launch_s: float | None = None
    waiting_for: str | None = None  # the gates that are closed, in words
    gates: tuple[GateView, ...] = ()  # also beside a living run
    ettr_ratio: float | None = None  # None: ettr_why says what is missing
    ettr_why: str = ""
    down_s: float | None = None  # of the time since the first launch; None before it
    lost_s: Mapping[str, float] = dataclasses.field(default_factory=dict)  # by what it was lost to
    saving_s: float = 0.0  # of checkpoints; the least it can be
    incident: int | None = None  # the one that is open
    checkpoint_step: int | None = None  # newest verified
    checkpoint_digest: str | None = None
    checkpoint_age_s: float | None = None
    memory_available_bytes: int | None = None
    memory_need_bytes: int | None = None
    memory_need_stated: bool = True  # false: what such jobs are taken to need
    memory_need_why: str = ""  # where it is neither: what its last run had when memory ran out
    collectors: Mapping[str, CollectorView] = dataclasses.field(default_factory=dict)
    findings: tuple[FindingView, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    driver_silent_s: float | None = None  # None where there is no driver
    checkpoints: str = ""
    ledger: str = ""
    metrics_url: str | None = None
    options: str = ""  # what a command needs to mean this job
