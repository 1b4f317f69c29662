"""Facts about the NVIDIA driver and its devices, as NVML gives them. Frozen, and without an opinion.

A device is known by its UUID. Each reading stands for itself: `Known`, `Unknown` (the call failed, or the value cannot
be true) or `Absent` (this device or driver has no such reading). `recent` holds the last samples, the newest last, so
that a check can ask for the same thing several times over.
Refuses to read anything and to judge.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from watchdog.core.fact import Absent, Fact

NAMELESS = "no UUID"  # begins the key of a device that is counted, but does not even tell its UUID
_NOTHING = Absent()
_NO_EVENTS = Absent("no Xid events are delivered here")

# nvml.h, nvmlReturn_t
NVML_NOT_SUPPORTED = 3
NVML_NO_PERMISSION = 4
NVML_NOT_FOUND = 6
NVML_DRIVER_NOT_LOADED = 9
NVML_TIMEOUT = 10
NVML_LIBRARY_NOT_FOUND = 12
NVML_FUNCTION_NOT_FOUND = 13
NVML_GPU_IS_LOST = 15
NVML_RESET_REQUIRED = 16
NVML_OPERATING_SYSTEM = 17
NVML_LIB_RM_VERSION_MISMATCH = 18
NVML_UNKNOWN = 999

# nvml.h, nvmlClocksEventReason*: why the clocks are below what was asked for.
REASON_GPU_IDLE = 0x1
REASON_APPLICATIONS_CLOCKS = 0x2
REASON_SW_POWER_CAP = 0x4  # no fault: 69 % of 288 nodes show it
REASON_HW_SLOWDOWN = 0x8
REASON_SYNC_BOOST = 0x10
REASON_SW_THERMAL_SLOWDOWN = 0x20
REASON_HW_THERMAL_SLOWDOWN = 0x40
REASON_HW_POWER_BRAKE = 0x80
REASON_DISPLAY_CLOCKS = 0x100


class Driver(Struct, frozen=True, kw_only=True):
    """The driver as a whole. Known as soon as there is anything of NVIDIA here, whether or not it answers.

    `code` is the NVML code with which initialising or counting failed, None when it did not. `silent_s`: how long the
    question that is outstanding has had no answer, 0 when the last one was answered. `crashes`: sampling children that
    died in a row without an answer, `crash` how the last one ended.
    """

    version: str | None = None
    cuda_version: str | None = None
    devices: int | None = None
    library: str | None = None
    node: str | None = None  # /dev/nvidiactl or /dev/dxg
    code: int | None = None
    error: str = ""
    silent_s: float = 0.0
    crashes: int = 0
    crash: str = ""

    @property
    def answers(self) -> bool:
        return self.version is not None and self.code is None and self.silent_s == 0 and self.crashes == 0


class DeviceProcess(Struct, frozen=True, kw_only=True):
    """A process that NVML names. `here`: `/proc` knew the number at the same moment."""

    pid: int
    kind: str  # "compute" or "graphics"
    memory_bytes: int | None  # None: the driver does not say (WDDM)
    here: bool
    command: str = ""  # comm, "" where there is none to be read


class DeviceSample(Struct, frozen=True, kw_only=True):
    """What changes from second to second, seen at `at_s`. What was not asked again has a time of its own."""

    at_s: float
    memory_used_bytes: Fact[int] = _NOTHING  # without NVIDIA's own reserve, where the driver tells it apart (510 on)
    power_watts: Fact[float] = _NOTHING
    utilization_percent: Fact[int] = _NOTHING  # share of the last moment in which any kernel ran
    memory_utilization_percent: Fact[int] = _NOTHING
    encoder_percent: Fact[int] = _NOTHING
    decoder_percent: Fact[int] = _NOTHING
    temperature_celsius: Fact[int] = _NOTHING
    sm_clock_mhz: Fact[int] = _NOTHING
    memory_clock_mhz: Fact[int] = _NOTHING
    clocks_event_reasons: Fact[int] = _NOTHING
    performance_state: Fact[int] = _NOTHING  # 0 is the fastest
    pcie_generation: Fact[int] = _NOTHING
    pcie_width: Fact[int] = _NOTHING
    processes: Fact[tuple[DeviceProcess, ...]] = _NOTHING


# One fault writes dozens of Xids at once; a run that faults needs longer than this to be back and fault again.
ONE_FAULT_S = 5.0
_FAULTS_KEPT = 50  # of each number


class XidFault(Struct, frozen=True, kw_only=True):
    """Xids of one number on one device that came at once. `at_s`: the last of them; NVML gives them no time itself."""

    number: int
    at_s: float
    events: int = 1


def with_events(faults: tuple[XidFault, ...], events: Mapping[int, int], at_s: float) -> tuple[XidFault, ...]:
    """The faults with what was delivered at `at_s`, by number. Oldest first; of each number the newest are kept."""
    found = list(faults)
    for number, count in events.items():
        same = [i for i, fault in enumerate(found) if fault.number == number]
        if same and at_s - found[same[-1]].at_s <= ONE_FAULT_S:
            last = found.pop(same[-1])
            found.append(replace(last, at_s=at_s, events=last.events + count))
            continue
        if len(same) >= _FAULTS_KEPT:
            del found[same[0]]
        found.append(XidFault(number=number, at_s=at_s, events=count))
    return tuple(found)


class Device(Struct, frozen=True, kw_only=True):
    """One device. `recent` has at least one sample, the newest last."""

    uuid: str
    index: int  # NVML's own, which is the PCI order
    recent: tuple[DeviceSample, ...]
    lost_code: int | None = None  # 15 lost, 16 reset required, 999; None: it answers
    missing: bool = False  # it was there before and is not enumerated any more
    name: Fact[str] = _NOTHING
    pci_bus_id: Fact[str] = _NOTHING  # "0000:01:00.0"
    minor: Fact[int] = _NOTHING  # of its node: /dev/nvidia0. Not its index; none on WSL
    compute_capability: Fact[str] = _NOTHING  # "8.6"
    memory_total_bytes: Fact[int] = _NOTHING
    power_limit_watts: Fact[float] = _NOTHING
    sm_clock_max_mhz: Fact[int] = _NOTHING
    pcie_generation_max: Fact[int] = _NOTHING  # of this device in this slot
    pcie_width_max: Fact[int] = _NOTHING
    mig: Fact[bool] = _NOTHING
    recovery_action: Fact[int] = _NOTHING  # field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset
    ecc_uncorrected: Fact[int] = _NOTHING  # volatile: since the driver was loaded
    ecc_corrected: Fact[int] = _NOTHING
    remapped_correctable: Fact[int] = _NOTHING
    remapped_uncorrectable: Fact[int] = _NOTHING
    remap_pending: Fact[bool] = _NOTHING
    remap_failed: Fact[bool] = _NOTHING
    clocks_event_counters_us: Mapping[str, Fact[int]] = field(default_factory=dict)
    xid_counts: Fact[Mapping[int, int]] = _NO_EVENTS  # events since sampling began
    xid_faults: tuple[XidFault, ...] = ()  # the same with their times, oldest first
    implausible: tuple[str, ...] = ()  # readings of the newest sample that cannot be true, in words

    @property
    def now(self) -> DeviceSample:
        return self.recent[-1]

    @property
    def answers(self) -> bool:
        """Neither lost nor missing: what is read of it is of now."""
        return self.lost_code is None and not self.missing

    @property
    def nameless(self) -> bool:
        """It was lost before anybody looked: whichever device that a job names by UUID, it may be this one."""
        return self.uuid.startswith(NAMELESS)

    @property
    def label(self) -> str:
        """What a person calls it: `NVIDIA GeForce RTX 3060 (GPU-3f1c0a52)`."""
        name = getattr(self.name, "value", f"device {self.index}")
        return f"{name} ({NAMELESS if self.nameless else self.uuid[:12]})"


class Probe(Struct, frozen=True, kw_only=True):
    """What the matrix product said of one device. `baseline_tflops`: what it did before, of this size and type."""

    device: str  # UUID, or "cpu"
    name: str
    tflops: float
    dtype: str
    size: int
    seconds: float  # of one product, the median
    correct: bool
    worst_error: float
    baseline_tflops: float | None
    baseline_count: int  # how many results the baseline is made of


class NotMeasured(Struct, frozen=True, kw_only=True):
    """A device of which the probe has nothing to say. `tried`: it was started there, and had no answer."""

    device: str  # UUID
    label: str
    why: str
    tried: bool


Probed = Probe | NotMeasured
