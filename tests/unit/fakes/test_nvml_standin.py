"""The stand-in for NVML, read by unmodified pynvml, gpustat and nvitop in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.standin import LIBRARY, Scenario, build, environment

Wait = Callable[..., object]

FUNCTION_NOT_FOUND, NOT_SUPPORTED, NOT_FOUND, TIMEOUT, LOST, UNKNOWN = 13, 3, 6, 10, 15, 999
NO_VALUE = 0xFFFFFFFF

# Answers one expression a line: its value, or the code of NVML's error.
_READER = """
import json, sys, threading
import pynvml as n
h = n.nvmlDeviceGetHandleByIndex
def fields(handle, *ids):
    return [[f.nvmlReturn, f.value.ullVal if f.valueType == 3 else f.value.uiVal]
            for f in n.nvmlDeviceGetFieldValues(handle, list(ids))]
def started(name, *what):
    threading.Thread(target=getattr(n, name), args=what, daemon=True).start()
    return True
for line in sys.stdin:
    try:
        answer = eval(line)
    except n.NVMLError as error:
        answer = f"code {error.value}"
    except n.NVMLLibraryMismatchError as error:
        answer = "mismatch"
    print(json.dumps(answer), flush=True)
"""


class Reader:
    """A process with pynvml that answers questions one at a time."""

    def __init__(self, surroundings: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _READER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=surroundings,
        )

    def send(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")

    def ask(self, expression: str) -> Any:
        self.send(expression)
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 20)
        assert ready, "no answer"
        line = self.process.stdout.readline()
        assert line, f"the reader died: {self.close()}"
        return json.loads(line)

    def close(self) -> str:
        """Ends it; what it wrote on stderr."""
        self.process.kill()
        _, errors = self.process.communicate()
        return errors


class Bench:
    """A library, a scenario, and readers of both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "calls"
        self.library = build(root)
        self.scenario = Scenario(root / "scenario", "[device]\n")
        self.readers: list[Reader] = []

    def surroundings(self) -> dict[str, str]:
        return os.environ | environment(self.library, self.scenario.path, self.log)

    def reader(self, text: str | None = None) -> Reader:
        """A reader that has initialized NVML."""
        if text is not None:
            self.scenario.write(text)
        reader = Reader(self.surroundings())
        self.readers.append(reader)
        assert reader.ask("n.nvmlInit()") is None
        return reader

    def calls(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for reader in made.readers:
        reader.close()


def test_what_is_written_is_what_pynvml_reads(bench: Bench) -> None:
    reader = bench.reader(
        """
        driver = 999.88.77
        nvml = 12.999.88.77
        cuda = 13020
        [device]
        [device]   # the second one
        uuid = GPU-3f1c0a52
        name = NVIDIA A100-SXM4-80GB
        pci = 0000000A:3B:1C.0
        serial = 1563
        compute = 8.0
        memory_total_mib = 81920
        memory_used_mib = 70000
        memory_reserved_mib = 500
        power_mw = 61234
        power_limit_mw = 300000
        power_instant_mw = 59000
        util_sm = 97
        util_mem = 41
        util_enc = 3
        util_dec = 4
        temperature = 71
        temperature_memory = 88
        clock_sm = 1410
        clock_mem = 1593
        clock_sm_max = 1411
        event_reasons = 0x48
        violation_power_ns = 5000000000
        violation_thermal_ns = 6000000000
        counter_hw_thermal_ns = 7000000000
        pstate = 2
        pcie_gen = 3
        pcie_width = 8
        ecc_volatile_uncorrected = 7
        remapped_pending = 1
        retired_dbe = 2
        recovery_action = 4
        mig = 0
        persistence = 1
        process = 4242 60000 compute python -m train
        process = 77 na compute
        process = 78 12 graphics /usr/bin/Xorg
        process_util = 4242 95 40 1 2
        """
    )
    assert reader.ask("[n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion()]") == ["999.88.77", "12.999.88.77"]
    assert reader.ask("n.nvmlSystemGetCudaDriverVersion()") == 13020
    assert reader.ask("n.nvmlDeviceGetCount()") == 2
    found = "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBy"
    for handle in ("UUID('GPU-3f1c0a52')", "PciBusId(b'0000000a:3b:1c.0')", "PciBusId(b'000A:3B:1C.0')", "Index(1)"):
        assert reader.ask(f"{found}{handle})") == 1, handle
    assert reader.ask("n.nvmlDeviceGetHandleByUUID('GPU-none')") == f"code {NOT_FOUND}"
    answers = {
        "UUID": "GPU-3f1c0a52",
        "Name": "NVIDIA A100-SXM4-80GB",
        "Serial": "1563",
        "MinorNumber": 1,
        "CudaComputeCapability": [8, 0],
        "PowerUsage": 61234,
        "EnforcedPowerLimit": 300000,
        "PowerManagementLimit": 300000,
        "EncoderUtilization": [3, 167000],
        "DecoderUtilization": [4, 167000],
        "CurrentClocksEventReasons": 0x48,
        "CurrentClocksThrottleReasons": 0x48,
        "SupportedClocksEventReasons": 0x1FF,
        "PerformanceState": 2,
        "CurrPcieLinkGeneration": 3,
        "CurrPcieLinkWidth": 8,
        "MaxPcieLinkGeneration": 4,
        "MaxPcieLinkWidth": 16,
        "EccMode": [1, 1],
        "RemappedRows": [0, 0, 1, 0],
        "RetiredPagesPendingStatus": 0,
        "MigMode": [0, 0],
        "PersistenceMode": 1,
        "Brand": 5,
        "Architecture": 7,
    }
    for name, answer in answers.items():
        assert reader.ask(f"n.nvmlDeviceGet{name}(h(1))") == answer, name
    assert reader.ask("(lambda u: [u.gpu, u.memory])(n.nvmlDeviceGetUtilizationRates(h(1)))") == [97, 41]
    pci = "(lambda p: [p.busId, p.busIdLegacy, p.domain, p.bus, p.device])(n.nvmlDeviceGetPciInfo(h(1)))"
    assert reader.ask(pci) == ["0000000A:3B:1C.0", "000A:3B:1C.0", 0xA, 0x3B, 0x1C]
    second = "(lambda m: [m.total >> 20, m.reserved >> 20, m.free >> 20, m.used >> 20])"
    assert reader.ask(second + "(n.nvmlDeviceGetMemoryInfo(h(1), n.nvmlMemory_v2))") == [81920, 500, 11420, 70000]
    first = "(lambda m: [m.total >> 20, m.free >> 20, m.used >> 20])"
    assert reader.ask(first + "(n.nvmlDeviceGetMemoryInfo(h(1)))") == [81920, 11420, 70500]
    assert reader.ask("n.nvmlDeviceGetTemperature(h(1), 0)") == 71
    assert reader.ask("n.nvmlDeviceGetTemperatureV(h(1), 0)") == 71
    assert reader.ask("[n.nvmlDeviceGetClockInfo(h(1), kind) for kind in (1, 2)]") == [1410, 1593]
    assert reader.ask("n.nvmlDeviceGetMaxClockInfo(h(1), 1)") == 1411
    assert reader.ask("[n.nvmlDeviceGetViolationStatus(h(1), p).violationTime for p in (0, 1)]") == [
        5 * 10**9,
        6 * 10**9,
    ]
    assert reader.ask("n.nvmlDeviceGetTotalEccErrors(h(1), 1, 0)") == 7
    assert reader.ask("[n.nvmlDeviceGetMemoryErrorCounter(h(1), 1, 0, place) for place in (0, 2)]") == [0, 7]
    assert reader.ask("n.nvmlDeviceGetRetiredPages(h(1), 1)") == [0x1000, 0x2000]
    assert reader.ask("fields(h(1), 186, 230, 82, 270, 144, 9999)") == [
        *([0, 59000], [0, 4], [0, 88], [0, 7 * 10**9], [0, 1]),
        [NOT_SUPPORTED, 0],
    ]
    listed = "[[p.pid, p.usedGpuMemory and p.usedGpuMemory >> 20, p.gpuInstanceId] for p in n.nvmlDeviceGet{}(h(1))]"
    assert reader.ask(listed.format("ComputeRunningProcesses")) == [[4242, 60000, NO_VALUE], [77, None, NO_VALUE]]
    assert reader.ask(listed.format("ComputeRunningProcesses_v2"))[0] == [4242, 60000, NO_VALUE]
    assert reader.ask(listed.format("GraphicsRunningProcesses")) == [[78, 12, NO_VALUE]]
    assert reader.ask(listed.format("MPSComputeRunningProcesses")) == []
    assert reader.ask("n.nvmlSystemGetProcessName(4242)") == "python -m train"
    assert reader.ask("n.nvmlSystemGetProcessName(77)") == f"code {NOT_FOUND}"
    shares = "[[s.pid, s.smUtil, s.memUtil, s.encUtil, s.decUtil] for s in n.nvmlDeviceGetProcessUtilization(h(1), 0)]"
    assert reader.ask(shares) == [[4242, 95, 40, 1, 2]]


def test_a_silent_scenario_is_an_idle_geforce(bench: Bench) -> None:
    reader = bench.reader("[device]\n")
    has_not = ("EccMode", "RemappedRows", "RetiredPagesPendingStatus", "MigMode", "Serial")
    assert [reader.ask(f"n.nvmlDeviceGet{name}(h(0))") for name in has_not] == [f"code {NOT_SUPPORTED}"] * len(has_not)
    assert reader.ask("n.nvmlDeviceGetTotalEccErrors(h(0), 1, 0)") == f"code {NOT_SUPPORTED}"
    assert [code for code, _ in reader.ask("fields(h(0), 82, 230, 186)")] == [NOT_SUPPORTED, NOT_SUPPORTED, 0]
    assert reader.ask("n.nvmlDeviceGetUtilizationRates(h(0)).gpu") == 0
    assert reader.ask("n.nvmlDeviceGetProcessUtilization(h(0), 0)") == f"code {NOT_FOUND}"
    assert reader.ask("n.nvmlDeviceGetHandleByIndex(1)") == "code 2"


@pytest.mark.parametrize("count", [1, 2, 8, 16])
def test_the_usual_tools_show_the_figures(bench: Bench, count: int) -> None:
    for tool in ("gpustat", "nvitop"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed")
    device = (
        "[device]\nname = Card {0}\nutil_sm = {1}\nmemory_used_mib = {2}\npower_mw = {3}\nprocess = {4} 64 compute\n"
    )
    bench.scenario.write(
        "".join(device.format(i, 5 * i + 1, 100 * i + 7, 1000 * (i + 20), os.getpid()) for i in range(count))
    )

    def shown(*words: str) -> str:
        command = [sys.executable, "-P", "-m", *words]
        return subprocess.run(
            command, env=bench.surroundings(), capture_output=True, text=True, check=True, timeout=60
        ).stdout

    gpus = json.loads(shown("gpustat", "--json"))["gpus"]
    figures = [
        [gpu[key] for key in ("name", "utilization.gpu", "memory.used", "power.draw", "enforced.power.limit")]
        for gpu in gpus
    ]
    assert figures == [[f"Card {i}", 5 * i + 1, 100 * i + 7, i + 20, 170] for i in range(count)]
    assert {(gpu["processes"][0]["pid"], gpu["processes"][0]["gpu_memory_usage"]) for gpu in gpus} == {
        (os.getpid(), 64)
    }
    table = shown("nvitop", "-1", "--ascii")
    for i in range(count):
        assert f"Card {i}" in table
        assert f" {i + 20}W / 170W" in table
        assert f" {5 * i + 1}% " in table


def test_an_edit_is_seen_by_the_next_call(bench: Bench) -> None:
    reader = bench.reader("[device]\nuuid = GPU-a\nutil_sm = 10\n")
    for util in range(10, 90, 2):  # faster than the kernel's clock ticks, always as many bytes, and inodes come back
        assert reader.ask("n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByUUID('GPU-a')).gpu") == util
        bench.scenario.replace(f"util_sm = {util}", f"util_sm = {util + 1}")
        bench.scenario.replace(f"util_sm = {util + 1}", f"util_sm = {util + 2}")
    with pytest.raises(ValueError, match="0 times"):
        bench.scenario.replace("util_sm = 1\n", "")


def test_a_hanging_call_hangs_alone(bench: Bench, wait_until: Wait) -> None:
    reader = bench.reader("[device]\npower_mw = 5\nhang nvmlDeviceGetUtilizationRates\n")
    assert reader.ask("started('nvmlDeviceGetUtilizationRates', h(0))")
    wait_until(lambda: "nvmlDeviceGetUtilizationRates" in bench.calls(), "the hanging call")
    assert reader.ask("n.nvmlDeviceGetPowerUsage(h(0))") == 5
    bench.scenario.replace("hang nvmlDeviceGetUtilizationRates", "util_sm = 9")
    assert reader.ask("n.nvmlDeviceGetUtilizationRates(h(0)).gpu") == 9
    assert reader.ask("threading.active_count()") == 2, "what hangs goes on hanging"


def test_a_call_can_be_late(bench: Bench) -> None:
    reader = bench.reader("[device]\ndelay nvmlDeviceGetMemoryInfo = 300\n")
    begun = time.monotonic()
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2).used >> 20") == 400
    assert time.monotonic() - begun >= 0.3


def test_a_call_can_crash(bench: Bench) -> None:
    reader = bench.reader("[device]\ncrash nvmlDeviceGetTemperature\n")
    reader.send("n.nvmlDeviceGetTemperature(h(0), 0)")
    assert reader.process.wait(timeout=20) == -signal.SIGSEGV


def test_a_call_can_fail_for_one_device_or_for_all(bench: Bench) -> None:
    reader = bench.reader(
        "fail nvmlDeviceGetPowerUsage = 17\n[device]\n[device]\nfail nvmlDeviceGetPowerUsage = 4\n"
        "fail nvmlDeviceGetMemoryInfo = 20\n"
    )
    assert [reader.ask(f"n.nvmlDeviceGetPowerUsage(h({i}))") for i in (0, 1)] == ["code 17", "code 4"]
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(1), n.nvmlMemory_v2).used") == "code 20"
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2).used >> 20") == 400
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(0), 0x01000028).used") == "code 25"


