"""The proof that a device is free for the next run: what the last one had added is given back, no pid is lost on it,
enough is free for what the job was seen to take, and, where there is a doubt, it was measured since. Pure.

Answers with an open or a closed gate, figures first, and with what a person has to do. Closed gates are waited for as
all gates are, and then held for in these words. Refuses to end anybody: after the end of a run nothing of it lives
(that is proven before any gate is looked at), so whoever holds memory here is not ours; it is named and waited for.
"""

from __future__ import annotations

import dataclasses

from watchdog.core.facts import Fact, Known, Unknown
from watchdog.core.figures import gib
from watchdog.core.findings import Remedy
from watchdog.core.gpumemory import MIB, NOISE_BYTES, Doubt, GpuMemory, Stay

GIVEN_BACK = 0.8  # of what the run had added
# NVIDIA's own reserve is not told as used: 240 MiB of a 3060, 450 MiB of a T4.
MARGIN_BYTES = 512 * MIB
# Of a peak that fills the device a part is the allocator's cache: with so much less it runs as it did.
_NEARLY = 0.05
SETTLES_S = 10.0  # the driver takes a context down within seconds
_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A process that is not of the run. `memory_bytes` None: not told, or it only has the device's node open."""

    pid: int
    command: str
    memory_bytes: int | None

    @property
    def words(self) -> str:
        memory = "" if self.memory_bytes is None else f", {gib(self.memory_bytes)} GiB"
        return f"pid {self.pid} ({self.command or 'its command cannot be read'}{memory})"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceNow:
    """One device as its newest sample shows it, read at `at_s`. Bytes.

    `others` are living processes that the driver lists, `openers` those that have its node open and are not listed.
    `lost`: listed pids that this system does not know. `told`: the pids are those of our /proc, and each one's memory
    is known, so that what nobody owns can be told. `pids` of the run count only where `told` or on WSL.
    """

    uuid: str
    label: str
    at_s: float
    used: Fact[int]
    total_bytes: int | None
    others: tuple[Holder, ...] = ()
    openers: tuple[Holder, ...] = ()
    lost: tuple[Holder, ...] = ()
    told: bool = True
    wsl: bool = False

    @property
    def others_bytes(self) -> int | None:
        return sum(each.memory_bytes or 0 for each in self.others) if self.told else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What came of the newest attempt to measure a device, where it gave no result. `impossible`: none will."""

    words: str
    impossible: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """`wants_probe`: nothing but a measurement is missing."""

    open: bool
    words: str
    wants_probe: bool = False


def concerns(uuid: str, memory: GpuMemory, run_id: str | None) -> bool:
    """Whether there is anything to prove of the device: else its job pays nothing."""
    stay = memory.stays.get(uuid) if memory.run_id == run_id else None
    return stay is not None or bool(memory.needs.get(uuid)) or memory.doubt(uuid) is not None


def prove(
    device: DeviceNow,
    memory: GpuMemory,
    *,
    run_id: str | None,
    over_s: float,
    now_s: float,
    attempt: Attempt | None = None,
) -> Proof:
    """`run_id`: the newest run, which is over since `over_s`; times are of CLOCK_MONOTONIC."""
    stay = memory.stays.get(device.uuid) if memory.run_id == run_id else None
    need = memory.needs.get(device.uuid, 0)
    if device.at_s < over_s:
        return _closed(device, "has not been read since the run ended")
    if isinstance(device.used, Unknown):
        return _closed(device, f"how much of its memory is in use cannot be read: {device.used.why}")
    gone = [each for each in device.lost if stay is None or each.pid not in stay.lost]
    if gone:
        return _closed(device, _lost(device, gone))
    proven: list[str] = []
    unowned = ""
    if isinstance(device.used, Known):
        used = device.used.value
        if stay is not None:
            back = _given_back(device, used, stay, waited_s=now_s - over_s)
            if isinstance(back, Proof):
                return back
            said, unowned = back
            proven.append(said)
        before = None if stay is None else stay.before_bytes
        short = _short(device, used, memory.bases.get(device.uuid, before), need)
        if short:
            return _closed(device, short)
        if device.total_bytes is not None:
            took = f" (the job took up to {gib(need)})" if need else ""
            proven.insert(0, f"{gib(device.total_bytes - used)} GiB free{took}")
    else:
        proven.append("how much of its memory is in use is not told here")
    return _measured(device, memory, [each for each in proven if each], unowned, attempt)


def foretold(memory: GpuMemory, run_id: str | None) -> dict[str, str]:
    """What is to be proven of each device before the next launch, by UUID, in words; beside a run nothing is yet."""
    found = {}
    of_run = memory.stays if memory.run_id == run_id else {}
    for uuid in sorted({*of_run, *memory.needs}):
        added = of_run[uuid].added_bytes if uuid in of_run else None
        need, doubt = memory.needs.get(uuid, 0), memory.doubt(uuid)
        parts = []
        if added and added >= NOISE_BYTES:
            parts.append(f"{gib(GIVEN_BACK * added)} of the {gib(added)} GiB given back")
        if need:
            parts.append(f"{gib(need + MARGIN_BYTES)} GiB free, or what the run that took it began with")
        if doubt is not None:
            parts.append(f"measured ({doubt.words})")
        if parts:
            found[uuid] = ", ".join(parts)
    return found


# --- memory ---------------------------------------------------------------------------------------------------
def _given_back(device: DeviceNow, used: int, stay: Stay, *, waited_s: float) -> Proof | tuple[str, str]:
    """Closed; or (what is proven, why it has to be measured all the same)."""
    added = stay.added_bytes
    if stay.before_bytes is None or added is None:
        return "", "how much was in use before the last run is not known"
    told = device.others_bytes is not None and stay.others_bytes is not None
    kept = used - stay.before_bytes
    if told:  # what others took or gave back meanwhile is theirs
        kept -= (device.others_bytes or 0) - (stay.others_bytes or 0)
    if added < NOISE_BYTES:
        if kept <= NOISE_BYTES:
            return "", ""
        # It may have taken it while nobody looked: a supervisor that was away, a ledger that took no record.
        return "", f"{gib(kept)} GiB more are in use than before the run, which was not seen to take any"
    kept = min(max(0, kept), added)
    back = f"{100 - round(100 * kept / added)} % of the {gib(added)} GiB given back"
    if kept <= max(NOISE_BYTES, (1 - GIVEN_BACK) * added):
        return back, ""
    if waited_s < SETTLES_S:
        return _closed(device, f"{back} so far, {100 * GIVEN_BACK:.0f} % are waited for")
    if device.openers:
        return _closed(device, f"{back}; {_foreign(device.openers)}")
    if not told:  # a program of Windows, or of another container, may have taken it: too little free is told below
        return back, f"{gib(kept)} GiB more are in use than before the run, and by whom is not told"
    return _closed(device, f"{back}; {gib(kept)} GiB are nobody's any more: {_restart(device)}")


def _short(device: DeviceNow, used: int, before: int | None, need: int) -> str:
    """Why too little is free for what the job was seen to take; "" where enough is.

    `before`: what was in use before the run that took so much. Not before the last run: each may begin with a little
    less than the one before it, and after many such relaunches with much less than was ever enough.
    """
    if not need:
        return ""
    if device.total_bytes is None:
        return "how much memory it has cannot be read"
    free = max(0, device.total_bytes - used)
    if free >= need + MARGIN_BYTES:
        return ""
    if before is not None and used - before <= max(NOISE_BYTES, _NEARLY * need):
        return ""  # as much as that run had to begin with
    said = f"{gib(free)} GiB free, the job took up to {gib(need)}"
    holders = device.others + device.openers
    if holders:
        return f"{said}; {_foreign(holders)}"
    if device.wsl:
        return f"{said}; close what uses it in Windows (its Task Manager shows who), or {Remedy.WSL_SHUTDOWN.value}"
    return f"{said}; the rest is nobody's that can be seen: {_restart(device)}"


def _lost(device: DeviceNow, gone: list[Holder]) -> str:
    pids = ", ".join(
        f"pid {each.pid}" + ("" if each.memory_bytes is None else f" with {gib(each.memory_bytes)} GiB")
        for each in gone[:_SHOWN]
    )
    return (
        f"the driver lists {pids}, which this system does not know: a context outlived its process; if it stays: "
        f"{_restart(device)}"
    )


def _restart(device: DeviceNow) -> str:
    return Remedy.WSL_SHUTDOWN.value if device.wsl else Remedy.REBOOT.value


def _foreign(holders: tuple[Holder, ...]) -> str:
    most = sorted(holders, key=lambda each: -(each.memory_bytes or 0))
    more = f" and {len(most) - _SHOWN} more" if most[_SHOWN:] else ""
    names = ", ".join(each.words for each in most[:_SHOWN])
    return f"it is held by {names}{more}, not of the job and left alone: wait for it, or end it"


# --- measuring ------------------------------------------------------------------------------------------------
def _measured(device: DeviceNow, memory: GpuMemory, proven: list[str], unowned: str, attempt: Attempt | None) -> Proof:
    doubt: Doubt | None = memory.doubt(device.uuid)
    if doubt is None and unowned and not memory.passed_after(device.uuid, memory.over_seq):
        doubt = Doubt(seq=memory.over_seq, words=unowned)
    if unowned:
        proven.append(unowned)
    if doubt is None:
        found = memory.measured.get(device.uuid)
        if found is not None and found.passed:
            proven.append(found.words)
        return Proof(open=True, words=f"{device.label} {', '.join(proven) or 'free'}")
    if attempt is None:
        return dataclasses.replace(_closed(device, f"is to be measured ({doubt.words})"), wants_probe=True)
    if attempt.impossible:
        proven.append(f"not measured: {attempt.words}")
        return Proof(open=True, words=f"{device.label} {', '.join(proven)}")
    return dataclasses.replace(_closed(device, attempt.words), wants_probe=True)


def _closed(device: DeviceNow, words: str) -> Proof:
    return Proof(open=False, words=f"{device.label}: {words}")
