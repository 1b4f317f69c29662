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
import time
from collections.abc import Callable, Sequence
from typing import Any

from watchdog.drills import trainers
from watchdog.drills.faults import FAULTS, NOT_MADE, Fault, Outcome, by_name
from watchdog.drills.interrupts import NUMBERS, Interrupted
from watchdog.drills.leftovers import sweep_leftovers
from watchdog.drills.run import Result, drill
from watchdog.drills.trainers import Trained
from watchdog.errors import EXIT_FAILURE, EXIT_OK, SettingsError
from watchdog.render import duration

_HEAD = ("fault", "phase", "detected as", "after", "outcome", "new step", "lost", "")
_EACH_S = 5.7  # 37 of them took 3 min 30 s on two idle CPUs


def trainer(name: str) -> Trained:
    """What is to be harmed. Raises SettingsError for a name that there is not, or what is not installed."""
    found = trainers.by_name(name)
    if found is None:
        raise SettingsError(f"--trainer is {name!r}, not {' or '.join(kind.name for kind in trainers.KINDS)}")
    if why := found.why_not():
        raise SettingsError(f"--trainer {name}: {why}")
    return found


def chosen(name: str, phase: str | None, trained: Trained) -> list[tuple[Fault, str]]:
    """The faults with the phase of each. Raises SettingsError for a name, or a phase of it, that there is not."""
    if name == "all":
        faults = [fault for fault in FAULTS if can_harm(fault, trained)]
    else:
        fault = by_name(name)
        if fault is None:
            raise SettingsError(f"there is no drill {name!r}; watchdog drill --list names them, all makes every one")
        if not can_harm(fault, trained):
            raise SettingsError(f"{name} takes the data or the habits of the quick job: leave out --trainer")
        faults = [fault]
    if phase is None:
        return [(fault, fault.phases[0]) for fault in faults]
    pairs = [(fault, phase) for fault in faults if phase in fault.phases]
    if not pairs:
        known = sorted({each for fault in faults for each in fault.phases})
        raise SettingsError(f"{name} is not made in phase {phase!r}, only in {', '.join(known)}")
    return pairs


def chosen_of(names: Sequence[str], phase: str | None, trained: Trained) -> list[tuple[Fault, str]]:
    """The same of several names, each fault once. Raises SettingsError."""
    pairs = {(fault.name, at): (fault, at) for name in names for fault, at in chosen(name, phase, trained)}
    return list(pairs.values())


def can_harm(fault: Fault, trained: Trained) -> bool:
    return fault.any_trainer or isinstance(trained, trainers.Quick)


def _outcome_words(fault: Fault) -> str:
    return fault.outcome.value + ("" if fault.or_else is None else f", or {fault.or_else.value}")


def listing() -> list[str]:
    """Every fault, whether this host can run it and why not, and what no drill makes."""
    width = max(len(fault.name) for fault in FAULTS)
    lines = []
    for fault in FAULTS:
        why = fault.why_not()
        lines.append(f"{'cannot' if why else 'can':<7} {fault.name:<{width}}  {fault.words}: {_outcome_words(fault)}")
        if why:
            lines.append(f"{'':<7} {'':<{width}}  {why}")
        if len(fault.phases) > 1:
            lines.append(f"{'':<7} {'':<{width}}  --phase {' | '.join(fault.phases)}")
    lines += [f"{'none':<7} {what}: {why}" for what, why in NOT_MADE.items()]
    bundled = trainers.Bundled()
    names = [fault.name for fault in FAULTS if can_harm(fault, bundled)]
    lines.append(f"--trainer bundled, the real one on the CPU: {bundled.why_not() or ', '.join(names)}")
    return lines


