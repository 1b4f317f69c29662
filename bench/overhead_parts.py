"""Where `watchdog diagnose --no-probe` spends its time: the stages of the command, and its imports by whose they are.

The real command with its own functions timed, in a process of its own; medians. Refuses to go on when a function that
it times is not there any more.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time

from bench.overhead_sampling import StandIn, program, script
from bench.startup import CommandFailedError

# The command's own path through its own functions, timed. Imports first, each alone: they are most of it.
_PARTS = """
import sys, time
parts = {"python itself": time.monotonic() - float(sys.argv.pop(1))}
def timed(part, function):
    def call(*words, **named):
        begin = time.monotonic()
        try:
            return function(*words, **named)
        finally:
            parts[part] = parts.get(part, 0.0) + time.monotonic() - begin
    return call
for part, modules in (
    ("import typer", ["typer", "watchdog.cli"]),
    ("import settings", ["watchdog.settings"]),
    ("import checks", ["watchdog.checks.catalogue"]),
    ("import collectors", ["watchdog.lookout"]),
    ("import the rest", ["watchdog.render_diagnose", "watchdog.diagnosing", "watchdog.joblimits", "watchdog.places"]),
):
    timed(part, lambda: [__import__(module) for module in modules])()
import contextlib, io, json
from watchdog import cli, diagnosing, lookout, render_diagnose, settings
from watchdog.checks import catalogue
settings.load = timed("settings", settings.load)
lookout.Lookout.__init__ = timed("start the sampling child", lookout.Lookout.__init__)
gather, close = timed("gather", lookout.Lookout.gather), lookout.Lookout.close
collectors = {}
def gathered(self, *words):
    facts = gather(self, *words)
    collectors.update({name: view.duration_s for name, view in self.views().items()})
    return facts
lookout.Lookout.gather = gathered
catalogue.judge = timed("judge", catalogue.judge)
render_diagnose.human = timed("render", render_diagnose.human)
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    timed("all of main", cli.main)()
named = ("settings", "start the sampling child", "gather", "judge", "render")
parts["what is between"] = parts.pop("all of main") - sum(parts[part] for part in named)
print(json.dumps([parts, collectors]))
"""
_FIRST_SAMPLE = """
import time
from watchdog.clock import SystemClock
from watchdog.collectors.devices import DeviceWatch
from watchdog.collectors.roots import Roots
watch = DeviceWatch(Roots(), SystemClock())
begin = time.monotonic()
watch.ask()
assert watch.wait(10.0)
print(time.monotonic() - begin)
"""


def parts(standin: StandIn, rounds: int) -> list[dict[str, object]]:
    """Medians in milliseconds of what `watchdog diagnose --no-probe` spends where. Raises CommandFailedError."""
    standin.devices(1)
    environment = standin.environment()

    def said(text: str, *words: str) -> str:
        done = subprocess.run([*program(text), *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandFailedError(f"the parts of watchdog diagnose: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        found, collectors = json.loads(said(_PARTS, str(time.monotonic()), "diagnose", "--no-probe"))
        found["(alone: the sampling child's start to its first sample)"] = float(said(_FIRST_SAMPLE))
        found |= {f"(in gather, side by side: {name})": seconds for name, seconds in collectors.items()}
        for part, seconds in found.items():
            taken.setdefault(part, []).append(seconds)
    return [{"part": part, "ms": round(statistics.median(each) * 1000, 1)} for part, each in taken.items()]


def imports(standin: StandIn) -> list[dict[str, object]]:
    """Milliseconds of importing by whose module it is, as `-X importtime` counts; it slows what it counts."""
    command = [sys.executable, "-P", "-X", "importtime", script("watchdog"), "diagnose", "--no-probe"]
    done = subprocess.run(command, env=standin.environment(), capture_output=True, text=True, check=False)
    return import_rows(done.stderr)


def import_rows(report: str) -> list[dict[str, object]]:
    """The report of `-X importtime`, its own times summed by group, the dearest first."""
    groups: dict[str, tuple[int, int]] = {}
    for own_us, module in re.findall(r"^import time:\s*(\d+) \|\s*\d+ \| +(\S+)$", report, re.MULTILINE):
        group = _group(module)
        count, total_us = groups.get(group, (0, 0))
        groups[group] = (count + 1, total_us + int(own_us))
    ordered = sorted(groups.items(), key=lambda item: -item[1][1])
    return [{"modules of": group, "count": count, "ms": round(us / 1000, 1)} for group, (count, us) in ordered]


def _group(module: str) -> str:
    top, *rest = module.split(".")
    if top != "watchdog":
        return top if top in ("typer", "msgspec", "psutil", "tenacity", "prometheus_client") else "standard library"
    part = rest[0] if rest else "watchdog"
    packages = ("checks", "classify", "collectors", "core", "actuators")
    return f"watchdog.{part}" if part in packages else "watchdog settings" if "settings" in part else "watchdog, other"
