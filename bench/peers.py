"""Side by side: the same trainer, the same faults, and who brings it to its end. Ours, and four peers.

One trial a tool and fault, one after the other: a fresh folder, the trainer under the tool, the fault from outside at
the same step, and then nobody helps until the job is done or the patience is over, which is the same for all
(bench/peers_trial.py). A peer that cannot be installed or started here is told with its error, and is no proof.
Exit codes: 0 ours survived more faults than any peer and has a higher ETTR than each, every fault under every tool
measured; 1 that is not so, or something was not measured; 2 usage; 3 a part of the schedule, which decides nothing.
Refuses to record anything but a whole run.

    python -P -m bench.peers --peers all [--record]          about 9 minutes on a quiet machine of two cores
    python -P -m bench.peers --peers supervisord,circus --faults kill,stop      a part: installs and runs only these
    python -P -m bench.peers --light                         a quick look: the trainer does not import torch
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import record
from bench.campaign_bed import BedError
from bench.peers_ending import tidy
from bench.peers_table import detail_rows, misses, summary_rows
from bench.peers_tools import OURS, TOOLS, Tool, install
from bench.peers_trainer import STEP_S, STEPS
from bench.peers_trial import AT_STEP, FAULTS, LIMIT_S, Fault, Outcome, run_trial
from bench.startup import CommandFailedError

EXIT_UNDECIDED = 3


def chosen_of(words: str, known: Mapping[str, object], what: str) -> list[str]:
    """The names in a comma-separated list; `all` is all of them. A fault may be named by its beginning."""
    if words == "all":
        return list(known)
    found = []
    for word in words.split(","):
        names = [name for name in known if name == word] or [name for name in known if name.startswith(word)]
        if not names:
            raise ValueError(f"{what} {word!r} is not known; known are: {'; '.join(known)}")
        found.append(names[0])
    return list(dict.fromkeys(found))


def warm_up() -> None:
    """torch is in the page cache before the first trial, as it is before every other one. Raises CommandFailedError."""
    ended = subprocess.run([sys.executable, "-P", "-m", "torch.distributed.run", "--help"], capture_output=True)
    if ended.returncode != 0:
        raise CommandFailedError(f"torch cannot be started: {ended.stderr.decode(errors='replace').strip()[-300:]}")


def told(outcome: Outcome, took_s: float) -> str:
    """One line while it goes on."""
    came = "survived" if outcome.survived else f"NOT survived ({outcome.why_not})"
    step = "no new step" if outcome.next_step_s is None else f"new step after {outcome.next_step_s:.2f} s"
    return f"{outcome.fault:<24} {outcome.tool:<12} {took_s:>5.1f} s  {came}, {step}"


def run_all(faults: Sequence[Fault], tools: Sequence[Tool], *, light: bool) -> tuple[list[Outcome], dict[str, str]]:
    """Every fault under every tool, and what could not be run, with its error. Within `tidy`."""
    outcomes: list[Outcome] = []
    not_run: dict[str, str] = {}
    usable = []
    for tool in tools:
        try:
            install(tool.name)
            usable.append(tool)
        except (CommandFailedError, subprocess.TimeoutExpired) as error:
            not_run[tool.name] = str(error)
            print(f"{tool.name}: not run: {error}", file=sys.stderr, flush=True)
    if not light:
        warm_up()
    whole = len(faults) * len(usable)
    for number, (fault, tool) in enumerate(((fault, tool) for fault in faults for tool in usable), start=1):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
            try:
                outcome = run_trial(Path(folder), tool, fault, light=light)
            except (BedError, CommandFailedError) as error:
                not_run[f"{tool.name}: {fault.name}"] = str(error)[:300]
                print(f"{number}/{whole} {fault.name}: {tool.name}: not run: {error}", file=sys.stderr, flush=True)
                continue
        outcomes.append(outcome)
        print(f"{number}/{whole} {told(outcome, time.monotonic() - began_s)}", file=sys.stderr, flush=True)
    return outcomes, not_run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.peers", description="ours and its peers, side by side")
    parser.add_argument("--peers", default=OURS, help="names, or all: they are installed into the cache")
    parser.add_argument("--faults", default="all", help="names, or their beginnings")
    parser.add_argument("--light", action="store_true", help="the trainer does not import torch; decides nothing")
    parser.add_argument("--record", action="store_true", help="add the result of a whole run to docs/benchmarks.md")
    wishes = parser.parse_args(arguments)
    try:
        names = chosen_of(wishes.peers, TOOLS, "the peer")
        faults = [FAULTS[name] for name in chosen_of(wishes.faults, FAULTS, "the fault")]
    except ValueError as error:
        parser.error(str(error))
    tools = [TOOLS[name] for name in dict.fromkeys([OURS, *names])]
    whole = len(faults) == len(FAULTS) and len(tools) == len(TOOLS) and not wishes.light
    if wishes.record and not whole:
        parser.error("only the whole schedule under all tools is a result to record: --peers all --record")
    began_s = time.monotonic()
    with tidy():
        try:
            outcomes, not_run = run_all(faults, tools, light=wishes.light)
        except CommandFailedError as error:
            print(f"not measured: {error}", file=sys.stderr)
            return 1
    if not outcomes:
        print("nothing could be measured", file=sys.stderr)
        return 1
    summary, details = summary_rows(outcomes, tools), detail_rows(outcomes)
    minutes = round((time.monotonic() - began_s) / 60, 1)
    print(record.table(summary))
    print(record.table(details))
    print(f"patience: {LIMIT_S:g} s from the fault to the end of the job, the same for all; in all {minutes} min")
    for name, why in not_run.items():
        print(f"not run: {name}: {why}")
    if not whole:
        print("a part of the schedule decides nothing", file=sys.stderr)
        return 1 if not_run else EXIT_UNDECIDED
    missed = misses(outcomes)
    for words in missed:
        print(words, file=sys.stderr)
    if wishes.record and not_run:
        print("not recorded: the run is not whole", file=sys.stderr)
    elif wishes.record:
        what = {"patience_s": LIMIT_S, "at_step": AT_STEP, "steps": STEPS, "step_s": STEP_S, "minutes": minutes}
        ways = {
            each.fault: {words: round(seconds, 3) for words, seconds in each.parts}
            for each in outcomes
            if each.tool == OURS
        }
        record.append("peers, the schedule of faults", summary, details=what)
        record.append("peers, fault by fault", details, details={"the way of ours, s": ways})
        print(f"added to {record.DOCUMENT.relative_to(record.ROOT)}")
    return 1 if missed or not_run else 0


if __name__ == "__main__":
    sys.exit(main())
