"""The devices as the child sees them: values, silence, crashes, losses, with the stand-in library at the C ABI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.standin import Scenario, build, environment
from tests.handclock import HandClock
from watchdog.collectors import linechild, nvml_child
from watchdog.collectors.devices import DeviceWatch
from watchdog.collectors.roots import Roots
from watchdog.core.devicefacts import Device, DeviceProcess, Driver
from watchdog.core.fact import Absent, Fact, Known, Unknown

DEADLINE_S = 20.0
Seen = tuple[Fact[Driver], Fact[tuple[Device, ...]]]


class Host:
    """A host with the stand-in, a clock moved by hand, and one watch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "host/dev").mkdir(parents=True)
        (folder / "host/proc").symlink_to("/proc")
        self.roots = Roots(str(folder / "host"))
        self.clock = HandClock()
        self.watch: DeviceWatch | None = None

    def node(self) -> None:
        Path(self.roots.dev, "nvidiactl").touch()

    def begin(self, text: str, *, missing: tuple[str, ...] = (), wsl: bool = False, **how: Any) -> DeviceWatch:
        self.scenario = Scenario(self.folder / "scenario", text)
        library = build(self.folder, missing=missing, wsl=wsl)
        self.library = str(library)
        environ = os.environ | environment(library, self.scenario.path)
        self.watch = DeviceWatch(self.roots, self.clock, environ, **how)
        self.watch.ask()
        return self.watch

    def first(self, text: str, **how: Any) -> Seen:
        watch = self.begin(text, **how)
        assert watch.wait(DEADLINE_S)
        return watch.see()

    def next(self, after_s: float = 1.0) -> Seen:
        """What is seen after one more question."""
        assert self.watch is not None
        self.clock.now_s += after_s
        self.watch.ask()
        self.watch.wait(DEADLINE_S)
        return self.watch.see()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    if made.watch is not None:
        pid = made.watch.pid
        made.watch.close()
        if pid is not None:
            wait_for_end(pid)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """In place of the child: a program that answers as the test says."""

    def put(source: str) -> None:
        (tmp_path / "child.py").write_text(source)
        monkeypatch.setattr(nvml_child, "__file__", str(tmp_path / "child.py"))

    return put


