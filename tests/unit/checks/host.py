"""A host in order, as facts: one RTX 3060 that trains, and what a test changes of it. Built by hand, read by nobody.

`host()` is healthy in every respect; `host(memory=Known(...))` replaces a fact. `gpu(...)` makes a device whose five
samples are alike, a second apart, the newest at AT_S; `sample(...)` one of them.
"""

from __future__ import annotations

from typing import Any

from watchdog.core.facts import (
    Absent,
    BeatFact,
    Clocks,
    Device,
    DeviceHolder,
    DeviceProcess,
    DeviceSample,
    Disk,
    Driver,
    Fact,
    Facts,
    KernelLog,
    Known,
    Lock,
    LockHolder,
    Memory,
    OomKills,
    Pressure,
    Processes,
    Progress,
    ProgressPoint,
    RunProcess,
)

GIB = 1024**3
AT_S = 10_000.0
UUID = "GPU-3f1c0a52-7d11-4c1e-9a43-0c5e6f7a8b90"
TRAINER_PID = 4711
RUN_ID = "7-abc"


def known(value: Any, at_s: float = AT_S) -> Known[Any]:
    return Known(value, at_s)


def process(pid: int = TRAINER_PID, **changes: Any) -> DeviceProcess:
    given = dict(pid=pid, kind="compute", memory_bytes=9 * GIB, here=True, command="python") | changes
    return DeviceProcess(**given)


def sample(at_s: float = AT_S, **changes: Any) -> DeviceSample:
    """Healthy training on an RTX 3060. Plain values are wrapped as Known; facts are taken as they are."""
    given: dict[str, Any] = dict(
        memory_used_bytes=10 * GIB,
        power_watts=151.0,
        utilization_percent=97,
        memory_utilization_percent=64,
        encoder_percent=0,
        decoder_percent=0,
        temperature_celsius=71,
        sm_clock_mhz=1837,
        memory_clock_mhz=7300,
        clocks_event_reasons=0x4,
        performance_state=2,
        pcie_generation=4,
        pcie_width=16,
        processes=(process(),),
    )
    facts = {name: as_fact(value, at_s) for name, value in (given | changes).items()}
    return DeviceSample(at_s=at_s, **facts)


def as_fact(value: Any, at_s: float = AT_S) -> Fact[Any]:
    from watchdog.core.facts import Unknown

    return value if isinstance(value, Known | Unknown | Absent) else Known(value, at_s)


def gpu(
    *, samples: int = 5, recent: tuple[DeviceSample, ...] | None = None, uuid: str = UUID, **changes: Any
) -> Device:
    """A 3060. What is a field of DeviceSample goes into each of its `samples`; the rest into the device."""
    of_sample = set(DeviceSample.__struct_fields__)
    each = {name: changes.pop(name) for name in list(changes) if name in of_sample}
    if recent is None:
        recent = tuple(sample(AT_S - back, **each) for back in reversed(range(samples)))
    given: dict[str, Any] = dict(
        name="NVIDIA GeForce RTX 3060",
        pci_bus_id="0000:01:00.0",
        compute_capability="8.6",
        memory_total_bytes=12 * GIB,
        power_limit_watts=170.0,
        sm_clock_max_mhz=2100,
        pcie_generation_max=4,
        pcie_width_max=16,
    )
    given_plain = ("index", "lost_code", "missing", "implausible", "xid_faults")
    plain = {name: changes.pop(name) for name in given_plain if name in changes}
    counters = changes.pop("clocks_event_counters_us", {})
    facts = {name: as_fact(value) for name, value in (given | changes).items()}
    return Device(**({"uuid": uuid, "index": 0, "recent": recent} | plain), clocks_event_counters_us=counters, **facts)


def memory(**changes: Any) -> Memory:
    given = dict(total_bytes=32 * GIB, available_bytes=20 * GIB, host_available_bytes=20 * GIB) | changes
    return Memory(**given)  # type: ignore[arg-type]


