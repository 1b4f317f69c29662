"""What the next run needs of host memory, learned from a run that memory was refused to. Pure.

Responsible for what the ledger remembers of a run's host memory, and for the need that follows from it after an end by
host memory: what that run had, and was refused, with a margin. Folded from records alone, so that a restart decides as
the supervisor before it would have.
Refuses to demand anything after another end (a leak or a cache is no need), of another command, and once a person has
lifted a hold or began a new budget: docs/decisions/0026.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from watchdog.core.causes import Cause, Cure
from watchdog.core.figures import gib

MIB = 1024**2
MARGIN_BYTES = 256 * MIB
_MARGIN = 0.1  # of what it had: the newest look is up to some seconds older than its end
_NEWS_BYTES, _NEWS = 64 * MIB, 0.05  # a peak that grew by less is not recorded
_UNITS = {"bytes": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024**3, "TiB": 1024**4}
# torch: "can't allocate memory: you tried to allocate 4096 bytes"; numpy: "Unable to allocate 12.0 GiB for an array".
# Not "unable to mmap 4096 bytes from file": the pages of a file are no memory that it needs.
_REFUSED = re.compile(
    r"(?:tried to allocate|unable to allocate) ([0-9]{1,15}(?:\.[0-9]{1,3})?) (bytes|[KMGT]iB)\b",
    re.IGNORECASE,
)


class Learned(Struct, frozen=True, kw_only=True):
    """A need that follows from what a run had; `words` say which run, and what it had. Bytes.

    `least_bytes`: the same without a margin; `before_bytes`: could be had when that run was launched. 0: not told.
    """

    need_bytes: int
    words: str
    least_bytes: int = 0
    before_bytes: int = 0

    def need_within(self, most_bytes: int) -> int:
        """The need where no more than so much can be had at all: a margin is a guess that nothing fulfils there."""
        if self.need_bytes <= most_bytes:
            return self.need_bytes
        return max(self.least_bytes or self.need_bytes, min(self.before_bytes, most_bytes))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Of the run `run_id`, the newest of this command; bytes.

    `peak_bytes` is the most that it was seen with, page cache left out; `before_bytes` could be had when it was
    launched, None where that was not told. `refused_bytes`: what it was refused at last, as far as it said so.
    `earlier_bytes`: the most that runs right before it had, which ended for memory one after the other. The `earlier_`
    rest is of the last of those, for a launch that came to nothing.
    """

    command: str | None = None
    run_id: str | None = None
    peak_bytes: int = 0
    before_bytes: int | None = None
    baseline_step: int = -1
    ran_out: bool = False
    refused_bytes: int = 0
    progressed: bool = False
    earlier_bytes: int = 0
    earlier_before_bytes: int | None = None
    earlier_progressed: bool = False

    @property
    def learned(self) -> Learned | None:
        """What the next run is taken to need; None where nothing follows.

        A run that came to a new checkpoint is worth another one like it: no more is demanded than that one began with.
        """
        had_bytes = self.had_bytes
        if not self.ran_out or had_bytes == 0:
            return None
        words = f"its last run had {gib(self.peak_bytes)} GiB when memory ran out"
        if self.refused_bytes:
            words += f", and was refused {gib(self.refused_bytes)} GiB"
        if self.earlier_bytes > self.peak_bytes + self.refused_bytes:
            words = f"a run of it needed {gib(self.earlier_bytes)} GiB when memory ran out"
        need_bytes = int(had_bytes * (1 + _MARGIN)) + MARGIN_BYTES
        if self.progressed:
            if self.before_bytes is None:
                return None
            need_bytes = min(need_bytes, self.before_bytes)
        return Learned(
            need_bytes=need_bytes,
            words=words,
            least_bytes=min(had_bytes, need_bytes),
            before_bytes=self.before_bytes or 0,
        )

    @property
    def had_bytes(self) -> int:
        """The most that it, or a run right before it that ended for memory, had and was refused."""
        return max(self.peak_bytes + self.refused_bytes, self.earlier_bytes)

    def peak_of(self, run_id: str) -> int:
        """What is on record of that run."""
        return self.peak_bytes if self.run_id == run_id else 0


def is_news(peak_bytes: int, recorded_bytes: int) -> bool:
    """Whether a living run's peak grew so much that a restart should know."""
    return peak_bytes - recorded_bytes >= max(_NEWS_BYTES, _NEWS * recorded_bytes)


def peak_record(run_id: str, number: int, peak_bytes: int, before_bytes: int | None) -> tuple[str, str, dict[str, Any]]:
    """Kind, sentence and data of the record that a run was seen with so much."""
    data = {"run_id": run_id, "peak_bytes": peak_bytes, "before_bytes": before_bytes}
    return "host_memory", f"run {number} had {peak_bytes / MIB:.0f} MiB of host memory", data


def refused_in(error: object) -> int:
    """The bytes that an allocation asked for in vain, from the words of its error; 0 where they do not say."""
    found = _REFUSED.search(error) if isinstance(error, str) else None
    if found is None:
        return 0
    units = {name.lower(): size for name, size in _UNITS.items()}
    return int(float(found[1]) * units[found[2].lower()])


def after(memory: HostMemory, kind: str, data: Mapping[str, Any]) -> HostMemory:
    """With one record more. Of data that is none of ours nothing follows."""
    match kind:
        case "host_memory" if data.get("run_id") == memory.run_id:
            before = data.get("before_bytes")
            peak = max(memory.peak_bytes, int(data["peak_bytes"]))
            return dataclasses.replace(memory, peak_bytes=peak, before_bytes=before)
        case "run_launching":
            command = data.get("command_sha256")
            same = command == memory.command and memory.ran_out
            return HostMemory(
                command=command,
                run_id=str(data["run_id"]),
                baseline_step=int(data["baseline_step"]),
                earlier_bytes=memory.had_bytes if same else 0,
                earlier_before_bytes=memory.before_bytes if same else None,
                earlier_progressed=memory.progressed if same else False,
            )
        case "run_ended" if data.get("run_id") == memory.run_id:
            if data.get("cause") == Cause.NOT_STARTED.value:  # it has shown nothing: what was learned before stands
                return dataclasses.replace(
                    memory,
                    ran_out=memory.earlier_bytes > 0,
                    before_bytes=memory.earlier_before_bytes,
                    progressed=memory.earlier_progressed,
                )
            out = _for_memory(data.get("cause"))
            refused = refused_in(data.get("error")) if out else 0
            earlier = memory.earlier_bytes if out else 0
            return dataclasses.replace(memory, ran_out=out, refused_bytes=refused, earlier_bytes=earlier)
        case "run_weighed" if data.get("run_id") == memory.run_id and data.get("cause") != Cause.NOT_STARTED.value:
            step = data.get("step")
            return dataclasses.replace(memory, progressed=isinstance(step, int) and step > memory.baseline_step)
        case "lifted" if data.get("by") != "end":
            return _forgotten(memory)
        case "budget_reset" | "archived":
            return _forgotten(memory)
    return memory


def _forgotten(memory: HostMemory) -> HostMemory:
    return dataclasses.replace(memory, ran_out=False, refused_bytes=0, earlier_bytes=0)


def _for_memory(cause: object) -> bool:
    try:
        return Cause(cause).cure is Cure.MAKE_ROOM
    except ValueError:  # another version's word
        return False
