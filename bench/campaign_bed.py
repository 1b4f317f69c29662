"""The bed of a drill for the benchmarks and tests of whole runs: the bundled trainer in it, an observer beside it.

Responsible for the observer, for what a job ended with, and for the rules of campaign_judge over its ledger. The rest
is watchdog/drills/bed.py. Refuses to sleep as a proof.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import campaign_judge as judge
from watchdog import contract
from watchdog.core.identity import ProcessId
from watchdog.drills import bed as drills
from watchdog.drills.bed import PATIENCE_S, WATCHDOG, BedError, Living, wait_for
from watchdog.drills.trainers import make_text, tensors_digest, words

__all__ = [
    "PATIENCE_S",
    "WATCHDOG",
    "Bed",
    "BedError",
    "Living",
    "Outcome",
    "make_text",
    "tensors_digest",
    "trainer_command",
    "wait_for",
    "words",
]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a job ended with: all digits of its losses, and the digest of every tensor of its last checkpoint."""

    summary: Mapping[str, Any]
    digest: str


def trainer_command(
    *, text: Path, cache: Path, preset: str, steps: int, delay_s: float, more: Sequence[str] = ()
) -> list[str]:
    """The arguments of `train`, without the interpreter."""
    options = {"--preset": preset, "--data": text, "--cache": cache, "--steps": steps, "--step-delay": delay_s}
    fixed = ["--threads", "1", "--save-every", "10", "--eval-every", "0"]
    return ["train", *(str(word) for pair in options.items() for word in pair), *fixed, *more]


class Bed(drills.Bed):
    """The bed of a drill, with an observer, judges, and a trainer whose losses are compared."""

    _observer: subprocess.Popen[bytes] | None = None

    def harm(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process of ours as part of a drill."""
        if number is signal.SIGKILL:
            self.harmed.add(pid)
        os.kill(pid, number)

    def outcome(self) -> Outcome:
        summary = json.loads((self.checkpoints / "summary.json").read_bytes())
        newest = self.newest_manifest()
        return Outcome(summary, tensors_digest(newest.parent / contract.Manifest.read(newest).files[0].name))

    # --- the observer ---------------------------------------------------------------------------------------
    def observe(self) -> None:
        """Start the independent observer; returns when it has looked once."""
        self._observer = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.campaign_observer", str(self.root / "checkpoints")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert self._observer.stdout is not None
        self._observer.stdout.readline()

    def observed(self) -> dict[str, Any]:
        """End the observer, and what it saw."""
        assert self._observer is not None, "observe() first"
        observer, self._observer = self._observer, None
        output, _ = observer.communicate(timeout=PATIENCE_S)
        report: dict[str, Any] = json.loads(output)
        return report

    def problems(self, refused_runs: frozenset[str] = frozenset()) -> list[str]:
        """Every rule of campaign_judge; call when the job is over."""
        events = self.events()
        return [
            *judge.alternation(events),
            *judge.resumes(events),
            *judge.acknowledgements(events, refused_runs),
            *self.kill_problems(events),
            *([] if self._observer is None else judge.observed(self.observed(), events)),
        ]

    def kill_problems(self, events: Sequence[judge.Event]) -> list[str]:
        """Nobody was killed unrecorded, but by the drill itself; of an exit record that is none, nobody can tell."""
        deaths, problems = self._deaths()
        return [*problems, *judge.kills(events, deaths, frozenset(self.harmed))]

    def _deaths(self) -> tuple[dict[int, float], list[str]]:
        """Who died of KILL and when, from the shims' exit records; and which of these cannot be read."""
        deaths: dict[int, float] = {}
        problems: list[str] = []
        for path in sorted((self.state / "runs").glob("*/exit.json")):
            try:
                record = json.loads(path.read_bytes())
                for end in [record["leader"], *record["ended"]]:
                    if end is not None and end["signal"] == signal.SIGKILL:
                        deaths[end["pid"]] = end["wall_s"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                problems.append(f"{path} cannot be read, so who died of KILL there is not known: {error!r}")
        return deaths, problems

    # --- the end --------------------------------------------------------------------------------------------
    def ours(self) -> list[int]:
        """The numbers of everything of this job that lives."""
        return [identity.pid for identity in self.members()]

    def end(self, identity: ProcessId) -> None:
        """Also one that a debugger of the test holds."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._observer is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._observer.communicate(timeout=5)
            self._observer.kill()
            self._observer = None
        super().close()
