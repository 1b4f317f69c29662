"""Making the view of a job from the living loop. Reads nothing: everything was gathered before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from watchdog.core.decide import beat_deadline
from watchdog.core.ettr import Ettr, ettr_fields
from watchdog.core.facts import Absent, Device, Facts, Known, Progress, Unknown, value_of
from watchdog.core.figures import gib
from watchdog.core.findings import Finding, Severity, next_step
from watchdog.core.history import History
from watchdog.core.pace import Pace
from watchdog.core.phase import Phase
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import (
    Policy,
    State,
    Wish,
)
from watchdog.core.verdict import Verdict
from watchdog.core.view import DeviceView, FindingView, GateView, RunView, StatusView, VerdictView
from watchdog.places import job_options
from watchdog.settings import Settings

if TYPE_CHECKING:
    from watchdog.clock import Clock
    from watchdog.collectors.run import RunWatch
    from watchdog.hostwatch import HostWatch
    from watchdog.opening import OpenJob

_LABELS = {
    "supervisor_started": "watchdog",
    "supervisor_leaving": "watchdog",
    "gap": "watchdog",
    "ledger_damaged": "watchdog",
    "request_dropped": "watchdog",
    "checkpoint_verified": "verified",
    "checkpoint_doubtful": "doubtful",
    "checkpoint_vanished": "vanished",
    "checkpoint_refused": "refused",
    "checkpoint_moved": "refused",
    "checkpoint_stays": "refused",
    "signal_sending": "signal",
    "signal_sent": "signal",
    "shim_continuing": "signal",
    "shim_continued": "signal",
    "launch_troubled": "gate",
    "run_freezing": "kill",
    "run_killing": "kill",
    "run_killed": "kill",
    "cgroup_missing": "cgroup",
    "cgroup_stays": "cgroup",
    "hold": "HOLD",
    "branch_asked": "back",
    "branch_refused": "back",
    "branched": "back",
    "budget_reset": "budget",
    "batch_shrunk": "batch",
    "batch_whole": "batch",
    "wait_cut": "wait",
    "lifted": "lifted",
    "reclaiming": "memory",
    "reclaimed": "memory",
    "device_probing": "device",
    "device_probed": "device",
    "prune_planned": "disk",
    "pruned": "disk",
    "finished": "finished",
    "archived": "archived",
}


def label_of(kind: str, data: Mapping[str, Any], history: History) -> str:
    """The word at the beginning of a line on the screen."""
    if kind in ("finding", "finding_over") and (data.get("stood_before") is True or history.open_run is None):
        return "host"  # no run of ours is to blame for what was there before it
    return _LABELS.get(kind, f"run {data.get('number', history.last_number)}")


def said_of(kind: str, sentence: str, data: Mapping[str, Any]) -> str:
    """A record on the screen: what was over before the first look is no warning about this job."""
    before = kind == "finding" and data.get("stood_before") is True and data.get("check") == "oom-kill"
    return f"for information, from before this job was looked at: {sentence}" if before else sentence


def make_view(
    settings: Settings,
    job: OpenJob,
    state: State,
    history: History,
    clock: Clock,
    *,
    seen: Seen | None = None,
    watch: RunWatch | None = None,
    pace: Pace | None = None,
    policy: Policy | None = None,
    host: HostWatch | None = None,
    progress: Progress | None = None,
    metrics_url: str | None = None,
    ettr: Ettr | None = None,
    verdict: Verdict | None = None,
) -> StatusView:
    """The view of one turn. Reads nothing: everything was gathered before."""
    import os

    now_s, wall_s = clock.monotonic(), clock.wall()
    newest = history.newest
    facts = None if host is None else host.facts
    return StatusView(
        job=settings.job.name,
        state=state.phase.value,
        since_wall_s=wall_s - (now_s - state.since_s),
        now_wall_s=wall_s,
        sentence=history.last_sentence,
        hold_reason=state.hold,
        leaving=state.wish is Wish.LEAVE,
        last_error=history.last_error,
        supervisor_pid=os.getpid(),
        verdict=None if verdict is None else _verdict_view(verdict, wall_s - now_s),
        run=_run_view(state, seen, watch, pace, policy, now_s, progress),
        runs_by_cause=history.runs_by_cause,
        failures=max(state.failures, state.host_failures),
        failure_limit=settings.relaunch.failures,
        restarts=history.restarts,
        batch_halvings=history.batch_halvings,
        steps_repeated=history.steps_repeated,
        pruned=history.pruned,
        pruned_bytes=history.pruned_bytes,
        notifications=history.notifications,
        **ettr_fields(ettr),
        waiting_for=_waits_for(state, seen, policy, now_s) if state.phase is Phase.GATING else None,
        gates=()
        if seen is None
        else tuple(GateView(name=g.name, open=g.open, words=g.words, hopeless=g.hopeless) for g in seen.gates),
        next_launch_s=max(0.0, state.retry_at_s - now_s) if state.phase is Phase.BACKOFF else None,
        checkpoint_step=None if newest is None else newest.step,
        checkpoint_digest=None if newest is None else newest.digest,
        checkpoint_age_s=None if history.newest_wall_s is None else max(0.0, wall_s - history.newest_wall_s),
        memory_available_bytes=_available(facts),
        memory_need_bytes=settings.memory.need_bytes if host is None else host.memory_need_bytes,
        memory_need_stated=settings.memory.need_bytes is not None,
        memory_need_why="" if host is None or host.memory_learned is None else host.memory_learned.words,
        collectors={} if host is None else host.views(),
        findings=()
        if host is None
        else tuple(_finding_view(each, job_options(settings)) for each in _loud(host.findings)),
        devices=() if facts is None else tuple(map(_device_view, _devices(facts))),
        driver_silent_s=facts.driver.value.silent_s if facts is not None and isinstance(facts.driver, Known) else None,
        checkpoints=str(job.folders.checkpoints),
        ledger=str(job.folders.ledger),
        metrics_url=metrics_url,
        options=job_options(settings),
    )


def host_line(facts: Facts) -> str:
    """The host in a line, for the screen. What is absent is said once."""
    import os

    memory = facts.memory
    free = f"{gib(memory.value.available_bytes)} GiB free" if isinstance(memory, Known) else "memory cannot be read"
    return f"{os.cpu_count()} CPUs · {free} · {_driver_words(facts)}"


def _driver_words(facts: Facts) -> str:
    driver, devices = facts.driver, facts.devices
    if isinstance(driver, Absent):
        return "no NVIDIA driver: GPU checks are absent, not passed"
    if isinstance(driver, Unknown):
        return f"NVIDIA driver: {driver.why}"
    if driver.value.answers and isinstance(devices, Known):
        labels = ", ".join(device.label for device in devices.value) or "no devices"
        return f"NVIDIA driver {driver.value.version}: {labels}"
    return f"NVIDIA driver: {driver.value.error or driver.value.crash or 'it does not answer'}"


def _waits_for(state: State, seen: Seen | None, policy: Policy | None, now_s: float) -> str | None:
    """What keeps the next run from being launched; None where only its checkpoints are read back."""
    words = [] if seen is None else [gate.words for gate in seen.gates if not gate.open]
    if (trouble := state.troubled) is not None:
        tried = "1 try" if trouble.tries == 1 else f"{trouble.tries} tries"
        again = f"next try in {max(0.0, trouble.again_s - now_s):.0f} s, after {tried}"
        words.insert(0, f"a launch that came to nothing ({trouble.words}): {again}")
    elif not words and policy is not None and policy.level < 2:
        words.append("the gates, which are being looked at")
    return "; ".join(words) or None


def _available(facts: Facts | None) -> int | None:
    return facts.memory.value.available_bytes if facts is not None and isinstance(facts.memory, Known) else None


def _devices(facts: Facts) -> tuple[Device, ...]:
    return facts.devices.value if isinstance(facts.devices, Known) else ()


def _loud(findings: Sequence[Finding]) -> list[Finding]:
    """What a person should hear of, the worst first."""
    loud = [finding for finding in findings if finding.severity >= Severity.WARNING]
    return sorted(loud, key=lambda finding: -finding.severity)


def _finding_view(finding: Finding, options: str) -> FindingView:
    return FindingView(
        check=finding.check,
        severity=finding.severity.name.lower(),
        subject=finding.subject,
        reason=finding.reason,
        next=next_step(finding, options),
    )


def _verdict_view(verdict: Verdict, epoch_s: float) -> VerdictView:
    return VerdictView(
        kind=verdict.kind.value,
        rule=verdict.rule,
        reason=verdict.reason,
        since_wall_s=epoch_s + verdict.since_s,
        subject=verdict.subject,
        evidence=verdict.evidence,
    )


def _device_view(device: Device) -> DeviceView:
    now = device.now
    utilization, clock_mhz = value_of(now.utilization_percent), value_of(now.sm_clock_mhz)
    return DeviceView(
        uuid=device.uuid,
        name=value_of(device.name) or "",
        power_watts=value_of(now.power_watts),
        power_limit_watts=value_of(device.power_limit_watts),
        utilization_ratio=None if utilization is None else utilization / 100,
        memory_used_bytes=value_of(now.memory_used_bytes),
        memory_total_bytes=value_of(device.memory_total_bytes),
        temperature_celsius=value_of(now.temperature_celsius),
        sm_clock_hertz=None if clock_mhz is None else clock_mhz * 1e6,
        xids={str(number): count for number, count in (value_of(device.xid_counts) or {}).items()},
    )


def _run_view(
    state: State,
    seen: Seen | None,
    watch: RunWatch | None,
    pace: Pace | None,
    policy: Policy | None,
    now_s: float,
    progress: Progress | None,
) -> RunView | None:
    run = state.run
    if run is None or watch is None:
        return None
    beat = seen.beat.value if seen is not None and isinstance(seen.beat, Known) else None
    if beat is not None and beat.beat.run_id != run.run_id:
        beat = None
    if beat is not None and pace is not None:
        pace.see(beat.beat)
    deadline = beat_deadline(run, beat, policy)[1] if policy is not None else None
    if deadline is not None and not math.isfinite(deadline):
        deadline = None  # it promised no more beats
    start = watch.start
    values = None if beat is None else beat.beat
    # Without beats, what the trainer prints is the only word there is.
    point = progress.points[-1] if values is None and progress is not None and progress.points else None
    return RunView(
        number=run.number,
        run_id=run.run_id,
        alive=seen is None or seen.shim in (Shim.STARTING, Shim.ALIVE) or bool(seen.members),
        shim_pid=None if start is None else start.shim.pid,
        leader_pid=None if start is None or start.leader is None else start.leader.pid,
        beat_pid=None if values is None else values.pid,
        started_wall_s=watch.record.started_wall_s,
        adopted=watch.adopted,
        resume_step=run.expectation.step,
        acknowledged=run.acknowledged,
        phase=None if values is None else values.phase,
        progress=None if values is None else values.progress,
        status=None if values is None else values.status,
        step=values.step if values is not None else None if point is None else point.step,
        target_step=None if values is None else values.target_step,
        tokens=values.tokens if values is not None else None if point is None else point.tokens,
        loss=values.loss if values is not None else None if point is None else point.loss,
        gradient_norm=values.gradient_norm if values is not None else None if point is None else point.gradient_norm,
        learning_rate=None if values is None else values.learning_rate,
        tokens_per_s=None if pace is None else pace.tokens_per_s(),
        eta_s=None if pace is None else pace.eta_s(),
        beat_age_s=None if values is None else max(0.0, now_s - values.monotonic_s),
        beat_deadline_s=deadline,
        log=str(watch.folder.log),
    )
