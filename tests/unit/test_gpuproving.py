"""What each run took of the devices is remembered as its samples tell it; a device is measured only where no run is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.handclock import HandClock
from tests.unit.checks.ghosts import NO_RUN, WSL, lost_process
from tests.unit.checks.host import AT_S, GIB, TRAINER_PID, UUID, gpu, host, lock, process, processes, sample
from watchdog.core.facts import Device, Facts, Unknown
from watchdog.core.gpumemory import Stay, stays_record
from watchdog.core.history import Event, History, fold
from watchdog.core.limits import Limits
from watchdog.core.phase import Phase
from watchdog.core.runrecord import Expectation
from watchdog.core.seen import Gate
from watchdog.core.state import Record, RunState, State
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError
from watchdog.gpuproving import GpuProver
from watchdog.hostwatch import HostWatch
from watchdog.settings import load

OTHER = "GPU-77777777-0000-0000-0000-000000000000"
MIB = 1024**2
OPEN = (Gate(name="memory", open=True, words="memory"),)
FREE_LOCKS = (lock("supervisor"), lock("run", held=False, holders=()))
RUN = RunState(
    number=1,
    run_id="1-a",
    level=0,
    expectation=Expectation(fresh=True, step=None, digest=None),
    baseline_step=-1,
    launched_s=AT_S,
    grace_from_s=AT_S,
)


@dataclasses.dataclass
class Seen:
    """What a HostWatch says."""

    facts: Facts
    limits: Limits = dataclasses.field(default_factory=lambda: Limits(devices=("0", "1"), devices_named=True))
    used: frozenset[str] | None = None
    over_s: float = float("-inf")


class Bench:
    """A prover, its ledger, and the time."""

    def __init__(self, tmp_path: Path, **of_host: Any) -> None:
        self.clock = HandClock(AT_S)
        self.host = Seen(idle(), **of_host)
        self.history = History()
        self.records: list[Record] = []
        self.troubles: list[str] = []
        self.full = False
        settings = load(environ={}, home=tmp_path, cwd=tmp_path, overrides={"probe.python": "/bin/false"})
        watch = cast(HostWatch, self.host)
        self.prover = GpuProver(settings, self.clock, watch, self.record, self.troubles.append)

    def record(self, records: Sequence[Record]) -> None:
        if self.full:
            raise RecordingError("no space")
        first = len(self.records)
        self.records += records
        events = [
            Event(seq=first + n, wall_s=self.clock.now_s, kind=each.kind, sentence=each.sentence, data=each.data)
            for n, each in enumerate(records)
        ]
        self.history = fold(events, self.history)

    def turn(self, facts: Facts, run: RunState | None = None) -> None:
        self.host.facts = facts
        self.clock.now_s = facts.at_s
        self.prover.look(run, self.history, self.clock.now_s)

    def launch(self) -> None:
        """Recorded, as the supervisor does."""
        data = {"number": 1, "run_id": "1-a", "baseline_step": -1, "device_memory": self.prover.before()}
        self.record([Record("run_launching", "run 1", data)])

    def end(self, at_s: float, cause: str = "killed") -> None:
        data = {"number": 1, "run_id": "1-a", "cause": cause, "words": "it ended", "baseline_step": -1}
        self.record([Record("run_ended", f"run 1 ended: {cause}", data)])
        self.host.over_s = at_s

    def gates(self, phase: Phase = Phase.GATING) -> tuple[Gate, ...]:
        return self.prover.beside(OPEN, State(phase=phase, since_s=0.0), self.history)

    def stays(self) -> dict[str, Stay]:
        return dict(self.history.gpu.stays)

    def kinds(self) -> list[str]:
        return [each.kind for each in self.records]


def device(*used_gib: float, end_s: float = AT_S, uuid: str = UUID, index: int = 0, **changes: Any) -> Device:
    """A second between two samples, the last at `end_s`."""
    recent = tuple(
        sample(end_s - back, memory_used_bytes=int(used * GIB), **changes)
        for back, used in zip(reversed(range(len(used_gib))), used_gib, strict=True)
    )
    return gpu(uuid=uuid, index=index, recent=recent)


def idle(*devices: Device, at_s: float = AT_S, **changes: Any) -> Facts:
    """No run lives."""
    table = processes(run=(), holders=())
    given = {"devices": devices or (device(0.5, end_s=at_s, processes=()),), "locks": FREE_LOCKS, **NO_RUN}
    return host(**(given | {"at_s": at_s, "processes": known_at(table, at_s)} | changes))


def known_at(value: Any, at_s: float) -> Any:
    from watchdog.core.facts import Known

    return Known(value, at_s)


def busy(*devices: Device, at_s: float, **changes: Any) -> Facts:
    return host(**({"devices": devices, "at_s": at_s} | changes))


def a_run(bench: Bench, *used_gib: float, **changes: Any) -> None:
    """From the gates to its last sample, at AT_S + 1 + how many there are."""
    bench.turn(idle())
    bench.launch()
    bench.turn(busy(device(0.5, end_s=AT_S, processes=()), at_s=AT_S + 0.1), RUN)
    end_s = AT_S + 1 + len(used_gib)
    bench.turn(busy(device(*used_gib, end_s=end_s, **changes), at_s=end_s), RUN)


def test_what_was_there_before_and_what_it_took_most(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    two = (process(memory_bytes=3 * GIB), process(99, memory_bytes=2 * GIB))
    a_run(bench, 3.0, 9.5, 8.0, processes=two)
    stay = bench.stays()[UUID]
    assert (stay.before_bytes, stay.peak_bytes) == (GIB // 2, int(9.5 * GIB))
    assert (stay.own_bytes, stay.pids) == (3 * GIB, frozenset({TRAINER_PID})), "the other is somebody's"
    assert bench.kinds() == ["run_launching", "gpu_memory"]
    bench.turn(busy(device(9.6, end_s=AT_S + 9, processes=two), at_s=AT_S + 9), RUN)
    assert bench.kinds().count("gpu_memory") == 1, "a peak that grew by a hundredth is no news"


def test_samples_that_come_after_the_end_are_of_the_run(tmp_path: Path) -> None:
    """In calm times the driver is asked for twenty at once, and hurried when the run is over."""
    bench = Bench(tmp_path)
    a_run(bench, 0.5, processes=())
    over_s = AT_S + 20
    bench.end(over_s)
    late = device(*[9.5] * 10, end_s=over_s - 0.5, processes=(process(memory_bytes=9 * GIB),))
    bench.turn(idle(late, at_s=over_s + 0.01))
    assert bench.gates() == (), "what it gave back is of a reading that has not come"
    after = device(9.5, 0.5, end_s=over_s + 0.02, processes=())
    bench.turn(idle(after, at_s=over_s + 0.02))
    stay = bench.stays()[UUID]
    assert (stay.peak_bytes, stay.added_bytes) == (int(9.5 * GIB), 9 * GIB)
    (_, gate) = bench.gates()
    assert gate.open
    assert "100 % of the 9.0 GiB given back" in gate.words


def test_a_reading_that_never_comes_is_waited_for_a_second_and_then_keeps_the_gate_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    a_run(bench, 9.5)
    bench.end(AT_S + 20)
    for after_s, gates in ((0.9, 0), (1.1, 2)):
        at_s = AT_S + 20 + after_s
        bench.turn(idle(device(9.5, end_s=AT_S + 2, processes=()), at_s=at_s))
        assert len(bench.gates()) == gates
    assert not bench.gates()[1].open
    assert "has not been read since the run ended" in bench.gates()[1].words


def test_what_was_read_before_the_end_is_not_what_the_next_run_finds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    a_run(bench, 9.5)
    bench.end(AT_S + 20)
    bench.turn(idle(device(9.5, end_s=AT_S + 19, processes=()), at_s=AT_S + 22))
    assert bench.prover.before() == {}
    bench.turn(idle(device(0.5, end_s=AT_S + 23, processes=()), at_s=AT_S + 23))
    assert bench.prover.before()[UUID]["before"] == GIB // 2


def test_figures_that_cannot_be_true_are_neither_learned_nor_believed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    a_run(bench, 9.5, 9e4, processes=(process(memory_bytes=90_000 * GIB),))
    assert (bench.stays()[UUID].added_bytes, bench.history.gpu.needs) == (9 * GIB, {UUID: 9 * GIB})
    bench.end(AT_S + 20)
    bench.turn(idle(device(9e4, end_s=AT_S + 30, processes=()), at_s=AT_S + 30))
    (_, gate) = bench.gates()
    assert not gate.open
    assert "are not in use on a device that has" in gate.words


def test_devices_that_cannot_be_seen_keep_it_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    a_run(bench, 9.5)
    bench.end(AT_S + 20)
    bench.turn(idle(at_s=AT_S + 30, devices=Unknown("NVML has not answered for 10 s")))
    (_, gate) = bench.gates()
    assert (gate.open, gate.words) == (
        False,
        "what the last run gave back cannot be seen: NVML has not answered for 10 s",
    )


def test_what_cannot_be_recorded_is_said_and_tried_again_seldom(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.turn(idle())
    bench.full = True
    for after_s in (1.0, 2.0, 3.0):
        bench.turn(busy(device(9.5, end_s=AT_S + after_s), at_s=AT_S + after_s), RUN)
    assert bench.troubles == ["no space"]
    bench.full = False
    bench.turn(busy(device(9.5, end_s=AT_S + 10), at_s=AT_S + 10), RUN)
    assert bench.kinds() == []
    bench.turn(busy(device(9.5, end_s=AT_S + 40), at_s=AT_S + 1 + AGAIN_S), RUN)
    assert bench.kinds() == ["gpu_memory"]


@pytest.mark.parametrize(
    ("of_host", "recorded"),
    [
        ({"limits": Limits(devices=None)}, None),
        ({"limits": Limits(devices=None), "used": frozenset({OTHER})}, {OTHER}),
        ({"limits": Limits(devices=None), "used": frozenset()}, {UUID, OTHER}),
        ({"limits": Limits(devices=("0",), devices_named=True)}, {UUID}),
        ({"limits": Limits(devices=())}, None),
    ],
    ids=["uses none", "was seen on one", "which one is not told", "names one", "says that it uses none"],
)
def test_only_the_devices_of_the_job_count(of_host: dict[str, Any], recorded: set[str] | None, tmp_path: Path) -> None:
    bench = Bench(tmp_path, **of_host)

    def both(used: float, at_s: float) -> tuple[Device, Device]:
        return device(used, end_s=at_s, processes=()), device(used, end_s=at_s, uuid=OTHER, index=1, processes=())

    bench.turn(idle(*both(0.5, AT_S)))
    bench.launch()
    bench.turn(busy(*both(9.5, AT_S + 1), at_s=AT_S + 1), RUN)
    bench.turn(busy(*both(9.5, AT_S + 2), at_s=AT_S + 2), RUN)
    assert set(bench.stays()) == (recorded or set())
    bench.end(AT_S + 3)
    bench.turn(idle(*both(9.5, AT_S + 30), at_s=AT_S + 30))
    assert len(bench.gates()) == 1 + len(recorded or ())
    assert ("gpu_memory" in bench.kinds()) is (recorded is not None)


def test_under_mig_nothing_is_proven_of_the_whole_device(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    a_run(bench, 9.5, processes=())
    bench.end(AT_S + 3)
    held = device(9.5, end_s=AT_S + 30, processes=())
    bench.turn(idle(held, at_s=AT_S + 30))
    assert not bench.gates()[1].open
    bench.turn(idle(replace(held, mig=known_at(True, AT_S + 30)), at_s=AT_S + 30))
    assert bench.gates() == OPEN


def test_an_adopted_run_is_compared_with_what_was_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.launch()
    stay = Stay(before_bytes=GIB // 2, others_bytes=0, peak_bytes=GIB)
    bench.record([Record("gpu_memory", "", {"run_id": "1-a", "devices": stays_record({UUID: stay})})])
    bench.turn(busy(device(4.0, end_s=AT_S, processes=()), at_s=AT_S), RUN)
    bench.turn(busy(device(9.5, end_s=AT_S + 1, processes=()), at_s=AT_S + 1), RUN)
    assert bench.stays()[UUID].added_bytes == 9 * GIB
    fresh = Bench(tmp_path)
    fresh.launch()
    fresh.turn(busy(device(9.5, end_s=AT_S, processes=()), at_s=AT_S), RUN)
    assert fresh.stays()[UUID].added_bytes is None, "nobody saw what was there before it"


def test_on_wsl_only_a_pid_of_the_run_is_lost(tmp_path: Path) -> None:
    """Xwayland is never in this /proc."""
    bench = Bench(tmp_path)
    xwayland = lost_process(37, kind="graphics", memory_bytes=None)
    ours = process(memory_bytes=None)
    bench.turn(idle(device(0.5, processes=(xwayland,)), wsl=WSL))
    bench.launch()
    bench.turn(busy(device(0.5, end_s=AT_S, processes=()), at_s=AT_S, wsl=WSL), RUN)
    bench.turn(busy(device(9.5, end_s=AT_S + 2, processes=(xwayland, ours)), at_s=AT_S + 2, wsl=WSL), RUN)
    bench.end(AT_S + 3)

    def gate_with(*listed: Any) -> Gate:
        at_s = bench.clock.now_s + 20
        bench.turn(idle(device(0.5, end_s=at_s, processes=listed), at_s=at_s, wsl=WSL))
        return bench.gates()[1]

    closed = gate_with(xwayland, lost_process(TRAINER_PID, memory_bytes=None))
    assert not closed.open
    assert f"lists pid {TRAINER_PID}, which this system does not know" in closed.words
    assert "pid 37" not in closed.words
    assert "wsl --shutdown" in closed.words
    assert gate_with(xwayland).open


# --- measuring ------------------------------------------------------------------------------------------------
def doubted(tmp_path: Path) -> Bench:
    """A run has ended by a device fault, and the device looks as before it."""
    bench = Bench(tmp_path)
    a_run(bench, 9.5, processes=())
    bench.end(AT_S + 3, "device_fault")
    return bench


def after_the_end(bench: Bench, **changes: Any) -> None:
    at_s = bench.clock.now_s + 10
    bench.turn(idle(device(0.5, end_s=at_s, processes=changes.pop("listed", ())), at_s=at_s, **changes))


def locks_at(bench: Bench, **changes: Any) -> tuple[Any, ...]:
    return tuple(known_at(each, bench.clock.now_s + 10) for each in (lock("supervisor"), lock("run", **changes)))


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.GATING])
def test_nothing_is_measured_but_at_the_gates(phase: Phase, tmp_path: Path) -> None:
    bench = doubted(tmp_path)
    after_the_end(bench, locks=locks_at(bench, held=False, holders=()))
    assert bench.gates(phase) == OPEN
    assert "device_probing" not in bench.kinds()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"locks": (lock("run"),)}, "the locks have not been read since the run ended"),
        ({"held": True}, "a run that cannot be seen from here holds the run lock"),
        ({"locks": (Unknown("it hangs"),)}, "whether a run is alive cannot be told"),
        ({"listed": (process(99, memory_bytes=0),)}, "is in use by pid 99"),
    ],
)
def test_nothing_is_measured_beside_what_may_be_a_run(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    bench = doubted(tmp_path)
    if "locks" not in changes:
        held = changes.pop("held", False)
        changes["locks"] = locks_at(bench, held=held)
    after_the_end(bench, **changes)
    for _ in range(2):
        (_, gate) = bench.gates()
        assert not gate.open
    assert why in gate.words
    assert "device_probing" not in bench.kinds()


def test_it_is_recorded_before_it_begins_and_the_gate_is_closed_until_it_is_over(tmp_path: Path) -> None:
    bench = doubted(tmp_path)
    bench.full = True
    after_the_end(bench, locks=locks_at(bench, held=False, holders=()))
    assert not bench.gates()[1].open
    assert bench.troubles == ["no space"], "what cannot be recorded is not begun"
    bench.full = False
    for _ in range(4):
        after_the_end(bench, locks=locks_at(bench, held=False, holders=()))
    assert not bench.gates()[1].open
    assert bench.kinds()[-1] == "device_probing"
    assert bench.gates()[1].words.endswith("the measurement is under way")
