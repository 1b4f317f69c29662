"""Durations and sizes: what people write is read, nonsense is refused, nothing is lost on the way there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog import units


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("12h", 43200),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("10min", 600),
        ("2d", 172800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("90", 90),
        (" 20 s ", 20),
        (45, 45),
        (0.25, 0.25),
        (0, 0),
        ("1d2h3m4s5ms", 93784.005),
        ("90.1s", 90.1),
    ],
)
def test_a_duration_is_read_as_written(written: object, seconds: float) -> None:
    assert units.parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            " ",
            "s",
            "-5s",
            "5 parsecs",
            "30m1h",
            "1h1h",
            "1.5h30m",
            "1e3s",
            "٣s",
            "5s5",
            "5,5s",
            "nan",
            "inf",
            True,
        ),
        *(None, [], -1, -0.5, float("nan"), float("inf"), 10**400, "9" * 21 + "s", "99999999999999999999d", "0x10s"),
    ],
)
def test_a_nonsense_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        units.parse_duration(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("3GiB", 3 * 1024**3),
        ("500 MB", 500_000_000),
        ("64M", 64 * 1024**2),
        ("1.5GiB", 1536 * 1024**2),
        ("10", 10),
        ("7b", 7),
        ("2tb", 2 * 1000**4),
        (4096, 4096),
        (0, 0),
    ],
)
def test_a_size_is_read_as_written(written: object, size: int) -> None:
    assert units.parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "GiB",
            "-1GiB",
            "3 GiBs",
            "1.5",
            "1.5B",
            "3e9",
            "1 2GiB",
            "٣GB",
            "8192PiB",
            "9" * 21,
            True,
            None,
            1.0,
            -1,
        ),
        *(2**63, [1]),
    ],
)
def test_a_nonsense_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        units.parse_size(written)


@given(st.integers(min_value=0, max_value=int(units.LONGEST_DURATION_S) * 1000))
def test_a_duration_survives_the_way_there_and_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert units.parse_duration(units.format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=units.LARGEST_SIZE_BYTES))
def test_a_size_survives_the_way_there_and_back(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


@given(st.integers(min_value=0, max_value=8191), st.sampled_from([1024**power for power in range(6)]))
def test_a_round_size_survives_the_way_there_and_back(count: int, factor: int) -> None:
    assert units.parse_size(units.format_size(count * factor)) == count * factor


@given(st.text(max_size=30) | st.text(alphabet="0123456789.hmsdinGMKiBb -+e", max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    for parse in (units.parse_duration, units.parse_size):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert 0 <= value <= units.LARGEST_SIZE_BYTES
