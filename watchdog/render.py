"""Words for people and JSON for machines, made from views. Pure: text in, text out.

Says what was seen, with figures and units, before what it means. Never more than was proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from watchdog.contract import decode_number, encode_number
from watchdog.core.figures import sized
from watchdog.core.limits import GPU_MEMORY_NEED_BYTES
from watchdog.core.smaller import in_words
from watchdog.core.view import CollectorView, DeviceView, FindingView, GateView, RunView, StatusView, VerdictView

_BAR = 10
_EXPECTED = ("healthy", "starting", "finished", "dead")  # the rest of the line says so, or another line does


def duration(seconds: float) -> str:
    """`2.1 s`, `45 s`, `3 min`, `5 h 12 min`, `2 d 3 h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def count(number: float) -> str:
    """`950`, `1.2 k`, `7.1 M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def bar(fraction: float) -> str:
    """A bar of ten blocks."""
    full = round(max(0.0, min(1.0, fraction)) * _BAR)
    return "▇" * full + "▁" * (_BAR - full)


def live_line(view: StatusView) -> str:
    """The one line that follows a run: phase or step, loss, speed, time to go."""
    run = view.run
    if view.state == "backoff" and view.next_launch_s is not None:
        return f"{'wait':<9} next run in {duration(view.next_launch_s)}"
    since_s = 0.0 if view.since_wall_s is None else view.now_wall_s - view.since_wall_s
    if view.state in ("gating", "weighing") and since_s > 3:
        if view.waiting_for:
            return f"{'gate':<9} waits for {duration(since_s)} now: {view.waiting_for}"
        return f"{'choose':<9} reading checkpoints back, for {duration(since_s)} now"
    if run is None or not run.alive:
        return ""
    parts = [f"run {run.number:<5} {_progress(run)}"]
    if run.loss is not None:
        parts.append(f"loss {run.loss:.3f}")
    if run.tokens_per_s is not None:
        parts.append(f"{count(run.tokens_per_s)} tok/s")
    if run.eta_s is not None:
        parts.append(f"eta {duration(run.eta_s)}")
    if view.verdict is not None and view.verdict.kind not in _EXPECTED:
        parts.append(view.verdict.kind)
    if run.beat_age_s is not None and run.beat_age_s > 5:
        parts.append(f"last beat {duration(run.beat_age_s)} ago")
    return "  ".join(parts)


def _progress(run: RunView) -> str:
    if run.phase is None:
        if run.step is not None:
            return f"step {run.step}, as its output says"
        return "running, without beats" if run.leader_pid else "starting"
    if run.progress is not None:
        return f"{run.phase} {bar(run.progress)} {run.progress * 100:3.0f} %  {run.status or ''}".rstrip()
    if run.step is not None and run.target_step:
        phase = "" if run.phase == "train" else f" · {run.phase}"
        return f"step {run.step}/{run.target_step} {bar(run.step / run.target_step)}{phase}"
    if run.step is not None:
        return f"step {run.step} · {run.phase}"
    return f"{run.phase}{': ' + run.status if run.status else ''}"


def after_hold(options: str) -> str:
    """What a person does about a hold."""
    return f"remove the reason, then: watchdog relaunch{options}"


