"""What all beds of one session share: the text, the token cache, and how an undisturbed job ends.

Responsible for one reference per preset, made by a supervised run that nobody disturbs, and one stranger: checkpoints
of the same shape and the same steps from another job.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.campaign_bed import Bed, Outcome, make_text, trainer_command
from watchdog import contract

STEPS = 80
PRESET = "transformer-test"
OUTCOME_KEYS = ("steps", "tokens", "first_loss", "last_loss", "validation_loss")


class Workshop:
    """Lives as long as a test session or a campaign."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.text = make_text(root / "text")
        self.cache = root / "cache"
        self._references: dict[str, Outcome] = {}
        self._stranger: Path | None = None

    def command(
        self,
        *,
        preset: str = PRESET,
        delay_s: float = 0.01,
        disturbed: Sequence[object] = (),
        more: Sequence[str] = (),
    ) -> list[str]:
        """The job's command: the bundled trainer, or the same one in bad company."""
        words = trainer_command(
            text=self.text, cache=self.cache, preset=preset, steps=STEPS, delay_s=delay_s, more=more
        )
        if disturbed:
            return [sys.executable, "-P", "-m", "bench.campaign_disturbed", *map(str, disturbed), "--", *words]
        return [sys.executable, "-P", "-m", "trainer", *words]

    def bed(self, root: Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None, **how: Any) -> Bed:
        root.mkdir(parents=True, exist_ok=True)
        return Bed(root, self.command(**how), settings=settings)

    def reference(self, preset: str = PRESET) -> Outcome:
        """How the undisturbed job ends. Raises BedError when it does not end well."""
        if preset not in self._references:
            with self.bed(self.root / f"reference-{preset}", preset=preset, delay_s=0.0) as bed:
                code = bed.ended(bed.start())
                if code != 0 or len(bed.kinds("run_launching")) != 1:
                    raise AssertionError(f"the undisturbed run was disturbed: exit {code}\n{bed.tell()}")
                self._references[preset] = bed.outcome()
        return self._references[preset]

    def stranger(self) -> Path:
        """A checkpoint folder of another job with another seed, at the same steps."""
        if self._stranger is None:
            with self.bed(self.root / "stranger", delay_s=0.0, more=("--seed", "7")) as bed:
                code = bed.ended(bed.start())
                if code != 0:
                    raise AssertionError(f"the stranger did not end well: exit {code}\n{bed.tell()}")
                self._stranger = bed.checkpoints
        return self._stranger


def differences(seen: Outcome, reference: Outcome) -> list[str]:
    """Where a job's end differs from the undisturbed one's, all digits counted."""
    found = [
        f"{key} is {seen.summary[key]!r}, undisturbed it is {reference.summary[key]!r}"
        for key in OUTCOME_KEYS
        if seen.summary[key] != reference.summary[key]
    ]
    if seen.digest != reference.digest:
        found.append(f"the last checkpoint is {seen.digest[:12]}, undisturbed it is {reference.digest[:12]}")
    return found


def without_run_id(manifest: Path) -> None:
    """Make a manifest look as if a trainer without a supervisor had written it."""
    record = contract.read_json(manifest, "manifest")
    contract.write_json_durably(manifest, {**record, "run_id": None})
