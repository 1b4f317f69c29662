"""What a person has to be told now. Pure: from state, history and findings, and from what was told already.

An episode is told once, by the number of the ledger's event that began it, so that a supervisor after this one does
not tell it again. An attempt that was begun and whose outcome nobody recorded is not repeated: it may have arrived.
One that failed is repeated once, after a pause.
Refuses to send, and to know commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from watchdog.core.findings import Finding, Severity
from watchdog.core.history import History, Told
from watchdog.core.notice import BLINDNESS, DELIVERED, EVENTS, HOLD, RECOVERY, one_line
from watchdog.core.phase import Phase
from watchdog.core.state import RunState, State
from watchdog.masking import mask_text

ATTEMPTS = 2
RETRY_S = 30.0
LIVED_S = 60.0  # what a run that says nothing of its steps must live to count as recovered
BLIND_CHECK = "blind"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One thing to tell. `episode` is the number of the ledger's event that began it; `next` what a person does."""

    event: str
    episode: str
    summary: str
    reason: str
    run: str = ""
    next: str = ""


def notices(
    state: State, history: History, findings: Iterable[Finding], now_s: float, *, job: str, options: str
) -> tuple[Notice, ...]:
    """What is the case now and worth telling, told or not; one of each event at most.

    `options`: what a command needs to mean this job.
    """
    found = []
    run = "" if state.run is None else str(state.run.number)
    if state.hold is not None and history.hold_seq is not None:
        remedy = f"watchdog relaunch{options}"
        last = run or str(history.last_number or "")
        found.append(_notice(HOLD, history.hold_seq, f"HOLD {job}", state.hold, last, remedy))
    if state.phase is Phase.RUNNING and state.run is not None and history.ordeal is not None:
        ordeal = history.ordeal
        proof = recovered(state.run, ordeal.step, now_s)
        if proof is not None:
            words = f"run {run} {proof}; before: {ordeal.words}"
            found.append(_notice(RECOVERY, ordeal.seq, f"recovered {job}", words, run))
    for finding in findings:
        if finding.check == BLIND_CHECK and finding.severity >= Severity.WARNING and history.blind_seq is not None:
            remedy = f"watchdog diagnose{options}"
            found.append(_notice(BLINDNESS, history.blind_seq, f"blind {job}", finding.reason, run, remedy))
            break
    return tuple(found)


def _notice(event: str, seq: int, label: str, reason: str, run: str, remedy: str = "") -> Notice:
    # Hidden first and cut second, so that no half of a secret is left.
    reason = mask_text(reason)
    return Notice(
        event=event, episode=str(seq), summary=one_line(f"{label}: {reason}"), reason=reason, run=run, next=remedy
    )


def recovered(run: RunState, failed_at: int, now_s: float) -> str | None:
    """How it is proven that the run trains on, as far as its level can tell; None while it is not.

    `failed_at`: the step that was reached before. Up to there it is repeated, and a fault that waits there comes again.
    """
    step = run.last_step
    if run.level == 2 and not run.acknowledged:
        return None
    if step is not None and run.beat_seen:
        return f"trains again, at step {step}" if step > max(run.baseline_step, failed_at) else None
    if run.level == 2 or now_s - run.launched_s < LIVED_S:
        return None
    if run.beat_seen:
        return f"has been beating for {LIVED_S:.0f} s"
    return None if run.level else f"has lived for {LIVED_S:.0f} s (it makes no beats, so no more can be proven)"


def due(
    found: Iterable[Notice],
    told: Mapping[str, Told],
    *,
    wanted: Iterable[str] = EVENTS,
    failed_at_s: Mapping[str, float],
    now_s: float,
    leaving: bool = False,
) -> tuple[tuple[Notice, int], ...]:
    """Of what is found, what has to be sent now, with the number of the attempt.

    `failed_at_s`: when the last attempt for an event failed, on this supervisor's clock. `leaving`: there will be no
    later, so a second attempt does not wait.
    """
    sending = []
    for notice in found:
        if notice.event not in wanted:
            continue
        before = told.get(notice.event)
        if before is None or before.episode != notice.episode:
            sending.append((notice, 1))
            continue
        if before.outcome in (None, DELIVERED) or before.attempt >= ATTEMPTS:
            continue
        if leaving or now_s - failed_at_s.get(notice.event, float("-inf")) >= RETRY_S:
            sending.append((notice, before.attempt + 1))
    return tuple(sending)


def values_of(notice: Notice, *, job: str, host: str) -> dict[str, str]:
    """What the placeholders stand for."""
    return {"event": notice.event, "job": job, "run": notice.run, "host": host, "summary": notice.summary}


def record_of(notice: Notice, *, job: str, host: str, wall_s: float, attempt: int, ledger: str) -> dict[str, Any]:
    """What the command reads from its standard input, as JSON."""
    return {
        "format": 1,
        "event": notice.event,
        "job": job,
        "host": host,
        "run": int(notice.run) if notice.run else None,
        "summary": notice.summary,
        "reason": one_line(notice.reason, 4000),
        "next": notice.next,
        "episode": notice.episode,
        "attempt": attempt,
        "wall_s": wall_s,
        "ledger": ledger,
    }


def example(event: str) -> Notice:
    """A notice for a test by hand. It says that it is one."""
    reasons = {
        HOLD: "this is a test of the notification: nothing is on hold",
        RECOVERY: "this is a test of the notification: nothing had failed",
        BLINDNESS: "this is a test of the notification: everything can be seen",
    }
    return Notice(event=event, episode="test", summary=f"test of {event}: {reasons[event]}", reason=reasons[event])