def test_a_function_can_be_absent(bench: Bench) -> None:
    bench.library = build(bench.root, missing=["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"])
    reader = bench.reader("[device]\nprocess = 9 50 compute\n")
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2).used") == f"code {FUNCTION_NOT_FOUND}"
    assert reader.ask("n.nvmlDeviceGetComputeRunningProcesses_v3(h(0))") == f"code {FUNCTION_NOT_FOUND}"
    assert reader.ask("n.nvmlDeviceGetComputeRunningProcesses(h(0))") == "mismatch", "which is no NVMLError"
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(0)).used >> 20") == 640
    assert reader.ask("[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses_v2(h(0))]") == [9]
    with pytest.raises(ValueError, match="nvmlDeviceGetPowerUse"):
        build(bench.root, missing=["nvmlDeviceGetPowerUse"])


def test_no_value_and_not_supported_are_told_apart(bench: Bench) -> None:
    reader = bench.reader("[device]\npower_mw = na\nmemory_used_mib = na\nutil_sm = none\nenergy_mj = na\n")
    assert reader.ask("n.nvmlDeviceGetPowerUsage(h(0))") == NO_VALUE
    assert reader.ask("n.nvmlDeviceGetMemoryInfo(h(0)).used") == 2**64 - 1
    assert reader.ask("n.nvmlDeviceGetTotalEnergyConsumption(h(0))") == 2**64 - 1
    assert reader.ask("n.nvmlDeviceGetUtilizationRates(h(0)).gpu") == f"code {NOT_SUPPORTED}"


