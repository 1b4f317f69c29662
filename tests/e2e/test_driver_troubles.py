"""A supervisor whose driver hangs, crashes or lies: the loop goes on, nothing is stopped for it, nothing is left over.

The driver is the stand-in at the C ABI, found through LD_LIBRARY_PATH; the child that asks it is the real one. No
device node is needed, and none is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import Living, wait_for
from bench.campaign_observer import is_living
from tests.fakes.nvml.standin import Scenario, build, environment
from tests.host.askers import askers, end_askers
from tests.host.bed import SLEEPER, HostBed, counter, make_bed, script, strict_json
from tests.host.test_not_ours import killed
from watchdog.collectors.nvml_library import find_library, nothing_here
from watchdog.collectors.roots import Roots
from watchdog.control import request

PERIOD_S = 0.2
LOOP = {"period": "200ms"}
HEALTHY = "[device]\n"
HANGING = "hang nvmlDeviceGetUtilizationRates\n[device]\n"
COUNT = ("--steps", "1000000", "--save-every", "1000000")  # no disk in what is measured
UUID = "GPU-00000000-0000-4000-8000-000000000000"
View = dict[str, Any]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scenario]:
    """What the driver of every supervisor of this test is like. Whoever asked it is gone afterwards."""
    scenario = Scenario(tmp_path / "scenario", HEALTHY)
    for name, value in environment(build(tmp_path), scenario.path).items():
        monkeypatch.setenv(name, value)
    yield scenario
    end_askers(scenario)


def asker(scenario: Scenario, *, other_than: int = 0) -> int:
    """The one there is, which a moment after a crash may be none."""
    return wait_for(lambda: [pid for pid in askers(scenario) if pid != other_than], "a child that asks")[0]


def view_of(bed: HostBed) -> View:
    """What the supervisor published last, without the start of another process."""
    view: View = request(bed.state / "control.sock", {"command": "status"}, 5.0)["status"]
    return view


def wait_view(bed: HostBed, holds: Callable[[View], object], what: str) -> View:
    def look() -> View | None:
        with contextlib.suppress(OSError):
            if (bed.state / "control.sock").exists() and holds(view := view_of(bed)):
                return view
        return None

    try:
        return wait_for(look, what, timeout_s=20, every_s=0.02)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{bed.tell()}") from None


def tells(*checks: str) -> Callable[[View], object]:
    """All these checks stand in the view."""
    return lambda view: set(checks) <= {finding["check"] for finding in view["findings"]}


def answers(view: View) -> bool:
    return bool(view["devices"]) and view["driver_silent_s"] == 0


# --- the loop ---------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Turns:
    """`gap_s`: the longest time between two turns. `machine_s`: the longest that a sleep of our own came late."""

    gap_s: float = 0.0
    machine_s: float = 0.0
    answer_s: float = 0.0
    turns: int = 0

    @property
    def late_s(self) -> float:
        return self.gap_s - PERIOD_S


def watch_turns(bed: HostBed, least_s: float, holds: Callable[[View], object]) -> Turns:
    """The loop's turns, by the time that each published view carries; until `holds`, and `least_s` at least."""
    seen, started_s = Turns(), time.monotonic()
    published_s: float | None = None
    held = False
    while not held or time.monotonic() - started_s < least_s:
        # In calm times the driver is spoken to every twenty seconds.
        assert time.monotonic() - started_s < 45, f"never seen\n{bed.tell()}"
        asked_s = time.monotonic()
        view = view_of(bed)
        slept_s = time.monotonic()
        seen.answer_s = max(seen.answer_s, slept_s - asked_s)
        held = held or bool(holds(view))
        if published_s is None or view["now_wall_s"] != published_s:
            if published_s is not None:
                seen.gap_s = max(seen.gap_s, view["now_wall_s"] - published_s)
                seen.turns += 1
            published_s = view["now_wall_s"]
        time.sleep(0.02)
        seen.machine_s = max(seen.machine_s, time.monotonic() - slept_s - 0.02)
    return seen


