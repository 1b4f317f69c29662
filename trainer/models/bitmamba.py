"""BitMamba: Mamba-2 blocks (arXiv 2405.21060) whose projections are ternary (BitNet b1.58, arXiv 2402.17764).

Responsible for the block, its initialisation and the state-space scan. Decays, cumulative sums, states, statistics
and the residual stream are fp32 whatever the storage: differences of bf16 cumulative sums are wrong by 0.2 to 0.9.
Refuses to normalise twice: the norm before each BitLinear is the block's (or the gated) norm, none is inside.

Nine tensors a layer: norm, in_proj, conv weight and bias, dt_bias, A_log, D, gated norm, out_proj.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.norm import RMSNorm
from trainer.models.shapes import BitMambaShape

_LEAST_SCALE = 1e-5
_DT_RANGE = (1e-3, 0.1)
_DT_FLOOR = 1e-4
_A_RANGE = (1.0, 16.0)
_EMBEDDING_STD = 0.02


class _Through(torch.autograd.Function):
    """Straight-through: the value of the second, the gradient to the first."""

    @staticmethod
    def forward(_ctx: object, _x: Tensor, quantised: Tensor) -> Tensor:
        return quantised

    @staticmethod
    def backward(_ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def ternary(weight: Tensor) -> Tensor:
    """{-1, 0, 1} / s with s = 1 / mean|w| per tensor."""
    scale = 1.0 / weight.detach().abs().mean().clamp_(min=_LEAST_SCALE)
    return (weight.detach() * scale).round_().clamp_(-1, 1).div_(scale)


def eight_bit(x: Tensor) -> Tensor:
    """Whole numbers in [-128, 127] / s with s = 127 / max|x| per token (last dimension)."""
    x = x.detach()
    scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp_(min=_LEAST_SCALE)
    return (x * scale).round_().clamp_(-128, 127).div_(scale)


class BitLinear(nn.Module):
    """y = q8(x) @ q_ternary(w)^T with straight-through gradients; the stored weight keeps full precision.

    Input (..., inputs), already normalised; output (..., outputs) in fp32.
    """

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float()
        quantised: Tensor = F.linear(_Through.apply(x, eight_bit(x)), _Through.apply(weight, ternary(weight)))
        return quantised


def scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, *, chunk: int) -> Tensor:
    """The state-space recurrence, in chunks of `chunk` steps (the paper's SSD form).

        state_t = exp(dt_t * a) * state_{t-1} + dt_t * b_t (outer) x_t
        y_t     = c_t . state_t                                          state_{-1} = 0

    x (B, T, H, P), dt (B, T, H) positive, a (H,) negative, b and c (B, T, N) shared by all heads; fp32 throughout.
    Returns y (B, T, H, P). Any T: the last chunk is filled with steps of dt = 0, which change nothing.
    """
    batch, length, heads, size = x.shape
    missing = -length % chunk
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
        dt = F.pad(dt, (0, 0, 0, missing))
        b, c = F.pad(b, (0, 0, 0, missing)), F.pad(c, (0, 0, 0, missing))
    chunks = x.shape[1] // chunk
    b = b.view(batch, chunks, chunk, -1)
    c = c.view(batch, chunks, chunk, -1)
    dt = dt.view(batch, chunks, chunk, heads).transpose(2, 3)  # (B, C, H, L)
    # (B, C, H, L, P): what each step feeds into the state
    u = x.view(batch, chunks, chunk, heads, size).transpose(2, 3) * dt[..., None]
    total = (dt * a[:, None]).cumsum(-1)  # (B, C, H, L): log of the decay since the chunk began
    # Within a chunk: like attention, masked before exp (above the diagonal the exponent is positive and may overflow).
    above = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(above, -math.inf).exp()
    weights = decay * (c @ b.transpose(-1, -2))[:, :, None]  # (B, C, H, L, L)
    y = weights @ u
    if chunks > 1:
        # What each chunk adds to the state by its end: (B, C, H, N, P)
        to_end = (total[..., -1:] - total).exp()
        added = (b.transpose(-1, -2)[:, :, None] * to_end[..., None, :]) @ u
        keep = total[..., -1].exp()[..., None, None]
        state = torch.zeros_like(added[:, 0])
        before = []
        for index in range(chunks):
            before.append(state)
            state = keep[:, index] * state + added[:, index]
        y = y + (c[:, :, None] @ torch.stack(before, 1)) * total.exp()[..., None]
    return y.transpose(2, 3).reshape(batch, chunks * chunk, heads, size)[:, :length]


class Block(nn.Module):
    """One Mamba-2 block with its residual: x + out_proj(norm(y * silu(z))). Input and output (B, T, width), fp32."""

    def __init__(self, shape: BitMambaShape, dtype: torch.dtype) -> None:
        super().__init__()
        inner, heads, state = shape.inner, shape.heads, shape.state_size
        self.shape = shape
        self.norm = RMSNorm(shape.width, dtype)
        self.in_proj = BitLinear(shape.width, 2 * inner + 2 * state + heads, dtype)
        channels = inner + 2 * state
        bound = 1.0 / math.sqrt(shape.convolution)
        self.conv_weight = nn.Parameter(torch.empty(channels, shape.convolution).uniform_(-bound, bound).to(dtype))
        self.conv_bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound).to(dtype))
        low, high = (math.log(limit) for limit in _DT_RANGE)
        dt = torch.empty(heads).uniform_(low, high).exp().clamp(min=_DT_FLOOR)
        self.dt_bias = nn.Parameter((dt + torch.log(-torch.expm1(-dt))).to(dtype))  # inverse of softplus
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(*_A_RANGE).log().to(dtype))
        self.D = nn.Parameter(torch.ones(heads, dtype=dtype))
        self.gated_norm = RMSNorm(inner, dtype)
        self.out_proj = BitLinear(inner, shape.width, dtype)
        with torch.no_grad():  # keeps the residual stream's variance, whatever the depth; once, here
            self.out_proj.weight /= math.sqrt(shape.layers)

    def _convolve(self, x: Tensor) -> Tensor:
        """Causal depthwise convolution as shifted sums, (B, T, channels): on CPUs several times conv1d's speed."""
        weight = self.conv_weight.float()
        taps = self.shape.convolution
        padded = F.pad(x, (0, 0, taps - 1, 0))
        length = x.shape[1]
        out = self.conv_bias.float() + padded[:, taps - 1 :] * weight[:, taps - 1]
        for tap in range(taps - 1):
            out = out + padded[:, tap : tap + length] * weight[:, tap]
        return F.silu(out)

    def forward(self, x: Tensor) -> Tensor:
        shape = self.shape
        batch, length, _ = x.shape
        sizes = [shape.inner, shape.inner + 2 * shape.state_size, shape.heads]
        gate, mixed, dt = self.in_proj(self.norm(x)).split(sizes, -1)
        inner, b, c = self._convolve(mixed).split([shape.inner, shape.state_size, shape.state_size], -1)
        inner = inner.view(batch, length, shape.heads, shape.head_size)
        dt = F.softplus(dt + self.dt_bias.float())
        a = -self.A_log.float().exp()
        y = scan(inner, dt, a, b, c, chunk=shape.chunk) + inner * self.D.float()[:, None]
        gated = self.gated_norm(y.reshape(batch, length, shape.inner) * F.silu(gate))
        out: Tensor = x + self.out_proj(gated)
        return out


class BitMamba(nn.Module):
    """Tokens (B, T) to logits (B, T, vocabulary), fp32. Embedding and head are untied; 9 tensors a layer, plus 3."""

    def __init__(self, shape: BitMambaShape) -> None:
        super().__init__()
        if shape.inner % shape.head_size:
            raise ValueError(f"inner width {shape.inner} is no multiple of the head size {shape.head_size}")
        dtype = getattr(torch, shape.dtype)
        self.embedding = nn.Parameter((torch.randn(shape.vocabulary, shape.width) * _EMBEDDING_STD).to(dtype))
        self.layers = nn.ModuleList(Block(shape, dtype) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, dtype)
        self.head = nn.Parameter((torch.randn(shape.vocabulary, shape.width) * _EMBEDDING_STD).to(dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding).float()
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.head.float())
