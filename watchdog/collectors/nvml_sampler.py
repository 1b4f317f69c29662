"""One sample of everything that NVML says, from within the sampling child.

Responsible for the handles (by UUID, renewed when a device or the driver comes back), for when what is asked, for
guarding each reading by itself, for the processes and for the Xid events.
Refuses to judge beyond "this value cannot be true", and to be used outside the child: each call here can hang or crash.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from watchdog.collectors.nvml_questions import (
    COUNTERS,
    FAST,
    GLANCE,
    GONE,
    LOST,
    NAMELESS,
    NO_PERMISSION,
    NOT_FOUND,
    SHORT,
    SLOW,
    TIMEOUT,
    UNKNOWN,
    UNSUPPORTED,
    XID_EVENT,
    Question,
    Questions,
    Reading,
    plausible,
    refusal,
    text_of,
)

SLOW_EVERY_S = 19.0  # a little less than twenty samples take, so that each question for so many comes with them
_EMPTY_EVERY_S = 10.0  # few devices have MPS clients or graphics: an empty list is looked at again now and then
UNSUPPORTED_EVERY_S = 60.0  # what a device cannot do it will hardly learn
ENUMERATE_EVERY_S = 60.0
_MOST_EVENTS = 100  # of one sample; the rest comes with the next
_EVENT_WAIT_MS = 0  # what is there is delivered at once
IDLE_EVERY_S = 5.0
_AT_WORK_PERCENT = 10  # below it little is to be learnt from clocks, the PCIe link and the like
_WORK_POWER = 0.5  # of the limit: a device that is busy and takes less may be faking it
_MOST_WATTS = 5_000.0
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80  # nvml.h, nvmlClocksEventReason: hardware, thermal (two), power brake
_FAST_NAMES = tuple(FAST)


class _Usual:
    """What a glance at a device must show for everything else to stand as it was at the last full look."""

    def __init__(
        self, used_bytes: int, idle: bool, least_watts: float, most_watts: float, processes: list[str]
    ) -> None:
        self.used_bytes = used_bytes  # no context comes or goes without memory
        self.idle = idle
        self.least_watts = least_watts
        self.most_watts = most_watts
        self.processes = processes  # their folders: a process may go and leave its context behind


class _Device:
    """One device that was enumerated. `handle` None: it is counted, but not even its UUID can be had."""

    def __init__(self, uuid: str, index: int, handle: Any) -> None:
        self.uuid = uuid
        self.index = index
        self.handle = handle
        self.lost: int | None = None
        self.total_bytes: int | None = None
        self.limit_watts: float | None = None
        self.best_link: tuple[Reading, Reading] = (None, None)
        self.usual: _Usual | None = None  # None: something was remarkable, so everything is asked again
        self.slow_at_s = -SLOW_EVERY_S
        self.rests_until_s = 0.0  # until then an idle device is asked for little
        self.quiet: dict[str, tuple[float, Reading]] = {}  # until when a question is not asked, and its answer
        self.xids: dict[int, int] = {}  # delivered since the last sample
        self.no_xids: Reading = None  # why there are none


class Sampler:
    """Holds the handles between two samples. `nvml` is pynvml."""

    def __init__(self, nvml: Any, proc: str) -> None:
        self._nvml = nvml
        self._error: type[Exception] = nvml.NVMLError
        self._proc = proc
        self._ready = False
        self._devices: list[_Device] = []
        self._enumerated_s = -ENUMERATE_EVERY_S
        self._events: Any = None  # the set that the devices are registered with
        self._registered = False
        self._commands: dict[int, str] = {}
        self._driver_at_s = -SLOW_EVERY_S
        self._pid_max = _pid_max(proc)
        self._questions = Questions(nvml)

    def answer(self, *, several: bool = False, again: bool = False) -> dict[str, Any]:
        """A sample, or the code with which the driver refuses to be asked.

        `several`: it is one of several in a row; a full look asks an idle device everything then. `again`: and not the
        first one. Then, as long as no device is lost, Xid events go on waiting, and of a device on which nothing
        remarkable was and is to be seen only that much is asked.
        """
        was_ready = self._ready
        answer = self._try(several, again)
        if was_ready and answer.get("code") in GONE:  # it was unloaded and may be back: init once more
            answer = self._try(several, again=False)
        return answer

    def _try(self, several: bool, again: bool) -> dict[str, Any]:
        try:
            return self._sample(time.monotonic(), several, again)
        except self._error as error:
            code: int = error.value  # type: ignore[attr-defined]
            self._ready = self._ready and code not in GONE
            return {"code": code, "text": str(error)}

    # -- the driver and its devices ------------------------------------------------------------------------------

    def _sample(self, now_s: float, several: bool, again: bool) -> dict[str, Any]:
        if not (again and self._ready and self._registered and all(device.lost is None for device in self._devices)):
            self._prepare(now_s)
        rows = [
            (self._glance(device) if again else None) or self._row(device, now_s, fully=several)
            for device in self._devices
        ]
        for device in self._devices:
            if device.xids and device.no_xids is None:  # told now; else they wait for a sample that has room for them
                device.xids = {}
        answer: dict[str, Any] = {"devices": rows}
        if not again and now_s - self._driver_at_s >= SLOW_EVERY_S:
            self._driver_at_s = now_s
            answer["driver"] = self._versions()
        return answer

    def _prepare(self, now_s: float) -> None:
        """Everything that is not a reading: the driver, the handles, and the Xid events that wait."""
        if not self._ready:
            self._nvml.nvmlInit()
            self._ready, self._registered, self._events = True, False, None
            self._enumerated_s, self._driver_at_s = -ENUMERATE_EVERY_S, -SLOW_EVERY_S
            for device in self._devices:
                device.slow_at_s, device.rests_until_s = -SLOW_EVERY_S, 0.0
                device.quiet.clear()
        if now_s - self._enumerated_s >= ENUMERATE_EVERY_S:
            self._enumerate(now_s)
        for device in [device for device in self._devices if device.lost is not None]:
            self._find_again(device)
        if not self._registered:
            self._register()
        self._drain()

    def _versions(self) -> tuple[str, str | None]:
        """Of the driver and of CUDA: text to be shown, so a refusal is shown, too."""
        try:
            version = text_of(self._nvml.nvmlSystemGetDriverVersion())
        except self._error as error:
            version = f"not told (NVML code {self._unless_gone(error)})"
        try:
            number = self._nvml.nvmlSystemGetCudaDriverVersion_v2()
        except self._error as error:
            self._unless_gone(error)
            return version, None
        return version, f"{number // 1000}.{number % 1000 // 10}"

    def _enumerate(self, now_s: float) -> None:
        known = {device.uuid: device for device in self._devices}
        found: list[_Device] = []
        nameless: list[tuple[int, int]] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = text_of(self._nvml.nvmlDeviceGetUUID(handle))
            except self._error as error:
                code = self._unless_gone(error)
                if code != NO_PERMISSION:  # counted, but given to another container
                    nameless.append((index, code))
                continue
            device = known.pop(uuid, None)
            if device is None:
                device = _Device(uuid, index, handle)
                self._registered = False
            device.index, device.handle = index, handle
            found.append(device)
        for index, code in nameless:
            device = next((other for other in known.values() if other.index == index), None)
            device = device or _Device(f"{NAMELESS} {index}", index, None)
            device.lost = code
            found.append(device)
        self._devices = sorted(found, key=lambda device: device.index)
        if any(type(device.no_xids) is dict and "u" in device.no_xids for device in found):
            self._registered = False  # try again
        named = all(device.handle is not None for device in found)
        self._enumerated_s = now_s if named else -ENUMERATE_EVERY_S

    def _find_again(self, device: _Device) -> None:
        """A device that came back has another handle; one that is not enumerated any more is not listed any more."""
        if device.handle is None:
            return
        try:
            device.handle = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        except self._error as error:
            if self._unless_gone(error) == NOT_FOUND:
                self._devices.remove(device)

    def _unless_gone(self, error: Exception) -> int:
        """The code, for a failure that is of one thing only; one of the driver itself is `_try`'s."""
        code: int = error.value  # type: ignore[attr-defined]
        if code in GONE:
            raise error
        return code

    # -- readings ------------------------------------------------------------------------------------------------

    def _glance(self, device: _Device) -> list[Any] | None:
        """A row of what changes most. None: it is not as it was, and all must be asked; that also tells what failed.

        Each step here is one with cold caches, once a second for weeks.
        """
        usual = device.usual
        if usual is None:
            return None
        try:
            used_bytes, milliwatts, busy, memory_busy = self._questions.glance(device.handle)
            watts = milliwatts / 1000
            if used_bytes != usual.used_bytes or not usual.least_watts <= watts <= usual.most_watts:
                return None
            if (busy < _AT_WORK_PERCENT) is not usual.idle or busy > 100 or memory_busy > 100:
                return None
            for process in usual.processes:
                os.stat(process)
        except (self._error, OSError, ValueError, TypeError, ArithmeticError, LookupError):
            return None
        xids = device.no_xids if device.no_xids is not None else list(device.xids.items())
        return [device.uuid, device.index, None, [used_bytes, watts, busy, memory_busy], [], xids, None]

    def _usual(self, device: _Device, fast: dict[str, Reading], wrong: list[str]) -> _Usual | None:
        """None where anything of this full look is worth being looked at again in each sample."""
        used, watts, busy, memory_busy = (fast[name] for name in _FAST_NAMES[:GLANCE])
        limit, reasons = device.limit_watts, fast["clocks_event_reasons"]
        if wrong or device.lost is not None or type(watts) is not float:
            return None
        if not type(used) is type(busy) is type(memory_busy) is int:
            return None
        if any(type(reading) is dict and "u" in reading for reading in fast.values()):
            return None
        if type(reasons) is int and reasons & _SLOWED:
            return None
        listed = fast["processes"] if type(fast["processes"]) is list else []
        if not all(here for _, _, _, here, _ in listed):
            return None  # lost, or only ending
        processes = [f"{self._proc}/{pid}" for pid, *_ in listed]
        most_watts = min(_MOST_WATTS, 4 * limit) if limit else _MOST_WATTS
        if busy < _AT_WORK_PERCENT:
            return _Usual(used, True, 0.0, most_watts, processes)
        if not limit or watts < _WORK_POWER * limit:
            return None
        link = (fast["pcie_generation"], fast["pcie_width"])
        if any(type(best) is int and now != best for now, best in zip(link, device.best_link, strict=True)):
            return None
        return _Usual(used, False, _WORK_POWER * limit, most_watts, processes)

    def _row(self, device: _Device, now_s: float, *, fully: bool) -> list[Any]:
        slow: list[Any] | None = None
        codes: set[int] = set()
        if now_s - device.slow_at_s >= SLOW_EVERY_S or device.lost is not None:
            device.slow_at_s = now_s
            slow = self._read_slow(device, now_s, codes)
        wrong: list[str] = []
        fast = self._ask(self._questions.fast, device, now_s, codes, wrong)
        busy = fast["utilization_percent"]
        idle = type(busy) is int and busy < _AT_WORK_PERCENT
        fast["processes"] = self._processes(device, now_s, codes, wrong)
        names = _FAST_NAMES[:SHORT]
        if fully or not idle or now_s >= device.rests_until_s:
            names = _FAST_NAMES
            device.rests_until_s = now_s + IDLE_EVERY_S
            fast.update(self._ask(self._questions.work, device, now_s, codes, wrong))
        before = device.lost
        device.lost = next((code for code in LOST if code in codes), None)
        if UNKNOWN in codes and all(type(reading) is dict for reading in fast.values()):
            device.lost = device.lost or UNKNOWN  # one call may say 999; when all do, it is the device
        if device.lost is not None and slow is None:  # what to do about it stands among the slow readings
            slow = self._read_slow(device, now_s, codes)
        if device.handle is None:
            device.lost = before
        elif before is not None and device.lost is None:
            self._registered = False  # whether the old one survived is not told
        device.usual = self._usual(device, fast, wrong) if fully else None
        xids = device.no_xids if device.no_xids is not None else list(device.xids.items())
        return [device.uuid, device.index, device.lost, [fast[name] for name in names], wrong, xids, slow]

    def _read_slow(self, device: _Device, now_s: float, codes: set[int]) -> list[Any]:
        wrong: list[str] = []
        readings = self._ask(self._questions.slow, device, now_s, codes, wrong)
        total, limit = readings["memory_total_bytes"], readings["power_limit_watts"]
        device.total_bytes = total if type(total) is int else device.total_bytes
        device.limit_watts = limit if type(limit) is float else device.limit_watts
        device.best_link = (readings["pcie_generation_max"], readings["pcie_width_max"])
        return [[readings[name] for name in SLOW], [readings[name] for name in COUNTERS], wrong]

    def _ask(
        self, questions: list[Question], device: _Device, now_s: float, codes: set[int], wrong: list[str]
    ) -> dict[str, Reading]:
        readings: dict[str, Reading] = {}
        for names, ask in questions:
            quiet = device.quiet.get(names[0])
            if quiet is not None and now_s < quiet[0]:
                readings.update(dict.fromkeys(names, quiet[1]))
                continue
            values = self._guarded(names[0], ask, device, now_s, codes)
            if type(values) is dict:
                readings.update(dict.fromkeys(names, values))
                continue
            for name, value in zip(names, values, strict=True):
                reading, words = plausible(name, value, device.total_bytes, device.limit_watts)
                readings[name] = reading
                if words:
                    wrong.append(words)
        return readings

    def _guarded(self, name: str, ask: Callable[[Any], Any], device: _Device, now_s: float, codes: set[int]) -> Any:
        """What `ask` returns, or the reading that says why there is nothing."""
        if device.handle is None:
            return {"u": f"NVML gives no handle of this device: code {device.lost}"}
        try:
            return ask(device.handle)
        except self._error as error:
            code = self._unless_gone(error)
            codes.add(code)
            reading = refusal(code, str(error))
            if code in UNSUPPORTED:
                device.quiet[name] = (now_s + UNSUPPORTED_EVERY_S, reading)
            return reading
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            # The binding itself stumbles over what the library handed it: text that is no UTF-8, a short array.
            return {"u": f"pynvml cannot read what NVML answered: {type(error).__name__}: {error}"}

    def _processes(self, device: _Device, now_s: float, codes: set[int], wrong: list[str]) -> Reading:
        """The first list has the first word: a process that is in two is named once."""
        found: dict[int, tuple[str, int | None]] = {}
        for question, kind, ask in self._questions.lists:
            until_s, listed = device.quiet.get(question, (0.0, None))
            if now_s >= until_s:
                listed = self._guarded(question, ask, device, now_s, codes)
                if listed == [] and question != "processes":
                    device.quiet[question] = (now_s + _EMPTY_EVERY_S, [])
            if type(listed) is dict:
                if question == "processes" or "u" in listed:
                    return listed
                continue  # no MPS, no graphics: that list is empty
            for process in listed:
                found.setdefault(process.pid, (kind, process.usedGpuMemory))
        rows: list[list[Any]] = []
        for pid, (kind, memory) in found.items():
            if not 0 < pid <= self._pid_max:
                wrong.append(f"{pid} is no process number (the highest is {self._pid_max})")
                return {"u": wrong[-1]}
            if memory is not None and device.total_bytes is not None and memory > device.total_bytes:
                wrong.append(f"{memory} bytes are not held by process {pid} on a device that has {device.total_bytes}")
                return {"u": wrong[-1]}
            here = os.path.exists(f"{self._proc}/{pid}")
            if not here:
                self._commands.pop(pid, None)  # the number may come again
            rows.append([pid, kind, memory, here, self._command(pid) if here else ""])
        return rows

    def _command(self, pid: int) -> str:
        """Its comm, never its command line: that is where people put tokens. Read once for each number."""
        command = self._commands.get(pid)
        if command is None:
            try:
                with open(f"{self._proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    command = file.read().rstrip("\n")
            except OSError:
                return ""  # it ended meanwhile; "" means just that
            if len(self._commands) > 1000:
                self._commands.clear()
            self._commands[pid] = command
        return command

    # -- Xid events ----------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """All devices with a new set; what the old one still held was drained by the sample before."""
        self._registered = True
        try:
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
                self._events = None
            self._events = self._nvml.nvmlEventSetCreate()
        except self._error as error:
            reading = refusal(self._unless_gone(error), str(error))
            for device in self._devices:
                device.no_xids = reading
            return
        for device in self._devices:
            device.no_xids = self._register_one(device, self._events)

    def _register_one(self, device: _Device, events: Any) -> Reading:
        if device.handle is None:
            return {"u": "NVML gives no handle of this device"}
        try:
            if not self._nvml.nvmlDeviceGetSupportedEventTypes(device.handle) & XID_EVENT:
                return {"a": "this device delivers no Xid events"}
        except self._error as error:
            self._unless_gone(error)  # then registering says it
        try:
            self._nvml.nvmlDeviceRegisterEvents(device.handle, XID_EVENT, events)
        except self._error as error:
            return refusal(self._unless_gone(error), str(error))
        return None

    def _drain(self) -> None:
        """Every event that waits. Each is delivered once and cannot be had again.

        nvml.h: of several Xids between two waits each may be told with the number of the last one.
        """
        if all(device.no_xids is not None for device in self._devices):
            return
        for _ in range(_MOST_EVENTS):
            try:
                event = self._nvml.nvmlEventSetWait(self._events, _EVENT_WAIT_MS)
            except self._error as error:
                code = self._unless_gone(error)
                if code != TIMEOUT:
                    self._blind(refusal(code, str(error)))
                return
            if event.eventType & XID_EVENT:
                device = self._device_of(event.device)
                if device is None:
                    self._blind({"u": f"Xid {event.eventData} of a device that is not listed"})
                    return
                device.xids[event.eventData] = device.xids.get(event.eventData, 0) + 1

    def _blind(self, reading: Reading) -> None:
        """For this sample; with the next one all are registered afresh."""
        self._registered = False
        for device in self._devices:
            device.no_xids = reading

    def _device_of(self, handle: Any) -> _Device | None:
        if not handle:
            return None
        from ctypes import addressof  # there already, with pynvml

        wanted = addressof(handle.contents)
        for device in self._devices:
            if device.handle and addressof(device.handle.contents) == wanted:
                return device
        return None


def _pid_max(proc: str) -> int:
    try:
        with open(f"{proc}/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 2**22  # the kernel's own limit, include/linux/threads.h
