"""The learning rate: warm-up, flat, decay (WSD), as a pure function of the step and of numbers fixed beforehand.

Responsible for those numbers, for changing the horizon of a run that has begun, and for remembering each change.
Refuses to compute any of them from the current command line again: a denominator that moves under a running decay
makes the rate jump. Inside the decay the horizon stays as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trainer.errors import CheckpointRefused, UsageError

SHAPES = ("linear", "cosine", "sqrt")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Steps count from 1: step 1 is the first one taken, `target` the last.

    Over `warm_up` steps up to `peak`, flat until `decay_start`, then over `decay_length` steps down to
    `peak * floor`. `retargets` are earlier horizons as (at step, old target, new target).
    """

    peak: float
    warm_up: int
    decay_start: int
    decay_length: int
    shape: str = "linear"
    floor: float = 0.0
    retargets: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"decay shape is {self.shape!r}, not one of {', '.join(SHAPES)}")
        if min(self.warm_up, self.decay_start, self.decay_length) < 0 or not 0 <= self.floor <= 1 or self.peak <= 0:
            raise ValueError(f"schedule {self} has a negative length, a floor outside 0..1 or no peak")

    @classmethod
    def plan(cls, *, peak: float, warm_up: int, steps: int, decay_share: float, shape: str = "linear") -> Schedule:
        """For a run of `steps` steps, of which the last `decay_share` decay; a short run warms up for a fifth."""
        decay = min(steps, max(1, round(steps * decay_share)))
        return cls(
            peak=peak,
            warm_up=min(warm_up, steps // 5),
            decay_start=steps - decay,
            decay_length=decay,
            shape=shape,
            floor=0.02,
        )

    @property
    def target(self) -> int:
        return self.decay_start + self.decay_length

    def rate(self, step: int) -> float:
        """The learning rate of step `step`."""
        return learning_rate(
            step,
            peak=self.peak,
            warm_up=self.warm_up,
            decay_start=self.decay_start,
            decay_length=self.decay_length,
            shape=self.shape,
            floor=self.floor,
        )

    def retarget(self, step: int, target: int) -> Schedule:
        """The same schedule with another horizon, seen from `step` finished steps. Raises UsageError.

        The decay keeps its length and moves, which changes nothing that has happened as long as neither the old
        nor the new decay has begun.
        """
        if target == self.target:
            return self
        start = target - self.decay_length
        if step > self.decay_start:
            raise UsageError(
                f"step {step} is inside the decay (from {self.decay_start} to {self.target}): "
                f"its horizon cannot become {target}; resume from a checkpoint at or before step {self.decay_start}"
            )
        if start < step:
            raise UsageError(
                f"a target of {target} would put the start of the decay at {start}, before step {step}; "
                f"the least target from here is {step + self.decay_length}"
            )
        return dataclasses.replace(self, decay_start=start, retargets=(*self.retargets, (step, self.target, target)))

    def to_record(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "retargets": [list(change) for change in self.retargets]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Schedule:
        """Raises CheckpointRefused."""
        try:
            changes = tuple((int(a), int(b), int(c)) for a, b, c in record["retargets"])
            return cls(**{**record, "retargets": changes})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointRefused(f"the checkpoint's schedule is unusable: {error}") from error


def learning_rate(
    step: int, *, peak: float, warm_up: int, decay_start: int, decay_length: int, shape: str, floor: float
) -> float:
    """The rate of `step` (1, 2, ...): pure, so that a resumed run cannot differ.

    The last step of the decay is one short of the floor's own place: no step is taken at a rate of exactly zero.
    """
    if step <= warm_up:
        return peak * step / warm_up
    if step <= decay_start:
        return peak
    done = min(1.0, (step - decay_start) / (decay_length + 1))
    if shape == "linear":
        left = 1.0 - done
    elif shape == "cosine":
        left = 0.5 * (1.0 + math.cos(math.pi * done))
    else:
        left = 1.0 - math.sqrt(done)
    return peak * (floor + (1.0 - floor) * left)