def disk(purpose: str = "state", **changes: Any) -> Disk:
    given: dict[str, Any] = dict(
        path=f"/srv/{purpose}",
        purpose=purpose,
        filesystem="ext4",
        free_bytes=200 * GIB,
        total_bytes=500 * GIB,
        free_inodes=30_000_000,
        read_only=False,
        true_flock=True,
    )
    return Disk(**(given | changes))


def lock(purpose: str = "supervisor", **changes: Any) -> Lock:
    command = "watchdog run" if purpose == "supervisor" else "python -P -m trainer train"
    holder = LockHolder(pid=4700 if purpose == "supervisor" else TRAINER_PID, command=command, since_wall_s=1.7e9)
    given: dict[str, Any] = dict(
        path=f"/srv/checkpoints/{purpose}.lock",
        purpose=purpose,
        held=True,
        exclusive=purpose == "supervisor",
        holders=(holder,),
    )
    return Lock(**(given | changes))


def beat(**changes: Any) -> BeatFact:
    given: dict[str, Any] = dict(
        run_id=RUN_ID,
        pid=TRAINER_PID,
        phase="train",
        age_s=0.8,
        deadline_s=120.0,
        step=420,
        target_step=1000,
        alive=True,
    )
    return BeatFact(**(given | changes))


def points(count: int = 60, *, every_s: float = 1.0, **changes: Any) -> tuple[ProgressPoint, ...]:
    """Steps that advance one by one, with a loss that falls a little and is never the same twice."""
    return tuple(
        ProgressPoint(
            **(
                dict(
                    at_s=AT_S - every_s * back,
                    step=420 - back,
                    tokens=(420 - back) * 1024,
                    loss=3.0 + 0.001 * back + 0.01 * (back % 7),
                    gradient_norm=1.2,
                    phase="train",
                )
                | changes
            )
        )
        for back in reversed(range(count))
    )


def progress(**changes: Any) -> Progress:
    given: dict[str, Any] = dict(
        run_id=RUN_ID,
        source="beats",
        points=points(),
        step_changed_s=AT_S - 0.8,
        heard_s=AT_S - 0.8,
        typical_step_s=1.0,
        recent_step_s=1.0,
    )
    return Progress(**(given | changes))


def processes(**changes: Any) -> Processes:
    given: dict[str, Any] = dict(
        initial_namespace=True,
        pid_max=4_194_304,
        run=(RunProcess(pid=TRAINER_PID, command="python", state="S", states=(("R", 1), ("S", 12))),),
        holders=(
            DeviceHolder(pid=TRAINER_PID, command="python", nodes=("/dev/nvidia0", "/dev/nvidiactl"), of_run=True),
        ),
    )
    return Processes(**(given | changes))


def host(**changes: Any) -> Facts:
    """The healthy host; `devices` may be given as a tuple, every fact as a plain value or as a fact."""
    given: dict[str, Any] = dict(
        memory=memory(),
        pressure=Pressure(from_psi=True, some_avg10_percent=0.3, some_avg60_percent=0.2),
        oom=OomKills(host=0, cgroup=0, cgroup_path="/", watched_s=600.0),
        driver=Driver(version="560.35.03", cuda_version="12.6", devices=1, node="/dev/nvidiactl"),
        devices=(gpu(),),
        probe=Absent("a run is alive: nothing is measured beside it"),
        processes=processes(),
        beat=beat(),
        progress=progress(),
        kernel=KernelLog(lines=(), since_s=0.0),
        clocks=Clocks(boot_id="b" * 32, asleep_s=0.0, watched_s=600.0),
        wsl=Absent("this is no WSL"),
    )
    disks = changes.pop("disks", (disk("state"), disk("checkpoints")))
    locks = changes.pop("locks", (lock("supervisor"), lock("run")))
    plain = {"at_s": AT_S, "wall_s": 1.7e9, "blind_s": 0.0, "supervisor": None}
    plain |= {name: changes.pop(name) for name in list(changes) if name in plain}
    return Facts(
        disks=tuple(as_fact(each) for each in disks),
        locks=tuple(as_fact(each) for each in locks),
        **plain,
        **{name: as_fact(value) for name, value in (given | changes).items()},
    )