# What the driver does, and the check that says so.
TROUBLES = {
    "lies": (
        "[device]\npower_mw = 4000000000\nutil_sm = 4000000\ntemperature = 4000\nmemory_used_mib = 99000000\n",
        "device-readings",
    ),
    "takes 2.5 s": ("delay nvmlDeviceGetUtilizationRates = 2500\n[device]\n", "driver-hung"),
    "lost its device": ("[device]\nlost = 1\n", "gpu-lost"),
    "answers 999": ("init = 999\n[device]\n", "driver"),
    "hangs": (HANGING, "driver-hung"),
    "crashes": ("crash nvmlDeviceGetUtilizationRates\n[device]\n", "driver-crash"),
}


@pytest.mark.timeout(120)
def test_whatever_the_driver_does_no_turn_is_late_by_more_than_a_period(tmp_path: Path, driver: Scenario) -> None:
    """Beside a run that steps on. What is late on an idle driver is the machine's doing, and is allowed for."""
    limits = {"driver_hung": "1500ms", "driver_crashes": 2}
    with counter(tmp_path / "bed", *COUNT, loop=LOOP, limits=limits) as bed:
        bed.start()
        run = bed.run_at_step(1)
        wait_view(bed, answers, "the device")
        healthy = watch_turns(bed, 2.5, answers)
        told = [("healthy", healthy)]
        for name, (scenario, check) in TROUBLES.items():
            before = step_of(run)
            driver.write(scenario)
            if name == "answers 999":  # to who begins to ask
                os.kill(asker(driver), signal.SIGKILL)
            told.append((name, watch_turns(bed, 2.0, tells(check))))
            assert step_of(run) > before, f"{name}: the run stands still"
            assert len(askers(driver)) <= 1, f"{name}: a second child beside one that is stuck"
            driver.write(HEALTHY)
            if name == "hangs":
                assert check_hung_child(asker(driver))  # what its alarm would do, 85 s later
            told.append((f"{name}, healed", watch_turns(bed, 0.0, answers)))
        report = "\n".join(
            f"{name:<24} longest {seen.gap_s * 1e3:4.0f} ms of {PERIOD_S * 1e3:.0f} in {seen.turns:3d} turns; "
            f"status {seen.answer_s * 1e3:3.0f} ms; machine {seen.machine_s * 1e3:3.0f} ms late"
            for name, seen in told
        )
        print("\n" + report)
        for name, seen in told[1:]:
            noise_s = max(healthy.late_s, seen.machine_s, 0.0)
            assert seen.late_s <= PERIOD_S + noise_s, f"{name}\n{report}"
            assert seen.answer_s <= PERIOD_S + noise_s, f"{name}: status\n{report}"
        assert bed.living() == run, "the same run"
        assert not bed.kinds("run_ended", "run_stopping", "run_killing", "gap", "hold"), bed.tell()
        begun = [(event["data"]["check"], event["data"]["severity"]) for event in bed.kinds("finding")]
        assert len(set(begun)) == len(begun), f"an episode is told once, and again only when it is louder: {begun}"
        assert {check for _, check in TROUBLES.values()} <= {check for check, _ in begun}
        assert not bed.kinds("orphans_unproven"), "the child that asks is not there before it is decided who is ours"


def step_of(run: Living) -> int:
    beat = run.beat()
    assert beat is not None
    assert beat.step is not None
    return beat.step


def check_hung_child(pid: int) -> bool:
    """Its alarm would end it: nothing blocks, ignores or catches SIGALRM. Sends it one; True when that ended it."""
    status = Path(f"/proc/{pid}/status").read_text()
    for mask in ("SigBlk", "SigIgn", "SigCgt"):
        found = re.search(rf"{mask}:\s*([0-9a-f]+)", status)
        assert found is not None
        assert not int(found[1], 16) & (1 << (signal.SIGALRM - 1)), mask
    os.kill(pid, signal.SIGALRM)
    return bool(wait_for(lambda: is_living(pid, None) is None, "the end of the hung child", timeout_s=5))


