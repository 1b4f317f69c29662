"""The shape of [checks] and [limits]: which checks are off, and where a reading becomes a finding.

Responsible for a key, a range and a line of explanation for each limit. Refuses to hold a default of its own: those
stand in core/limits.py, where the checks find them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from watchdog.core.limits import Limits as CoreLimits
from watchdog.settings_meta import did_you_mean, key, key_name

_DEFAULT: Final = CoreLimits()
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_MIB, _GIB, _TIB = 1024**2, 1024**3, 1024**4
ACTIONS: Final = ("restart", "log", "reset", "reboot", "cable", "driver", "vm", "support", "depends", "ignore")
_XID: Final = 'a table such as { 43 = "ignore" }; the actions are ' + ", ".join(ACTIONS)


def _check_off(names: tuple[str, ...]) -> str:
    from watchdog.checks.catalogue import CATALOGUE  # only for who switches one off

    known = [check.name for check in CATALOGUE]
    wrong = [name for name in names if name not in known]
    return f"there is no check {wrong[0]!r}{did_you_mean(wrong[0], known)}" if wrong else ""


def _check_xid(overrides: Mapping[str, str]) -> str:
    for number, action in overrides.items():
        if not number.isascii() or not number.isdigit() or len(number) > 4:
            return f"{number!r} is no Xid number"
        if action not in ACTIONS:
            return f"{action!r} is no action"
    return ""


def _count(description: str, ge: int, le: int) -> Meta:
    return key(description, ge=ge, le=le)


def _figure(description: str, ge: float, le: float) -> Meta:
    return key(description, ge=ge, le=le, allowed=f"a number from {ge:g} to {le:g}")


def _fraction(description: str) -> Meta:
    return _figure(description, 0.01, 1)


def _time(description: str, ge: float = 1, le: float = 30 * _DAY) -> Meta:
    return key(description, kind="duration", ge=ge, le=le)


def _size(description: str) -> Meta:
    return key(description, kind="size", ge=0, le=1024 * _TIB)


class Checks(Struct, frozen=True, kw_only=True, rename=key_name):
    """The checks of `watchdog diagnose`; docs/faults.md explains each."""

    off: Annotated[
        tuple[str, ...],
        key(
            "checks that are switched off",
            allowed='a list of names such as ["pcie"]; watchdog diagnose --list has them',
            check=_check_off,
        ),
    ] = ()
    xid: Annotated[
        dict[str, str],
        key(
            "what an Xid asks for, where you know better than the built-in table",
            allowed=_XID,
            check=_check_xid,
        ),
    ] = field(default_factory=dict)


class Limits(Struct, frozen=True, kw_only=True, rename=key_name):
    """Where a reading becomes a finding."""

    inodes_least: Annotated[int, _count("free inodes that must be left", 0, 10**9)] = _DEFAULT.inodes_least
    looks: Annotated[int, _count("samples in a row that must contradict themselves before it is said", 1, 30)] = (
        _DEFAULT.looks
    )
    lost_pid_looks: Annotated[
        int, _count("samples in a row in which a process must be missing, or be foreign", 1, 30)
    ] = _DEFAULT.lost_pid_looks
    driver_hung_s: Annotated[float, _time("silence of the driver that counts as hung")] = _DEFAULT.driver_hung_s
    driver_crashes: Annotated[int, _count("askers that must have died of the driver, in a row", 1, 100)] = (
        _DEFAULT.driver_crashes
    )
    busy_percent: Annotated[int, _count("utilization from which a device counts as busy", 1, 100)] = (
        _DEFAULT.busy_percent
    )
    idle_percent: Annotated[
        int, _count("utilization from which no probe is made where processes of others are out of sight", 1, 101)
    ] = _DEFAULT.idle_percent
    contradiction_power_fraction: Annotated[
        float, _fraction("share of the power limit below which a busy device contradicts itself")
    ] = _DEFAULT.contradiction_power_fraction
    codec_percent: Annotated[int, _count("use of the video encoder or decoder that explains low power", 0, 100)] = (
        _DEFAULT.codec_percent
    )
    ghost_memory_fraction: Annotated[float, _fraction("share of device memory that a ghost holds at least")] = (
        _DEFAULT.ghost_memory_fraction
    )
    paging_memory_fraction: Annotated[
        float, _fraction("share of device memory from which Windows may be paging it")
    ] = _DEFAULT.paging_memory_fraction
    unowned_memory_bytes: Annotated[int, _size("device memory that may be held without an owner")] = (
        _DEFAULT.unowned_memory_bytes
    )
    unowned_memory_fraction_wsl: Annotated[
        float, _fraction("share of device memory that Windows may hold for itself, on WSL")
    ] = _DEFAULT.unowned_memory_fraction_wsl
    foreign_memory_bytes: Annotated[int, _size("device memory from which somebody else's process counts")] = (
        _DEFAULT.foreign_memory_bytes
    )
    pcie_load_percent: Annotated[int, _count("utilization from which a slow PCIe link counts", 1, 100)] = (
        _DEFAULT.pcie_load_percent
    )
    ecc_uncorrected: Annotated[
        int, _count("uncorrected memory errors since the driver was loaded that count", 1, 10**6)
    ] = _DEFAULT.ecc_uncorrected
    xid_window_s: Annotated[float, _time("how long an Xid counts")] = _DEFAULT.xid_window_s
    compute_floor_tflops: Annotated[float, _figure("TFLOP/s that any GPU must reach", 0, 10_000)] = (
        _DEFAULT.compute_floor_tflops
    )
    compute_baseline_fraction: Annotated[
        float, _fraction("share of its own earlier TFLOP/s that a device must reach")
    ] = _DEFAULT.compute_baseline_fraction
    cgroup_fraction: Annotated[float, _fraction("share of a cgroup's memory limit from which it counts as near")] = (
        _DEFAULT.cgroup_fraction
    )
    pressure_full_percent: Annotated[
        float, _figure("share of time in which everything waits for memory, percent", 0.1, 100)
    ] = _DEFAULT.pressure_full_percent
    pressure_faults_per_s: Annotated[
        float, _figure("major page faults a second, where the kernel has no PSI", 1, 10**6)
    ] = _DEFAULT.pressure_faults_per_s
    oom_window_s: Annotated[float, _time("how long an OOM kill in the kernel log counts")] = _DEFAULT.oom_window_s
    disk_full_warning_s: Annotated[float, _time("time until a disk is full that is a warning")] = (
        _DEFAULT.disk_full_warning_s
    )
    disk_full_critical_s: Annotated[float, _time("time until a disk is full that is critical")] = (
        _DEFAULT.disk_full_critical_s
    )
    windows_free_warning_bytes: Annotated[int, _size("free space on the Windows drive that is a warning")] = (
        _DEFAULT.windows_free_warning_bytes
    )
    windows_free_critical_bytes: Annotated[int, _size("free space on the Windows drive that is critical")] = (
        _DEFAULT.windows_free_critical_bytes
    )
    io_error_window_s: Annotated[float, _time("how long a disk error in the kernel log counts")] = (
        _DEFAULT.io_error_window_s
    )
    steps_frozen_factor: Annotated[
        float, _figure("how many times the deadline of phase train the step may stand still while beats come", 1, 100)
    ] = _DEFAULT.steps_frozen_factor
    loss_frozen_points: Annotated[int, _count("steps in a row with the very same loss that count", 3, 200)] = (
        _DEFAULT.loss_frozen_points
    )
    loss_exploding_factor: Annotated[float, _figure("how many times its own median the loss may be", 1.1, 1000)] = (
        _DEFAULT.loss_exploding_factor
    )
    gradient_exploding: Annotated[float, _figure("gradient norm that counts as exploding", 1, 1e30)] = (
        _DEFAULT.gradient_exploding
    )
    throughput_fraction: Annotated[float, _fraction("share of the run's own speed that counts as fallen")] = (
        _DEFAULT.throughput_fraction
    )
    stuck_s: Annotated[float, _time("time in uninterruptible sleep that counts")] = _DEFAULT.stuck_s
    defunct_s: Annotated[float, _time("time that a process may stay defunct")] = _DEFAULT.defunct_s
    dxg_window_s: Annotated[float, _time("how long a line of WSL's GPU bridge in the kernel log counts")] = (
        _DEFAULT.dxg_window_s
    )
    jump_window_s: Annotated[float, _time("how long a suspend or a clock step is told")] = _DEFAULT.jump_window_s
    clock_step_s: Annotated[float, _time("jump of the wall clock that counts", 0.1)] = _DEFAULT.clock_step_s
    blind_s: Annotated[float, _time("how long something may be unseen before it is a warning")] = _DEFAULT.blind_s
