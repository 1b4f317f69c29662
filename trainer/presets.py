"""The presets: a model's shape and a recipe that suits it, by name. Free of torch, so that listing them is instant.

Refuses full-size models so far: every preset here trains on two CPU cores. `dtype` of a shape is the storage of the
weights; all of these store fp32, since bf16 is slow on most CPUs and wants stochastic rounding to train at all.
"""

from __future__ import annotations

import dataclasses

from trainer.errors import UsageError
from trainer.models.shapes import BitMambaShape, TransformerShape

DEFAULT = "bitmamba-tiny"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """`batch` samples of `context` tokens a step; learning rate as `schedule.Schedule` has it.

    `decay_share` is the last part of the steps, over which the learning rate falls; `validation_windows` how much
    of the validation text an evaluation reads.
    """

    name: str
    shape: BitMambaShape | TransformerShape
    context: int
    batch: int
    steps: int
    save_every: int
    eval_every: int
    learning_rate: float
    warm_up: int
    decay_share: float
    weight_decay: float = 0.1
    clip: float = 1.0
    validation_windows: int = 96

    @property
    def vocabulary(self) -> int:
        return self.shape.vocabulary


_PRESETS = (
    Preset(
        name="bitmamba-tiny",
        shape=BitMambaShape(vocabulary=2048, layers=4, width=128, head_size=32, chunk=32),
        context=256,
        batch=4,
        steps=1000,
        save_every=100,
        eval_every=250,
        learning_rate=6e-3,
        warm_up=40,
        decay_share=0.4,
    ),
    Preset(
        name="transformer-tiny",
        shape=TransformerShape(vocabulary=2048, layers=4, width=128, query_heads=4, key_heads=2, hidden=352),
        context=256,
        batch=4,
        steps=1000,
        save_every=100,
        eval_every=250,
        learning_rate=2e-3,
        warm_up=100,
        decay_share=0.4,
    ),
    Preset(
        name="bitmamba-test",
        shape=BitMambaShape(vocabulary=512, layers=2, width=32, head_size=16, state_size=8, chunk=16),
        context=32,
        batch=4,
        steps=60,
        save_every=10,
        eval_every=30,
        learning_rate=1e-2,
        warm_up=5,
        decay_share=0.3,
        validation_windows=16,
    ),
    Preset(
        name="transformer-test",
        shape=TransformerShape(vocabulary=512, layers=2, width=32, query_heads=4, key_heads=2, hidden=64),
        context=32,
        batch=4,
        steps=60,
        save_every=10,
        eval_every=30,
        learning_rate=1e-2,
        warm_up=5,
        decay_share=0.3,
        validation_windows=16,
    ),
)
PRESETS = {preset.name: preset for preset in _PRESETS}


def preset(name: str) -> Preset:
    """The preset of that name. Raises UsageError."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UsageError(f"preset {name!r} does not exist; choose one of {', '.join(PRESETS)}") from None
