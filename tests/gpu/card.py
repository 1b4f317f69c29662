"""What the cures are tried on: a real device, or stand-ins of NVML and of CUDA's driver whose memory is one.

Responsible for an independent account of the device's memory (eye.py in a process of its own), and for the stand-ins:
what living processes hold by the CUDA one's account is written into the scenario that NVML's users read, so that a
process that ends gives back what it held, as a driver does. Refuses to know of the watchdog.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.gpu.workloads.devices import MIB

HERE = Path(__file__).resolve().parent
# Less is no trace of a context, and what a driver keeps for itself moves by as much.
NOISE_MIB = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    begun_s: float
    ended_s: float
    used_mib: float
    busy_percent: int


class Eye:
    """Everything that eye.py saw of one device since it was started. Leaving it ends that process."""

    def __init__(self, folder: Path, index: int = 0) -> None:
        self._path = folder / "eye.txt"
        words = [sys.executable, "-P", str(HERE / "eye.py"), str(index)]
        with open(self._path, "wb") as output:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=output)
        deadline_s = time.monotonic() + 20
        while not (seen := self._lines()) and self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        try:
            told = json.loads(seen[0])
        except (IndexError, ValueError):
            self.close()
            raise AssertionError(f"NVML tells nothing of device {index}: {self._path.read_text()[-500:]}") from None
        self.uuid, self.name, self.devices = str(told["uuid"]), str(told["name"]), int(told["devices"])

    def _lines(self) -> list[str]:
        whole, _, _ = self._path.read_text().rpartition("\n")
        return whole.split("\n") if whole else []

    def looks(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[Look]:
        """Those that were wholly in that time."""
        found = []
        for line in self._lines()[1:]:
            begun_s, ended_s, used, busy, *_ = line.split()
            if used != "error" and float(begun_s) >= since_s and float(ended_s) <= until_s:
                found.append(
                    Look(
                        begun_s=float(begun_s),
                        ended_s=float(ended_s),
                        used_mib=int(used) / MIB,
                        busy_percent=int(busy),
                    )
                )
        return found

    def calm_mib(self, seconds: float = 0.5, timeout_s: float = 15.0) -> float:
        """The most in use while, from now on, it moves by no more than noise for so long. Raises AssertionError."""
        deadline_s, began_s = time.monotonic() + timeout_s, time.time()
        used: list[float] = []
        while True:
            since_s = max(began_s, time.time() - seconds)
            used = [look.used_mib for look in self.looks(since_s)]
            if time.time() - began_s >= seconds and len(used) >= 5 and max(used) - min(used) <= NOISE_MIB:
                return max(used)
            if time.monotonic() > deadline_s:
                raise AssertionError(
                    f"the device's memory does not come to rest within {timeout_s:g} s: {used[-5:]} MiB"
                )
            time.sleep(0.1)

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=5)
        self._process.kill()
        self._process.wait()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """`light`: how a job opens it that needs no torch; `heavy`: how one does that is there for torch's own words.

    `probe_python`: what measures it in the place of torch; None: torch does.
    """

    eye: Eye
    light: str
    heavy: str
    stand_in: Path | None  # the folder that is the card; None for a real one
    deadline_s: float  # of a step and of a save, for a stall to be called
    case_least_s: float  # no fault is made any more with less time left
    case_s: float = 75.0  # what one fault with its cure may take
    probe_python: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For who computes on it: CUDA's first device is the one that the eye looks at."""
        return {"CUDA_VISIBLE_DEVICES": self.eye.uuid} if self.eye.devices > 1 else {}


@contextlib.contextmanager
def real_card(folder: Path, *, light: str) -> Iterator[Card]:
    eye = Eye(folder)
    try:
        yield Card(eye=eye, light=light, heavy="torch", stand_in=None, deadline_s=3.0, case_least_s=40.0)
    finally:
        eye.close()


# Answers as bench/matmul.py does; there is nothing to measure.
_PROBE = """#!{python} -ISB
import json
print(json.dumps({{"device": "stand-in", "tflops": 8.125, "seconds": 0.01, "dtype": "bfloat16", "size": 4096,
                  "correct": True, "worst_error": 0.001, "threads": None, "total_s": 0.1, "torch": "none"}}))
"""
_TOTAL_MIB, _IDLE_MIB = 12288, 400
# A driver counts processes as the host does (PROC_PID_INIT_INO of linux/proc_ns.h): in a container its pids are others.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_APART = 100_000


@contextlib.contextmanager
def stand_in_card(folder: Path) -> Iterator[Card]:
    """Sets this process's environment, which its children inherit, for as long as it lasts."""
    from tests.fakes.cuda import standin as cuda
    from tests.fakes.nvml.standin import Scenario, build, environment

    held = cuda.card(folder / "held", _TOTAL_MIB - _IDLE_MIB)
    probe = folder / "python"
    probe.write_text(_PROBE.format(python=sys.executable))
    probe.chmod(0o755)
    scenario = Scenario(folder / "nvml.conf", _as_scenario(cuda.holders(held)))
    before = dict(os.environ)
    os.environ |= environment(build(folder), scenario.path) | cuda.environment(cuda.build(folder), held)
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.01):
            if (text := _as_scenario(cuda.holders(held))) != scenario.text:
                scenario.write(text)

    follower = threading.Thread(target=follow, name="stand-in card")
    follower.start()
    try:
        eye = Eye(folder)
        try:
            yield Card(
                eye=eye,
                light="cuda",
                heavy="cuda",
                stand_in=held,
                deadline_s=2.0,
                case_least_s=15.0,
                probe_python=probe,
            )
        finally:
            eye.close()
    finally:
        over.set()
        follower.join()
        os.environ.clear()
        os.environ.update(before)


def _as_scenario(holders: Iterable[tuple[int, int, int]]) -> str:
    living = list(holders)
    apart = 0 if os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE else _APART
    used = _IDLE_MIB + sum(mib for _, mib, _ in living)
    busy = max((busy for _, _, busy in living), default=0)
    lines = ["[device]", f"memory_total_mib = {_TOTAL_MIB}", f"memory_used_mib = {used}", f"util_sm = {busy}"]
    return "\n".join([*lines, *(f"process = {pid + apart} {mib} compute python" for pid, mib, _ in living), ""])
