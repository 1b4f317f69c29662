"""Which devices may be measured now: none beside a run that may be well, none that somebody computes on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.host import TRAINER_PID, UUID, beat, gpu, host, lock, process, processes
from watchdog.core.facts import Absent, DeviceHolder, Facts, Unknown, Wsl
from watchdog.core.limits import Limits
from watchdog.core.probing import refused, to_measure

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
    elsewhere = processes(run=(), holders=(replace(holder, nodes=("/dev/nvidia1", "/dev/nvidiactl")),))
    numbered = gpu(processes=unnamed.now.processes, minor=0)
    assert measured(idle(devices=(numbered,), processes=elsewhere)) == [UUID]
    assert "/dev/nvidia1 open" in why_not(idle(devices=(unnamed,), processes=elsewhere))  # its number is not told


def test_the_number_of_a_node_is_not_the_index_of_the_device() -> None:
    holder = DeviceHolder(pid=99, command="python", nodes=("/dev/nvidia1", "/dev/nvidiactl"), of_run=False)
    swapped = (gpu(processes=(), minor=1), gpu(processes=(), uuid=OTHER, index=1, minor=0))
    facts = idle(devices=swapped, processes=processes(run=(), holders=(holder,)))
    assert measured(facts) == [OTHER]
    (left_out,) = refused(facts, Limits())
    assert (left_out.device, left_out.tried) == (UUID, False)
    assert left_out.why == "it is in use by pid 99 (python), which has /dev/nvidia1 open"


def test_who_computes_on_one_device_opens_the_nodes_of_all() -> None:
    holder = DeviceHolder(pid=99, command="python", nodes=("/dev/nvidia0", "/dev/nvidia1"), of_run=False)
    busy = gpu(processes=(process(pid=99),), minor=0)
    held = processes(run=(), holders=(holder,))
    assert measured(idle(devices=(busy, gpu(processes=(), uuid=OTHER, index=1, minor=1)), processes=held)) == [OTHER]
    unnamed = gpu(processes=Unknown("not told"), uuid=OTHER, index=1, minor=1)
    assert "in use by pid 99" in why_not(idle(devices=(busy, unnamed), processes=held), "1")


# --- where those who compute may be out of sight ------------------------------------------------------------
GIB = 1024**3
CONTAINER = {"processes": processes(run=(), holders=(), initial_namespace=False)}
HIDEPID = {"processes": processes(run=(), holders=(), initial_namespace=None)}
WSL = {
    "processes": processes(run=(), holders=(), initial_namespace=False),
    "wsl": Wsl(
        version=2, kernel="5.15-microsoft", systemd=True, guest_settings=Absent(), windows_settings=Absent(), dxg=True
    ),
}
OUT_OF_SIGHT = pytest.mark.parametrize("where", [CONTAINER, HIDEPID, WSL], ids=["container", "hidepid", "wsl"])


def unused(**changes: Any) -> Any:
    return gpu(**({"processes": (), "utilization_percent": 0, "memory_used_bytes": GIB // 2} | changes))


@OUT_OF_SIGHT
@pytest.mark.parametrize("here", [True, False])
def test_a_pid_that_may_be_anybodys_keeps_its_device(where: dict[str, Any], here: bool) -> None:
    named = unused(processes=(process(pid=203311, here=here, command=""),))
    assert "the driver names pid 203311" in why_not(idle(devices=(named,), **where))
    hangs = host(beat=beat(age_s=500.0), devices=(named,), **where)  # by its number it is not our run either
    assert "the driver names pid 203311" in why_not(hangs)


@OUT_OF_SIGHT
@pytest.mark.parametrize("listed", [(), Unknown("no processes are named here"), Absent("not on WSL")], ids=str)
def test_out_of_sight_a_device_must_look_idle(where: dict[str, Any], listed: Any) -> None:
    assert measured(idle(devices=(unused(processes=listed),), **where)) == [UUID]
    busy = unused(processes=listed, utilization_percent=10)
    assert "10 % utilization, 0.50 of 12.0 GiB in use" in why_not(idle(devices=(busy,), **where))
    full = unused(processes=listed, memory_used_bytes=7 * GIB)
    assert "0 % utilization, 7.0 of 12.0 GiB in use" in why_not(idle(devices=(full,), **where))
    assert to_measure(idle(devices=(busy,), **where), Limits(idle_percent=11)) == (busy,)


def test_a_desktop_of_windows_may_have_its_memory() -> None:
    desktop = unused(memory_used_bytes=3 * GIB, utilization_percent=6, processes=(process(pid=25, kind="graphics"),))
    assert measured(idle(devices=(desktop,), **WSL)) == [UUID]
    assert "3.0 of 12.0 GiB" in why_not(idle(devices=(desktop,), **CONTAINER))


def test_a_training_that_pauses_for_a_moment_is_one() -> None:
    device = unused()
    then = replace(device.recent[1], utilization_percent=replace(device.recent[1].utilization_percent, value=64))
    pausing = replace(device, recent=(device.recent[0], then, *device.recent[2:]))
    assert "64 % utilization" in why_not(idle(devices=(pausing,), **CONTAINER))


@pytest.mark.parametrize("name", ["utilization_percent", "memory_used_bytes", "memory_total_bytes"])
def test_out_of_sight_a_figure_that_is_not_told_is_not_idle(name: str) -> None:
    assert "may be in use" in why_not(idle(devices=(unused(**{name: Unknown("the call failed")}),), **WSL))


def test_under_mig_there_is_no_utilization_and_memory_tells() -> None:
    assert measured(idle(devices=(unused(utilization_percent=Absent("MIG")),), **CONTAINER)) == [UUID]


def test_on_wsl_the_bridge_is_the_node_of_all_devices() -> None:
    holder = DeviceHolder(pid=99, command="python", nodes=("/dev/dxg",), of_run=False)
    held = WSL | {"processes": replace(WSL["processes"], holders=(holder,))}
    assert why_not(idle(devices=(unused(),), **held)).endswith("is in use by pid 99 (python), which has /dev/dxg open")
    desktop = unused(processes=(process(pid=99, kind="graphics"),))
    assert measured(idle(devices=(desktop,), **held)) == [UUID]
    ours = WSL | {"processes": replace(WSL["processes"], holders=(replace(holder, of_run=True),))}
    assert measured(idle(devices=(unused(),), **ours)) == [UUID]


def test_where_open_files_are_hidden_and_nobody_is_named_the_device_must_look_idle() -> None:
    hidden = processes(run=(), holders=(), unreadable=40)
    busy = gpu(processes=Unknown("no permission"))
    assert "97 % utilization" in why_not(idle(devices=(busy,), processes=hidden))
    assert measured(idle(devices=(gpu(processes=()),), processes=hidden)) == [UUID]  # named: nobody


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
