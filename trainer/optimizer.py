"""AdamW with the right groups: what is a matrix decays, what is not does not.

Weight decay would pull dt_bias, A_log and D away from the values that make a state-space layer remember; torch
ignores any attribute on a parameter that says so, hence the grouping here, by name. Refuses to leave a parameter out.
"""

from __future__ import annotations

import torch
from torch import nn

BETAS = (0.9, 0.95)
_NEVER = ("norm", "bias", "A_log", "dt_bias", "embedding", "conv_")


def decays(name: str, parameter: torch.Tensor) -> bool:
    """True for hidden matrices and the untied head."""
    leaf = name.split(".")
    return parameter.ndim >= 2 and not any(part.startswith(_NEVER) or part.endswith("norm") for part in leaf)


def build(model: nn.Module, *, weight_decay: float) -> torch.optim.Optimizer:
    """The learning rate is set before each step from the schedule; the one given here is never used."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if decays(name, p)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=1e-8, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
