"""bench/relaunch.py: the parts add up, limits are told apart, and a stop that is no stall is refused."""

from __future__ import annotations

import pytest

from bench import relaunch


def moments(all_s: float, *, from_s: float = 100.0) -> relaunch.Moments:
    """A relaunch that took `all_s`, in equal parts."""
    names = list(relaunch.Moments.__dataclass_fields__)
    each_s = all_s / (len(names) - 1)
    return relaunch.Moments(**{name: from_s + number * each_s for number, name in enumerate(names)})


def test_the_parts_add_up_to_the_whole() -> None:
    split = relaunch.parts(moments(0.7))
    assert sum(split.values()) == pytest.approx(0.7)
    assert list(split) == list(relaunch.PARTS)


def test_rows_tell_median_and_worst_of_the_whole_and_of_each_part() -> None:
    rows = relaunch.rows([moments(0.07), moments(0.14), moments(0.7)], python_s=0.008)
    assert rows[0] == {"part": "all", "median ms": 140.0, "worst ms": 700.0}
    assert [row["part"] for row in rows] == ["all", *relaunch.PARTS, relaunch.PYTHON]
    assert rows[1] == {"part": relaunch.PARTS[0], "median ms": 20.0, "worst ms": 100.0}


@pytest.mark.parametrize(
    ("all_s", "late_s", "missed"),
    [
        ((0.1, 0.2, 9.0), (0.5, 1.0), []),  # the median counts, and a stall right at its limit is in time
        ((0.1, 0.25, 0.3), (0.5,), ["0.250 s (median)"]),
        ((0.1,), (), ["no stall was measured"]),
        ((), (0.5,), ["no relaunch was measured"]),
        ((-100.0, 0.1, -5.0), (0.5,), ["-5.000 s (median)"]),  # before the death that it came after
        ((0.1,), (-0.02, -0.5), ["-0.500 s after its deadline"]),  # too early is a false alarm
        ((0.1,), (0.2, 1.001), ["1.001 s after its deadline"]),
        ((0.1,), (float("nan"),), ["nan"]),  # unknown is not in time
        ((0.3,), (2.0,), ["0.300 s (median)", "2.000 s after its deadline"]),
    ],
)
def test_a_limit_that_is_missed_is_named(
    all_s: tuple[float, ...], late_s: tuple[float, ...], missed: list[str]
) -> None:
    found = relaunch.misses([moments(each) for each in all_s], late_s)
    assert len(found) == len(missed)
    assert all(words in sentence for words, sentence in zip(missed, found, strict=True))


def test_the_deadline_is_the_one_that_was_told() -> None:
    assert relaunch.allowed_s("no beat for 3 s, allowed are 2.5 s (learned, phase train at step 7)") == 2.5
    with pytest.raises(ValueError, match="not for a stall"):
        relaunch.allowed_s("asked to stop: it saves and exits")


@pytest.mark.parametrize(
    "words", [["--stalls", "0"], ["--rounds", "0"], ["--rounds", "3", "--record"], ["--stalls", "1", "--record"]]
)
def test_too_little_is_neither_measured_nor_recorded(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        relaunch.main(words)
    assert ended.value.code == 2
    assert "at least" in capsys.readouterr().err
