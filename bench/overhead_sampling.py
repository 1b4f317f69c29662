"""What sampling a GPU once a second costs: ours, and nvitop and gpustat on the same stand-in for NVML.

Processor time and resident memory of a tool's process and all its descendants, from after its first sample on, so that
nobody's start counts; of several windows of twenty seconds the cheapest, for every tool. All in the same seconds: each
is idle for nearly all of them, and a wake-up costs what the rest of the machine makes of it. Ours as the supervisor
does it in calm times: its loop turns once a second, the child samples once a second, and the two speak once a window.
The loop turns for beats and checks as well: what it costs without sampling is measured beside it and taken off.
Both peers twice: as they are run, the command under a pseudo-terminal, which the limit is about; and, for information,
their library in the plainest loop. That has no limit: it calls the driver in its own process, where one call that hangs
ends all watching, and to be spared that is what our child is there for.
Refuses a tool that does not show what the stand-in says, goes on showing it when it has changed, or takes more or fewer
samples than asked.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import itertools
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from bench import record
from bench.footprint import peak_mib
from bench.startup import CommandFailedError
from watchdog.lookout import CALM_SAMPLES

LIMIT = 0.5  # of the processor time of the cheapest peer as it is run
LIBRARY = ", library"  # ends the name of what has no limit
OURS = "watchdog"
LOOP = "its loop, without sampling"
WINDOW_S = CALM_SAMPLES  # after which ours has spoken to its child, and read what changes slowly
BEFORE_MIB, AFTER_MIB = 432, 765  # no digit in common, so that a terminal is sent all of them
_COUNTING_S = 5
_PATIENCE_S = 20.0 + WINDOW_S
_CALL = "nvmlDeviceGetUtilizationRates"  # every tool asks it once for each sample of a device
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")

_EVERY_SECOND = """
import time
while True:
    begin = time.monotonic()
    print(sample(), flush=True)
    time.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
"""
# As Lookout.poll does it: ask, for several samples once the devices are known, and take what is known from the last
# question. A loop has nothing to print of what is known already.
_OURS = f"""
from watchdog.clock import SystemClock
from watchdog.collectors.devices import DeviceWatch
from watchdog.collectors.roots import Roots
watch = DeviceWatch(Roots(), SystemClock())
shown = None
import time
while True:
    begin = time.monotonic()
    watch.ask(1 if shown is None else {CALM_SAMPLES})
    _, devices = watch.see()
    if devices is not shown and hasattr(devices, "value"):
        shown = devices
        print([f"{{each.now.memory_used_bytes.value >> 20}} MiB" for each in devices.value], flush=True)
    time.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
"""
# As long as the one above, and it has shown from the start what is waited for.
_LOOP = f"""
import time
print({BEFORE_MIB}, {AFTER_MIB}, flush=True)
while True:
    begin = time.monotonic()
    time.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
"""
_NVITOP = """
from nvitop import Device
devices = Device.all()
def sample():
    shots = [(device.as_snapshot(), device.processes()) for device in devices]
    return [f"{shot.memory_used >> 20} MiB" for shot, _ in shots]
"""
_GPUSTAT = """
from gpustat import GPUStatCollection
def sample():
    return [f"{device.memory_used} MiB" for device in GPUStatCollection.new_query()]
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-P", "-c", text]


