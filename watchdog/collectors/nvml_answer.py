"""An answer of the sampling child, read: a line of JSON becomes facts, or a ValueError.

Responsible for believing nothing of its form: what is not exactly what nvml_sampler.py writes is refused whole.
Refuses to remember anything; devices.py does.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import decode

from watchdog.collectors.nvml_questions import COUNTERS, FAST, GLANCE, SHORT, SLOW
from watchdog.core.devicefacts import DeviceProcess
from watchdog.core.fact import Absent, Fact, Known, Unknown

_LENGTHS = {length: tuple(FAST.items())[:length] for length in (GLANCE, SHORT, len(FAST))}


class Refusal(Struct, frozen=True, kw_only=True):
    """NVML cannot be initialised or does not count its devices. `code` -1: there is no way to ask it."""

    code: int
    text: str


class SlowReadings(Struct, frozen=True, kw_only=True):
    """What was read now and then: fields of Device by name, the counters, and what cannot be true."""

    fields: dict[str, Fact[Any]]
    counters: dict[str, Fact[int]]
    implausible: tuple[str, ...]


class Row(Struct, frozen=True, kw_only=True):
    """One device of one sample. `readings`: fields of DeviceSample by name; what is not there stands as it was."""

    uuid: str
    index: int
    lost_code: int | None
    at_s: float
    readings: dict[str, Fact[Any]]
    implausible: tuple[str, ...]
    xids: dict[int, int] | Unknown | Absent  # since the sample before
    slow: SlowReadings | None


class Sample(Struct, frozen=True, kw_only=True):
    """All devices once. `versions` (driver, CUDA) come now and then."""

    rows: tuple[Row, ...]
    versions: tuple[str | None, str | None] | None


def parse_answer(line: bytes, asked_s: float) -> list[tuple[float, Sample | Refusal]]:
    """What was seen and when, oldest first, never none. Raises ValueError, with the beginning of what is no answer."""
    try:
        seen: list[tuple[float, Sample | Refusal]] = []
        last_s = 0.0
        for after_s, answer in decode(line):  # a tenth of what json.loads takes, and NaN is no number to it
            if _of_type(after_s, float) < last_s:
                raise ValueError("not in the order of time")
            last_s = after_s
            seen.append((asked_s + after_s, _one(answer, asked_s + after_s)))
        if not seen:
            raise ValueError("nothing was seen")
        return seen
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"the child that asks NVML answered {line[:200]!r}, which is no answer") from error


def _one(answer: Any, at_s: float) -> Sample | Refusal:
    if "code" in answer:
        return Refusal(code=_of_type(answer["code"], int), text=_of_type(answer["text"], str))
    rows = tuple(_row(row, at_s) for row in answer["devices"])
    versions = None
    if "driver" in answer:
        driver, cuda = (part if part is None else _of_type(part, str) for part in answer["driver"])
        versions = (driver, cuda)
    return Sample(rows=rows, versions=versions)


def _row(row: Any, at_s: float) -> Row:
    uuid, index, lost, fast, wrong, xids, slow = row
    readings: dict[str, Any] = {
        name: Known(value, at_s) if type(value) is kind else _fact(value, kind, at_s)
        for (name, kind), value in zip(_LENGTHS[len(fast)], fast, strict=True)
    }
    processes = readings.get("processes")
    if isinstance(processes, Known):
        readings["processes"] = Known(tuple(_process(*process) for process in processes.value), at_s)
    return Row(
        uuid=_of_type(uuid, str),
        index=_of_type(index, int),
        lost_code=lost if lost is None else _of_type(lost, int),
        at_s=at_s,
        readings=readings,
        implausible=_words(wrong),
        xids=_xids(xids, at_s),
        slow=None if slow is None else _slow(*slow, at_s=at_s),
    )


def _slow(fields: Any, counters: Any, wrong: Any, *, at_s: float) -> SlowReadings:
    return SlowReadings(
        fields={name: _fact(value, kind, at_s) for (name, kind), value in zip(SLOW.items(), fields, strict=True)},
        counters={name: _fact(value, int, at_s) for name, value in zip(COUNTERS, counters, strict=True)},
        implausible=_words(wrong),
    )


def _process(pid: Any, kind: Any, memory: Any, here: Any, command: Any) -> DeviceProcess:
    return DeviceProcess(
        pid=_of_type(pid, int),
        kind=_of_type(kind, str),
        memory_bytes=memory if memory is None else _of_type(memory, int),
        here=_of_type(here, bool),
        command=_of_type(command, str),
    )


def _xids(value: Any, at_s: float) -> dict[int, int] | Unknown | Absent:
    fact = _fact(value, list, at_s)
    if isinstance(fact, Known):
        return {_of_type(xid, int): _of_type(count, int) for xid, count in fact.value}
    return fact


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_of_type(words, str) for words in _of_type(value, list))


def _fact(value: Any, kind: type, at_s: float) -> Fact[Any]:
    if type(value) is kind:
        return Known(value, at_s)
    [(mark, why)] = _of_type(value, dict).items()
    kinds: dict[str, type[Absent | Unknown]] = {"a": Absent, "u": Unknown}
    return kinds[mark](_of_type(why, str))


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