def wait_for_end(pid: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while os.path.exists(f"/proc/{pid}"):
        linechild.reap()
        assert time.monotonic() < deadline_s, f"child {pid} is still there"
        time.sleep(0.01)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def known(fact: Fact[Any]) -> Any:
    assert isinstance(fact, Known), fact
    return fact.value


def only(seen: Seen) -> Device:
    [device] = known(seen[1])
    assert isinstance(device, Device)
    return device


# -- no driver -----------------------------------------------------------------------------------------------------


def test_a_host_with_nothing_of_nvidia_starts_no_child(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")  # a start would count as a crash
    watch = DeviceWatch(host.roots, host.clock, {})
    watch.ask()
    absent = Absent("no libnvidia-ml.so.1, no /dev/nvidiactl, no /dev/dxg")
    assert watch.see() == (absent, absent)
    host.node()
    watch.ask()
    assert watch.see() == (absent, absent)
    host.clock.now_s += 61
    watch.ask()  # a driver that was installed meanwhile is found
    driver, devices = watch.see()
    assert isinstance(driver, Unknown)
    assert "cannot be started" in driver.why
    assert devices == driver
    watch.close()


@pytest.mark.parametrize(("init", "words"), [(9, "not loaded"), (12, "cannot be loaded")])
def test_no_driver_is_absent_without_a_node_and_known_with_one(host: Host, init: int, words: str) -> None:
    driver, devices = host.first(f"init = {init}\n")
    assert isinstance(driver, Absent)
    assert words in driver.why
    assert driver == devices
    host.node()
    driver, devices = host.watch.see()  # type: ignore[union-attr]
    assert (known(driver).code, known(driver).node) == (init, "/dev/nvidiactl")
    assert isinstance(devices, Unknown)


def test_before_the_first_answer_nothing_is_known(host: Host) -> None:
    watch = DeviceWatch(host.roots, host.clock, {})
    assert watch.see()[0] == Unknown("the driver has not been asked yet")
    watch.close()
    watch = host.begin("delay nvmlInitWithFlags = 300\n[device]\n")
    assert watch.see()[0] == Unknown("the driver has not answered yet")
    assert watch.wait(DEADLINE_S)


# -- values --------------------------------------------------------------------------------------------------------

BUSY = """
driver = 570.10
cuda = 12080
[device]
uuid = GPU-aaaa
name = NVIDIA Odd One
pci = 00000000:0A:00.0
minor = 3
compute = 9.0
memory_total_mib = 1000
memory_reserved_mib = 0
memory_used_mib = 600
power_mw = 60500
power_limit_mw = 170000
power_enforced_limit_mw = 150000
util_sm = 97
util_mem = 12
util_enc = 3
util_dec = 4
temperature = 71
clock_sm = 1800
clock_sm_max = 2100
clock_mem = 7501
event_reasons = 0x44
pstate = 2
pcie_gen = 3
pcie_width = 8
pcie_gen_max = 4
pcie_width_max = 16
mig = 0
ecc_volatile_uncorrected = 2
ecc_volatile_corrected = 7
remapped_correctable = 1
remapped_uncorrectable = 3
remapped_pending = 1
recovery_action = 4
counter_sw_thermal_ns = 1000
counter_hw_thermal_ns = 2000
counter_power_brake_ns = 3000
violation_thermal_ns = 4000
violation_power_ns = 5999
"""


def test_every_value_arrives_at_its_field(host: Host) -> None:
    host.node()
    ended = subprocess.Popen(["true"])
    ended.wait()
    me = os.getpid()
    lines = f"process = {me} 100 compute\nprocess = {me} 1 graphics\nprocess = {ended.pid} na graphics\n"
    driver, devices = host.first(BUSY + lines)
    assert driver == Known(
        Driver(version="570.10", cuda_version="12.8", devices=1, library=host.library, node="/dev/nvidiactl"), 1000.0
    )
    assert known(driver).answers
    [device] = known(devices)
    expected: dict[str, Any] = {
        "name": "NVIDIA Odd One",
        "pci_bus_id": "0000:0a:00.0",
        "minor": 3,
        "compute_capability": "9.0",
        "memory_total_bytes": 1000 << 20,
        "power_limit_watts": 150.0,
        "sm_clock_max_mhz": 2100,
        "pcie_generation_max": 4,
        "pcie_width_max": 16,
        "mig": False,
        "recovery_action": 4,
        "ecc_uncorrected": 2,
        "ecc_corrected": 7,
        "remapped_correctable": 1,
        "remapped_uncorrectable": 3,
        "remap_pending": True,
        "remap_failed": False,
    }
    assert {name: known(getattr(device, name)) for name in expected} == expected
    expected = {
        "memory_used_bytes": 600 << 20,
        "power_watts": 60.5,
        "utilization_percent": 97,
        "memory_utilization_percent": 12,
        "encoder_percent": 3,
        "decoder_percent": 4,
        "temperature_celsius": 71,
        "sm_clock_mhz": 1800,
        "memory_clock_mhz": 7501,
        "clocks_event_reasons": 0x44,
        "performance_state": 2,
        "pcie_generation": 3,
        "pcie_width": 8,
    }
    assert {name: known(getattr(device.now, name)) for name in expected} == expected
    assert device.now.at_s == 1000.0
    assert {name: known(fact) for name, fact in device.clocks_event_counters_us.items()} == {
        "sw_thermal_us": 1,
        "hw_thermal_us": 2,
        "hw_power_brake_us": 3,
        "thermal_us": 4,
        "power_us": 5,
        "sw_power_us": 5,
    }
    command = Path(f"/proc/{me}/comm").read_text().strip()
    assert known(device.now.processes) == (
        DeviceProcess(pid=me, kind="compute", memory_bytes=100 << 20, here=True, command=command),
        DeviceProcess(pid=ended.pid, kind="graphics", memory_bytes=None, here=False),
    )
    assert (device.uuid, device.index, device.lost_code, device.missing) == ("GPU-aaaa", 0, None, False)
    assert known(device.xid_counts) == {}
    assert device.implausible == ()


def test_what_is_not_there_is_absent_and_what_fails_is_unknown(host: Host) -> None:
    device = only(
        host.first(
            "fail nvmlDeviceGetTemperature = 4\nfail nvmlDeviceGetMaxPcieLinkWidth = 999\n"
            "[device]\npower_mw = na\nutil_enc = none\nmemory_used_mib = na\nprocess = 1 0 compute\n",
            missing=("nvmlDeviceGetPerformanceState", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
        )
    )
    assert device.now.power_watts == Absent("the driver gives no value (N/A)")
    assert device.now.memory_used_bytes == Absent("the driver gives no value (N/A)")
    assert device.now.encoder_percent == Absent("Not Supported")
    assert device.now.performance_state == Absent("Function Not Found")
    assert device.now.temperature_celsius == Unknown("NVML code 4: Insufficient Permissions")
    assert device.pcie_width_max == Unknown("NVML code 999: Unknown Error")
    assert device.ecc_uncorrected == Absent("Not Supported")
    assert [process.pid for process in known(device.now.processes)] == [1]
    assert device.lost_code is None
    assert device.implausible == ()


def test_the_old_name_of_the_clock_reasons_is_enough(host: Host) -> None:
    device = only(host.first("[device]\nevent_reasons = 0x8\n", missing=("nvmlDeviceGetCurrentClocksEventReasons",)))
    assert known(device.now.clocks_event_reasons) == 8


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("util_sm = 37100", "utilization_percent", "37100 % is no utilization"),
        ("util_dec = 101", "decoder_percent", "101 % is no decoder utilization"),
        ("power_mw = 700000", "power_watts", "700 W is no power draw of a device"),
        ("temperature = 201", "temperature_celsius", "201 °C is no temperature of a device"),
        (
            "memory_used_mib = 99999",
            "memory_used_bytes",
            "104856551424 bytes of memory are not in use on a device that has 12884901888",
        ),
        ("process = 0 5 compute", "processes", "0 is no process number (the highest is {pid_max})"),
        ("process = 4194999 5 compute", "processes", "4194999 is no process number (the highest is {pid_max})"),
    ],
)
def test_what_cannot_be_true_is_unknown_and_told(host: Host, line: str, field: str, words: str) -> None:
    words = words.format(pid_max=Path("/proc/sys/kernel/pid_max").read_text().strip())
    device = only(host.first(f"[device]\nmemory_reserved_mib = 0\n{line}\n"))
    assert getattr(device.now, field) == Unknown(words)
    assert device.implausible == (words,)
    host.scenario.write("[device]\n")
    assert only(host.next()).implausible == ()


def test_a_process_that_proc_does_not_show_is_not_here(host: Host) -> None:
    (host.folder / "host/proc").unlink()
    (host.folder / "host/proc/7").mkdir(parents=True)
    text = "[device]\nprocess = 7 100 compute\n"
    device = only(host.first(text))
    [process] = known(device.now.processes)
    assert (process.pid, process.here, process.command) == (7, True, "")
    host.scenario.write(f"{text}process = 8 100 compute\n")
    shown, hidden = known(only(host.next()).now.processes)
    assert (shown.here, hidden.pid, hidden.here) == (True, 8, False)


@pytest.mark.parametrize(
    ("general", "own", "fact"),
    [
        ("fail nvmlEventSetCreate = 3\n", "", Absent("Not Supported")),
        ("", "events = none\n", Absent("this device delivers no Xid events")),
        ("fail nvmlEventSetWait_v2 = 999\n", "", Unknown("NVML code 999: Unknown Error")),
    ],
)
def test_without_events_xids_are_not_zero(host: Host, general: str, own: str, fact: Fact[Any]) -> None:
    assert only(host.first(f"{general}[device]\n{own}")).xid_counts == fact
    host.scenario.write("[device]\n")
    host.scenario.event(13)
    xids = only(host.next()).xid_counts
    assert xids == (fact if isinstance(fact, Absent) else Known({13: 1}, 1001.0))


@pytest.mark.parametrize(
    ("own", "missing", "used_mib"),
    [
        ("", (), 1000),
        ("", ("nvmlDeviceGetMemoryInfo_v2",), 1450),  # a driver before 510 counts its reserve as used
        ("fail nvmlDeviceGetMemoryInfo_v2 = 25\n", (), 1450),
        ("fail nvmlDeviceGetMemoryInfo_v2 = 999\n", (), None),
    ],
)
def test_the_drivers_own_memory_is_not_in_use(host: Host, own: str, missing: tuple[str, ...], used_mib: int) -> None:
    device = only(host.first(f"[device]\nmemory_used_mib = 1000\nmemory_reserved_mib = 450\n{own}", missing=missing))
    if used_mib is None:
        assert isinstance(device.now.memory_used_bytes, Unknown)
        return
    assert known(device.now.memory_used_bytes) == used_mib << 20
    assert known(device.memory_total_bytes) == 12288 << 20


@pytest.mark.parametrize("code", [9, 12])
def test_a_library_of_windows_without_its_bridge_is_no_absent_driver(host: Host, code: int) -> None:
    lent = host.folder / "usr/lib/wsl/lib"
    lent.mkdir(parents=True)
    host.folder, base = lent, host.folder
    driver, _ = host.first(f"init = {code}\n[device]\n", wsl=True)
    host.folder = base
    assert (known(driver).code, known(driver).node) == (code, None)
    assert "/wsl/" in known(driver).library


def test_a_scrambled_process_list_is_not_believed(host: Host) -> None:
    text = f"scramble processes\n[device]\nprocess = {os.getpid()} 100 compute\nprocess = 1 50 compute\n"
    device = only(host.first(text))
    assert isinstance(device.now.processes, Unknown)
    assert len(device.implausible) == 1


def test_wsl_names_no_memory_of_processes_and_delivers_no_events(host: Host) -> None:
    device = only(host.first(f"[device]\nprocess = {os.getpid()} 100 compute\n", wsl=True))
    assert [process.memory_bytes for process in known(device.now.processes)] == [None]
    assert isinstance(device.xid_counts, Absent)


def test_the_last_samples_are_kept_and_forgotten_after_a_gap(host: Host) -> None:
    host.first("[device]\n", samples=3)
    for _ in range(3):
        host.next()
    device = only(host.next())
    assert [sample.at_s for sample in device.recent] == [1002.0, 1003.0, 1004.0]
    assert known(device.now.temperature_celsius) == 38
    watch = host.watch
    assert watch is not None
    host.clock.now_s += 1
    watch.ask()
    host.clock.now_s += 50
    watch.forget()
    assert all(isinstance(fact, Unknown) for fact in watch.see())
    assert not watch.wait(DEADLINE_S)  # that question was asked before the gap
    assert all(isinstance(fact, Unknown) for fact in watch.see())
    driver, devices = host.next(0.0)
    assert known(driver).answers
    assert [sample.at_s for sample in known(devices)[0].recent] == [1055.0]


# -- losses --------------------------------------------------------------------------------------------------------

TWO = "[device]\nuuid = GPU-one\nutil_sm = 5\n[device]\nuuid = GPU-two\n"


@pytest.mark.parametrize(("line", "code"), [("lost = 1", 15), ("lost = 999", 999), ("reset_required = 1", 16)])
def test_a_lost_device_says_so_keeps_what_it_is_and_comes_back(host: Host, line: str, code: int) -> None:
    host.first(TWO)
    host.scenario.replace("util_sm = 5", line)
    lost, other = known(host.next()[1])
    assert (lost.uuid, lost.lost_code, lost.missing) == ("GPU-one", code, False)
    assert known(lost.name) == "NVIDIA GeForce RTX 3060"
    assert isinstance(lost.now.temperature_celsius, Unknown)
    assert isinstance(lost.recovery_action, Unknown)
    assert other.lost_code is None
    assert known(other.now.temperature_celsius) == 38
    host.scenario.replace(line, "util_sm = 6")
    back = known(host.next()[1])[0]
    assert (back.uuid, back.lost_code) == ("GPU-one", None)
    assert known(back.now.utilization_percent) == 6
    assert len(back.recent) == 3


def test_a_device_that_is_not_enumerated_any_more_is_missing_with_its_last_sample(host: Host) -> None:
    host.first(TWO)
    host.scenario.write("[device]\nuuid = GPU-one\n")
    lost = known(host.next()[1])[1]
    assert (lost.uuid, lost.lost_code, lost.missing) == ("GPU-two", 15, False)
    driver, devices = host.next()
    one, two = known(devices)
    assert (one.uuid, one.missing) == ("GPU-one", False)
    assert (two.uuid, two.missing, two.recent) == ("GPU-two", True, lost.recent)
    assert known(driver).devices == 1


def test_a_device_that_never_told_its_uuid_is_listed_all_the_same(host: Host) -> None:
    host.first("[device]\nlost = 1\n")
    device = only(host.next())
    assert (device.uuid, device.lost_code) == ("no UUID, index 0", 15)
    assert device.nameless
    assert device.label == "device 0 (no UUID)"
    host.scenario.write("[device]\nuuid = GPU-one\n")
    assert only(host.next()).uuid == "GPU-one"


def test_a_device_of_another_container_is_not_listed(host: Host) -> None:
    device = only(host.first("[device]\nuuid = GPU-one\nfail nvmlDeviceGetHandleByIndex_v2 = 4\n[device]\n"))
    assert device.index == 1


@pytest.mark.parametrize(("line", "code"), [("init = 18", 18), ("fail nvmlDeviceGetCount_v2 = 999", 999)])
def test_a_driver_that_refuses_is_known_with_its_code(host: Host, line: str, code: int) -> None:
    driver, devices = host.first(f"{line}\n[device]\n")
    assert known(driver).code == code
    assert not known(driver).answers
    assert isinstance(devices, Unknown)
    assert f"code {code}" in devices.why
    host.scenario.write("[device]\n")
    deadline_s = time.monotonic() + DEADLINE_S
    while not known(host.next(after_s=0.0)[0]).answers and time.monotonic() < deadline_s:
        host.clock.now_s += 0.1
    driver, devices = host.next(after_s=2.0)
    assert known(driver).answers
    assert len(known(devices)) == 1


# -- silence and crashes ---------------------------------------------------------------------------------------------


def test_silence_is_told_from_the_first_second_on_and_ends_with_an_answer(host: Host) -> None:
    host.first("[device]\n")
    host.scenario.write("delay nvmlDeviceGetPowerUsage = 1000\n[device]\n")
    watch = host.watch
    assert watch is not None
    host.clock.now_s += 1.0
    watch.ask()
    host.clock.now_s += 0.9
    assert known(watch.see()[0]).silent_s == 0
    assert isinstance(watch.see()[1], Known)
    host.clock.now_s += 11.1
    driver, devices = watch.see()
    assert known(driver).silent_s == pytest.approx(12.0)
    assert known(driver).version == "560.35.03"
    assert devices == Unknown("NVML has not answered for 12 s")
    host.scenario.write("[device]\n")
    assert watch.wait(DEADLINE_S)
    driver, devices = watch.see()
    assert known(driver).answers
    assert isinstance(devices, Known)


def test_a_hang_blocks_nobody_and_has_one_child(host: Host) -> None:
    before = set(children())
    watch = host.begin("hang nvmlDeviceGetUtilizationRates\n[device]\n")
    assert not watch.wait(0.3)
    slowest_s = 0.0
    for _ in range(61):
        host.clock.now_s += 1
        started_s = time.monotonic()
        watch.ask()
        driver, devices = watch.see()
        slowest_s = max(slowest_s, time.monotonic() - started_s)
    assert slowest_s < 0.05
    assert known(driver).silent_s == pytest.approx(61.0)
    assert known(driver).version is None
    assert devices == Unknown("NVML has not answered for 61 s")
    assert set(children()) - before == {watch.pid}
    pid = watch.pid
    assert pid is not None
    watch.close()
    os.kill(pid, 9)  # by the test; the watch itself signals nothing
    wait_for_end(pid)


def test_the_alarm_ends_a_stuck_child_and_silence_goes_on_over_it(host: Host) -> None:
    watch = host.begin("hang nvmlDeviceGetUtilizationRates\n[device]\n", alarm_s=0.5)
    first = watch.pid
    host.clock.now_s += 30
    assert not watch.wait(DEADLINE_S)
    driver, _ = watch.see()
    assert known(driver).crashes == 0, "it hung: nothing has crashed"
    assert known(driver).silent_s == pytest.approx(30.0)
    watch.ask()
    assert watch.pid is None  # not at once
    host.clock.now_s += 1.1
    watch.ask()
    assert watch.pid not in (None, first)
    host.clock.now_s += 30
    assert known(watch.see()[0]).silent_s == pytest.approx(61.1)
    host.scenario.write("[device]\n")
    watch.wait(DEADLINE_S)  # the second had read the old text
    driver, _ = host.next(after_s=3.0)
    assert known(driver).answers


def test_after_a_gap_no_crash_from_before_it_counts_and_it_is_asked_at_once(host: Host) -> None:
    watch = host.begin("crash nvmlDeviceGetPowerUsage\n[device]\n")
    watch.wait(DEADLINE_S)
    host.next(after_s=60.0)
    assert known(watch.see()[0]).crashes == 2
    watch.forget()
    assert [type(fact) for fact in watch.see()] == [Unknown, Unknown]
    host.scenario.write("[device]\n")
    assert known(host.next(after_s=0.1)[0]).answers


def test_after_a_gap_a_host_without_a_driver_is_asked_at_once(host: Host) -> None:
    """Else it would be unknown for up to a minute."""
    assert isinstance(host.first("init = 9\n")[0], Absent)
    assert host.watch is not None
    host.watch.forget()
    assert isinstance(host.watch.see()[0], Unknown)
    assert isinstance(host.next(after_s=1.0)[0], Absent)


def test_a_child_that_ends_with_a_code_is_no_crash_whatever_was_before(
    host: Host, scripted: Callable[[str], None]
) -> None:
    host.begin("crash nvmlDeviceGetPowerUsage\n[device]\n").wait(DEADLINE_S)
    scripted("import sys\nsys.stdin.readline()\nsys.exit(3)\n")
    driver, _ = host.next(after_s=60.0)
    assert isinstance(driver, Unknown)
    assert "ended with code 3" in driver.why


def test_a_crash_is_counted_and_the_child_started_again_ever_later(host: Host) -> None:
    host.first("[device]\n")
    host.scenario.write("crash nvmlDeviceGetPowerUsage\n[device]\n")
    driver, devices = host.next()
    assert (known(driver).crashes, known(driver).crash) == (1, "died of signal 11 (SIGSEGV)")
    assert not known(driver).answers
    assert isinstance(devices, Unknown)
    assert "SIGSEGV" in devices.why
    waits_s = []
    for _ in range(8):
        started_s = host.clock.now_s
        while host.watch.pid is None:  # type: ignore[union-attr]
            host.clock.now_s += 0.5
            host.watch.ask()  # type: ignore[union-attr]
        waits_s.append(host.clock.now_s - started_s)
        host.watch.wait(DEADLINE_S)  # type: ignore[union-attr]
    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60]
    assert known(host.watch.see()[0]).crashes == 9  # type: ignore[union-attr]
    host.scenario.write("[device]\n")
    driver, devices = host.next(after_s=60.0)
    assert known(driver).answers
    assert len(only((driver, devices)).recent) == 2


