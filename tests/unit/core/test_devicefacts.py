"""Xids as NVML delivers them become faults: what comes at once is one, and the newest are kept."""

from __future__ import annotations

from watchdog.core.devicefacts import XidFault, with_events


def faults(*delivered: tuple[float, dict[int, int]]) -> list[tuple[int, float, int]]:
    found: tuple[XidFault, ...] = ()
    for at_s, events in delivered:
        found = with_events(found, events, at_s)
    return [(fault.number, fault.at_s, fault.events) for fault in found]


def test_what_comes_within_seconds_is_one_fault() -> None:
    burst = [(100.0 + second, {13: 9}) for second in range(8)]  # longer than five seconds, but without a pause
    assert faults(*burst) == [(13, 107.0, 72)]
    assert faults(*burst, (112.5, {13: 1})) == [(13, 107.0, 72), (13, 112.5, 1)]


def test_each_number_is_a_fault_of_its_own() -> None:
    assert faults((100.0, {13: 2, 43: 1}), (101.0, {43: 1})) == [(13, 100.0, 2), (43, 101.0, 2)]


def test_of_each_number_the_newest_are_kept() -> None:
    found = faults((1.0, {79: 1}), *((10.0 * i, {31: 1}) for i in range(1, 200)))
    assert found[0] == (79, 1.0, 1)
    assert [at_s for number, at_s, _ in found if number == 31] == [10.0 * i for i in range(150, 200)]