def test_a_device_is_lost_while_it_is_watched(bench: Bench) -> None:
    reader = bench.reader("[device]\nuuid = GPU-a\nlost = 0\n[device]\nuuid = GPU-b\n")
    assert reader.ask("globals().update(kept=h(0))") is None
    assert reader.ask("n.nvmlDeviceGetPowerUsage(kept)") == 16000
    for written, code in (("lost = 1", LOST), ("lost = 999", UNKNOWN), ("reset_required = 1", 16)):
        bench.scenario.write(f"[device]\nuuid = GPU-a\n{written}\n[device]\nuuid = GPU-b\n")
        for call in ("PowerUsage(kept)", "HandleByUUID('GPU-a')", "HandleByIndex(0)"):
            assert reader.ask(f"n.nvmlDeviceGet{call}") == f"code {code}", (written, call)
        assert reader.ask("n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByUUID('GPU-b'))") == 16000
    assert reader.ask("n.nvmlDeviceGetCount()") == 2


def test_an_event_is_told_once(bench: Bench) -> None:
    reader = bench.reader("event 13 1\n[device]\n[device]\n[device]\nevents = none\n")
    assert reader.ask("globals().update(events=n.nvmlEventSetCreate())") is None
    assert reader.ask("n.nvmlDeviceRegisterEvents(h(2), 8, events)") == f"code {NOT_SUPPORTED}"
    for i in (0, 1):
        assert reader.ask(f"n.nvmlDeviceRegisterEvents(h({i}), 8, events)") is None
    told = "(lambda e: [e.eventData, e.eventType, n.nvmlDeviceGetIndex(e.device)])(n.nvmlEventSetWait({}, {}))"
    assert reader.ask(told.format("events", 1000)) == [13, 8, 1]
    begun = time.monotonic()
    assert reader.ask(told.format("events", 200)) == f"code {TIMEOUT}"
    assert time.monotonic() - begun >= 0.2
    reader.send(told.format("events", 10_000))  # an event ends a wait that has begun
    bench.scenario.event(79)
    assert reader.answer() == [79, 8, 0]
    bench.scenario.event(79)
    bench.scenario.write(bench.scenario.text.replace("[device]", "[device]\nlost = 1", 1))
    assert reader.ask("n.nvmlEventSetWait(events, 1000).eventData") == 79, "what is pending comes before the loss"
    assert reader.ask("n.nvmlEventSetWait(events, 1000).eventData") == f"code {LOST}"
    assert bench.reader().ask("n.nvmlDeviceGetCount()") == 3