def faults(device: Device) -> list[tuple[int, float, int]]:
    return [(fault.number, fault.at_s, fault.events) for fault in device.xid_faults]


def test_xids_have_the_time_of_the_sample_that_brought_them(host: Host) -> None:
    host.first(TWO)
    for _ in range(3):
        host.scenario.event(31, 1)
    one, two = known(host.next()[1])
    assert (faults(one), faults(two)) == ([], [(31, 1001.0, 3)])
    assert faults(known(host.next()[1])[1]) == [(31, 1001.0, 3)], "told once by the child, and no new one"
    host.scenario.event(31, 1)
    assert faults(known(host.next()[1])[1]) == [(31, 1003.0, 4)], "within seconds: the same fault"
    host.scenario.event(31, 1)
    assert faults(known(host.next(after_s=60.0)[1])[1]) == [(31, 1003.0, 4), (31, 1063.0, 1)]


def test_xids_of_a_sample_that_is_refused_come_with_the_next(host: Host) -> None:
    """The event is delivered once; the driver goes away in the middle of that sample."""
    host.first("[device]\n")
    host.scenario.write("fail nvmlDeviceGetUtilizationRates = 9\n[device]\n")
    host.scenario.event(79, 0)
    host.next()
    host.scenario.write("[device]\n")
    device = only(host.next(after_s=61.0))
    assert (known(device.xid_counts), [number for number, _, _ in faults(device)]) == ({79: 1}, [79])


