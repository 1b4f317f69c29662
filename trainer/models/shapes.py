"""The numbers that make a model: frozen, and free of torch, so that presets can be listed at once."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BitMambaShape:
    """Mamba-2 blocks with ternary projections. `heads * head_size` must be `expand * width`."""

    vocabulary: int
    layers: int
    width: int
    expand: int = 2
    head_size: int = 64
    state_size: int = 16
    convolution: int = 4
    chunk: int = 64
    dtype: str = "float32"

    @property
    def inner(self) -> int:
        return self.expand * self.width

    @property
    def heads(self) -> int:
        return self.inner // self.head_size


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TransformerShape:
    """Llama-shaped: `query_heads` share `key_heads` (GQA), SwiGLU of `hidden`, tied embedding."""

    vocabulary: int
    layers: int
    width: int
    query_heads: int
    key_heads: int
    hidden: int
    rope_base: float = 10_000.0
    dtype: str = "float32"

    @property
    def head_size(self) -> int:
        return self.width // self.query_heads
