"""A Llama-shaped transformer: RMSNorm before each half, RoPE, QK-norm without parameters, GQA, SwiGLU.

Responsible for the block and its initialisation. The embedding is also the head: one tensor, used twice and saved
once. Statistics, rotations and the residual stream are fp32 whatever the storage. Refuses biases everywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.norm import RMSNorm, rms
from trainer.models.shapes import TransformerShape

_STD = 0.02


def _matrix(outputs: int, inputs: int, std: float, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter((torch.randn(outputs, inputs) * std).to(dtype))


def rotation(length: int, size: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin of RoPE (arXiv 2104.09864), each (length, size / 2), fp32."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + size/2]) by the position's angle. x (B, heads, T, size)."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class Attention(nn.Module):
    """Causal self-attention, (B, T, width) to the same."""

    def __init__(self, shape: TransformerShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        keys = shape.key_heads * shape.head_size
        self.query = _matrix(shape.width, shape.width, _STD, dtype)
        self.key = _matrix(keys, shape.width, _STD, dtype)
        self.value = _matrix(keys, shape.width, _STD, dtype)
        self.output = _matrix(shape.width, shape.width, _STD / math.sqrt(2 * shape.layers), dtype)

    def _heads(self, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        return F.linear(x, weight).view(*x.shape[:2], heads, self.shape.head_size).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = self.shape
        x = x.to(self.query.dtype)
        query = rotate(rms(self._heads(x, self.query, shape.query_heads)), cos, sin)
        key = rotate(rms(self._heads(x, self.key, shape.key_heads)), cos, sin)
        value = self._heads(x, self.value, shape.key_heads).float()
        shared = shape.query_heads // shape.key_heads
        if shared > 1:
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return F.linear(mixed.to(self.output.dtype), self.output).float()


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, shape: TransformerShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = _matrix(shape.hidden, shape.width, _STD, dtype)
        self.up = _matrix(shape.hidden, shape.width, _STD, dtype)
        self.down = _matrix(shape.width, shape.hidden, _STD / math.sqrt(2 * shape.layers), dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.gate.dtype)
        return F.linear(F.silu(F.linear(x, self.gate)) * F.linear(x, self.up), self.down).float()


class Block(nn.Module):
    """x + attention(norm(x)), then + feed-forward(norm(.)). (B, T, width) to the same, fp32."""

    def __init__(self, shape: TransformerShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, dtype)
        self.attention = Attention(shape, dtype)
        self.feed_forward_norm = RMSNorm(shape.width, dtype)
        self.feed_forward = FeedForward(shape, dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(nn.Module):
    """Tokens (B, T) to logits (B, T, vocabulary), fp32."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        if shape.width % shape.query_heads or shape.query_heads % shape.key_heads or shape.head_size % 2:
            raise ValueError(
                f"width {shape.width}, {shape.query_heads} query and {shape.key_heads} key heads do not divide"
            )
        dtype = getattr(torch, shape.dtype)
        self.shape = shape
        self.embedding = _matrix(shape.vocabulary, shape.width, _STD, dtype)
        self.layers = nn.ModuleList(Block(shape, dtype) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        cos, sin = rotation(tokens.shape[1], self.shape.head_size, self.shape.rope_base)
        cos, sin = cos.to(tokens.device), sin.to(tokens.device)
        x = F.embedding(tokens, self.embedding).float()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.float())