def test_an_xid_is_counted_once_and_over_the_lives_of_children(host: Host) -> None:
    host.first(TWO)
    host.scenario.event(79, 1)
    host.scenario.event(31, 1)
    host.scenario.event(31, 1)
    one, two = known(host.next()[1])
    assert (known(one.xid_counts), known(two.xid_counts)) == ({}, {79: 1, 31: 2})
    assert known(known(host.next()[1])[1].xid_counts) == {79: 1, 31: 2}
    first = host.watch.pid  # type: ignore[union-attr]
    host.scenario.write("crash nvmlDeviceGetPowerUsage\n" + TWO)
    host.next()
    host.scenario.write(TWO)
    host.next(after_s=2.0)
    assert host.watch.pid != first  # type: ignore[union-attr]
    host.scenario.event(31, 1)
    assert known(known(host.next()[1])[1].xid_counts) == {79: 1, 31: 3}


@pytest.mark.parametrize(
    "line",
    [
        "noise",
        "[]",
        "{}",
        "3",
        "[" * 100_000,
        '{"code": "x", "text": ""}',
        '{"devices": [["GPU-1", 0, null, [], [], [], null]]}',
        '{"devices": [["GPU-1", 0, null, [1, NaN], [], [], null]]}',
        json.dumps({"devices": [["GPU-1", 0, None, ["many", *[{"a": ""}] * 13], [], [], None]]}),
        json.dumps({"devices": [["GPU-1", 0, None, [{"z": ""}] * 14, [], [], None]]}),
        json.dumps({"devices": [["GPU-1", 0, None, [{"a": ""}] * 13 + [[[1, "compute", None, 1, ""]]], [], [], None]]}),
    ],
)
def test_a_lying_child_is_unknown(host: Host, scripted: Callable[[str], None], line: str) -> None:
    scripted(f"import sys\nfor _ in sys.stdin:\n    print({line!r}, flush=True)\n")
    driver, devices = host.first("[device]\n")
    assert isinstance(driver, Unknown)
    assert driver == devices
    assert "which is no answer" in driver.why
    assert len(driver.why) < 300