def script(name: str) -> str:
    """A command beside this interpreter. Raises CommandFailedError where it is missing."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise CommandFailedError(f"{path} does not exist; install it: make dev")
    return str(path)


def ours() -> list[str]:
    return program(_OURS)


def samplers() -> dict[str, list[str]]:
    """Who samples at 1 Hz, and how it is started. Raises CommandFailedError."""
    return {
        OURS: ours(),
        LOOP: program(_LOOP),
        f"nvitop{LIBRARY}": program(_NVITOP + _EVERY_SECOND),
        "nvitop -m full": [script("nvitop"), "--monitor", "full", "--interval", "1"],
        f"gpustat{LIBRARY}": program(_GPUSTAT + _EVERY_SECOND),
        "gpustat -i 1": [script("gpustat"), "--interval", "1", "--no-color"],
    }


class StandIn:
    """The library and its text in a folder, and the environment of a program that finds them and nothing else."""

    def __init__(self, folder: Path) -> None:
        """Raises CommandFailedError where there is no compiler."""
        if shutil.which("cc") is None:
            raise CommandFailedError("no C compiler (cc) for the stand-in; Debian, Ubuntu: apt install gcc libc6-dev")
        # Not an import: from an installed command line the folder of tests is on no path.
        path = record.ROOT / "tests" / "fakes" / "nvml" / "standin.py"
        spec = importlib.util.spec_from_file_location("standin", path)
        assert spec is not None
        assert spec.loader is not None
        self._module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._module)
        self.folder = folder
        self._library: Path = self._module.build(folder)
        self._scenario = self._module.Scenario(folder / "scenario", "")
        self.devices(1)

    def devices(self, count: int, used_mib: int = BEFORE_MIB, *, busy: bool = False) -> None:
        """So many devices with so much memory in use; busy ones compute for this process."""
        work = (
            f"util_sm = 97\npower_mw = 150000\npstate = 2\npcie_gen = 4\nprocess = {os.getpid()} 400 compute\n"
            if busy
            else ""
        )
        self._scenario.write(f"[device]\nmemory_used_mib = {used_mib}\nmemory_reserved_mib = 0\n{work}" * count)

    def environment(self, log: Path | None = None) -> dict[str, str]:
        home = self.folder / "home"  # no job, no configuration, no supervisor
        home.mkdir(exist_ok=True)
        mine = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LC_ALL": "C.UTF-8"}
        return mine | {"TERM": "xterm-256color"} | self._module.environment(self._library, self._scenario.path, log)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """One tool in its steady state: processor seconds of all its samples, memory of all its processes.

    `calls`: how often one sample of all devices calls the library.
    """

    tool: str
    devices: int
    busy: bool = False
    samples: float
    calls: float
    cpu_s: float
    resident_mib: float
    peak_mib: float

    @property
    def cpu_ms(self) -> float:
        """Of one sample of all devices."""
        return self.cpu_s / self.samples * 1000


class Running:
    """A tool under a pseudo-terminal, whose screen is read all the time so that it never has to wait for us."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = " ".join(command)[-80:]
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (60, 120))
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=dict(environment), start_new_session=True
        )
        os.close(slave)
        self._heard = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the last who had the terminal open has ended
            while piece := os.read(self._master, 65536):
                self._heard += piece

    def screen(self) -> str:
        return _ESCAPES.sub("", self._heard.decode(errors="replace"))

    def shows(self, words: str) -> None:
        """Wait until it does. Raises CommandFailedError."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while words not in self.screen():
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise CommandFailedError(f"...{self._command}\ndid not show {words}, but:\n{self.screen()[-1000:]}")
            time.sleep(0.02)

    def usage(self, seconds: int) -> tuple[float, float, float]:
        """Processor seconds of `seconds`; resident and peak MiB at their end. Raises CommandFailedError.

        As in the cheapest window of WINDOW_S: what others on the machine add to a wake-up is never less than nothing.
        """
        self.shows(str(BEFORE_MIB))
        time.sleep(0.5)  # between two samples, so that the time holds whole ones
        pids = self._tree()
        window_s, windows = min(seconds, WINDOW_S), max(1, seconds // WINDOW_S)
        read_s = [sum(cpu_s(pid) for pid in pids)]
        for _ in range(windows):
            time.sleep(window_s)
            read_s.append(sum(cpu_s(pid) for pid in pids))
        used_s = min(after_s - before_s for before_s, after_s in itertools.pairwise(read_s)) * seconds / window_s
        if self._tree() != pids:
            raise CommandFailedError(f"...{self._command}\nstarted or lost a process: what that one took is not known")
        resident = sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20
        return used_s, resident, sum(peak_mib(pid) for pid in pids)

    def calls(self, log: Path) -> tuple[float, float]:
        """Samples of one device in a second, times the devices; and all calls of the library in a second."""
        self.shows(str(BEFORE_MIB))
        time.sleep(0.5)
        before = log.read_text().split()
        time.sleep(_COUNTING_S)
        asked = log.read_text().split()[len(before) :]
        return asked.count(_CALL) / _COUNTING_S, len(asked) / _COUNTING_S

    def _tree(self) -> list[int]:
        """The process and its descendants."""
        me = psutil.Process(self._process.pid)
        return sorted(process.pid for process in (me, *me.children(recursive=True)))

    def close(self) -> None:
        if self._process.poll() is None:
            me = psutil.Process(self._process.pid)
            for process in (*me.children(recursive=True), me):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        os.close(self._master)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and its threads, ended ones too, exactly: /proc/PID/stat counts in 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)  # how Linux numbers another process's CPUCLOCK_SCHED


@contextlib.contextmanager
def _together(
    commands: Mapping[str, Sequence[str]], environments: Sequence[Mapping[str, str]]
) -> Iterator[tuple[list[Running], concurrent.futures.Executor]]:
    """All of them running, and a thread for each."""
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
        running = [Running(*each) for each in zip(commands.values(), environments, strict=True)]
        for one in running:
            stack.callback(one.close)
        yield running, pool


def sampled(
    commands: Mapping[str, Sequence[str]], standin: StandIn, *, devices: int, seconds: int, busy: bool = False
) -> list[Sampling]:
    """Measure all tools. `seconds` should be a multiple of WINDOW_S.

    Raises CommandFailedError.
    """
    standin.devices(devices, busy=busy)
    logs = [standin.folder / f"calls-{devices}-{busy}-{number}" for number in range(len(commands))]
    for log in logs:
        log.touch()
    with _together(commands, [standin.environment(log) for log in logs]) as (running, pool):
        counts = list(pool.map(Running.calls, running, logs))
    with _together(commands, [standin.environment()] * len(commands)) as (running, pool):
        usages = list(pool.map(lambda one: one.usage(seconds), running))
        standin.devices(devices, AFTER_MIB, busy=busy)
        for one in running:
            one.shows(str(AFTER_MIB))
    figures = []
    for tool, (asked, calls), (used_s, resident, peak) in zip(commands, counts, usages, strict=True):
        rate = 1.0 if tool == LOOP else asked / devices
        if not 0.5 <= rate <= 2.0:
            raise CommandFailedError(f"{tool} took {rate:g} samples a second, where 1 was asked for")
        figures.append(
            Sampling(
                tool=tool,
                devices=devices,
                busy=busy,
                samples=rate * seconds,
                calls=calls / rate,
                cpu_s=used_s,
                resident_mib=resident,
                peak_mib=peak,
            )
        )
    return figures


def _devices(figure: Sampling) -> str:
    return f"{figure.devices} {'busy' if figure.busy else 'idle'}"


def _costs(figures: Sequence[Sampling]) -> dict[str, tuple[float, Sampling]]:
    """For each kind of devices: what sampling costs us, ms a sample, and the cheapest peer as it is run."""
    found = {}
    for devices, group in itertools.groupby(figures, key=_devices):
        by_tool = {figure.tool: figure for figure in group if not figure.tool.endswith(LIBRARY)}
        ours, loop = by_tool.pop(OURS), by_tool.pop(LOOP)
        found[devices] = (ours.cpu_ms - loop.cpu_ms, min(by_tool.values(), key=lambda figure: figure.cpu_ms))
    return found


def rows(figures: Sequence[Sampling]) -> list[dict[str, object]]:
    """One row a tool and kind of devices; `ours / it` is what the limit is about."""
    ours = {devices: cost for devices, (cost, _) in _costs(figures).items()}
    return [
        {
            "devices": _devices(figure),
            "tool": figure.tool,
            "samples": round(figure.samples, 1),
            "calls a sample": round(figure.calls, 1),
            "cpu ms a sample": round(figure.cpu_ms, 2),
            "ours / it": "" if figure.tool in (OURS, LOOP) else round(ours[_devices(figure)] / figure.cpu_ms, 2),
            "resident MiB": round(figure.resident_mib, 1),
            "peak MiB": round(figure.peak_mib, 1),
        }
        for figure in figures
    ]


def misses(figures: Sequence[Sampling]) -> list[str]:
    """A sentence for each kind of devices where ours costs more than the limit."""
    found = []
    for devices, (ours, best) in _costs(figures).items():
        ratio = ours / best.cpu_ms
        if ratio > LIMIT:
            found.append(
                f"sampling with devices: {devices}: {ours:.2f} ms a sample is {ratio:.2f} of the "
                f"{best.cpu_ms:.2f} ms of {best.tool}, the limit is {LIMIT:g}"
            )
    return found