def test_process_lists_can_be_scrambled(bench: Bench) -> None:
    reader = bench.reader("scramble processes\n[device]\nprocess = 4242 600 compute\n")
    ((pid, size),) = reader.ask("[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h(0))]")
    assert pid > 2**22, "no PID is that large"
    assert size > 2**40


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[device]\nutil = 5\n", "scenario:2: util: no such key in [device]"),
        ("driver\n", "scenario:1: `driver` is not understood"),
        ("[device]\nutil_sm = many\n", "scenario:2: util_sm: many is neither a number nor"),
        ("fail nvmlDeviceGetPowerUse = 3\n", "scenario:1: the library has no nvmlDeviceGetPowerUse"),
        ("[device]\n" * 17, "scenario:17: more than 16 devices"),
        ("[device]\nprocess = 5 compute\n", "scenario:2: `process = PID MIB|na compute|graphics|mps [NAME]`"),
    ],
)
def test_what_is_not_understood_is_not_passed_over(bench: Bench, text: str, complaint: str) -> None:
    reader = bench.reader("[device]\n")
    bench.scenario.write(text)
    assert reader.ask("n.nvmlDeviceGetCount()") == f"code {UNKNOWN}"
    bench.scenario.write("[device]\n")
    assert reader.ask("n.nvmlDeviceGetCount()") == 1
    assert complaint in reader.close()


