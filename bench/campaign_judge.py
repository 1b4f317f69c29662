"""What a ledger and an observer must show after any mixture of faults. Pure: records in, problems out.

Refuses to be lenient: an empty list means that every rule was looked at and held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]  # one line of the ledger: "event", "data", "wall_s", "sentence"


def of_kind(events: Iterable[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event["event"] in kinds]


def alternation(events: Sequence[Event]) -> list[str]:
    """Launches and ends strictly alternate, and each end is that of the launch before it."""
    problems = []
    open_run: str | None = None
    for event in of_kind(events, "run_launching", "run_ended"):
        run_id = event["data"]["run_id"]
        if event["event"] == "run_launching":
            if open_run is not None:
                problems.append(f"run {run_id} was launched while run {open_run} had no end")
            open_run = run_id
        elif run_id != open_run:
            problems.append(f"run {run_id} ended, but the open run was {open_run}")
        else:
            open_run = None
    return problems


def resumes(events: Sequence[Event]) -> list[str]:
    """Every launch starts from the newest step that was verified before it and not refused since, with its digest.

    Nothing may have been known before a first start.
    """
    problems = []
    known: dict[int, str] = {}
    for event in events:
        data = event["data"]
        match event["event"]:
            case "checkpoint_verified":
                known[int(data["step"])] = str(data["digest"])
            case "checkpoint_refused":
                known.pop(_step_of(data), None)
            case "checkpoint_vanished":  # what lies there no more, down to the newest that does
                still = -1 if data["still"] is None else int(data["still"][0])
                known = {step: digest for step, digest in known.items() if step <= still}
            case "archived":
                known.clear()
            case "run_launching":
                expected = max(known, default=None)
                if data["resume_step"] != expected:
                    problems.append(f"run {data['number']} starts from {data['resume_step']}, verified was {expected}")
                elif expected is not None and data["digest"] != known[expected]:
                    was, is_now = known[expected][:12], data["digest"][:12]
                    problems.append(f"run {data['number']} starts from {is_now}, verified was {was}")
    return problems


def _step_of(refusal: Mapping[str, Any]) -> int:
    """A manifest that cannot be read has its step in its name only."""
    if refusal["step"] is not None and refusal["step"] >= 0:
        return int(refusal["step"])
    digits = re.findall(r"\d+", str(refusal["manifest"]).rpartition("/")[2])
    return int(digits[0]) if digits else -1


def acknowledgements(events: Sequence[Event], refused_runs: frozenset[str] = frozenset()) -> list[str]:
    """What a run said it had restored is what it was launched from."""
    problems = []
    launched = {event["data"]["run_id"]: event["data"] for event in of_kind(events, "run_launching")}
    for event in of_kind(events, "run_acknowledged"):
        data, order = event["data"], launched[event["data"]["run_id"]]
        if data["run_id"] in refused_runs:
            problems.append(f"run {data['run_id']} was acknowledged and should have been refused")
        if data["fresh"] != (order["resume_step"] is None) or (
            not data["fresh"] and (data["step"], data["digest"]) != (order["resume_step"], order["digest"])
        ):
            due = order["resume_step"]
            problems.append(f"run {order['number']} restored step {data['step']}, was to restore {due}")
    return problems


def kills(events: Sequence[Event], deaths: Mapping[int, float], ours: frozenset[int]) -> list[str]:
    """Who died of KILL was killed by the drill (`ours`), or is named in a record that was written before.

    `deaths`: pid -> wall time, from the shims' exit records.
    """
    problems = []
    for pid, wall_s in deaths.items():
        killings = [event for event in of_kind(events, "run_killing") if pid in event["data"]["pids"]]
        if pid not in ours and not any(event["wall_s"] <= wall_s + 0.01 for event in killings):
            problems.append(f"pid {pid} died of KILL and no record before says so")
    return problems


def observed(report: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """The observer saw never two runs at once, and saw what it had to."""
    problems = [f"two runs alive at once: {overlap}" for overlap in report["overlaps"]]
    acknowledged = {event["data"]["run_id"] for event in of_kind(events, "run_acknowledged")}
    if report["looks"] < 10:
        problems.append(f"the observer looked only {report['looks']} times")
    missed = acknowledged - set(report["runs"])
    if missed:
        problems.append(f"the observer never saw runs {sorted(missed)}")
    return problems


def relaunch_times(events: Sequence[Event]) -> list[float]:
    """Seconds from each recorded end to the next acknowledged restore."""
    times = []
    ended_s: float | None = None
    for event in events:
        if event["event"] == "run_ended":
            ended_s = event["wall_s"]
        elif event["event"] == "run_acknowledged" and ended_s is not None:
            times.append(event["wall_s"] - ended_s)
            ended_s = None
    return times