def status_lines(view: StatusView) -> list[str]:
    """`watchdog status` for people."""
    view = masked(view)
    state = view.state
    if view.since_wall_s is not None:
        state += f" for {duration(view.now_wall_s - view.since_wall_s)}"
    nobody = "no supervisor runs" if view.silence is None else "no supervisor answers"
    who = f"supervisor pid {view.supervisor_pid}" if view.supervisor_pid else nobody
    lines = [f"{'job':<11} {view.job} · {state} · {who}"]
    if view.silence:
        lines.append(f"{'watchdog':<11} {view.silence}")
    if view.verdict is not None:
        lines.append(f"{'verdict':<11} {verdict_line(view.verdict, view.now_wall_s)}")
    if view.hold_reason:
        lines.append(f"{'HOLD':<11} {view.hold_reason}")
        if view.last_error:
            lines.append(f"{'last error':<11} {view.last_error}")
        lines.append(f"{'next':<11} {after_hold(view.options)}")
    if view.waiting_for:
        lines.append(f"{'waits for':<11} {view.waiting_for}")
    for finding in view.findings:
        said = harmless(f"{finding.subject} · {finding.check} · {finding.reason}")
        lines.append(f"{finding.severity.upper():<11} {said}")
        lines.append(f"{'':<11} next: {finding.next}")
    run = view.run
    if run is not None:
        how = "adopted" if run.adopted else "launched"
        if view.silence is not None:
            how = "alive"
        elif view.supervisor_pid is None:
            how = "alive without a supervisor (watchdog run goes on with it)"
        alive = f"{how}, pid {run.beat_pid or run.leader_pid or run.shim_pid}" if run.alive else "over"
        if run.alive is None:
            alive = f"may be alive: {run.status}"
        progress = f" · {_progress(run)}" if run.alive else ""
        lines.append(f"{'run ' + str(run.number):<11} {alive}{progress}")
        if run.alive and run.loss is not None:
            figures = f"loss {run.loss:.4f}"
            if run.gradient_norm is not None:
                figures += f" · gradient norm {run.gradient_norm:.3g}"
            if run.learning_rate is not None:
                figures += f" · learning rate {run.learning_rate:.3g}"
            lines.append(f"{'':<11} {figures}")
        if run.alive and run.beat_age_s is not None:
            deadline = f", allowed {duration(run.beat_deadline_s)}" if run.beat_deadline_s else ""
            lines.append(f"{'beat':<11} {duration(run.beat_age_s)} ago{deadline}")
    if view.checkpoint_step is not None:
        age = f", {duration(view.checkpoint_age_s)} old" if view.checkpoint_age_s is not None else ""
        digest = (view.checkpoint_digest or "")[:12]
        lines.append(f"{'checkpoint':<11} step {view.checkpoint_step} verified {digest}…{age}")
    failures = f"{view.failures} of {view.failure_limit} failures in a row without a new checkpoint"
    restarts = "1 restart" if view.restarts == 1 else f"{view.restarts} restarts"
    lines.append(f"{'budget':<11} {failures} · {restarts} · {view.steps_repeated} steps repeated")
    if view.batch_halvings:
        lines.append(f"{'batch':<11} {in_words(view.batch_halvings)} (whole again: relaunch --force)")
    if view.lost_s:
        lines.append(f"{'time':<11} {ettr_line(view)}")
    if view.memory_available_bytes is not None:
        need = ""
        if view.memory_need_bytes is not None:
            kind = "GPU job" if view.memory_need_bytes == GPU_MEMORY_NEED_BYTES else "job"
            who = "the job states" if view.memory_need_stated else f"by default a {kind} is taken to need"
            need = f", {who} {sized(view.memory_need_bytes)}"
            if view.memory_need_why:
                need = f", {sized(view.memory_need_bytes)} needed: {view.memory_need_why}"
        lines.append(f"{'memory':<11} {sized(view.memory_available_bytes)} available{need}")
    if view.sentence:
        lines.append(f"{'last':<11} {view.sentence}")
    lines.append(f"{'files':<11} checkpoints {view.checkpoints}")
    lines.append(f"{'':<11} ledger      {view.ledger}")
    if run is not None and run.log:
        lines.append(f"{'':<11} log         {run.log}")
    if view.metrics_url:
        lines.append(f"{'':<11} metrics     {view.metrics_url}")
    return lines


def verdict_line(verdict: VerdictView, now_wall_s: float) -> str:
    """`healthy for 3 min: step 812, last beat 0.4 s ago (rule: beats in time)`."""
    stands = f"{verdict.kind} for {duration(now_wall_s - verdict.since_wall_s)}"
    return harmless(f"{stands}: {verdict.reason} (rule: {verdict.rule})")


def ettr_words(
    ratio: float | None, why: str, *, down_s: float | None, lost_s: Mapping[str, float], saving_s: float
) -> str:
    """`ETTR 0.94 · down 3 min (proof 2 s, hold 3 min) · replay 40 s · start 10 s`: what was lost, and to what."""
    parts = [f"ETTR {ratio:.2f}" if ratio is not None else f"ETTR unknown: {why}"]
    told = {name: f"{name} {duration(seconds)}" for name, seconds in lost_s.items() if seconds >= 0.05}
    apart = [told.pop(name) for name in ("replay", "start") if name in told]
    if (down_s or 0.0) >= 0.05:
        parts.append(f"down {duration(down_s or 0.0)}" + (f" ({', '.join(told.values())})" if told else ""))
    parts += apart
    if saving_s >= 1:
        parts.append(f"saving at least {duration(saving_s)}")
    return " · ".join(parts)


