"""Which devices may be measured now: none beside a run that may be well, none that somebody computes on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.host import TRAINER_PID, UUID, beat, gpu, host, lock, process, processes
from watchdog.core.facts import Absent, DeviceHolder, Facts, Unknown
from watchdog.core.limits import Limits
from watchdog.core.probing import to_measure

OTHER = "GPU-77777777-0000-0000-0000-000000000000"
NO_RUN = Absent("no run was ever launched")
NOBODY = processes(run=(), holders=())


FREE = (lock("supervisor", held=False, holders=()), lock("run", held=False, holders=()))


def idle(**changes: Any) -> Facts:
    """A host on which nothing runs."""
    return host(
        **(
            {"beat": NO_RUN, "progress": NO_RUN, "processes": NOBODY, "locks": FREE, "devices": (gpu(processes=()),)}
            | changes
        )
    )


def measured(facts: Facts, *named: str) -> list[str]:
    found = to_measure(facts, Limits(devices=named or None))
    assert not isinstance(found, str), found
    return [device.uuid for device in found]


def why_not(facts: Facts, *named: str) -> str:
    found = to_measure(facts, Limits(devices=named or None))
    assert isinstance(found, str), found
    return found


def test_an_idle_device_is_measured() -> None:
    assert measured(idle()) == [UUID]
    assert measured(idle(), "GPU-3f1c") == [UUID]


def test_only_devices_of_the_job_are_measured() -> None:
    two = idle(devices=(gpu(processes=()), gpu(processes=(), uuid=OTHER, index=1)))
    assert measured(two) == [UUID, OTHER]
    assert measured(two, "1") == [OTHER]
    assert why_not(two, "2") == "the job uses no device that is here"


def test_nothing_is_measured_beside_a_healthy_run() -> None:
    assert why_not(host()) == f"run 7-abc beat 1 s ago (pid {TRAINER_PID}): nothing is measured beside it"


@pytest.mark.parametrize("changes", [{"age_s": 121.0}, {"alive": False}])
def test_a_run_that_is_no_trainer_any_more_may_be_measured_beside(changes: dict[str, Any]) -> None:
    assert measured(host(beat=beat(**changes))) == [UUID]


def test_a_run_without_beats_may_be_well() -> None:
    assert f"pid {TRAINER_PID}" in why_not(host(beat=Absent("no beat yet")))


@pytest.mark.parametrize(
    "changes",
    [
        {"beat": Unknown("the beat file cannot be believed")},
        {"processes": Unknown("processes has not answered for 10 s")},
    ],
    ids=str,
)
def test_what_cannot_be_seen_may_be_a_healthy_run(changes: dict[str, Any]) -> None:
    (unseen,) = changes.values()
    assert unseen.why in why_not(idle(**changes))


def test_a_strangers_process_keeps_its_device() -> None:
    busy = gpu(processes=(process(pid=99, command="blender"),))
    assert why_not(idle(devices=(busy,))) == f"{busy.label} is in use by pid 99 (blender)"
    assert measured(idle(devices=(busy, gpu(processes=(), uuid=OTHER, index=1)))) == [OTHER]


@pytest.mark.parametrize(
    "user", [process(pid=99, kind="graphics"), process(pid=99, here=False, command="")], ids=["graphics", "a ghost"]
)
def test_a_desktop_and_a_ghost_are_nobody_who_computes(user: Any) -> None:
    assert measured(idle(devices=(gpu(processes=(user,)),))) == [UUID]


def test_where_nvml_names_nobody_an_open_node_tells() -> None:
    unnamed = gpu(processes=Unknown("no processes are named here"))
    holder = DeviceHolder(pid=99, command="python", nodes=("/dev/nvidiactl", "/dev/nvidia0"), of_run=False)
    held = idle(devices=(unnamed,), processes=processes(run=(), holders=(holder,)))
    assert why_not(held).endswith("is in use by pid 99 (python), which has /dev/nvidia0 open")
    elsewhere = replace(holder, nodes=("/dev/nvidia1", "/dev/nvidiactl"))
    assert measured(idle(devices=(unnamed,), processes=processes(run=(), holders=(elsewhere,)))) == [UUID]


@pytest.mark.parametrize("changes", [{"missing": True}, {"lost_code": 15}])
def test_a_device_that_is_gone_is_not_measured(changes: dict[str, Any]) -> None:
    assert why_not(idle(devices=(gpu(processes=(), **changes),)))


@pytest.mark.parametrize("fact", [Absent("no driver"), Absent(), Unknown("NVML does not answer")], ids=str)
def test_without_devices_the_reason_is_theirs(fact: Any) -> None:
    assert why_not(idle(devices=fact)) == (fact.why or "there is no GPU")


def test_a_run_that_cannot_be_seen_is_not_disturbed() -> None:
    """Its beat is fresh, or it holds the run lock; from another pid namespace neither process can be found."""
    unseen = beat(alive=None)
    assert "beat 1 s ago" in why_not(idle(beat=unseen, locks=(lock("run"),)))
    assert "holds the run lock" in why_not(idle(locks=(lock("run"),)))
    assert "cannot be told" in why_not(idle(locks=(Unknown("its holder is hidden"),)))
