"""Durations and sizes as people write them: "90s", "1h30m", "3GiB", "500 MB".

Responsible for reading and writing them, without loss in either direction. Refuses to guess: an unknown unit, a
sign, units out of order or a fraction of a byte is a ValueError, never a near miss.
"""

from __future__ import annotations

import math
import re
from typing import Final

# Milliseconds, from large to small: the order in which they may follow each other.
_DURATION_UNITS: Final = (
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
    ("ms", 1),
)
_DURATION_NAMES: Final = {**dict(_DURATION_UNITS), "m": 60_000, "sec": 1_000}

# K, M, G, T alone are binary, as in systemd, cgroups and Slurm: what is measured here is memory.
_SIZE_UNITS: Final[dict[str, int]] = {
    "b": 1,
    **{prefix + suffix: 1024**power for power, prefix in enumerate("kmgtp", 1) for suffix in ("ib", "")},
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgtp", 1)},
}

# [0-9] and not \d: other scripts' digits are no figures here. 20 digits hold every value that is allowed.
_NUMBER: Final = r"([0-9]{1,20})(?:\.([0-9]{1,20}))?"
_DURATION_PART: Final = re.compile(_NUMBER + r" ?([a-z]{1,3}) ?")
_SIZE: Final = re.compile(_NUMBER + r"(?: ?([A-Za-z]{1,3}))?")

LONGEST_DURATION_S: Final = 100 * 365 * 86_400.0
LARGEST_SIZE_BYTES: Final = 2**63 - 1


def parse_duration(value: object) -> float:
    """Seconds. A plain number is seconds. Raises ValueError with what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{type(value).__name__} is not a duration")
    seconds = _duration_from_text(value) if isinstance(value, str) else _finite(value)
    if seconds < 0:
        raise ValueError("a duration cannot be negative")
    if seconds > LONGEST_DURATION_S:
        raise ValueError("longer than 100 years")
    return seconds


def _finite(value: int | float) -> float:
    try:
        seconds = float(value)
    except OverflowError as error:
        raise ValueError("longer than 100 years") from error
    if not math.isfinite(seconds):
        raise ValueError("not a finite number")
    return seconds


def _duration_from_text(text: str) -> float:
    text = text.strip()
    if plain := re.fullmatch(_NUMBER, text):
        return float(plain.group())
    position, smallest = 0, math.inf
    # Whole numbers throughout, one division at the end: "90.1s" is then exactly the float 90.1.
    numerator, scale = 0, 1
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        if part is None or scale != 1:  # a fraction may only be the last part
            raise ValueError("not a duration")
        whole, fraction, unit = part.group(1), part.group(2) or "", part.group(3)
        unit_ms = _DURATION_NAMES.get(unit)
        if unit_ms is None:
            raise ValueError(f"{unit} is not a unit of time")
        if unit_ms >= smallest:
            raise ValueError("units go from large to small, each once")
        smallest, position = unit_ms, part.end()
        scale = 10 ** len(fraction)
        numerator = numerator * scale + int(whole + fraction) * unit_ms
    if position == 0:
        raise ValueError("an empty text is not a duration")
    return numerator / (scale * 1_000)


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back as the same number, for whole milliseconds."""
    if seconds != int(seconds):
        text = repr(seconds)
        return (text if "e" not in text else f"{seconds:.9f}") + "s"
    rest, parts = int(seconds) * 1_000, []
    for unit, unit_ms in _DURATION_UNITS:
        count, rest = divmod(rest, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(value: object) -> int:
    """Bytes. A plain whole number is bytes. Raises ValueError with what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{type(value).__name__} is not a size")
    size = _size_from_text(value) if isinstance(value, str) else value
    if size < 0:
        raise ValueError("a size cannot be negative")
    if size > LARGEST_SIZE_BYTES:
        raise ValueError("larger than 8 EiB")
    return size


def _size_from_text(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size")
    whole, fraction, unit = match.group(1), match.group(2) or "", match.group(3) or "b"
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        raise ValueError(f"{unit} is not a unit of size")
    if fraction and factor == 1:
        raise ValueError("a byte has no fraction")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * factor // scale


def format_size(size_bytes: int) -> str:
    """The text with the largest binary unit that divides the size; `parse_size` reads the same number back."""
    for unit, power in (("PiB", 5), ("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{unit}"
    return f"{size_bytes}B"
