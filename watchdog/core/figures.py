"""Figures as people read them. Pure."""

from __future__ import annotations

_GIB = 1024.0**3


def gib(size_bytes: float) -> str:
    """Bytes as GiB for a person: one decimal, two below 1."""
    value = size_bytes / _GIB
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"
