"""Figures as people read them."""

from __future__ import annotations

import pytest

from watchdog.checks.figures import duration, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (512 * 1024**2, "512 MiB"),
        (int(2.1 * 1024**3), "2.1 GiB"),
        (3 * 1024**6, "3072 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.34, "0.3 s"), (12.4, "12 s"), (119.4, "119 s"), (185, "3 min 05 s"), (7620, "2 h 07 min"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
