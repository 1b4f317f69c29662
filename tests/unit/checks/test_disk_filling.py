"""A disk that fills up steadily, told from checkpoints, pruning and short windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.checks.host import AT_S, GIB, disk, host, known
from watchdog.checks import disk_filling
from watchdog.core.facts import Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(free: Callable[[float], float], *, looks: int = 31, every_s: float = 10.0) -> tuple[Finding, ...]:
    """`free(s)`: GiB free, s seconds after the first look."""
    span_s = (looks - 1) * every_s
    seen = [(AT_S - span_s + number * every_s, int(free(number * every_s) * GIB)) for number in range(looks)]
    given = disk(free_bytes=seen[-1][1], earlier=tuple(seen[:-1]))
    return disk_filling.check(host(disks=(known(given),)), Limits())


@pytest.mark.parametrize(
    ("gib_per_min", "severity"),
    # 100 GiB at the end: 1800 s and 6 h are 3.33 and 0.278 GiB a minute.
    [(3.4, Severity.CRITICAL), (3.2, Severity.WARNING), (0.29, Severity.WARNING), (0.26, Severity.OK)],
)
def test_by_the_time_that_is_left(gib_per_min: float, severity: Severity) -> None:
    (finding,) = judge(lambda s: 100 + gib_per_min * (300 - s) / 60)
    assert finding.severity is severity
    assert (finding.remedy is Remedy.FREE_DISK) is (severity is not Severity.OK)


def test_rate_and_time_are_told() -> None:
    (finding,) = judge(lambda s: 100 + 5 * (300 - s) / 60)
    assert finding.reason == "100 GiB free, falling by 5.0 GiB a minute over the last 5 min: full in 20 min"


def test_a_minute_alone_is_never_critical() -> None:
    (finding,) = judge(lambda s: 100 - 5 * s / 60, looks=7)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("at_s", [0, 40, 75, 140, 150, 225, 260, 285])
def test_a_checkpoint_is_no_trend(at_s: float) -> None:
    def free(s: float) -> float:
        written = min(max(s - at_s, 0), 25) / 25
        return 100 - 40 * written - s * 1e-6  # the log grows all the while

    (finding,) = judge(free)
    assert finding.severity is Severity.OK


def test_pruning_makes_up_for_checkpoints() -> None:
    (finding,) = judge(lambda s: 100 - 4 * (s % 70) / 70)
    assert finding.severity is Severity.OK


def test_filling_that_began_lately_is_seen_in_a_long_window() -> None:
    (finding,) = judge(lambda s: 200 - 0.05 * max(0, s - 2000), looks=121, every_s=30.0)
    assert finding.severity is Severity.WARNING


def test_a_slow_write_is_no_trend_in_a_part_of_a_long_window() -> None:
    (finding,) = judge(lambda s: 100 - 4 * min(max(s - 1000, 0), 150) / 150 - s * 1e-6, looks=121)
    assert finding.severity is Severity.OK


def test_a_step_cannot_hide_in_a_gap_between_two_looks() -> None:
    earlier = tuple((AT_S - back, 100 * GIB) for back in (70.0, 69.0, 68.0, 67.0))
    (finding,) = disk_filling.check(host(disks=(known(disk(free_bytes=50 * GIB, earlier=earlier)),)), Limits())
    assert finding.severity is Severity.OK


@pytest.mark.parametrize(("looks", "every_s"), [(1, 1.0), (4, 100.0), (50, 1.0)])
def test_too_few_looks_say_nothing(looks: int, every_s: float) -> None:
    assert judge(lambda s: 100 - s, looks=looks, every_s=every_s) == ()


def test_unknown_is_left_to_disk_space() -> None:
    assert disk_filling.check(host(disks=(Unknown("hangs"),)), Limits()) == ()
