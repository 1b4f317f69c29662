"""What only who watches can know: progress over time, what a run asked for, jumps of the clocks, kills since, Xids.

Responsible for handing it from a supervisor to a diagnosis, as JSON over the control socket. Times are CLOCK_MONOTONIC,
which both processes share. Refuses to believe an answer of another shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from watchdog.contract import ContractError, decode_number
from watchdog.core.devicefacts import XidFault
from watchdog.core.fact import Fact, Known, value_of
from watchdog.core.facts import BeatFact, Clocks, Device, Disk, Driver, Facts, Jump, OomKills, Progress, ProgressPoint
from watchdog.core.limits import Limits
from watchdog.core.memoryneed import Learned
from watchdog.render_facts import record_of

T = TypeVar("T", bound=Struct)


class Meant(Struct, frozen=True, kw_only=True):
    """What the job asks for as only the supervisor knows it: see core/limits.py.

    Its devices, by the supervisor's own environment, and the host memory that its last run had shown to need.
    """

    devices: tuple[str, ...] | None
    named: bool
    doubt: str
    learned: Learned | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """`disks`: by purpose, (monotonic s, free bytes) of earlier looks. `xid_faults`: by UUID, as NVML delivered them.

    `beat`: as it was at `at_s`, with what the run asked for over sd_notify, of which no file tells.
    """

    at_s: float
    beat: BeatFact | None = None
    progress: Progress | None = None
    clocks: Clocks | None = None
    oom: OomKills | None = None
    driver_silent_s: float = 0.0
    driver_crashes: int = 0
    disks: Mapping[str, tuple[tuple[float, int], ...]] = dataclasses.field(default_factory=dict)
    xid_faults: Mapping[str, tuple[XidFault, ...]] = dataclasses.field(default_factory=dict)
    blind_s: float = 0.0
    meant: Meant | None = None

    def with_devices(self, limits: Limits) -> Limits:
        """With the devices that the supervisor's trainer gets: an asker's CUDA_VISIBLE_DEVICES is not the job's."""
        if self.meant is None:
            return limits
        meant = self.meant
        devices = {"devices": meant.devices, "devices_named": meant.named, "devices_doubt": meant.doubt}
        return replace(limits, memory_learned=meant.learned, **devices)


def remember(facts: Facts, limits: Limits | None = None) -> Remembered:
    """What is worth handing on of a supervisor's newest facts."""
    disks = [disk.value for disk in facts.disks if isinstance(disk, Known)]
    driver = value_of(facts.driver)
    return Remembered(
        at_s=facts.at_s,
        beat=value_of(facts.beat),
        progress=value_of(facts.progress),
        clocks=value_of(facts.clocks),
        oom=value_of(facts.oom),
        driver_silent_s=0.0 if driver is None else driver.silent_s,
        driver_crashes=0 if driver is None else driver.crashes,
        disks={disk.purpose: disk.earlier for disk in disks},
        xid_faults={device.uuid: device.xid_faults for device in value_of(facts.devices) or () if device.xid_faults},
        blind_s=facts.blind_s,
        meant=None
        if limits is None
        else Meant(
            devices=limits.devices,
            named=limits.devices_named,
            doubt=limits.devices_doubt,
            learned=limits.memory_learned,
        ),
    )


def to_record(remembered: Remembered) -> dict[str, Any]:
    """As JSON."""
    record: dict[str, Any] = record_of(remembered)
    return record


def from_record(record: Any) -> Remembered:
    """From JSON. Raises ContractError."""
    try:
        beat, progress, clocks, oom = record["beat"], record["progress"], record["clocks"], record["oom"]
        meant = record["meant"]
        return Remembered(
            at_s=float(record["at_s"]),
            beat=None if beat is None else _made(BeatFact, _numbers(beat, "age_s", "deadline_s")),
            progress=None if progress is None else _progress(progress),
            clocks=None if clocks is None else _clocks(clocks),
            oom=None if oom is None else _made(OomKills, oom),
            driver_silent_s=float(record["driver_silent_s"]),
            driver_crashes=int(record["driver_crashes"]),
            disks={
                str(purpose): tuple((float(at_s), int(free)) for at_s, free in looks)
                for purpose, looks in record["disks"].items()
            },
            xid_faults={
                str(uuid): tuple(_made(XidFault, fault) for fault in faults)
                for uuid, faults in record["xid_faults"].items()
            },
            blind_s=float(record["blind_s"]),
            meant=None if meant is None else _made(Meant, meant),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ValidationError) as error:
        raise ContractError(f"the supervisor's facts cannot be read ({error}); is it another version?") from error


def _made(kind: type[T], record: dict[str, Any]) -> T:
    """Raises TypeError for a name that is no field, ValidationError for a value of another type."""
    kind(**record)
    return convert(record, kind)


def _progress(record: dict[str, Any]) -> Progress:
    points = [_made(ProgressPoint, _numbers(point, "loss", "gradient_norm")) for point in record["points"]]
    return replace(_made(Progress, {**record, "points": []}), points=tuple(points))


def _numbers(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**record, **{name: decode_number(record[name], name) for name in names if record.get(name) is not None}}


def _clocks(record: dict[str, Any]) -> Clocks:
    return replace(_made(Clocks, {**record, "jumps": []}), jumps=tuple(_made(Jump, jump) for jump in record["jumps"]))


def with_memory(facts: Facts, remembered: Remembered) -> Facts:
    """One look, with what the supervisor remembers put in where a single look knows less."""
    disks: list[Any] = []
    for disk in facts.disks:
        looks = remembered.disks.get(disk.value.purpose, ()) if isinstance(disk, Known) else ()
        if looks and isinstance(disk, Known):
            # A diagnosis that looked several times has looks of its own: they come after the supervisor's.
            own = tuple(look for look in disk.value.earlier if look[0] > looks[-1][0])
            value: Disk = replace(disk.value, earlier=(*looks, *own))
            disks.append(Known(value, disk.at_s))
        else:
            disks.append(disk)
    clocks, oom = facts.clocks, facts.oom
    if remembered.clocks is not None and isinstance(clocks, Known):
        clocks = Known(remembered.clocks, remembered.at_s)
    if remembered.oom is not None and isinstance(oom, Known):
        oom = Known(remembered.oom, remembered.at_s)
    return replace(
        facts,
        disks=tuple(disks),
        clocks=clocks,
        oom=oom,
        driver=_driver(facts.driver, remembered),
        devices=_devices(facts.devices, remembered),
    )


def _devices(fact: Fact[tuple[Device, ...]], remembered: Remembered) -> Fact[tuple[Device, ...]]:
    """NVML delivers an Xid to who waits for it at that moment: a diagnosis comes too late."""
    if not isinstance(fact, Known) or not remembered.xid_faults:
        return fact
    faults = remembered.xid_faults
    devices = (
        replace(device, xid_faults=faults[device.uuid]) if device.uuid in faults and not device.xid_faults else device
        for device in fact.value
    )
    return Known(tuple(devices), fact.at_s)


def _driver(fact: Fact[Driver], remembered: Remembered) -> Fact[Driver]:
    """A driver that does not answer us either has been silent, or crashing, for as long as the supervisor knows."""
    if not isinstance(fact, Known):
        return fact
    driver = fact.value
    if driver.silent_s > 0:
        driver = replace(driver, silent_s=max(driver.silent_s, remembered.driver_silent_s))
    if driver.crashes > 0:
        driver = replace(driver, crashes=max(driver.crashes, remembered.driver_crashes))
    return Known(driver, fact.at_s)
