"""What NVML is asked of a device, in pynvml's functions, and which answers cannot be true.

Responsible for the tables that the sampling child and its parent share, and for one guarded form of question: names
and a function of a handle that returns as many values.
Refuses to import pynvml (it is passed in), to hold anything of a device, and to decide when what is asked.

A reading is a value, {"a": why} where there is none to be had, or {"u": why} where it could not be had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

Reading = Any  # int, float, str, bool, list, or the dictionary described above
Question = tuple[tuple[str, ...], Callable[[Any], Any]]

# The order of the readings in an answer, and their types. The names are those of core/devicefacts.py. An answer may end
# after GLANCE or after SHORT of them: the rest was not asked for, and stands as it was.
FAST: dict[str, type] = {
    "memory_used_bytes": int,
    "power_watts": float,
    "utilization_percent": int,
    "memory_utilization_percent": int,
    "processes": list,
    "encoder_percent": int,
    "decoder_percent": int,
    "temperature_celsius": int,
    "sm_clock_mhz": int,
    "memory_clock_mhz": int,
    "clocks_event_reasons": int,
    "performance_state": int,
    "pcie_generation": int,
    "pcie_width": int,
}
GLANCE = 4  # of a device that is as it was at the last look
SHORT = 5  # of one that does nothing
OF_WORK = frozenset(list(FAST)[SHORT:])  # of a device that does nothing these are asked now and then
SLOW: dict[str, type] = {
    "name": str,
    "pci_bus_id": str,
    "minor": int,
    "compute_capability": str,
    "memory_total_bytes": int,
    "power_limit_watts": float,
    "sm_clock_max_mhz": int,
    "pcie_generation_max": int,
    "pcie_width_max": int,
    "mig": bool,
    "ecc_uncorrected": int,
    "ecc_corrected": int,
    "remapped_correctable": int,
    "remapped_uncorrectable": int,
    "remap_pending": bool,
    "remap_failed": bool,
    "recovery_action": int,
}
NAMELESS = "no UUID, index"  # begins the key of a device that is counted, but does not even tell its UUID
COUNTERS = ("sw_power_us", "sw_thermal_us", "hw_thermal_us", "hw_power_brake_us", "thermal_us", "power_us")

# nvml.h, nvmlReturn_t
GONE = (1, 9)  # UNINITIALIZED, DRIVER_NOT_LOADED: nothing that we hold is worth anything any more
FUNCTION_NOT_FOUND = 13
UNSUPPORTED = (3, FUNCTION_NOT_FOUND)  # NOT_SUPPORTED
_NO_SUCH_FORM = (2, *UNSUPPORTED, 25)  # INVALID_ARGUMENT, ARGUMENT_VERSION_MISMATCH
NO_PERMISSION, NOT_FOUND, TIMEOUT = 4, 6, 10
LOST = (15, 16)  # GPU_IS_LOST, RESET_REQUIRED
UNKNOWN = 999
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)  # NVML_VALUE_NOT_AVAILABLE, in either width
_NO_PERFORMANCE_STATE = 32
XID_EVENT = 8

# The most that can be true, and the words for what is more.
_MOST: dict[str, tuple[float, str]] = {
    "utilization_percent": (100, "% is no utilization"),
    "memory_utilization_percent": (100, "% is no memory utilization"),
    "encoder_percent": (100, "% is no encoder utilization"),
    "decoder_percent": (100, "% is no decoder utilization"),
    "temperature_celsius": (200, "°C is no temperature of a device"),
    "sm_clock_mhz": (20_000, "MHz is no SM clock"),
    "memory_clock_mhz": (50_000, "MHz is no memory clock"),
    "sm_clock_max_mhz": (20_000, "MHz is no highest SM clock"),
    "performance_state": (15, "is no performance state"),
    "pcie_generation": (16, "is no PCIe generation"),
    "pcie_width": (64, "is no PCIe width"),
    "power_watts": (5_000, "W is no power draw of a device"),
    "power_limit_watts": (5_000, "W is no power limit of a device"),
}


class Questions:
    """What to ask. `nvml` is pynvml.

    `fast` for each sample, `work` of a device at work, `slow` for now and then, `lists` of processes. `glance` for as
    little as can be: bytes in use, milliwatts, percent of utilization and of memory utilization, as the driver says.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._error: type[Exception] = nvml.NVMLError
        self._memory = self._memory_question()
        self.fast = self._fast_questions()
        self.glance = self._glance_question()
        self.work = self._work_questions()
        self.slow = self._slow_questions()
        self.lists = (
            ("processes", "compute", self._processes("Compute")),
            ("MPS clients", "compute", self._processes("MPSCompute")),
            ("graphics", "graphics", self._processes("Graphics")),
        )

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if function is not None:
            return function

        def missing(*_: object) -> NoReturn:
            raise self._error(FUNCTION_NOT_FOUND)  # this pynvml is older than the function

        return missing

    def _either(self, name: str, older: str) -> Callable[..., Any]:
        """The function, or the one that an older driver has in its place."""
        first, second = self._function(name), self._function(older)

        def ask(handle: Any) -> Any:
            try:
                return first(handle)
            except self._error as error:
                if error.value != FUNCTION_NOT_FOUND:  # type: ignore[attr-defined]
                    raise
                return second(handle)

        return ask

    def _processes(self, kind: str) -> Callable[..., Any]:
        """With the version in the name: without it pynvml raises an error of another family. v3 is of driver 510."""
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        return self._either(f"{name}_v3", f"{name}_v2")

    def _memory_question(self) -> Callable[[Any], Any]:
        """The second form tells NVIDIA's own reserve apart (240 MiB of a 3060), the first counts it as used."""
        ask, version = self._function("nvmlDeviceGetMemoryInfo"), getattr(self._nvml, "nvmlMemory_v2", None)
        if version is None:  # this pynvml is older than it
            return ask

        def memory(handle: Any) -> Any:
            try:
                return ask(handle, version)
            except self._error as error:
                if error.value not in _NO_SUCH_FORM:  # type: ignore[attr-defined]
                    raise
                return ask(handle)

        return memory

    def _glance_question(self) -> Callable[[Any], tuple[int, int, int, int]]:
        f = self._function
        memory, utilization, power = self._memory, f("nvmlDeviceGetUtilizationRates"), f("nvmlDeviceGetPowerUsage")

        def glance(handle: Any) -> tuple[int, int, int, int]:
            rates = utilization(handle)
            return memory(handle).used, power(handle), rates.gpu, rates.memory

        return glance

    def _fast_questions(self) -> list[Question]:
        f = self._function
        memory, utilization, power = self._memory, f("nvmlDeviceGetUtilizationRates"), f("nvmlDeviceGetPowerUsage")

        def rates(handle: Any) -> tuple[int, int]:
            found = utilization(handle)
            return found.gpu, found.memory

        return [
            (("memory_used_bytes",), lambda handle: (memory(handle).used,)),
            (("power_watts",), lambda handle: (_watts(power(handle)),)),
            (("utilization_percent", "memory_utilization_percent"), rates),
        ]

    def _work_questions(self) -> list[Question]:
        f = self._function
        temperature, clock, state = (
            f("nvmlDeviceGetTemperature"),
            f("nvmlDeviceGetClockInfo"),
            f("nvmlDeviceGetPerformanceState"),
        )
        encoder, decoder = f("nvmlDeviceGetEncoderUtilization"), f("nvmlDeviceGetDecoderUtilization")
        generation, width = f("nvmlDeviceGetCurrPcieLinkGeneration"), f("nvmlDeviceGetCurrPcieLinkWidth")
        # The second is its name before driver 535.
        reasons = self._either("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return [
            (("encoder_percent",), lambda handle: (encoder(handle)[0],)),
            (("decoder_percent",), lambda handle: (decoder(handle)[0],)),
            (("temperature_celsius",), lambda handle: (temperature(handle, 0),)),
            (("sm_clock_mhz",), lambda handle: (clock(handle, 1),)),
            (("memory_clock_mhz",), lambda handle: (clock(handle, 2),)),
            (("clocks_event_reasons",), lambda handle: (reasons(handle),)),
            (("performance_state",), lambda handle: (state(handle),)),
            (("pcie_generation",), lambda handle: (generation(handle),)),
            (("pcie_width",), lambda handle: (width(handle),)),
        ]

    def _slow_questions(self) -> list[Question]:
        f = self._function
        memory, limit = self._memory, f("nvmlDeviceGetEnforcedPowerLimit")
        clock, minor = f("nvmlDeviceGetMaxClockInfo"), f("nvmlDeviceGetMinorNumber")
        name, pci, compute = f("nvmlDeviceGetName"), f("nvmlDeviceGetPciInfo"), f("nvmlDeviceGetCudaComputeCapability")
        generation, width = f("nvmlDeviceGetMaxPcieLinkGeneration"), f("nvmlDeviceGetMaxPcieLinkWidth")
        mig, ecc, rows = f("nvmlDeviceGetMigMode"), f("nvmlDeviceGetTotalEccErrors"), f("nvmlDeviceGetRemappedRows")
        fields, violation = f("nvmlDeviceGetFieldValues"), f("nvmlDeviceGetViolationStatus")
        # 269 to 271 were 251 to 253 in an early binding: what the installed one says is what counts.
        newer = (("SW_THERM_SLOWDOWN", 269), ("HW_THERM_SLOWDOWN", 270), ("HW_POWER_BRAKE_SLOWDOWN", 271))
        prefix = "NVML_FI_DEV_CLOCKS_EVENT_REASON_"
        numbers = [230, 74, *(getattr(self._nvml, prefix + word, number) for word, number in newer)]

        def remapped(handle: Any) -> tuple[int, int, bool, bool]:
            correctable, uncorrectable, pending, failed = rows(handle)
            return correctable, uncorrectable, bool(pending), bool(failed)

        def field_values(handle: Any) -> list[Reading]:
            found = [self._field(value) for value in fields(handle, numbers)]
            return found[:1] + [value if type(value) is dict else value // 1000 for value in found[1:]]

        return [
            (("name",), lambda handle: (text_of(name(handle)),)),
            (("pci_bus_id",), lambda handle: (_bus_id(text_of(pci(handle).busId)),)),
            (("minor",), lambda handle: (minor(handle),)),
            (("compute_capability",), lambda handle: (".".join(map(str, compute(handle))),)),
            (("memory_total_bytes",), lambda handle: (memory(handle).total,)),
            (("power_limit_watts",), lambda handle: (_watts(limit(handle)),)),
            (("sm_clock_max_mhz",), lambda handle: (clock(handle, 1),)),
            (("pcie_generation_max",), lambda handle: (generation(handle),)),
            (("pcie_width_max",), lambda handle: (width(handle),)),
            (("mig",), lambda handle: (bool(mig(handle)[0]),)),
            (("ecc_uncorrected",), lambda handle: (ecc(handle, 1, 0),)),
            (("ecc_corrected",), lambda handle: (ecc(handle, 0, 0),)),
            (("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failed"), remapped),
            (("recovery_action", *COUNTERS[:4]), field_values),
            (("thermal_us",), lambda handle: (violation(handle, 1).violationTime // 1000,)),
            (("power_us",), lambda handle: (violation(handle, 0).violationTime // 1000,)),
        ]

    def _field(self, field: Any) -> Reading:
        """A field answers for itself: its own code, its own type (nvml.h, nvmlValueType_t)."""
        code = field.nvmlReturn
        if code == 2:  # INVALID_ARGUMENT: a number that this driver has not heard of
            return {"a": f"this driver has no field {field.fieldId}"}
        if code:
            return refusal(code, str(self._error(code)))
        kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        if field.valueType >= len(kinds):
            return {"u": f"field {field.fieldId} has a type of number {field.valueType}, which is not known"}
        return int(getattr(field.value, kinds[field.valueType]))


def plausible(name: str, value: Any, total_bytes: int | None, limit_watts: float | None) -> tuple[Reading, str]:
    """The reading, and what cannot be true about the value, in words: "" in nearly all cases."""
    if type(value) is not int and type(value) is not float:
        return value, ""
    if value in _NOT_AVAILABLE or (name == "performance_state" and value == _NO_PERFORMANCE_STATE):
        return {"a": "the driver gives no value (N/A)"}, ""
    if name == "memory_used_bytes" and total_bytes is not None:
        if value <= total_bytes:
            return value, ""
        words = f"{value} bytes of memory are not in use on a device that has {total_bytes}"
        return {"u": words}, words
    if name not in _MOST:
        return value, ""
    most, unit = _MOST[name]
    if name == "power_watts" and limit_watts:
        most = min(most, 4 * limit_watts)
    if value <= most:
        return value, ""
    words = f"{value:g} {unit}" if type(value) is float else f"{value} {unit}"
    return {"u": words}, words


def refusal(code: int, text: str) -> Reading:
    return {"a": text} if code in UNSUPPORTED else {"u": f"NVML code {code}: {text}"}


def text_of(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _bus_id(text: str) -> str:
    """As sysfs writes it: NVML has a domain of eight digits."""
    return text.lower().removeprefix("0000") if len(text.partition(":")[0]) == 8 else text.lower()


def _watts(milliwatts: int) -> float | int:
    return milliwatts if milliwatts in _NOT_AVAILABLE else milliwatts / 1000