# --- who asks is not of the run ---------------------------------------------------------------------------------
def test_a_child_that_is_younger_than_the_run_is_no_orphan_of_it(tmp_path: Path, driver: Scenario) -> None:
    """The shim is killed: what of the run is given to us is ended, and the sampling child, ours too, is spared."""
    with counter(tmp_path / "bed", *COUNT) as bed:
        supervisor = bed.start()
        run = bed.run_at_step(1)
        first = asker(driver)
        driver.write("crash nvmlDeviceGetUtilizationRates\n[device]\n")
        wait_for(lambda: first not in askers(driver), "the end of the first child")
        driver.write(HANGING)
        second = asker(driver, other_than=first)
        wait_view(bed, lambda view: (view["driver_silent_s"] or 0) > 1, "silence")
        bed.harm(run.shim)
        wait_for(lambda: run.trainer in killed(bed) or bed.kinds("hold"), "the end of the trainer")
        bed.wait_event("run_ended")
        assert second not in killed(bed), bed.tell()
        assert askers(driver) == [second]
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()


# --- the gate ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("devices", "trouble", "words", "healed"),
    [
        (["0"], "init = 18\n[device]\n", "reload the nvidia modules", HEALTHY),
        (["GPU-7777"], HEALTHY, "GPU-7777 (name devices that are there", None),  # devices are listed once a minute
        (["0"], "[device]\nlost = 1\n", "lost", HEALTHY),
    ],
    ids=["mismatch", "another device", "lost"],
)
def test_nothing_is_launched_on_a_device_that_cannot_carry_it(
    devices: Any, trouble: str, words: str, healed: str | None, tmp_path: Path, driver: Scenario
) -> None:
    driver.write(trouble)
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job={"devices": devices}) as bed:
        bed.start()
        view = wait_view(bed, lambda view: any(not gate["open"] for gate in view["gates"]), "a closed gate")
        assert words in view["waiting_for"], view
        assert "[job] devices = []" in view["waiting_for"]
        assert view["state"] == "gating"
        wait_view(bed, lambda later: later["now_wall_s"] - view["now_wall_s"] > 1.0, "a second of waiting")
        assert not bed.kinds("run_launching"), bed.tell()
        assert words in bed.call("status").stdout
        if healed is None:
            return
        driver.write(healed)
        bed.run_where(lambda _run, _beat: True, "a run, once it is in order", timeout_s=20)
        assert wait_view(bed, lambda later: later["state"] == "running", "running")["waiting_for"] is None


@pytest.mark.parametrize("devices", [[], "all"], ids=["uses none", "names none"])
def test_a_job_that_names_no_device_waits_for_none(devices: Any, tmp_path: Path, driver: Scenario) -> None:
    driver.write(f"hang nvmlInitWithFlags\n{HEALTHY}")
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job={"devices": devices}) as bed:
        started_s = time.monotonic()
        bed.start()
        bed.run_where(lambda _run, _beat: True, "a run")
        # The first answer of the driver is waited for, a second at most.
        assert time.monotonic() - started_s < 4
        assert wait_view(bed, lambda view: view["state"] == "running", "running")["waiting_for"] is None