def listing_record() -> list[dict[str, Any]]:
    return [
        {
            "fault": fault.name,
            "words": fault.words,
            "phases": list(fault.phases),
            "outcome": fault.outcome.value,
            "why_not": fault.why_not() or None,
            "any_trainer": fault.any_trainer,
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


def perform(pairs: Sequence[tuple[Fault, str]], trained: Trained, *, as_json: bool, say: Callable[[str], None]) -> int:
    """Each in its turn, after what dead drills left. Returns the exit code: 0 when each ended as it should."""
    _clean_up_when_interrupted()
    try:
        for swept in sweep_leftovers():
            say(str(swept))
        return _each(pairs, trained, as_json=as_json, say=say)
    except Interrupted as error:
        done = "everything of this drill is ended and removed"
        with contextlib.suppress(OSError):  # a terminal that was closed
            say("\n".join(["not everything is ended and removed:", *error.left]) if error.left else done)
        raise


def _each(pairs: Sequence[tuple[Fault, str]], trained: Trained, *, as_json: bool, say: Callable[[str], None]) -> int:
    began_s = time.monotonic()
    skipped = [(fault, why) for fault, _ in pairs if (why := fault.why_not())]
    cannot = {fault.name for fault, _ in skipped}
    pairs = [(fault, phase) for fault, phase in pairs if fault.name not in cannot]
    results: list[Result] = []
    if pairs:
        say(_beforehand(len(pairs), trained))
    if not as_json:
        print(line(_HEAD), flush=True)
    for number, (fault, phase) in enumerate(pairs, 1):
        unusual = f", in phase {phase}" if phase != fault.phases[0] else ""
        say(f"{number}/{len(pairs)}  {fault.words}{unusual}{_left(began_s, number, len(pairs))}")
        result = drill(fault, phase, trained=trained)
        if result.not_made:
            skipped.append((fault, result.not_made))
            continue
        results.append(result)
        if not as_json:
            print(line(row(result)), flush=True)
            if not result.ok and _problem(result) not in {_problem(other) for other in results[:-1]}:
                print("\n".join(f"    {text}" for problem in result.problems for text in problem.splitlines()))
    took_s = time.monotonic() - began_s
    failed = [result for result in results if not result.ok]
    if as_json:
        record = {
            "drills": [dataclasses.asdict(result) | {"ok": result.ok} for result in results],
            "skipped": [{"fault": fault.name, "why": why} for fault, why in skipped],
            "counts": _counts(results) | {"failed": len(failed), "skipped": len(skipped)},
            "trainer": trained.name,
            "took_s": round(took_s, 1),
            "ok": bool(results) and not failed,
        }
        print(json.dumps(record, indent=1, allow_nan=False))
    else:
        print("\n".join(summary(results, skipped, took_s)))
    return EXIT_OK if results and not failed else EXIT_FAILURE


def _beforehand(count: int, trained: Trained) -> str:
    about = duration(count * _EACH_S * trained.slower)
    those = f"1 drill, about {about}," if count == 1 else f"{count} drills, one after the other, about {about}, each"
    return f"{those} in a throw-away job: yours is not touched; Ctrl-C ends and removes it"


def _left(began_s: float, number: int, count: int) -> str:
    """How long it still takes, as the ones before took; now and then."""
    each_s = (time.monotonic() - began_s) / max(1, number - 1)
    return f" (about {duration(each_s * (count - number + 1))} left)" if number > 1 and number % 10 == 0 else ""


def _counts(results: Sequence[Result]) -> dict[str, int]:
    return {
        outcome.value: sum(result.ok and result.outcome == outcome.value for result in results) for outcome in Outcome
    }


def _problem(result: Result) -> str:
    """In a line; where many fail alike one of them is told at length."""
    return result.problems[0].splitlines()[0] if result.problems else ""


def summary(results: Sequence[Result], skipped: Sequence[tuple[Fault, str]], took_s: float) -> list[str]:
    """How many ended how, what did not end as it should, and what could not be made here and why."""
    counts, failed = _counts(results), [result for result in results if not result.ok]
    told = {
        "recovered": counts[Outcome.RECOVERED.value],
        "held as they should, and went on once it was mended": counts[Outcome.HELD.value],
        "unharmed": counts[Outcome.UNHARMED.value],
    }
    said = [f"{count} {words}" for words, count in told.items() if count]
    lines = [f"{', '.join([*said, f'{len(failed)} NOT as they should'])}; {duration(took_s)}"]
    problems: dict[str, list[str]] = {}
    for result in failed:
        phase = "" if result.phase == "train" else f" --phase {result.phase}"
        problems.setdefault(_problem(result), []).append(result.fault + phase)
    for problem, names in problems.items():
        lines.append(f"NOT AS IT SHOULD  {', '.join(names)}: {problem}")
        lines.append(f"                  watchdog drill {names[0]} makes it again")
    reasons: dict[str, list[str]] = {}
    for fault, why in skipped:
        reasons.setdefault(why, []).append(fault.name)
    lines += [f"{len(names)} not made here  {', '.join(names)}: {why}" for why, names in reasons.items()]
    return lines


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
