"""Somebody else computes on the device."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import NO_RUN, WSL
from tests.unit.checks.host import AT_S, GIB, TRAINER_PID, beat, gpu, host, process, processes, sample
from watchdog.checks import foreign_process
from watchdog.core.facts import Absent, DeviceHolder, DeviceProcess, Facts, Known, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

NOTEBOOK = process(99, command="jupyter", memory_bytes=2 * GIB)


def judge(facts: Facts) -> tuple[Finding, ...]:
    return foreign_process.check(facts, Limits())


def listing(*listed: DeviceProcess, **changes: Any) -> Facts:
    return host(**dict(devices=(gpu(processes=listed),)) | changes)


def test_pid_command_and_memory_are_told_the_largest_first() -> None:
    [found] = judge(listing(process(), process(98, memory_bytes=GIB // 2, command="ollama"), NOTEBOOK))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.ASK_OWNER)
    assert found.reason == "pid 99 (jupyter), 2.0 GiB, and 1 more are not of the run"
    assert found.evidence == ("pid 98 (ollama), 512 MiB",)


@pytest.mark.parametrize(
    "facts",
    [
        listing(process(99, memory_bytes=None)),
        listing(NOTEBOOK, **NO_RUN),
        listing(
            NOTEBOOK,
            wsl=WSL,
            processes=processes(holders=(DeviceHolder(pid=99, command="", nodes=("/dev/dxg",), of_run=False),)),
        ),
    ],
)
def test_fires(facts: Facts) -> None:
    assert [found.severity for found in judge(facts)] == [Severity.WARNING]


@pytest.mark.parametrize(
    "facts",
    [
        host(),
        listing(process(99, kind="graphics", memory_bytes=2 * GIB)),
        listing(process(99, memory_bytes=255 * 1024**2)),
        listing(process(99, here=False)),
        listing(process(99, command="nvidia-cuda-mps-server")),
        # a worker of the run, known by its open node; the trainer that ended a moment ago
        listing(process(99), processes=processes(holders=(DeviceHolder(pid=99, command="", nodes=(), of_run=True),))),
        listing(process(TRAINER_PID), **NO_RUN | {"beat": beat(alive=False)}),
        # the number may be somebody's outside
        listing(NOTEBOOK, processes=processes(initial_namespace=False)),
        host(devices=(gpu(recent=(sample(AT_S - 1), sample(AT_S, processes=(NOTEBOOK,)))),)),
    ],
)
def test_near_misses(facts: Facts) -> None:
    [found] = judge(facts)
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


def heir(pid: int, command: str = "python", *, node: str = "/dev/nvidia0", of_run: bool = False) -> DeviceHolder:
    return DeviceHolder(pid=pid, command=command, nodes=(node, "/dev/nvidiactl"), of_run=of_run)


def orphaned(*heirs: DeviceHolder, used_bytes: int = 9 * GIB, **changes: Any) -> Facts:
    """Memory in use, nobody listed, and these have the node open."""
    devices = changes.pop("devices", (gpu(processes=(), memory_used_bytes=used_bytes),))
    seen = processes(run=(), holders=heirs, **changes)
    return host(devices=devices, **NO_RUN | {"processes": seen})


def test_workers_that_outlived_their_trainer_are_named() -> None:
    [found] = judge(orphaned(heir(5001), heir(5002), heir(900, "nvidia-powerd")))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.ASK_OWNER)
    assert found.reason == (
        "9.0 GiB in use, and the driver lists nobody: "
        "pid 5001 (python) has /dev/nvidia0 open and is not of the run; 1 more like it"
    )
    assert found.evidence == ("pid 5002 (python) has /dev/nvidia0 open",)
    [found] = judge(orphaned(heir(5001), devices=(gpu(processes=(), samples=2),)))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 1)


BESIDE = gpu(uuid="GPU-other", index=1, minor=0, processes=(NOTEBOOK,))


@pytest.mark.parametrize(
    "facts",
    [
        orphaned(),
        orphaned(heir(900, "nvidia-powerd")),
        orphaned(heir(5001), used_bytes=700 * 1024**2),
        orphaned(heir(5001), heir(TRAINER_PID, of_run=True)),  # it may be the run's
        orphaned(heir(5001), initial_namespace=False),  # or somebody's outside
        orphaned(heir(5001), initial_namespace=None),
        orphaned(heir(5001), devices=(gpu(processes=(process(50, kind="graphics"),)),)),
        orphaned(heir(5001), devices=(gpu(processes=(), mig=True),)),
        orphaned(heir(5001), devices=(gpu(recent=(sample(AT_S - 1), sample(AT_S, processes=()))),)),
    ],
)
def test_an_open_node_alone_says_nothing(facts: Facts) -> None:
    [found] = judge(facts)
    assert (found.severity, found.looks_wanted) == (Severity.OK, 0)


def test_who_is_listed_on_another_device_owns_nothing_here() -> None:
    facts = orphaned(heir(99), heir(5001, node="/dev/nvidia0"), devices=(gpu(processes=(), minor=1), BESIDE))
    assert [found.severity for found in judge(facts)] == [Severity.OK, Severity.WARNING]  # NVML lists the notebook


def test_the_number_of_a_node_is_the_minor_number_and_not_the_index() -> None:
    empty = gpu(uuid="GPU-other", index=1, minor=0, processes=(), memory_used_bytes=0)
    for minor, severity in ((1, Severity.WARNING), (0, Severity.OK), (Unknown("x"), Severity.WARNING)):
        facts = orphaned(heir(5001, node="/dev/nvidia1"), devices=(gpu(processes=(), minor=minor), empty))
        assert [found.severity for found in judge(facts)] == [severity, Severity.OK]


def test_too_few_samples_ask_for_more() -> None:
    [found] = judge(host(devices=(gpu(processes=(NOTEBOOK,), samples=1),)))
    assert (found.severity, found.looks_wanted) == (Severity.OK, 2)


@pytest.mark.parametrize(
    ("facts", "first_s"),
    [(listing(process(), NOTEBOOK), AT_S - 4.0), (orphaned(heir(5001)), AT_S - 4.0)],
)
def test_a_table_from_before_it_started_accuses_nobody(facts: Facts, first_s: float) -> None:
    """It may be a rank that has just started: tables come each ten seconds, samples each second."""
    for later_s, severity in ((0.0, Severity.OK), (0.5, Severity.WARNING)):
        seen = replace(facts, processes=Known(value_of(facts.processes), first_s + later_s))
        [found] = judge(seen)
        assert (found.severity, found.looks_wanted) == (severity, 1 if severity is Severity.OK else 0)


@pytest.mark.parametrize("listed", [(), (NOTEBOOK,)])
def test_a_table_each_ten_seconds_makes_no_flapping(listed: tuple[DeviceProcess, ...]) -> None:
    """Half a minute of the loop: a sample each second, a table each ten; before that the device was empty."""
    said = []
    for second in range(40):
        now_s = AT_S + second
        recent = tuple(
            sample(at_s, processes=listed) if at_s >= AT_S + 3 else sample(at_s, memory_used_bytes=0, processes=())
            for at_s in (now_s - back for back in reversed(range(30)))
        )
        table = Known(processes(run=(), holders=(heir(99),)), now_s - second % 10)
        facts = host(at_s=now_s, devices=(gpu(recent=recent),), **NO_RUN | {"processes": table})
        said += [found.severity for found in judge(facts)]
    assert said == [Severity.OK] * 10 + [Severity.WARNING] * 30


@pytest.mark.parametrize(
    "changes",
    [
        dict(devices=Unknown("x")),
        dict(processes=Unknown("x")),
        dict(devices=(gpu(processes=Unknown("x")),)),
        dict(devices=(gpu(processes=Absent()),)),
    ],
)
def test_what_is_not_known_is_not_judged(changes: dict[str, Any]) -> None:
    assert judge(host(**changes)) == ()
