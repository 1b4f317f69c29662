"""Figures as people read them. Pure."""

from __future__ import annotations

_GIB = 1024.0**3
_UNITS = (("GiB", _GIB), ("MiB", 1024.0**2), ("KiB", 1024.0), ("B", 1.0))


def gib(size_bytes: float) -> str:
    """Bytes as GiB for a person: one decimal, two below 1, more where two would say nothing."""
    value = size_bytes / _GIB
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.01 or not size_bytes else f"{value:.4f}"


def sized(size_bytes: float) -> str:
    """`2.1 GiB`, `0.45 GiB`, `16.0 MiB`, `4.0 KiB`, `17 B`."""
    if size_bytes >= 0.1 * _GIB:
        return f"{gib(size_bytes)} GiB"
    for unit, size in _UNITS[1:3]:
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def compared(have_bytes: float, need_bytes: float) -> str:
    """`2.1 < 3.0 GiB`, `22.9 GiB ≥ 1.0 MiB`: two sizes in units in which they are not nothing, and differ."""
    sign = "≥" if have_bytes >= need_bytes else "<"
    have, need = sized(have_bytes), sized(need_bytes)
    apart = max(have_bytes, need_bytes) >= 2 * min(have_bytes, need_bytes) > 0
    if apart and have.rpartition(" ")[2] != need.rpartition(" ")[2]:
        return f"{have} {sign} {need}"
    for unit, size in _UNITS[:-1]:
        have, need = (f"{each / size:.{1 if each >= size else 2}f}" for each in (have_bytes, need_bytes))
        tiny = 0 < max(have_bytes, need_bytes) < size / 10
        if not tiny and (float(have) != float(need) or sign == "≥"):
            return f"{have} {sign} {need} {unit}"
    return f"{have_bytes:.0f} {sign} {need_bytes:.0f} B"
