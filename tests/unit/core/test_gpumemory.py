"""What the ledger knows of device memory: folded from records, so a restart knows the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from watchdog.core.gpumemory import MIB, NOISE_BYTES, GpuMemory, Stay, stays_record
from watchdog.core.history import Event, can_fold, fold

GIB = 1024 * MIB
ONE, OTHER = "GPU-1111", "GPU-2222"


def memory(events: Iterable[tuple[str, dict[str, Any]]]) -> GpuMemory:
    """Folded one after the other, as a supervisor does."""
    made = [Event(seq=n, wall_s=float(n), kind=kind, sentence=kind, data=data) for n, (kind, data) in enumerate(events)]
    assert all(can_fold(event) for event in made)
    return fold(made).gpu


def launching(run_id: str, command: str = "c") -> tuple[str, dict[str, Any]]:
    return "run_launching", {"number": 1, "run_id": run_id, "baseline_step": -1, "command_sha256": command}


def took(run_id: str, added: int, *, device: str = ONE) -> tuple[str, dict[str, Any]]:
    stay = Stay(before_bytes=GIB, others_bytes=0, peak_bytes=GIB + added, pids=frozenset({7}), lost=frozenset({9}))
    return "gpu_memory", {"run_id": run_id, "devices": stays_record({device: stay})}


def ended(cause: str) -> tuple[str, dict[str, Any]]:
    return "run_ended", {"number": 1, "run_id": "1-a", "cause": cause, "words": "it ended", "baseline_step": -1}


def found(check: str, severity: str = "warning", device: str | None = ONE) -> tuple[str, dict[str, Any]]:
    return "finding", {"check": check, "subject": "card", "severity": severity, "device": device}


def probed(*, passed: bool = True, device: str = ONE) -> tuple[str, dict[str, Any]]:
    return "device_probed", {"device": device, "passed": passed, "words": "probe 8.10 TFLOP/s"}


def test_a_stay_comes_back_from_its_record() -> None:
    stay = Stay(
        before_bytes=400 * MIB,
        others_bytes=None,
        peak_bytes=9 * GIB,
        own_bytes=8 * GIB,
        pids=frozenset({4711, 4712}),
        lost=frozenset({37}),
    )
    known = memory([launching("1-a"), ("gpu_memory", {"run_id": "1-a", "devices": stays_record({ONE: stay})})])
    assert (known.run_id, known.stays, known.needs) == ("1-a", {ONE: stay}, {ONE: 8 * GIB})


def test_a_launch_tells_what_was_in_use_before_it_and_nothing_of_the_run_before() -> None:
    kind, data = launching("2-a")
    before = Stay(before_bytes=GIB, others_bytes=0, peak_bytes=GIB)
    told = memory([launching("1-a"), took("1-a", GIB), (kind, data | {"device_memory": stays_record({ONE: before})})])
    assert (told.run_id, told.stays, told.needs) == ("2-a", {ONE: before}, {ONE: GIB})
    assert memory([launching("1-a"), took("1-a", GIB), launching("2-a")]).stays == {}


def test_what_a_run_had_added() -> None:
    assert Stay(before_bytes=2 * GIB, peak_bytes=9 * GIB).added_bytes == 7 * GIB
    assert Stay(before_bytes=2 * GIB, peak_bytes=GIB).added_bytes == 0
    assert Stay(before_bytes=2 * GIB, peak_bytes=9 * GIB, own_bytes=5 * GIB).added_bytes == 5 * GIB, "told by process"
    assert Stay(peak_bytes=9 * GIB).added_bytes is None, "what was in use before is not known, so neither is this"


def test_only_what_grew_is_news() -> None:
    recorded = Stay(before_bytes=0, peak_bytes=8 * GIB)
    assert recorded.is_news(None)
    assert not recorded.is_news(recorded)
    assert not recorded.grown(int(8.3 * GIB), None, ()).is_news(recorded)
    assert recorded.grown(int(8.5 * GIB), None, ()).is_news(recorded)
    small = Stay(before_bytes=0, peak_bytes=100 * MIB)
    assert not small.grown(100 * MIB + NOISE_BYTES - 1, None, ()).is_news(small)


def test_a_peak_only_grows_whatever_is_not_told() -> None:
    stay = Stay(before_bytes=0).grown(5 * GIB, 4 * GIB, [1]).grown(None, None, [2]).grown(GIB, GIB, [1])
    assert (stay.peak_bytes, stay.own_bytes, stay.pids) == (5 * GIB, 4 * GIB, frozenset({1, 2}))


def test_the_most_of_all_runs_is_learned_and_another_command_begins_anew() -> None:
    events = [launching("1-a"), took("1-a", 3 * GIB), launching("2-a"), took("2-a", 2 * GIB)]
    known = memory(events)
    assert known.needs == {ONE: 3 * GIB}
    assert known.stays[ONE].peak_bytes == 3 * GIB
    assert memory([*events, launching("3-a", "another")]).needs == {}
    assert memory([*events, ("archived", {})]).needs == {}


@pytest.mark.parametrize("cause", ["cuda_error", "device_fault", "stalled", "driver_gone", "bridge_dead"])
def test_an_end_by_a_device_puts_all_in_doubt_until_each_was_measured(cause: str) -> None:
    known = memory([probed(), ended(cause)])
    assert known.doubt(ONE) is not None, "what was measured before tells nothing"
    known = memory([ended(cause), probed()])
    assert known.doubt(ONE) is None
    assert known.doubt(OTHER) is not None
    assert memory([ended(cause), probed(passed=False)]).doubt(ONE) is not None


@pytest.mark.parametrize("cause", ["killed", "signalled", "host_memory", "cuda_out_of_memory", "code_error", "drained"])
def test_other_ends_put_nothing_in_doubt(cause: str) -> None:
    assert memory([ended(cause)]).doubt(ONE) is None


def test_a_word_of_another_version_is_no_doubt() -> None:
    assert memory([ended("eaten by a grue")]).doubt(ONE) is None


def test_findings_put_their_device_in_doubt() -> None:
    known = memory([found("xid")])
    assert known.doubt(ONE) is not None
    assert known.doubt(OTHER) is None
    assert memory([found("driver-hung", "critical", None)]).doubt(OTHER) is not None
    assert memory([found("xid"), probed()]).doubt(ONE) is None
    assert memory([found("xid"), probed(), found("xid")]).doubt(ONE) is not None
    for quiet in (found("thermal-slowdown"), found("foreign-process"), found("xid", "unknown"), found("xid", "ok")):
        assert memory([quiet]).doubt(ONE) is None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("gpu_memory", {"run_id": "1-a", "devices": [ONE]}),
        ("gpu_memory", {"devices": {}}),
        ("run_launching", {"number": 1, "run_id": "1-a", "baseline_step": -1, "device_memory": 7}),
        ("device_probed", {"device": ONE, "passed": "yes"}),
        ("device_probed", {"passed": True}),
    ],
)
def test_what_is_no_record_is_not_folded(kind: str, data: dict[str, Any]) -> None:
    assert not can_fold(Event(seq=1, wall_s=0.0, kind=kind, sentence="", data=data))


@pytest.mark.parametrize("figure", [None, "9", -1, True, 2**70, 1.5, [1]])
def test_a_figure_that_is_none_is_not_known(figure: object) -> None:
    record = {"before": figure, "others": figure, "peak": figure, "own": figure, "pids": figure, "lost": [figure]}
    (stay,) = memory([("gpu_memory", {"run_id": "1-a", "devices": {ONE: record, OTHER: figure}})]).stays.values()
    assert (stay.before_bytes, stay.peak_bytes, stay.added_bytes, stay.lost) == (None, 0, None, frozenset())
