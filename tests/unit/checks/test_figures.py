"""Figures as people read them."""

from __future__ import annotations

import pytest

from watchdog.checks.figures import counted, duration, size


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
    [
        *((-0.01, "0 s"), (0, "0 s"), (2e-9, "under 1 ms"), (0.0123, "12 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s")),
        *((0.34, "0.3 s"), (9.94, "9.9 s"), (9.96, "10 s"), (12.4, "12 s"), (119.4, "119 s")),
        *((120, "2 min"), (185, "3 min 05 s"), (3600, "60 min"), (7199, "119 min 59 s")),
        *((7200, "2 h"), (7620, "2 h 07 min"), (172800, "2 d"), (273600, "3 d 4 h")),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts() -> None:
    assert [counted(number, "device") for number in (0, 1, 2)] == ["no device", "1 device", "2 devices"]
    assert [counted(number, "process", "processes") for number in (1, 1200)] == ["1 process", "1,200 processes"]
