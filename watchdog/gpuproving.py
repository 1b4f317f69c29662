"""The devices between two runs: remembers what each run took of them, and proves them free before the next launch.

Responsible for the records that core/gpumemory.py folds, for putting what is seen into the form that core/gpuproof.py
judges, and for measuring a device that is in doubt: in a child of its own with a deadline and a memory cap, beside the
loop, only while the job is at its gates, and never beside a run. While a measurement is under way its gate is closed.
Refuses to end anybody, and costs a job that uses no GPU nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from watchdog import baselines
from watchdog.checks import compute_floor, wrong_product
from watchdog.checks.catalogue import CATALOGUE, judge
from watchdog.checks.owners import comparable, judged, run_pids, unlisted
from watchdog.clock import Clock
from watchdog.collectors.probe import ProbeReader
from watchdog.collectors.runner import Runner
from watchdog.core.devicefacts import Device, DeviceProcess, DeviceSample
from watchdog.core.facts import Absent, Fact, Facts, Known, NotMeasured, Probe, Probed, Unknown, value_of
from watchdog.core.findings import Severity
from watchdog.core.gpumemory import GpuMemory, Stay, stays_record
from watchdog.core.gpuproof import Attempt, DeviceNow, Holder, concerns, prove
from watchdog.core.history import History
from watchdog.core.limits import is_index, names
from watchdog.core.phase import Phase
from watchdog.core.probing import open_node, to_measure
from watchdog.core.seen import Gate
from watchdog.core.state import Record, RunState, State
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError
from watchdog.hostwatch import HostWatch
from watchdog.measuring import Measuring, baselines_file, driver_of
from watchdog.settings import Settings

_PROBE_AGAIN_S = 60.0  # after one that failed: heat passes, and who was busy may be done
_LOOK_AGAIN_S = 5.0  # where none could be begun
_READING_S = 1.0
_BEYOND_DEADLINE_S = 10.0  # the child's own alarm comes first
_CHECKS = tuple(check for check in CATALOGUE if check.name in (compute_floor.NAME, wrong_product.NAME))


class GpuProver:
    """For use from the loop alone."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        host: HostWatch,
        record: Callable[[Sequence[Record]], None],
        say_trouble: Callable[[str], None],
    ) -> None:
        """`record` raises RecordingError, and then nothing is on disk."""
        self._settings = settings
        self._clock = clock
        self._host = host
        self._record = record
        self._say_trouble = say_trouble
        self._not_before_s = float("-inf")
        self._run_id: str | None = None
        self._stays: dict[str, Stay] = {}  # of that run; before it, what the next one finds
        self._seen_s = float("-inf")  # the newest sample that was counted
        self._ours: set[int] = set()  # pids of the run
        self._indexes: dict[str, int] = {}  # by UUID
        # One for all attempts: beside a child that is stuck it starts no other.
        self._reader = ProbeReader(str(settings.probe.python), clock, memory_bytes=settings.probe.memory_bytes)
        self._runner: Runner | None = None  # there is a measurement under way
        self._probed: tuple[Device, ...] = ()
        self._attempts: dict[str, tuple[int, Attempt]] = {}  # by UUID: what it was about, and what came of it
        self._probe_not_before_s = float("-inf")

    # --- remembering ----------------------------------------------------------------------------------------
    def look(self, run: RunState | None, history: History, now_s: float) -> None:
        """What this turn's facts say of the run, or of the devices while there is none."""
        facts = self._host.facts
        devices = judged(facts)
        self._indexes |= {device.uuid: device.index for device in devices}
        if run is None:
            self._take_result(history.gpu)
            over_s = self._host.over_s
            if self._run_id is not None:
                self._grow(devices, facts, until_s=over_s)  # in calm times its last samples come after its end
                if self._is_awaited(devices, now_s):
                    return
                if not self._remember(self._run_id, history, now_s, over=True):
                    return  # `beside` opens nothing until it is
                self._run_id, self._stays = None, {}
            self._stays |= {device.uuid: _before(device, facts) for device in devices if device.now.at_s >= over_s}
            return
        if not devices and not self._stays:
            return
        if run.run_id != self._run_id:
            self._run_id, self._seen_s, self._ours = run.run_id, now_s, set()
            if history.gpu.run_id == run.run_id:  # adopted
                self._stays = {**self._stays, **history.gpu.stays}
        self._ours |= run_pids(facts)
        self._grow(devices, facts)
        self._remember(run.run_id, history, now_s, over=False)

    def _is_awaited(self, devices: Sequence[Device], now_s: float) -> bool:
        """A first reading since the end of the run is on its way, which takes some milliseconds."""
        over_s = self._host.over_s
        return any(device.now.at_s < over_s for device in devices) and now_s - over_s < _READING_S

    def _grow(self, devices: Sequence[Device], facts: Facts, *, until_s: float = float("inf")) -> None:
        ours = self._ours if comparable(facts) or isinstance(facts.wsl, Known) else set()
        for device in devices:
            stay = self._stays.get(device.uuid, Stay())
            for sample in device.recent:
                if not self._seen_s < sample.at_s <= until_s:
                    continue
                own = [each for each in value_of(sample.processes) or () if each.pid in ours]
                told = [each.memory_bytes for each in own if each.memory_bytes is not None]
                held = sum(told) if own and len(told) == len(own) and comparable(facts) else None
                held = None if held is None or held > (value_of(device.memory_total_bytes) or held) else held
                stay = stay.grown(value_of(_used(device, sample)), held, (each.pid for each in own))
            self._stays[device.uuid] = stay
        self._seen_s = max((min(device.now.at_s, until_s) for device in devices), default=self._seen_s)

    def _remember(self, run_id: str, history: History, now_s: float, *, over: bool) -> bool:
        """False: there is news, and it could not be recorded."""
        memory = history.gpu
        known = memory.stays if memory.run_id == run_id else {}
        stays = {uuid: stay for uuid, stay in self._stays.items() if self._is_meant(uuid)}
        news = any(stay != known.get(uuid) if over else stay.is_news(known.get(uuid)) for uuid, stay in stays.items())
        if not news:
            return True
        if now_s < self._not_before_s:
            return False
        added = ", ".join(f"{uuid} {(stay.added_bytes or 0) / 1024**2:.0f} MiB" for uuid, stay in stays.items())
        data = {"run_id": run_id, "devices": stays_record(stays)}
        try:
            self._record([Record("gpu_memory", f"run {run_id} took of {added}", data)])
        except RecordingError as error:
            self._say_trouble(str(error))
            self._not_before_s = now_s + AGAIN_S
            return False
        return True

    def before(self) -> dict[str, Any]:
        """For the record of a launch: what is in use on the devices of the job now."""
        return stays_record({uuid: stay for uuid, stay in self._stays.items() if self._is_meant(uuid)})

    def _is_meant(self, uuid: str) -> bool:
        """Whether the job uses the device: it names it, or its runs were seen there."""
        limits, used = self._host.limits, self._host.used
        if limits.devices_named or limits.devices is not None:
            index = self._indexes.get(uuid)
            if index is None and any(is_index(name) for name in limits.devices or ()):
                return True  # which one has that index cannot be seen
            return names(limits.devices, uuid=uuid, index=-1 if index is None else index)
        return used is not None and (not used or uuid in used)

    # --- the gate -------------------------------------------------------------------------------------------
    def beside(self, gates: tuple[Gate, ...], state: State, history: History) -> tuple[Gate, ...]:
        """These gates, and one for each device about which there is something to prove, while no run lives.

        None at all while a first reading since the end of the run is on its way, which takes some milliseconds.
        """
        if not gates or state.phase is not Phase.GATING or state.run is not None:
            return gates
        if self._run_id is not None and any(map(self._is_meant, self._stays)):
            return ()  # what the last run took is not recorded yet
        return gates + self._gates(history)

    def _gates(self, history: History) -> tuple[Gate, ...]:
        if self._runner is not None:
            labels = ", ".join(device.label for device in self._probed)
            return (Gate(name="device", open=False, words=f"{labels}: the measurement is under way"),)
        memory, run_id = history.gpu, history.last_run_id
        facts, now_s = self._host.facts, self._clock.monotonic()
        if isinstance(facts.devices, Unknown):
            if memory.run_id != run_id or not any(map(self._is_meant, memory.stays)):
                return ()
            words = f"what the last run gave back cannot be seen: {facts.devices.why}"
            return (Gate(name="device memory", open=False, words=words),)
        found: list[Gate] = []
        wanted: list[Device] = []
        for device in judged(facts):
            if value_of(device.mig) or not self._is_meant(device.uuid) or not concerns(device.uuid, memory, run_id):
                continue  # under MIG memory belongs to instances
            proof = prove(
                _now(device, facts, memory.stays.get(device.uuid)),
                memory,
                run_id=run_id,
                over_s=self._host.over_s,
                now_s=now_s,
                attempt=self._attempt(device.uuid, memory),
            )
            if proof.wants_probe:
                wanted.append(device)
            found.append(Gate(name=f"device {device.index}", open=proof.open, words=proof.words))
        if wanted and now_s >= self._probe_not_before_s and len(wanted) == sum(not gate.open for gate in found):
            self._probe(facts, wanted, memory)
        return tuple(found)

    # --- measuring ------------------------------------------------------------------------------------------
    def _attempt(self, uuid: str, memory: GpuMemory) -> Attempt | None:
        """What was tried about this very doubt; of an older one nothing follows."""
        about, attempt = self._attempts.get(uuid, (-1, None))
        return attempt if about == _about(uuid, memory) else None

    def _probe(self, facts: Facts, devices: Sequence[Device], memory: GpuMemory) -> None:
        """Begin, if nothing speaks against it: recorded first."""
        self._probed = tuple(devices)
        limits = replace(self._host.limits, devices=tuple(device.uuid for device in devices))
        locks_old = any(isinstance(lock, Known) and lock.at_s < self._host.over_s for lock in facts.locks)
        free = "the locks have not been read since the run ended" if locks_old else to_measure(facts, limits)
        if isinstance(free, str):
            self._failed(f"is to be measured, and cannot be now: {free}", memory, again_s=_LOOK_AGAIN_S)
            return
        refused = {device.uuid for device in devices} - {device.uuid for device in free}
        if refused:  # all or none: what is busy beside it would be taken for its sickness
            self._failed("is to be measured once all devices of the job are free", memory, again_s=_LOOK_AGAIN_S)
            return
        labels = ", ".join(device.label for device in free)
        deadline_s = self._settings.probe.deadline_s * len(free) + _BEYOND_DEADLINE_S
        data = {"devices": [device.uuid for device in free], "deadline_s": deadline_s}
        try:
            self._record([Record("device_probing", f"measuring {labels} before the next launch", data)])
        except RecordingError as error:
            self._say_trouble(str(error))
            self._probe_not_before_s = self._clock.monotonic() + AGAIN_S
            return
        self._runner = Runner(self._clock)
        self._poll(facts)

    def _poll(self, facts: Facts) -> Fact[tuple[Probed, ...]] | None:
        """The answer; None: there is none yet."""
        assert self._runner is not None
        devices, settings, clock = self._probed, self._settings, self._clock

        def measure() -> Fact[tuple[Probed, ...]]:
            path = baselines_file(settings)
            with baselines.alone(path, make=True) as alone:
                if not alone:
                    return Unknown("another probe is measuring; two at once would falsify each other")
                return Measuring(settings, clock, driver_of(facts), lambda _: None, self._reader).measure(devices)

        deadline_s = settings.probe.deadline_s * len(devices) + _BEYOND_DEADLINE_S
        polled = self._runner.poll("probe", measure, every_s=float("inf"), deadline_s=deadline_s)
        return None if polled.unread else polled.fact

    def _take_result(self, memory: GpuMemory) -> None:
        if self._runner is None:
            return
        facts = self._host.facts
        result = self._poll(facts)
        if result is None:
            return
        self._runner = None
        if not isinstance(result, Known):
            self._failed(f"could not be measured: {result.why}", memory, impossible=isinstance(result, Absent))
            return
        findings = judge(replace(facts, probe=result), self._host.limits, _CHECKS)
        records = []
        for each in result.value:
            if isinstance(each, NotMeasured):
                self._failed(f"could not be measured: {each.why}", memory, only=each.device, impossible=not each.tried)
                continue
            bad = [find for find in findings if find.device == each.device and find.severity is Severity.CRITICAL]
            words = _figures(each) + "".join(f"; {find.reason}: {find.cause} ({find.remedy.value})" for find in bad)
            data = {"device": each.device, "passed": not bad, "words": words, "tflops": each.tflops}
            data |= {"correct": each.correct, "dtype": each.dtype, "size": each.size}
            records.append(Record("device_probed", f"{each.name} ({each.device[:12]}): {words}", data))
            if bad:
                self._failed(words, memory, only=each.device)
        try:
            self._record(records)
        except RecordingError as error:  # not recorded, so not measured
            self._say_trouble(str(error))
            self._probe_not_before_s = self._clock.monotonic() + AGAIN_S

    def _failed(
        self,
        words: str,
        memory: GpuMemory,
        *,
        only: str | None = None,
        impossible: bool = False,
        again_s: float = _PROBE_AGAIN_S,
    ) -> None:
        for device in self._probed:
            if only in (None, device.uuid):
                attempt = Attempt(words=words, impossible=impossible)
                self._attempts[device.uuid] = (_about(device.uuid, memory), attempt)
        self._probe_not_before_s = self._clock.monotonic() + again_s


