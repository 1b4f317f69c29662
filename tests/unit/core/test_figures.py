"""Sizes as people read them: what differs looks different, and what is there never looks like nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.figures import compared, gib, sized

_GIB = 1024**3
_MIB = 1024**2


@pytest.mark.parametrize(
    ("have", "need", "words"),
    [
        (8 * _GIB, 3 * _GIB, "8.0 ≥ 3.0 GiB"),
        (_GIB // 2, _GIB, "0.50 < 1.0 GiB"),
        (1024, 4096, "1.0 < 4.0 KiB"),
        (17 * _MIB, 16 * _MIB, "17.0 ≥ 16.0 MiB"),
        (_GIB - _MIB, _GIB, "1023.0 < 1024.0 MiB"),
        (3 * _GIB - 1, 3 * _GIB, "3221225471 < 3221225472 B"),
        (_GIB, 0, "1.0 ≥ 0.00 GiB"),
        (22 * _GIB, _MIB, "22.0 GiB ≥ 1.0 MiB"),
        (4096, _GIB, "4.0 KiB < 1.0 GiB"),
        (0, 0, "0.00 ≥ 0.00 GiB"),
    ],
)
def test_two_sizes_are_shown_in_a_unit_that_tells_them_apart(have: int, need: int, words: str) -> None:
    assert compared(have, need) == words


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_too_little_never_looks_like_enough(have: int, need: int) -> None:
    words = compared(have, need).split()
    sign = "<" if have < need else "≥"
    assert sign in words
    units = {"B": 1, "KiB": 1024, "MiB": _MIB, "GiB": _GIB}
    left, right = words[: words.index(sign)], words[words.index(sign) + 1 :]
    shown = [float(each[0]) * units[each[-1] if len(each) == 2 else right[-1]] for each in (left, right)]
    if have < need:
        assert shown[0] < shown[1]


def test_a_size() -> None:
    assert [sized(each) for each in (0, 17, 4096, 16 * _MIB, 461 * _MIB, 3 * _GIB)] == [
        "0 B",
        "17 B",
        "4.0 KiB",
        "16.0 MiB",
        "0.45 GiB",
        "3.0 GiB",
    ]
    assert [gib(each) for each in (0, 4 * _MIB, 16 * _MIB, 3 * _GIB)] == ["0.00", "0.0039", "0.02", "3.0"]