def test_a_child_that_never_ends_its_line_is_let_go(host: Host, scripted: Callable[[str], None]) -> None:
    scripted("import sys\nsys.stdout.write('x' * 10_000_000)\nsys.stdout.flush()\nsys.stdin.read()\n")
    watch = host.begin("[device]\n")
    assert not watch.wait(DEADLINE_S)
    driver, _ = watch.see()
    assert known(driver).crashes == 1
    assert "without an end of line" in known(driver).crash
    assert watch.pid is None


@pytest.mark.parametrize("processes", [1, 128])  # 4 and 70 KB; a pipe holds 64
def test_sixteen_devices_fit_through_the_pipe_whatever_their_size(host: Host, processes: int) -> None:
    lines = "".join(f"process = {1000 + number} 1 compute\n" for number in range(processes))
    text = "".join(f"[device]\nuuid = GPU-{index}\n{lines}" for index in range(16))
    _, devices = host.first(text)
    assert [device.index for device in known(devices)] == list(range(16))
    assert {len(known(device.now.processes)) for device in known(devices)} == {processes}


# -- beginning and end ---------------------------------------------------------------------------------------------


def test_samples_are_a_second_apart_however_often_it_is_asked(host: Host) -> None:
    host.first("[device]\n")
    device = None
    for _ in range(11):
        device = only(host.next(0.25))
    assert device is not None
    assert [sample.at_s for sample in device.recent] == [1000.0, 1001.0, 1002.0]


