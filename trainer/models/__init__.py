"""The two model families, one file each; `build` makes one from a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from trainer.presets import Preset


def build(preset: Preset) -> nn.Module:
    """A freshly initialised model that maps tokens (B, T) to logits (B, T, vocabulary), in fp32.

    Draws from torch's default generator: seed it first.
    """
    from trainer.models.bitmamba import BitMamba
    from trainer.models.shapes import BitMambaShape
    from trainer.models.transformer import Transformer

    if isinstance(preset.shape, BitMambaShape):
        return BitMamba(preset.shape)
    return Transformer(preset.shape)