def _about(uuid: str, memory: GpuMemory) -> int:
    doubt = memory.doubt(uuid)
    return memory.over_seq if doubt is None else max(doubt.seq, memory.over_seq)


def _figures(probe: Probe) -> str:
    return f"probe {probe.tflops:.2f} TFLOP/s, product {'right' if probe.correct else 'wrong'}"


# --- what is seen -------------------------------------------------------------------------------------------------
def _used(device: Device, sample: DeviceSample) -> Fact[int]:
    """A figure that cannot be true (a driver that lies) is none."""
    used, total = sample.memory_used_bytes, value_of(device.memory_total_bytes)
    if isinstance(used, Known) and total is not None and used.value > total:
        return Unknown(f"{used.value} bytes are not in use on a device that has {total}")
    return used


def _others(sample: DeviceSample, ours: set[int]) -> list[DeviceProcess]:
    return [each for each in value_of(sample.processes) or () if each.here and each.pid not in ours]


def _told(sample: DeviceSample, facts: Facts) -> bool:
    """Whether it can be told who owns how much."""
    listed = value_of(sample.processes)
    return comparable(facts) and listed is not None and all(each.memory_bytes is not None for each in listed)


def _before(device: Device, facts: Facts) -> Stay:
    """What a run that is launched now would find."""
    used = value_of(_used(device, device.now))
    listed = value_of(device.now.processes) or ()
    others = sum(each.memory_bytes or 0 for each in _others(device.now, set()))
    return Stay(
        before_bytes=used,
        others_bytes=others if _told(device.now, facts) else None,
        peak_bytes=used or 0,
        lost=frozenset(each.pid for each in listed if not each.here) if comparable(facts) else frozenset(),
    )


def _now(device: Device, facts: Facts, stay: Stay | None) -> DeviceNow:
    processes, sample = value_of(facts.processes), device.now
    listed = value_of(sample.processes) or ()
    of_run = frozenset() if stay is None else stay.pids
    on_wsl = isinstance(facts.wsl, Known)
    lost = [each for each in listed if not each.here and (comparable(facts) or (on_wsl and each.pid in of_run))]
    others = _others(sample, set())
    named = {each.pid for each in others}
    openers = [] if processes is None or not comparable(facts) else unlisted(facts, processes)
    return DeviceNow(
        uuid=device.uuid,
        label=device.label,
        at_s=sample.at_s,
        used=_used(device, sample),
        total_bytes=value_of(device.memory_total_bytes),
        others=tuple(map(_holder, others)),
        openers=tuple(
            Holder(pid=each.pid, command=each.command, memory_bytes=None)
            for each in openers
            if each.pid not in named and open_node(each, device) is not None
        ),
        lost=tuple(map(_holder, lost)),
        told=_told(sample, facts),
        wsl=on_wsl,
    )


def _holder(process: DeviceProcess) -> Holder:
    return Holder(pid=process.pid, command=process.command, memory_bytes=process.memory_bytes)
