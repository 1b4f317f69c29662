"""What the ledger knows of a job's memory on the devices: what was in use before its runs, what they took, and which
devices are in doubt until they are measured. Pure.

Folded from records alone, so that a restart decides at the gate as the supervisor before it would have. Refuses to
judge: core/gpuproof.py does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from watchdog.core.causes import Cause, Cure

MIB = 1024**2
# Less is no trace of a CUDA context, which takes over 100 MiB by itself; a desktop moves as much from second to second.
NOISE_BYTES = 64 * MIB
_NEWS = 0.05  # a peak that grew by less is not recorded
_PIDS_KEPT = 64
_OF_DEVICES = (Cure.PROVE_DEVICE, Cure.WAIT_FOR_DRIVER, Cure.RESTART_HOST)
# Findings after which a device is believed only once it was measured; what heat, slots or others do is none of them.
_DOUBTING = frozenset(
    {"driver-hung", "driver-crash", "gpu-lost", "reset-required", "device-missing", "xid", "ecc", "dxg-bridge"}
    | {"ghost-context", "lost-pid", "memory-unowned"}
)
EVERY = ""  # a doubt about all devices


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """One run on one device; bytes. None: it was not told.

    `before_bytes` were in use right before the launch, `others_bytes` of it by processes that the driver listed;
    `peak_bytes` is the most in use while it lived, `own_bytes` the most that its listed processes held together.
    `pids`: its processes, as the driver listed them. `lost`: pids that nobody knew before it was launched.
    """

    before_bytes: int | None = None
    others_bytes: int | None = None
    peak_bytes: int = 0
    own_bytes: int | None = None
    pids: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()

    @property
    def added_bytes(self) -> int | None:
        """What the run had added: by the driver's word on its processes, else by how much more was in use."""
        if self.own_bytes is not None:
            return self.own_bytes
        return None if self.before_bytes is None else max(0, self.peak_bytes - self.before_bytes)

    def grown(self, used_bytes: int | None, own_bytes: int | None, pids: Iterable[int]) -> Stay:
        """With what one more sample says."""
        return dataclasses.replace(
            self,
            peak_bytes=max(self.peak_bytes, used_bytes or 0),
            own_bytes=own_bytes if self.own_bytes is None else max(self.own_bytes, own_bytes or 0),
            pids=self.pids if len(self.pids) >= _PIDS_KEPT else self.pids.union(pids),
        )

    def is_news(self, recorded: Stay | None) -> bool:
        """Whether so much was added since it was recorded that a restart should know."""
        if recorded is None:
            return True
        before, now = recorded.added_bytes or 0, self.added_bytes or 0
        return now - before >= max(NOISE_BYTES, _NEWS * before)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """Why a device has to be measured: the event that said so, and its words."""

    seq: int
    words: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What became of measuring a device: the event, whether it passed, and the figures in words."""

    seq: int
    passed: bool
    words: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """By UUID, unless it says otherwise. `stays` are of run `run_id`; `needs`: the most that any run of this command
    had added; `over_seq`: the event with which the last run was over."""

    run_id: str | None = None
    stays: Mapping[str, Stay] = dataclasses.field(default_factory=dict)
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bases: Mapping[str, int] = dataclasses.field(default_factory=dict)  # in use before the run that took the need
    command: str | None = None
    doubts: Mapping[str, Doubt] = dataclasses.field(default_factory=dict)  # EVERY: of all devices
    measured: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    over_seq: int = -1
    outgrown: str | None = None  # a run after which the batch was made smaller: what it took is no need of the next one

    def doubt(self, uuid: str) -> Doubt | None:
        """The newest that no measurement has settled since."""
        last = max(
            (self.doubts[key] for key in (uuid, EVERY) if key in self.doubts), key=lambda each: each.seq, default=None
        )
        return None if last is None or self.passed_after(uuid, last.seq) else last

    def passed_after(self, uuid: str, seq: int) -> bool:
        """Whether it was measured, and was in order, after that event."""
        found = self.measured.get(uuid)
        return found is not None and found.passed and found.seq > seq


def stays_record(stays: Mapping[str, Stay]) -> dict[str, Any]:
    """As `device_memory` of a record `run_launching`, and as `devices` of a record `gpu_memory`."""
    return {
        uuid: {
            "before": stay.before_bytes,
            "others": stay.others_bytes,
            "peak": stay.peak_bytes,
            "own": stay.own_bytes,
            "pids": sorted(stay.pids),
            "lost": sorted(stay.lost),
        }
        for uuid, stay in sorted(stays.items())
    }


def after(memory: GpuMemory, kind: str, data: Mapping[str, Any], seq: int, sentence: str) -> GpuMemory:
    """With one record more. Of data that is none of ours nothing follows."""
    match kind:
        case "gpu_memory":
            stays = _stays(data["devices"])
            needs, bases = dict(memory.needs), dict(memory.bases)
            for uuid, stay in stays.items() if data["run_id"] != memory.outgrown else ():
                added = stay.added_bytes or 0
                if added > needs.get(uuid, 0) and stay.before_bytes is not None:
                    bases[uuid] = stay.before_bytes
                needs[uuid] = max(needs.get(uuid, 0), added)
            return dataclasses.replace(memory, run_id=str(data["run_id"]), stays=stays, needs=needs, bases=bases)
        case "run_launching":
            if data.get("command_sha256") != memory.command:
                memory = dataclasses.replace(memory, command=data.get("command_sha256"), needs={}, bases={})
            stays = _stays(data.get("device_memory") or {})
            return dataclasses.replace(memory, run_id=str(data["run_id"]), stays=stays)
        case "archived":
            return dataclasses.replace(memory, needs={}, bases={})
        case "batch_shrunk":  # the last word on what that run took comes later
            return dataclasses.replace(memory, needs={}, bases={}, outgrown=str(data.get("run_id")))
        case "run_ended":
            memory = dataclasses.replace(memory, over_seq=seq)
            return _doubted(memory, EVERY, seq, sentence) if _of_a_device(data.get("cause")) else memory
        case "finding" if data.get("check") in _DOUBTING and data.get("severity") in ("warning", "critical"):
            return _doubted(memory, str(data.get("device") or EVERY), seq, sentence)
        case "device_probed":
            found = Measured(seq=seq, passed=data.get("passed") is True, words=str(data.get("words") or sentence))
            return dataclasses.replace(memory, measured={**memory.measured, str(data["device"]): found})
    return memory


def _of_a_device(cause: object) -> bool:
    try:
        return Cause(cause).cure in _OF_DEVICES
    except ValueError:  # another version's word
        return False


def _doubted(memory: GpuMemory, device: str, seq: int, words: str) -> GpuMemory:
    return dataclasses.replace(memory, doubts={**memory.doubts, device: Doubt(seq=seq, words=words)})


def _stays(devices: Mapping[str, Any]) -> dict[str, Stay]:
    return {str(uuid): _stay(each) for uuid, each in devices.items() if isinstance(each, Mapping)}


def _stay(data: Mapping[str, Any]) -> Stay:
    return Stay(
        before_bytes=_count(data.get("before")),
        others_bytes=_count(data.get("others")),
        peak_bytes=_count(data.get("peak")) or 0,
        own_bytes=_count(data.get("own")),
        pids=_pids(data.get("pids")),
        lost=_pids(data.get("lost")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _pids(value: object) -> frozenset[int]:
    found = [_count(each) for each in value] if isinstance(value, list) else []
    return frozenset(each for each in found if each is not None)
