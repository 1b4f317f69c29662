"""Autopsies in words that a person can paste into a report, and as JSON. Pure: every text in them is masked already."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from watchdog.core.autopsy import Incident, Origin
from watchdog.core.ettr import ettr_fields
from watchdog.render import duration, ettr_words, harmless

_WIDTH = 11
_DIGEST_SHOWN = 12
_NUMBERS = 6
_LONG, _SAME = 60, "(the same, see above)"


def listing(incidents: Sequence[Incident], options: str) -> list[str]:
    """One line each, the newest last."""
    if not incidents:
        return ["no incident: nothing has ended, stalled or been held that should not have"]
    lines = [f"{'id':<4} {'when (UTC)':<20} {'outcome':<10} {'lost':<8} what"]
    for each in incidents:
        lost = duration(each.lost_total_s)
        lines.append(f"{each.id:<4} {_when(each.began_wall_s):<20} {each.outcome:<10} {lost:<8} {_what(each)}")
    return [*lines, f"next: watchdog incidents show {incidents[-1].id}{options}"]


def report(incident: Incident, origin: Origin | None = None) -> list[str]:
    """Everything about one."""
    lines = [f"incident {incident.id} · {incident.outcome} · {_what(incident)}"]
    if origin is not None:
        lines += _row("job", harmless(f"{origin.job} on {origin.host} · gpuhost-watchdog {origin.version}"))
    lines += _row("when", f"{_when(incident.began_wall_s)} UTC, the last sign of life")
    lines += _row("", f"noticed {duration(incident.noticed_after_s)} later")
    if incident.recovered_after_s is not None:
        lines += _row("", f"first new step after {duration(incident.recovered_after_s)}")
    if incident.cause is not None:
        sure = "" if incident.confidence is None else f" (confidence {harmless(incident.confidence)})"
        lines += _row("cause", f"{incident.cause.replace('_', ' ')}{sure}: {harmless(incident.words)}")
        if len(incident.runs) > 1:
            lines += _row("", f"of the first of {len(incident.runs)} runs that ended in it; see the timeline")
    if incident.hold is not None:
        lines += _row("HOLD", harmless(incident.hold))
    lines += _row("lost", f"{duration(incident.lost_total_s)}: {lost_words(incident.lost_s)}")
    if incident.wall_s:
        share = 100 * min(1.0, incident.lost_total_s / incident.wall_s)
        lines += _row("", f"{share:.1f} % of the {duration(incident.wall_s)} since the first launch")
    if origin is not None and origin.ettr is not None:
        ettr = origin.ettr
        words = ettr_words(ettr.ratio, ettr.why, down_s=ettr.down_s, lost_s=ettr.lost_s, saving_s=ettr.saving_s)
        lines += _row("ettr", f"of the job up to now: {words}")
    for words in incident.unknown:
        lines += _row("unknown", words)
    lines += _row("checkpoint", _checkpoint(incident))
    for number, moment in enumerate(incident.timeline):
        words = f"{moment.after_s:+9.2f} s  {moment.role:<6} {harmless(moment.sentence)}"
        lines += _row("timeline" if number == 0 else "", words)
    for source in incident.evidence:
        lines += _row("evidence", harmless(source.source))
        lines += [f"{'':<{_WIDTH}}   {harmless(line)}" for line in source.lines]
    for number, words in enumerate(incident.also_standing):
        lines += _row("" if number else "standing", f"also, from before: {harmless(words)}")
    return _said_once(lines, incident)


def record(incident: Incident, origin: Origin | None = None) -> dict[str, Any]:
    """One incident for machines. `ettr` is the job's, up to now."""
    whose: dict[str, Any] = {}
    if origin is not None:
        whose = {"job": origin.job, "host": origin.host, "version": origin.version, "ettr": ettr_fields(origin.ettr)}
    return {"format": 1, **whose, **dataclasses.asdict(incident)}


def lost_words(lost_s: Mapping[str, float]) -> str:
    """`detection 0.2 s · proof 0.3 s`: what took any time at all."""
    parts = [f"{name} {duration(seconds)}" for name, seconds in lost_s.items() if seconds >= 0.05]
    return " · ".join(parts) or "no part of it took a tenth of a second"


def _said_once(lines: list[str], incident: Incident) -> list[str]:
    """A long error is quoted whole where it is told first; further down it is the same."""
    texts = {harmless(words) for words in (incident.words, *(end.words for end in incident.ends)) if words}
    for text in sorted(texts, key=len, reverse=True):
        if len(text) < _LONG:
            continue
        told = False
        for number, line in enumerate(lines):
            if text not in line:
                continue
            first, rest = line.split(text, 1) if not told else ("", line)
            kept = first + text if not told else ""
            lines[number] = kept + rest.replace(text, _SAME)
            told = True
    return lines


def _row(title: str, words: str) -> list[str]:
    return [f"{title:<{_WIDTH}} {words}"]


def _when(wall_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall_s))
    except (ValueError, OverflowError, OSError):
        return "at no known time"  # a forged record


def _what(incident: Incident) -> str:
    """`run 1 died of SIGKILL at step 214`; of several that ended the same way, or the first and the last."""
    ends = incident.ends
    at = "" if incident.last_step is None else f" at step {incident.last_step}"
    if not ends:
        return harmless(f"{incident.words or 'for no reason that was recorded'}{at}")
    if len(ends) > 1 and len({end.words for end in ends}) > 1:
        return harmless(f"run {ends[0].number} {ends[0].words} … run {ends[-1].number} {ends[-1].words}{at}")
    numbers = [str(run) for run in incident.runs]
    if len(numbers) > _NUMBERS:
        numbers = [*numbers[: _NUMBERS - 2], "…", numbers[-1]]
    runs = f"run {numbers[0]}" if len(numbers) == 1 else f"runs {', '.join(numbers)}"
    return harmless(f"{runs} {ends[0].words or 'ended'}{at}" if numbers else f"{ends[0].words}{at}")


def _checkpoint(incident: Incident) -> str:
    if incident.next_run is None:
        return "none yet: no run was launched since"
    if incident.checkpoint_step is None:
        return f"none: run {incident.next_run} started from its beginning"
    digest = (incident.checkpoint_digest or "")[:_DIGEST_SHOWN]
    repeated = "" if incident.steps_repeated is None else f", {incident.steps_repeated} steps repeated"
    return f"run {incident.next_run} resumed step {incident.checkpoint_step} {harmless(digest)}…{repeated}"
