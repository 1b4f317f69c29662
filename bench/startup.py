"""How long the command takes to answer, as a ratio to the least that its framework costs.

`watchdog --help` and `watchdog status` against `python -c "import typer"`, in turns in one run, so that a busy machine
slows all of them. Medians; processor time (user + system, of the process and what it waited for) and wall time.
Measures whole processes from outside and imports nothing of `watchdog`. Refuses to time a command that failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import record

REFERENCE = "import typer"
USAGE_ERROR = 2  # of watchdog, as of every typer command
ROUNDS = 15


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One process from start to end: seconds of wall and processor time.

    No memory here: ru_maxrss of a child starts from what its parent held before the exec, so it would tell of us.
    """

    wall_s: float
    cpu_s: float
    exit_code: int


class CommandFailedError(Exception):
    """A command that did not do its work; its time would mean nothing."""


def measure(command: Sequence[str], environment: Mapping[str, str], *, accept: frozenset[int]) -> Sample:
    """Run `command` once. Raises CommandFailedError when its exit code is not accepted or it shows a traceback."""
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=dict(environment)
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
        process.returncode = code = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if code not in accept or "Traceback (most recent call last)" in said:
        raise CommandFailedError(f"{' '.join(command)}: exit {code}\n{said}")
    return Sample(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, exit_code=code)


def in_turns(
    commands: Mapping[str, tuple[Sequence[str], frozenset[int]]], environment: Mapping[str, str], rounds: int
) -> dict[str, list[Sample]]:
    """`rounds` samples of each command, alternating, after one round that only warms the caches."""
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, (command, accept) in commands.items():
            sample = measure(command, environment, accept=accept)
            if turn:
                samples[name].append(sample)
    return samples


def rows(samples: Mapping[str, Sequence[Sample]], reference: str) -> list[dict[str, object]]:
    """One row a command: medians in milliseconds, and ratios to the reference command's medians."""

    def median(name: str, field: str) -> float:
        return statistics.median(getattr(sample, field) for sample in samples[name])

    return [
        {
            "command": name,
            "wall ms": round(median(name, "wall_s") * 1000, 1),
            "cpu ms": round(median(name, "cpu_s") * 1000, 1),
            "wall ratio": round(median(name, "wall_s") / median(reference, "wall_s"), 2),
            "cpu ratio": round(median(name, "cpu_s") / median(reference, "cpu_s"), 2),
        }
        for name in samples
    ]


def watchdog_script() -> str:
    """The installed command beside this interpreter. Raises CommandFailedError where it is missing."""
    script = Path(sys.executable).parent / "watchdog"
    if not script.exists():
        raise CommandFailedError(f"{script} does not exist: make install")
    return str(script)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.startup", description="start-up time as ratios")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"samples of each command (default {ROUNDS})")
    parser.add_argument("--record", action="store_true", help="add the result to docs/benchmarks.md")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error(f"--rounds is {chosen.rounds}, must be at least 1")
    with tempfile.TemporaryDirectory() as home:
        # An empty home: no job, no configuration, no supervisor to talk to.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "LC_ALL": "C.UTF-8"}
        try:
            script = watchdog_script()
            # Without a job, status may say so by its exit code; a usage error or a crash is no answer.
            answered = frozenset(range(126)) - {USAGE_ERROR}
            commands: dict[str, tuple[Sequence[str], frozenset[int]]] = {
                "import typer": ([sys.executable, "-P", "-c", REFERENCE], frozenset({0})),
                "watchdog --help": ([script, "--help"], frozenset({0})),
                "watchdog status": ([script, "status"], answered),
            }
            samples = in_turns(commands, environment, chosen.rounds)
        except CommandFailedError as error:
            print(f"not measured: {error}", file=sys.stderr)
            return 1
    result = rows(samples, "import typer")
    details = {
        "rounds": chosen.rounds,
        "wall_s": {name: [round(sample.wall_s, 4) for sample in taken] for name, taken in samples.items()},
        "cpu_s": {name: [round(sample.cpu_s, 4) for sample in taken] for name, taken in samples.items()},
        "exit_codes": {name: sorted({sample.exit_code for sample in taken}) for name, taken in samples.items()},
    }
    print(record.table(result))
    print(json.dumps(details, sort_keys=True))
    if chosen.record:
        record.append("startup", result, details=details)
        print(f"added to {record.DOCUMENT.relative_to(record.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
