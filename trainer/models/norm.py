"""RMS normalisation, with its statistics in fp32 whatever the storage."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-5


def rms(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) over the last dimension, fp32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


class RMSNorm(nn.Module):
    """`rms` times a learned weight (width,). Input (..., width), output the same in fp32."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return rms(x) * self.weight.float()
