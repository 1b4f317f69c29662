"""The gate of the devices: what closes it, and what never does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.ghosts import NO_RUN, ghost_gpu
from tests.unit.checks.host import GIB, UUID, gpu, host, process, processes
from watchdog.checks.catalogue import GATES, GATING, judge
from watchdog.core.devicegate import device_gate, held_by_run, uses_gpu
from watchdog.core.facts import Absent, Driver, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, failed, unsure
from watchdog.core.limits import Limits
from watchdog.core.seen import Gate

OTHER = "GPU-77777777-0000-0000-0000-000000000000"
SICK = Finding(
    check="gpu-lost", severity=Severity.CRITICAL, subject="card", reason="code 15: lost", remedy=Remedy.REBOOT
)
DRIVER = Driver(version="560.35.03", cuda_version="12.6", devices=1, node="/dev/nvidiactl")


def gate(
    facts: Facts,
    *findings: Finding,
    devices: tuple[str, ...] | None = ("0",),
    named: bool = False,
    used_gpu: bool = False,
    used: tuple[str, ...] = (),
    off: str = "",
) -> Gate | None:
    """With what the real checks find, and `findings` besides."""
    limits = Limits(devices=devices, devices_named=named, off=frozenset(off.split()))
    found = device_gate(facts, limits, (*judge(facts, limits, GATING), *findings), used_gpu=used_gpu, used=used)
    assert len(found) <= 1
    return found[0] if found else None


def test_a_healthy_host_is_open_and_says_on_what() -> None:
    found = gate(host())
    assert found is not None
    assert (found.open, found.words) == (True, "devices NVIDIA GeForce RTX 3060 (GPU-3f1c0a52)")


def test_only_the_devices_that_are_meant_are_named() -> None:
    two = host(devices=(gpu(), gpu(uuid=OTHER, index=1)))
    found = gate(two, devices=("1",))
    assert found is not None
    assert "GPU-77777777" in found.words
    assert "GPU-3f1c" not in found.words


def test_a_critical_finding_closes_it_with_its_figures_and_what_to_do() -> None:
    found = gate(host(), SICK)
    assert found is not None
    assert not found.open
    assert "card: code 15: lost (reboot the host)" in found.words
    assert "[job] devices = []" in found.words


@pytest.mark.parametrize("severity", [Severity.OK, Severity.UNKNOWN, Severity.WARNING])
def test_what_is_less_than_critical_does_not_close_it(severity: Severity) -> None:
    found = gate(host(), replace(SICK, severity=severity))
    assert found is not None
    assert found.open


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_what_wants_to_be_looked_at_again_closes_it_until_it_was(samples: int) -> None:
    """A ghost is proven by five samples; until then nobody knows that it is none."""
    facts = host(devices=(ghost_gpu(samples=samples),), **NO_RUN)
    found = gate(facts)
    assert found is not None
    assert not found.open
    assert found.words.startswith("looks again: NVIDIA GeForce RTX 3060 (GPU-3f1c0a52): 100 % utilization at 61 W")
    off = gate(facts, off="ghost-context")
    assert off is not None
    assert off.open


@pytest.mark.parametrize("samples", [1, 5])
def test_a_device_in_order_is_not_looked_at_again(samples: int) -> None:
    idle = gpu(samples=samples, utilization_percent=0, power_watts=12.0, memory_used_bytes=0, processes=())
    found = gate(host(devices=(idle,), **NO_RUN))
    assert found is not None
    assert found.open, found.words


@pytest.mark.parametrize("looks_at", ["0", "1"])
def test_a_device_that_the_job_does_not_name_is_not_waited_for(looks_at: str) -> None:
    two = host(devices=(ghost_gpu(samples=2), gpu(uuid=OTHER, index=1)), **NO_RUN)
    found = gate(two, devices=(looks_at,))
    assert found is not None
    assert found.open is (looks_at == "1"), found.words


@pytest.mark.parametrize("name", sorted(GATES))
def test_a_check_that_failed_closes_it(name: str) -> None:
    """Nobody has looked: a bug of ours is no proof of health."""
    found = gate(host(), failed(name, ZeroDivisionError("division by zero")))
    assert found is not None
    assert not found.open
    assert f"{name}: the check itself failed: ZeroDivisionError: division by zero" in found.words


@pytest.mark.parametrize(("named", "is_open"), [((UUID,), False), ((OTHER,), True), (None, True)])
def test_a_device_that_the_job_does_not_name_closes_nothing(named: tuple[str, ...] | None, is_open: bool) -> None:
    """One of two cards is lost."""
    found = gate(host(devices=(gpu(lost_code=15), gpu(uuid=OTHER, index=1))), devices=named)
    assert found is not None
    assert found.open is is_open, found.words


TROUBLES = [
    host(driver=Unknown("hangs"), devices=Unknown("hangs")),
    host(driver=replace(DRIVER, silent_s=99.0), devices=Unknown("hangs")),
    host(driver=replace(DRIVER, version=None, code=18, error="mismatch"), devices=Unknown("code 18")),
    host(devices=Unknown("not since the gap")),
    host(devices=(gpu(lost_code=15),)),
]


@pytest.mark.parametrize("facts", TROUBLES, ids=str)
def test_a_job_that_names_no_device_waits_for_one_only_after_its_run_used_one(facts: Facts) -> None:
    """Nobody said that it uses a GPU: a broken driver is no reason to hold a job of the CPU, but it is said."""
    found = gate(facts, devices=None)
    assert found is not None
    assert found.open
    assert found.words.startswith("not waited for, as the job names no device: ")
    known = gate(facts, devices=None, used_gpu=True)
    assert known is not None
    assert not known.open


@pytest.mark.parametrize("facts", [*TROUBLES, host(driver=Absent("none"), devices=Absent("none"))], ids=str)
def test_who_names_a_mig_instance_names_a_device(facts: Facts) -> None:
    """It does not say of which device it is: any of them may be meant, and trouble is waited for."""
    found = gate(facts, devices=None, named=True)
    assert found is not None
    assert not found.open, found.words


LOST_TWICE = host(devices=(gpu(lost_code=15), gpu(uuid=OTHER, index=1)))


@pytest.mark.parametrize(
    ("used", "is_open"),
    [
        ((), False),  # NVML listed the run nowhere: any may be its
        ((UUID,), False),
        ((OTHER,), True),
        ((UUID, OTHER), False),
        (("GPU-88888888",), False),  # what it used is not here any more: it will take what there is
    ],
)
def test_who_names_nothing_waits_for_what_its_run_used(used: tuple[str, ...], is_open: bool) -> None:
    found = gate(LOST_TWICE, devices=None, used_gpu=True, used=used)
    assert found is not None
    assert found.open is is_open, found.words


def test_what_the_run_used_is_told_at_the_gate_and_a_name_counts_for_more() -> None:
    two = host(devices=(gpu(), gpu(uuid=OTHER, index=1)))
    told = gate(two, devices=None, used_gpu=True, used=(OTHER,))
    assert told is not None
    assert told.words == "devices NVIDIA GeForce RTX 3060 (GPU-77777777)"
    named = gate(LOST_TWICE, devices=("0",), used_gpu=True, used=(OTHER,))
    assert named is not None
    assert not named.open


def test_suspicion_of_a_device_that_the_run_never_used_holds_nobody() -> None:
    suspect = unsure("ghost-context", "card", "100 % utilization at 61 W", 3, device=UUID)
    two = host(devices=(gpu(), gpu(uuid=OTHER, index=1)))
    for used, is_open in ((OTHER,), True), ((UUID,), False), ((), False):
        found = gate(two, suspect, devices=None, used_gpu=True, used=used)
        assert found is not None
        assert found.open is is_open


def test_a_lost_device_without_a_uuid_may_be_the_one_that_was_used() -> None:
    nameless = gpu(uuid="no UUID, index 0", lost_code=15)
    beside = gpu(uuid=OTHER, index=1)
    for used, is_open in ((UUID,), False), ((OTHER,), True):
        found = gate(host(devices=(nameless, beside)), devices=None, used_gpu=True, used=used)
        assert found is not None
        assert found.open is is_open, found.words


def test_a_driver_that_hangs_is_no_matter_of_single_devices() -> None:
    found = gate(TROUBLES[1], devices=None, used_gpu=True, used=(OTHER,))
    assert found is not None
    assert not found.open


def test_a_run_with_a_device_open_uses_a_gpu() -> None:
    assert held_by_run(host())
    beside = replace(processes().holders[0], of_run=False)
    assert not held_by_run(host(processes=processes(holders=(beside,))))
    assert not held_by_run(host(processes=Unknown("/proc cannot be read")))


@pytest.mark.parametrize(
    ("facts", "off"),
    [
        (TROUBLES[0], "driver"),
        (TROUBLES[1], "driver-hung"),
        (TROUBLES[2], "driver-mismatch"),
        (TROUBLES[3], "device-readings"),
        (TROUBLES[4], "gpu-lost"),
        (host(driver=replace(DRIVER, silent_s=9.0), devices=Unknown("silent")), "driver"),
        (host(driver=replace(DRIVER, crashes=3), devices=Unknown("crashes")), "driver-crash"),
    ],
    ids=str,
)
def test_a_check_that_is_switched_off_closes_nothing(facts: Facts, off: str) -> None:
    before, found = gate(facts), gate(facts, off=off)
    assert before is not None
    assert not before.open
    assert found is not None
    assert found.open, found.words


@pytest.mark.parametrize(
    ("trouble", "off", "opens"),
    [
        ("silent_s", "driver-hung", True),
        ("silent_s", "driver", False),
        ("silent_s", "", False),
        ("crashes", "driver-crash", True),
        ("crashes", "driver", False),
    ],
)
def test_a_trouble_that_grows_opens_nothing(trouble: str, off: str, opens: bool) -> None:
    """Whoever switched off the check of a hung driver said that silence is no reason; nobody said: only a long one."""
    found = []
    for amount in (1, 2, 30, 59, 60, 61, 600):
        sick = host(driver=replace(DRIVER, **{trouble: amount}), devices=Unknown("silent"))
        looked = gate(sick, off=off)
        assert looked is not None
        found.append(looked.open)
    assert found == sorted(found, reverse=True), "once closed, it stays closed"
    assert found[-1] is opens


def test_a_ghost_on_a_device_of_the_job_closes_it() -> None:
    holder = process(pid=999, here=False, command="", memory_bytes=11 * GIB)
    card = gpu(processes=(holder,), power_watts=60.0, utilization_percent=100, memory_used_bytes=11 * GIB)
    gone = Absent("run 7 is over")
    facts = host(devices=(card,), beat=gone, progress=gone, processes=processes(run=(), holders=()))
    found = gate(facts)
    assert found is not None
    assert not found.open, found.words


@pytest.mark.parametrize(("named", "is_open"), [(None, None), (("0",), False)])
def test_a_host_without_a_driver_has_a_gate_only_for_who_names_a_device(
    named: tuple[str, ...] | None, is_open: bool | None
) -> None:
    absent = Absent("there is no NVIDIA driver here")
    found = gate(host(driver=absent, devices=absent), devices=named)
    assert (found and found.open) is is_open


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Unknown("NVML answers nonsense"), "cannot be seen: NVML answers nonsense"),
        (replace(DRIVER, silent_s=33.0), "does not answer: no answer for 33 s"),
        (replace(DRIVER, version=None, code=999, error="unknown error"), "code 999): unknown error"),
        (replace(DRIVER, crashes=1, crash="died of signal 11"), "does not answer: died of signal 11"),
    ],
)
def test_a_driver_that_does_not_answer_closes_it(driver: Any, words: str) -> None:
    found = gate(host(driver=driver, devices=Unknown("NVML does not answer")))
    assert found is not None
    assert not found.open
    assert words in found.words


def test_devices_that_cannot_be_seen_close_it() -> None:
    found = gate(host(devices=Unknown("NVML has not been asked since")))
    assert found is not None
    assert not found.open


@pytest.mark.parametrize("facts", [host(), host(driver=Unknown("hangs"), devices=Unknown("hangs"))], ids=str)
def test_a_job_that_uses_no_device_has_no_such_gate(facts: Facts) -> None:
    assert gate(facts, SICK, devices=()) is None


@pytest.mark.parametrize(
    ("facts", "named", "uses"),
    [
        (host(), None, True),
        (host(), ("0",), True),
        (host(), ("1",), False),
        (host(), (), False),
        (host(devices=()), None, False),
        (host(devices=Absent("none")), None, False),
        (host(devices=Unknown("hangs")), None, False),
    ],
    ids=str,
)
def test_whether_the_job_may_use_a_gpu(facts: Facts, named: tuple[str, ...] | None, uses: bool) -> None:
    assert uses_gpu(facts, Limits(devices=named)) is uses