def test_a_child_that_ends_with_a_code_is_no_crash_of_the_driver(host: Host, scripted: Callable[[str], None]) -> None:
    scripted("import sys\nsys.stdin.readline()\nsys.exit(2)\n")
    watch = host.begin("[device]\n")
    watch.wait(DEADLINE_S)
    driver, devices = watch.see()
    assert isinstance(driver, Unknown)
    assert driver.why.startswith("the child that asks NVML ended with code 2")
    assert devices == driver


def test_the_child_says_in_its_name_what_it_is(host: Host) -> None:
    host.first("[device]\n")
    assert host.watch is not None
    assert Path(f"/proc/{host.watch.pid}/comm").read_text() == "watchdog-nvml\n"


def test_never_more_than_one_question(host: Host, scripted: Callable[[str], None], tmp_path: Path) -> None:
    scripted(
        "import sys\n"
        f"for line in sys.stdin:\n    open({str(tmp_path / 'asked')!r}, 'a').write(line)\n"
        "    if line == 'sample 1\\n': pass\n"
    )
    watch = host.begin("[device]\n")
    for _ in range(5):
        watch.ask()
    assert not watch.wait(0.5)
    assert (tmp_path / "asked").read_text() == "sample 1\n"


def test_close_lets_the_child_go_and_leaves_no_zombie(host: Host) -> None:
    host.first("[device]\n")
    watch = host.watch
    assert watch is not None
    pid = watch.pid
    assert pid is not None
    started_s = time.monotonic()
    watch.close()
    assert time.monotonic() - started_s < 0.05
    wait_for_end(pid)
    watch.ask()
    assert watch.pid is None


