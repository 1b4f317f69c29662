"""The matrix product, run beside us: how fast a device computes, and whether rightly.

Responsible for starting the probe program in a disposable child, on one device, with a deadline and a memory cap, and
for reading its one line. The Python that has torch may be another than ours; the program is found beside `watchdog`.
Refuses to decide whether a device may be measured (core/probing.py), and to load torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any

from watchdog.clock import Clock
from watchdog.collectors.child import DisposableChild
from watchdog.core.fact import Absent, Fact, Known, Unknown

_MEASURED, _WRONG, _NOT_MEASURED = 0, 1, 2  # exit codes of bench/matmul.py
CPU = "cpu"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the program said. `device` is a UUID or "cpu", `name` what it calls itself."""

    device: str
    name: str
    tflops: float
    dtype: str
    size: int
    seconds: float
    correct: bool
    worst_error: float
    threads: int | None
    total_s: float
    torch: str = ""


def program() -> str:
    """The probe program, which lies beside this package. Raises FileNotFoundError."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench/matmul.py")
    if not os.path.exists(path):
        raise FileNotFoundError(2, "the probe program is not there", path)
    return path


def parse(line: str, *, device: str, at_s: float) -> Fact[Measured]:
    """The program's line as a fact."""
    try:
        answer: dict[str, Any] = json.loads(line)
        if (
            "error" in answer and answer["error"] == "no-torch"
        ):  # a watchdog without torch is as good as any, and measures nothing
            return Absent(f"{answer['text']}; [probe] python names a Python that can measure")
        if "error" in answer:
            return Unknown(str(answer["text"]))
        tflops, seconds = float(answer["tflops"]), float(answer["seconds"])
        if not (0 < tflops < math.inf and 0 < seconds < math.inf):
            raise ValueError("a product takes time, and a figure is a number")
        return Known(
            Measured(
                device=device,
                name=str(answer["device"]),
                tflops=tflops,
                dtype=str(answer["dtype"]),
                size=int(answer["size"]),
                seconds=seconds,
                correct=answer["correct"] is True,
                worst_error=float(answer["worst_error"]),
                threads=None if answer.get("threads") is None else int(answer["threads"]),
                total_s=float(answer["total_s"]),
                torch=str(answer.get("torch") or ""),
            ),
            at_s,
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return Unknown(f"the probe answered {line[:200]!r}, which is no answer ({type(error).__name__}: {error})")


class ProbeReader:
    """Measures one device at a time."""

    def __init__(self, python: str, clock: Clock, *, memory_bytes: int) -> None:
        """`python`: the interpreter that has torch; a name alone is looked up on PATH."""
        self._python = python
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._child = DisposableChild("the probe", clock)

    def measure(self, device: str, deadline_s: float) -> Fact[Measured]:
        """`device` is a UUID or "cpu". Blocks for `deadline_s` and a little at most."""
        python = self._python if "/" in self._python else _on_path(self._python)
        if python is None:
            path = os.environ.get("PATH", os.defpath)
            return Unknown(f"there is no {self._python!r} on PATH ({path}); [probe] python names the one with torch")
        argv = [
            python,
            "-P",
            program(),
            "--device",
            device,
            "--deadline-s",
            repr(deadline_s),
            "--memory-cap-bytes",
            str(self._memory_bytes),
        ]
        try:
            answer = self._child.ask(argv, deadline_s, answers=frozenset({_MEASURED, _WRONG, _NOT_MEASURED}))
        except OSError as error:
            return Unknown(f"the probe cannot be started: {error.filename}: {error.strerror}; see [probe] python")
        return answer if isinstance(answer, Unknown) else parse(answer, device=device, at_s=self._clock.monotonic())


def _on_path(name: str) -> str | None:
    from shutil import which

    found = which(name)
    return None if found is None else os.path.abspath(found)  # the child starts in another folder
