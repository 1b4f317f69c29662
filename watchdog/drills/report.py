"""What `watchdog drill` does and shows: which faults, one after the other, and a row for each.

Responsible for progress on stderr, for the table or the JSON on stdout, and for an interrupt that first cleans up.
Refuses to call it well when a drill could not be made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from watchdog.drills.faults import FAULTS, NOT_MADE, Fault, by_name
from watchdog.drills.interrupts import NUMBERS, Interrupted
from watchdog.drills.run import Result, drill
from watchdog.errors import EXIT_FAILURE, EXIT_OK, SettingsError

_HEAD = ("fault", "phase", "detected as", "after", "outcome", "new step", "lost", "")


def chosen(name: str, phase: str | None) -> list[tuple[Fault, str]]:
    """The faults with the phase of each. Raises SettingsError for a name, or a phase of it, that there is not."""
    if name == "all":
        faults = list(FAULTS)
    else:
        fault = by_name(name)
        if fault is None:
            raise SettingsError(f"there is no drill {name!r}; watchdog drill --list names them, all makes every one")
        faults = [fault]
    if phase is None:
        return [(fault, fault.phases[0]) for fault in faults]
    pairs = [(fault, phase) for fault in faults if phase in fault.phases]
    if not pairs:
        known = sorted({each for fault in faults for each in fault.phases})
        raise SettingsError(f"{name} is not made in phase {phase!r}, only in {', '.join(known)}")
    return pairs


def listing() -> list[str]:
    """Every fault, whether this host can run it and why not, and what no drill makes."""
    width = max(len(fault.name) for fault in FAULTS)
    lines = []
    for fault in FAULTS:
        why = fault.why_not()
        lines.append(f"{'cannot' if why else 'can':<7} {fault.name:<{width}}  {fault.words}: {fault.outcome.value}")
        if why:
            lines.append(f"{'':<7} {'':<{width}}  {why}")
        if len(fault.phases) > 1:
            lines.append(f"{'':<7} {'':<{width}}  --phase {' | '.join(fault.phases)}")
    lines += [f"{'none':<7} {what}: {why}" for what, why in NOT_MADE.items()]
    return lines


def listing_record() -> list[dict[str, Any]]:
    return [
        {
            "fault": fault.name,
            "words": fault.words,
            "phases": list(fault.phases),
            "outcome": fault.outcome.value,
            "why_not": fault.why_not() or None,
        }
        for fault in FAULTS
    ]


def row(result: Result) -> tuple[str, ...]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    return (
        result.fault,
        result.phase,
        (result.detected_as or "-").replace("_", " "),
        seconds(result.detected_s),
        result.outcome,
        seconds(result.next_step_s),
        "-" if result.steps_lost is None else str(result.steps_lost),
        "as it should" if result.ok else "NOT AS IT SHOULD",
    )


def line(cells: Sequence[str]) -> str:
    widths = (20, 10, 17, 7, 10, 9, 5, 0)
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def perform(pairs: Sequence[tuple[Fault, str]], *, as_json: bool, say: Callable[[str], None]) -> int:
    """Each in its turn. Returns the exit code: 0 when each ended as it should."""
    _clean_up_when_interrupted()
    try:
        return _each(pairs, as_json=as_json, say=say)
    except Interrupted as error:
        done = "everything of this drill is ended and removed"
        with contextlib.suppress(OSError):  # a terminal that was closed
            say("\n".join(["not everything is ended and removed:", *error.left]) if error.left else done)
        raise


def _each(pairs: Sequence[tuple[Fault, str]], *, as_json: bool, say: Callable[[str], None]) -> int:
    results: list[Result] = []
    skipped: list[tuple[Fault, str]] = []
    if not as_json:
        print(line(_HEAD), flush=True)
    for number, (fault, phase) in enumerate(pairs, 1):
        if why := fault.why_not():
            skipped.append((fault, why))
            continue
        say(f"{number}/{len(pairs)}  {fault.words}, in phase {phase}")
        result = drill(fault, phase)
        results.append(result)
        if not as_json:
            print(line(row(result)), flush=True)
            if not result.ok:
                print("\n".join(f"    {text}" for problem in result.problems for text in problem.splitlines()))
    failed = [result for result in results if not result.ok]
    if as_json:
        record = {
            "drills": [dataclasses.asdict(result) | {"ok": result.ok} for result in results],
            "skipped": [{"fault": fault.name, "why": why} for fault, why in skipped],
            "ok": bool(results) and not failed,
        }
        print(json.dumps(record, indent=1, allow_nan=False))
    else:
        for fault, why in skipped:
            print(f"not made  {fault.name}: {why}")
        print(
            f"{len(results) - len(failed)} of {len(results)} ended as they should, {len(skipped)} cannot be made here"
        )
    return EXIT_OK if results and not failed else EXIT_FAILURE


def say_on_terminal(words: str) -> None:
    """Progress: on stderr, so that what is asked for stands alone on stdout."""
    print(words, file=sys.stderr, flush=True)


def _clean_up_when_interrupted() -> None:
    """The first Ctrl-C (or TERM, or a closed terminal) ends the drill; no second one ends its cleaning up.

    What is ignored stays so: under nohup a closed terminal ends nothing.
    """

    def on_signal(_number: int, _frame: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # a terminal that was closed
            say_on_terminal("interrupted: ending and removing what this drill made")
        raise KeyboardInterrupt

    numbers = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, on_signal)
