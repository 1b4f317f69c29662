"""What looking costs: sampling once a second, and one diagnosis, beside nvitop and gpustat on one stand-in for NVML.

Sampling with 1 and 8 idle devices and with a busy one (overhead_sampling.py); one look as whole processes in turns,
with the processor time of the sampling child, which leaves by itself; and the parts of a diagnosis of ours
(overhead_parts.py). Refuses to measure a command that does not show what the stand-in says.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench import overhead_sampling, record, startup
from bench.overhead_parts import imports, parts
from bench.overhead_sampling import BEFORE_MIB, StandIn, program, sampled, samplers, script
from bench.startup import CommandFailedError, Sample

LIMIT = 2.0  # times nvitop -1: in wall time, and in processor time
DEVICES = ((1, False), (8, False), (1, True))  # how many, and whether they are busy
NVITOP, OURS = "nvitop -1", "watchdog diagnose"


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Meanwhile orphans become our children, so that their processor time can be had."""
    prctl, subreaper = ctypes.CDLL(None, use_errno=True).prctl, 36  # linux/prctl.h
    prctl(subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(subreaper, 0, 0, 0, 0)


def measure_all(command: Sequence[str], environment: Mapping[str, str], accept: frozenset[int]) -> Sample:
    """As startup.measure, and the processor time of what the command left behind as well. For use in `adopting`."""
    before = {child.pid for child in psutil.Process().children()}
    sample = startup.measure(command, environment, accept=accept)
    left_s = 0.0
    for child in psutil.Process().children():
        if child.pid not in before:
            usage = os.wait4(child.pid, 0)[2]
            left_s += usage.ru_utime + usage.ru_stime
    return dataclasses.replace(sample, cpu_s=sample.cpu_s + left_s)


def once(standin: StandIn, rounds: int) -> dict[str, list[Sample]]:
    """`rounds` samples of each command, in turns, after one that warms the caches. Raises CommandFailedError."""
    standin.devices(1)
    environment = standin.environment()
    # Of a diagnosis every exit code but a crash is an answer: the host may well have something.
    commands: dict[str, tuple[list[str], frozenset[int], str]] = {
        startup.REFERENCE: (program(startup.REFERENCE), frozenset({0}), ""),
        NVITOP: ([script("nvitop"), "-1"], frozenset({0}), f"{BEFORE_MIB}.0MiB"),
        "gpustat": ([script("gpustat")], frozenset({0}), f" {BEFORE_MIB} /"),
        OURS: ([script("watchdog"), "diagnose", "--no-probe"], frozenset(range(4)), f"{BEFORE_MIB} MiB"),
    }
    for name, (command, accept, figure) in commands.items():
        more = ["--all"] if name == OURS else []
        shown = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)
        if shown.returncode not in accept or figure not in shown.stdout:
            raise CommandFailedError(f"{name}: exit {shown.returncode}, no {figure!r} in\n{shown.stdout}{shown.stderr}")
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    with adopting():
        for turn in range(rounds + 1):
            for name, (command, accept, _) in commands.items():
                sample = measure_all(command, environment, accept)
                if turn:
                    samples[name].append(sample)
    return samples


def misses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each kind of time of which a diagnosis takes more than the limit."""
    row = next(row for row in rows if row["command"] == OURS)
    return [
        f"{OURS} takes {row[f'{kind} ms']} ms {words}, {row[f'{kind} ratio']} times {NVITOP}; the limit is {LIMIT:g}"
        for kind, words in (("wall", "of wall time"), ("cpu", "of processor time"))
        if row[f"{kind} ratio"] > LIMIT
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.overhead", description="what looking costs")
    parser.add_argument("--seconds", type=int, default=20, help="of sampling, with each number of devices (default 20)")
    parser.add_argument("--rounds", type=int, default=15, help="of each command that looks once (default 15)")
    parser.add_argument("--record", action="store_true", help="add the results to docs/benchmarks.md")
    chosen = parser.parse_args(arguments)
    if min(chosen.seconds, chosen.rounds) < 1:
        parser.error("--seconds and --rounds must be at least 1")
    try:
        with tempfile.TemporaryDirectory() as name:
            standin, commands = StandIn(Path(name)), samplers()
            samples = once(standin, chosen.rounds)
            part_rows, import_table = parts(standin, min(chosen.rounds, 5)), imports(standin)
            figures = [
                figure
                for devices, busy in DEVICES
                for figure in sampled(commands, standin, devices=devices, busy=busy, seconds=chosen.seconds)
            ]
    except CommandFailedError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    once_rows = startup.rows(samples, NVITOP)
    codes = {name: sorted({sample.exit_code for sample in taken}) for name, taken in samples.items()}
    results: tuple[tuple[str, list[dict[str, object]], dict[str, Any]], ...] = (
        ("overhead of sampling at 1 Hz", overhead_sampling.rows(figures), {"seconds": chosen.seconds}),
        ("overhead of one look", once_rows, {"rounds": chosen.rounds, "exit_codes": codes}),
        ("parts of watchdog diagnose", part_rows, {}),
        ("imports of watchdog diagnose", import_table, {}),
    )
    for title, rows, details in results:
        print(f"{title}\n{record.table(rows)}\n")
        if chosen.record:
            record.append(title, rows, details=details)
    missed = overhead_sampling.misses(figures) + misses(once_rows)
    for miss in missed:
        print(f"limit missed: {miss}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