def test_the_driver_can_be_absent_or_refuse(bench: Bench) -> None:
    for surroundings, code in (
        ({name: value for name, value in bench.surroundings().items() if name != "FAKE_NVML"}, 9),
        (bench.surroundings() | {"FAKE_NVML": "/nonexistent"}, UNKNOWN),
    ):
        reader = Reader(surroundings)
        bench.readers.append(reader)
        assert reader.ask("n.nvmlInit()") == f"code {code}"
    bench.scenario.write("init = 18\n")
    reader = Reader(bench.surroundings())
    bench.readers.append(reader)
    assert reader.ask("n.nvmlInit()") == "code 18"
    assert reader.ask("n.nvmlDeviceGetCount()") == "code 1"


def test_wsl_knows_less(bench: Bench) -> None:
    bench.library = build(bench.root, wsl=True)
    reader = bench.reader("[device]\nprocess = 4242 600 compute\n")
    assert reader.ask("[p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h(0))]") == [None]
    register = "n.nvmlDeviceRegisterEvents(h(0), 8, n.nvmlEventSetCreate())"
    assert reader.ask(register) == f"code {NOT_SUPPORTED}"


def test_two_workers_may_compile_at_once(tmp_path: Path, repository: Path) -> None:
    script = "import sys, pathlib\nfrom tests.fakes.nvml.standin import build\nbuild(pathlib.Path(sys.argv[1]))\n"
    (tmp_path / "tmp").mkdir()
    workers = []
    for name in ("a", "b", "a"):
        (tmp_path / name).mkdir(exist_ok=True)
        command = [sys.executable, "-c", script, str(tmp_path / name)]
        surroundings = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
        workers.append(subprocess.Popen(command, cwd=repository, env=surroundings))
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
    assert [path.name for path in (tmp_path / "a").iterdir()] == [LIBRARY]
    assert len(list((tmp_path / "tmp").glob("*/*"))) == 1, "one library, and nothing left over"