def ettr_line(view: StatusView) -> str:
    """The same of a view, and the incident that is open."""
    why, down_s, lost_s, saving_s = view.ettr_why, view.down_s, view.lost_s, view.saving_s
    parts = [ettr_words(view.ettr_ratio, why, down_s=down_s, lost_s=lost_s, saving_s=saving_s)]
    if view.incident is not None:
        parts.append(f"incident {view.incident} is open: watchdog incidents show {view.incident}{view.options}")
    return " · ".join(parts)


def harmless(text: str) -> str:
    """Findings tell what other processes call themselves: no control character of theirs reaches a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def status_record(view: StatusView) -> dict[str, Any]:
    """`watchdog status --json`: the view field by field, non-finite numbers as strings."""
    return {"format": 1, **_plain(dataclasses.asdict(masked(view)))}


def masked(view: StatusView) -> StatusView:
    """The view with the secrets hidden that trainers, commands and other processes say; paths stay as they are."""
    from watchdog.masking import mask_text  # its expressions cost 10 ms: who shows no view need not pay for them

    def hide(text: str | None) -> str | None:
        return None if text is None else mask_text(text)

    run, verdict = view.run, view.verdict
    if verdict is not None:
        evidence = tuple(map(mask_text, verdict.evidence))
        verdict = dataclasses.replace(verdict, reason=mask_text(verdict.reason), evidence=evidence)
    return dataclasses.replace(
        view,
        sentence=mask_text(view.sentence),
        hold_reason=hide(view.hold_reason),
        last_error=hide(view.last_error),
        silence=hide(view.silence),
        waiting_for=hide(view.waiting_for),
        verdict=verdict,
        run=None if run is None else dataclasses.replace(run, status=hide(run.status)),
        gates=tuple(dataclasses.replace(gate, words=mask_text(gate.words)) for gate in view.gates),
        findings=tuple(dataclasses.replace(each, reason=mask_text(each.reason)) for each in view.findings),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def view_from_record(record: Any) -> StatusView:
    """The view that a supervisor sent. For what is none raises AttributeError,
    TypeError, KeyError, ValueError, ContractError."""
    values = _fields_of(StatusView, record)
    if values.get("run") is not None:
        values["run"] = RunView(**_fields_of(RunView, values["run"]))
    if values.get("verdict") is not None:
        verdict = _fields_of(VerdictView, values["verdict"])
        values["verdict"] = VerdictView(**verdict | {"evidence": tuple(verdict.get("evidence", ()))})
    values["findings"] = tuple(FindingView(**_fields_of(FindingView, each)) for each in values.get("findings", ()))
    values["gates"] = tuple(GateView(**_fields_of(GateView, each)) for each in values.get("gates", ()))
    values["devices"] = tuple(DeviceView(**_fields_of(DeviceView, each)) for each in values.get("devices", ()))
    values["collectors"] = {
        name: CollectorView(**_fields_of(CollectorView, each)) for name, each in values.get("collectors", {}).items()
    }
    return StatusView(**values)


def _fields_of(view: type[Any], record: Any) -> dict[str, Any]:
    """What this version knows of a record, numbers decoded. Raises AttributeError, ContractError."""
    types = {field.name: str(field.type) for field in dataclasses.fields(view)}
    return {
        name: decode_number(value, name) if types[name].startswith("float") else value
        for name, value in record.items()
        if name in types
    }


def summary_lines(view: StatusView, summary: Mapping[str, Any] | None, wall_s: float | None) -> list[str]:
    """What a finished job says of itself: from the trainer's own summary where it left one."""
    steps = view.checkpoint_step
    restarts = "1 restart" if view.restarts == 1 else f"{view.restarts} restarts"
    first = []
    if summary is not None:
        first.append(f"{summary['steps']} steps")
        first.append(f"{count(float(summary['tokens']))} tokens")
        first.append(f"loss {float(summary['first_loss']):.2f} → {float(summary['last_loss']):.2f}")
        first.append(
            f"validation {float(summary['validation_loss']):.3f} ({float(summary['ratio']):.2f} of unigram entropy)"
        )
    elif steps is not None:
        first.append(f"{steps} steps")
    first.append(f"{restarts}, {view.steps_repeated} steps repeated")
    if wall_s is not None:
        first.append(f"in {duration(wall_s)}")
    digest = f" {view.checkpoint_digest[:12]}…" if view.checkpoint_digest else ""
    lines = [" · ".join(first)]
    if view.lost_s:
        lines.append(ettr_line(view))
    if view.checkpoint_step is not None:
        lines.append(f"checkpoint step {view.checkpoint_step} verified{digest} in {view.checkpoints}")
    lines.append(f"ledger {view.ledger}")
    return lines
