"""Figures as people read them: bytes, durations and counts with their units.

Responsible for one spelling of each in all findings. Refuses to judge them.
"""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """`2.1 GiB`, `512 MiB`, `17 B`."""
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """`12 ms`, `0.4 s`, `12 s`, `3 min`, `3 min 05 s`, `2 h 07 min`, `3 d 4 h`: nothing is rounded to nothing."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "under 1 ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if whole < 48 * 3600:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h" + (f" {minutes:02d} min" if minutes else "")
    return f"{whole // 86400} d" + (f" {whole % 86400 // 3600} h" if whole % 86400 >= 3600 else "")


def counted(number: int, one: str, many: str = "") -> str:
    """`1 device`, `2 devices`, `no device`; `many` where an s does not make it."""
    if number == 1:
        return f"1 {one}"
    return f"{number:,} {many or one + 's'}" if number else f"no {one}"