def test_the_child_is_out_of_reach_of_our_terminal_and_inherits_nothing(host: Host, tmp_path: Path) -> None:
    loaded = "pynvml" in sys.modules  # by another test of this worker
    with open(tmp_path / "scratch", "w") as file:
        os.set_inheritable(file.fileno(), True)
        host.first("[device]\n")
        pid = host.watch.pid  # type: ignore[union-attr]
        assert pid is not None
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) == os.getsid(0), "by its session it is told from an orphan of a run"
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert str(tmp_path / "scratch") not in held
    assert ("pynvml" in sys.modules) is loaded  # never in this process


def test_the_end_of_the_parent_ends_the_child(host: Host, repository: Path) -> None:
    host.first("[device]\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from watchdog.clock import SystemClock\n"
        "from watchdog.collectors.devices import DeviceWatch\n"
        "from watchdog.collectors.roots import Roots\n"
        "watch = DeviceWatch(Roots(), SystemClock())\n"
        "watch.ask(); assert watch.wait(20)\n"
        "print(watch.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment(Path(host.library), host.scenario.path),
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    parent.kill()
    parent.communicate()
    deadline_s = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline_s, "the child outlives its parent"
        time.sleep(0.01)


# -- several samples in one conversation -------------------------------------------------------------------------
def test_a_batch_comes_in_order_with_the_moments_of_its_samples(host: Host) -> None:
    host.first("[device]\nutil_sm = 11\n")
    watch, begin_s = host.watch, host.clock.now_s + 1.0
    assert watch is not None
    host.clock.now_s = begin_s
    watch.ask(3)
    assert watch.wait(DEADLINE_S)
    device = known(watch.see()[1])[0]
    assert [sample.at_s for sample in device.recent[-3:]] == pytest.approx([begin_s, begin_s + 1, begin_s + 2], abs=0.3)
    assert len(device.recent) == 4
    assert all(sample.utilization_percent == Known(11, sample.at_s) for sample in device.recent)


def test_what_is_not_asked_again_stands_with_the_time_at_which_it_was_read(host: Host) -> None:
    host.first("[device]\ntemperature = 40\n")
    watch, begin_s = host.watch, host.clock.now_s + 1.0
    assert watch is not None
    host.clock.now_s = begin_s
    watch.ask(2)
    assert watch.wait(DEADLINE_S)
    first, second = known(watch.see()[1])[0].recent[-2:]
    assert second.at_s > first.at_s
    assert isinstance(second.power_watts, Known)
    assert second.power_watts.at_s == second.at_s
    assert second.processes == first.processes == Known((), begin_s)
    assert second.temperature_celsius == first.temperature_celsius == Known(40, begin_s)


def test_after_a_gap_the_first_of_several_samples_is_complete(host: Host) -> None:
    """Nothing stands any more that a glance could leave as it was."""
    host.first("[device]\n")
    watch = host.watch
    assert watch is not None
    host.clock.now_s += 3600.0
    watch.forget()
    host.next()
    host.clock.now_s += 1.0
    watch.ask(2)
    assert watch.wait(DEADLINE_S)
    device = known(watch.see()[1])[0]
    assert isinstance(device.now.temperature_celsius, Known)
    assert isinstance(device.now.processes, Known)


def test_the_node_of_a_driver_that_was_away_is_looked_for_again(host: Host) -> None:
    host.first("[device]\n")
    host.scenario.write("init = 9\nfail nvmlDeviceGetPowerUsage = 9\n[device]\n")
    assert isinstance(host.next()[0], Absent)
    host.scenario.write("[device]\n")
    host.node()
    host.clock.now_s += 120.0
    host.next()
    driver = host.watch.see()[0]  # type: ignore[union-attr]
    assert isinstance(driver, Known)
    assert driver.value.node == "/dev/nvidiactl"


def test_a_batch_that_is_not_due_is_no_silence_and_one_that_is_late_counts_from_when_it_was_due(host: Host) -> None:
    host.first("[device]\n", alarm_s=5.0)
    watch = host.watch
    assert watch is not None
    host.scenario.write("hang nvmlDeviceGetPowerUsage\n[device]\n")
    host.clock.now_s += 1.0
    asked_s = host.clock.now_s
    watch.ask(5)
    for after_s, silent in ((2.0, 0.0), (5.0, 0.0), (16.5, 12.0), (75.0, 70.5)):
        host.clock.now_s = asked_s + after_s
        watch.ask(5)
        driver = watch.see()[0]
        assert isinstance(driver, Known)
        assert driver.value.silent_s == pytest.approx(silent)


def test_who_asks_for_one_sample_does_not_wait_for_the_rest_of_a_batch(host: Host) -> None:
    host.first("[device]\n")
    watch = host.watch
    assert watch is not None
    host.clock.now_s += 1.0
    watch.ask(9)
    began_s = time.monotonic()
    watch.ask(1)
    assert watch.wait(DEADLINE_S)
    assert time.monotonic() - began_s < 3.0
    assert len(known(watch.see()[1])[0].recent) >= 2


def test_samples_of_a_batch_from_before_a_gap_do_not_count(host: Host) -> None:
    host.first("[device]\n")
    watch = host.watch
    assert watch is not None
    host.clock.now_s += 1.0
    watch.ask(2)
    host.clock.now_s += 3600.0
    watch.forget()
    assert not watch.wait(DEADLINE_S)
    assert isinstance(watch.see()[1], Unknown)
    assert len(known(host.next()[1])[0].recent) == 1