# --- a driver that hangs from the start -------------------------------------------------------------------------
@pytest.mark.timeout(90)
def test_a_driver_that_hangs_from_the_start(tmp_path: Path, driver: Scenario) -> None:
    """The supervisor comes up, says so, waits, answers and leaves; the stuck child stays until its alarm.

    Nobody signals that child, and it cannot see that its supervisor left. It holds nothing of the job: another
    supervisor takes it at once.
    """
    driver.write(f"hang nvmlInitWithFlags\n{HEALTHY}")
    with make_bed(tmp_path / "bed", SLEEPER, level=0, loop=LOOP, job={"devices": ["0"]}) as bed:
        supervisor = bed.start()
        view = wait_view(bed, lambda view: any(not gate["open"] for gate in view["gates"]), "a closed gate")
        assert "the NVIDIA driver does not answer: no answer for" in view["waiting_for"]
        seen = watch_turns(bed, 1.5, lambda view: view["driver_silent_s"] > 2)
        assert seen.answer_s < 0.5
        assert not bed.kinds("run_launching"), bed.tell()
        assert "GiB free · NVIDIA driver: it does not answer" in bed.screen
        assert bed.screen.count("the NVIDIA driver does not answer") == 1, bed.tell()
        stuck = asker(driver)
        asked_s = time.monotonic()
        request(bed.state / "control.sock", {"command": "stop"}, 5.0)
        assert bed.ended(supervisor) == 5, bed.tell()
        assert time.monotonic() - asked_s < 2
        assert askers(driver) == [stuck], "if it is gone, this test no longer proves what it says"
        descriptors = [os.readlink(f"/proc/{stuck}/fd/{name}") for name in os.listdir(f"/proc/{stuck}/fd")]
        assert not [path for path in descriptors if path.startswith(str(tmp_path)) and "libnvidia" not in path]

        driver.write(HEALTHY)
        again = bed.start()
        bed.run_where(lambda _run, _beat: True, "a run under another supervisor")
        assert check_hung_child(stuck)
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(again) == 5
        assert wait_for(lambda: not askers(driver), "the end of the child that was not stuck", timeout_s=5)


def test_a_killed_supervisor_leaves_no_child_behind(tmp_path: Path, driver: Scenario) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0) as bed:
        supervisor = bed.start()
        wait_view(bed, answers, "the device")
        assert len(askers(driver)) == 1
        bed.kill_supervisor(supervisor)
        wait_for(lambda: not askers(driver), "the end of the child", timeout_s=5)


# --- what is shown ----------------------------------------------------------------------------------------------
def test_findings_are_shown_and_scraped_while_the_driver_hangs(tmp_path: Path, driver: Scenario) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    driver.write("[device]\npower_mw = 61500\n")
    settings = {"metrics": {"port": port}, "limits": {"driver_hung": "1500ms"}}
    with make_bed(tmp_path / "bed", SLEEPER, level=0, **settings) as bed:
        bed.start()
        url = wait_view(bed, answers, "the device")["metrics_url"]

        def page() -> tuple[str, float]:
            asked_s = time.monotonic()
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode(), time.monotonic() - asked_s

        text, _ = page()
        labels = f'{{name="NVIDIA GeForce RTX 3060",uuid="{UUID}"}}'
        assert f"watchdog_gpu_power_watts{labels} 61.5" in text
        assert "watchdog_driver_silent_seconds 0.0" in text
        driver.write(HANGING)
        wait_view(bed, tells("driver-hung"), "the finding")
        scrapes = [page() for _ in range(10)]
        assert max(took_s for _, took_s in scrapes) < 0.5
        text = scrapes[-1][0]
        assert 'watchdog_finding{check="driver-hung",severity="critical",subject="driver"} 1.0' in text
        assert "watchdog_gpu_power_watts" not in text, "an old reading is no reading"
        silent = re.search(r"^watchdog_driver_silent_seconds (\S+)$", text, re.M)
        assert silent is not None
        assert float(silent[1]) > 1.5
        shown = bed.call("status").stdout
        assert re.search(r"CRITICAL +driver · driver-hung · NVML has not answered for \d", shown), shown
        assert "next: reboot the host" in shown
        assert "waits for" not in shown, "the run goes on"


