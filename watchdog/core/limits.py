"""Limits: the figures that checks compare facts with, passed in and never reached for.

Responsible for the names, the units and the defaults. Refuses to know where a figure comes from: settings fill this
in for a job; `diagnose` without any configuration uses the defaults. watchdog/settings_limits.py has a key for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from watchdog.core.devicefacts import Device
from watchdog.core.memoryneed import Learned

GIB = 1024**3
MEMORY_NEED_BYTES = GIB
GPU_MEMORY_NEED_BYTES = 3 * GIB  # the diary: below it torch.load failed even with device memory to spare


class Limits(Struct, frozen=True, kw_only=True):
    """What one job asks of its host, and where a reading becomes a finding.

    `memory_need_bytes` None: the job states none; see `memory_need`. `memory_learned`: what follows from a run that was
    refused memory; None: nothing does. `devices` None: every device is the job's; else UUIDs, UUID prefixes or
    indexes. `devices_named`: it names some, also where None stands for them, since a MIG instance does not say which
    device it is a part of. `train_deadline_s`: how long a step may take; `first_step_deadline_s`: the first.
    """

    memory_need_bytes: int | None = None
    memory_learned: Learned | None = None
    disk_need_bytes: int = GIB
    devices: tuple[str, ...] | None = None
    devices_named: bool = False
    devices_doubt: str = ""  # why the job may get fewer devices than a person wrote down
    train_deadline_s: float = 120.0
    first_step_deadline_s: float = 600.0
    off: frozenset[str] = frozenset()  # checks that are switched off
    xid: Mapping[int, str] = field(default_factory=dict)  # overrides, see checks/xid_table.py

    inodes_least: int = 1000
    # devices
    looks: int = 5  # consecutive samples that a contradiction must show
    lost_pid_looks: int = 3
    driver_hung_s: float = 60.0
    driver_crashes: int = 3
    busy_percent: int = 90
    idle_percent: int = 10  # where those who compute may be out of sight
    contradiction_power_fraction: float = 0.45  # of the power limit; the diary's ghost: 60 of 170 W, 0.35
    codec_percent: int = 10  # encoder or decoder above it explain power or utilization
    ghost_memory_fraction: float = 0.5
    paging_memory_fraction: float = 0.95
    unowned_memory_bytes: int = GIB
    unowned_memory_fraction_wsl: float = 0.5  # Windows has its desktop and its games there
    foreign_memory_bytes: int = 256 * 1024**2
    pcie_load_percent: int = 50
    ecc_uncorrected: int = 1
    xid_window_s: float = 3600.0
    compute_floor_tflops: float = 2.0
    compute_baseline_fraction: float = 0.5
    # memory
    cgroup_fraction: float = 0.9
    pressure_full_percent: float = 10.0
    pressure_faults_per_s: float = 500.0
    oom_window_s: float = 3600.0
    # disks
    disk_full_warning_s: float = 6 * 3600.0
    disk_full_critical_s: float = 1800.0
    windows_free_warning_bytes: int = 10 * GIB
    windows_free_critical_bytes: int = 2 * GIB
    io_error_window_s: float = 3600.0
    # the run
    steps_frozen_factor: float = 2.0  # of train_deadline_s
    loss_frozen_points: int = 50
    loss_exploding_factor: float = 3.0
    gradient_exploding: float = 1e6
    throughput_fraction: float = 0.5
    stuck_s: float = 30.0
    defunct_s: float = 30.0
    # the surroundings
    dxg_window_s: float = 3600.0
    jump_window_s: float = 600.0
    clock_step_s: float = 5.0
    blind_s: float = 600.0

    def memory_need(self, *, uses_gpu: bool) -> int:
        """Host memory that a launch needs, bytes. A GPU job that states none needs what loading a model takes."""
        learned = self.learned_need(uses_gpu=uses_gpu)
        return self._unlearned_need(uses_gpu=uses_gpu) if learned is None else learned.need_bytes

    def learned_need(self, *, uses_gpu: bool) -> Learned | None:
        """What was learned, where it is more than what is stated or taken for granted."""
        learned = self.memory_learned
        stated_bytes = self._unlearned_need(uses_gpu=uses_gpu)
        if learned is None or learned.need_bytes <= stated_bytes:
            return None
        return replace(learned, before_bytes=max(learned.before_bytes, stated_bytes))  # never less than is stated

    def _unlearned_need(self, *, uses_gpu: bool) -> int:
        if self.memory_need_bytes is not None:
            return self.memory_need_bytes
        return GPU_MEMORY_NEED_BYTES if uses_gpu else MEMORY_NEED_BYTES


def names(devices: tuple[str, ...] | None, *, uuid: str, index: int) -> bool:
    """Whether a job that states `devices` means this one. A number is an index, anything else begins a UUID."""
    if devices is None:
        return True
    return any(_means(name, uuid, index) for name in devices)


def is_index(name: str) -> bool:
    """A number as people write it; not a superscript two, which is a digit as well."""
    return name.isascii() and name.isdigit()


def _means(name: str, uuid: str, index: int) -> bool:
    if is_index(name):  # compared as text: int() refuses thousands of digits
        return (name.lstrip("0") or "0") == str(index)
    return name != "" and uuid.lower().startswith(name.lower())


def fitting_several(name: str, present: Iterable[Device]) -> tuple[Device, ...]:
    """The devices that one name fits where they are more than one: then it does not say which is meant."""
    fitting = tuple(each for each in present if names((name,), uuid=each.uuid, index=each.index))
    return fitting if len(fitting) > 1 else ()


def lacking(devices: tuple[str, ...] | None, present: Iterable[Device]) -> tuple[str, ...]:
    """What a job names and none of these devices fits."""
    there = tuple(present)
    return tuple(
        name for name in devices or () if not any(names((name,), uuid=each.uuid, index=each.index) for each in there)
    )


def may_name(devices: tuple[str, ...] | None, device: Device, present: Iterable[Device]) -> bool:
    """As `names`; a device without a UUID may be any that the job names by UUID and that is not there."""
    if names(devices, uuid=device.uuid, index=device.index):
        return True
    return device.nameless and any(not is_index(name) for name in lacking(devices, present))