# --- progress in a log ------------------------------------------------------------------------------------------
PRINTER = """
import os, sys, time
first = not os.path.exists(sys.argv[1])
open(sys.argv[1], "w").close()
step = 0
print("number of parameters: 10.65M", flush=True)
while True:
    step += 1
    if first:
        print(f"iter {step}: loss {4 - step / 1000:.4f}, time 20.11ms, mfu 1.23%", flush=True)
    time.sleep(0.02)
"""


def test_the_steps_that_a_trainer_prints_are_shown(tmp_path: Path) -> None:
    """Level 0. The next run prints nothing, and is not given what was last read of the one before."""
    command = [*script(tmp_path, PRINTER), str(tmp_path / "flag")]
    slowly = {"period": "3s"}  # the log is read every 2 s: here is a run whose end finds a reader at work
    with make_bed(tmp_path / "bed", command, level=0, loop=slowly) as bed:
        bed.start()
        view = wait_view(bed, lambda view: view["run"] and (view["run"]["step"] or 0) > 20, "steps")
        assert view["run"]["loss"] == pytest.approx(4 - view["run"]["step"] / 1000, abs=1e-4)
        assert re.search(r"run 1 .* step \d+", bed.call("status").stdout)

        answer = bed.call("diagnose", "--json", "--no-probe", "--check", "steps-frozen", "--check", "loss-frozen")
        found = strict_json(answer.stdout)
        assert answer.returncode == found["exit_code"]
        assert answer.returncode in (0, 3), found["findings"]
        assert found["facts"]["progress"]["value"]["source"] == "log (nanogpt)", "the supervisor's memory"

        run = bed.living()
        assert run is not None
        wait_for(lambda: time.time() - view_of(bed)["now_wall_s"] > 2.2, "a turn long ago", every_s=0.02)
        bed.harm(run.trainer)
        bed.run_where(lambda _run, _beat: True, "the next run", after=1)
        wait_view(bed, lambda view: view["run"] and view["run"]["number"] == 2, "the next run in the view")
        later = view_of(bed)
        while (now := view_of(bed))["now_wall_s"] - later["now_wall_s"] < 2.5:
            assert now["run"]["step"] is None, "that is the run before"
            time.sleep(0.02)


def test_progress_off_reads_no_log(tmp_path: Path) -> None:
    command = [*script(tmp_path, PRINTER), str(tmp_path / "flag")]
    with make_bed(tmp_path / "bed", command, level=0, loop=LOOP, job={"progress": "off"}) as bed:
        bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        log = run.folder / "output.log"
        wait_for(lambda: log.read_bytes().count(b"\niter ") > 150, "three seconds of lines")
        view = view_of(bed)
        assert (view["run"]["step"], view["run"]["loss"]) == (None, None)
        answer = bed.call("diagnose", "--json", "--no-probe", "--check", "steps-frozen")
        assert strict_json(answer.stdout)["facts"]["progress"]["state"] == "absent"


# --- a diagnosis beside a supervisor ----------------------------------------------------------------------------
@pytest.mark.skipif(
    nothing_here(Roots(), find_library(Roots(), os.environ)) is None, reason="this host has a driver of its own"
)
def test_a_diagnosis_beside_a_run_without_any_driver(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", *COUNT) as bed:
        bed.start()
        run = bed.run_at_step(20)
        wait_view(bed, lambda view: view["run"] and (view["run"]["step"] or 0) >= 20, "steps")
        answer = bed.call("diagnose", "--json", "--no-probe", "--check", "driver", "--check", "steps-frozen")
        found = strict_json(answer.stdout)
        assert found["facts"]["progress"]["value"]["source"] == "beats"
        assert found["facts"]["progress"]["value"]["run_id"] == run.run_id
        assert [finding["severity"] for finding in found["findings"]] == ["ok", "ok"], found["findings"]
        assert any("no NVIDIA driver" in finding["reason"] for finding in found["findings"])
        assert answer.returncode == 0
