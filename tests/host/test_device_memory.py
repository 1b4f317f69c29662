"""Device memory between two runs: given back late, not at all, or held by others; and a device that is measured.

The driver is the stand-in at the C ABI, the supervisor, its child and the trainer are real. Who holds memory that is
not the job's is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from bench.campaign_observer import is_living
from tests.fakes.nvml.standin import Scenario, build, environment
from tests.host.askers import end_askers
from tests.host.bed import BARE, SLEEPER, HostBed, make_bed, script
from watchdog import contract
from watchdog.control import request

JOB = {"devices": ["0"]}
USED = "nvmlDeviceGetMemoryInfo"
IDLE = "[device]\n"  # 400 of 12288 MiB in use
UUID = "GPU-00000000-0000-4000-8000-000000000000"


def full(*holders: str, used_mib: int = 9400) -> str:
    """A device with 9 GiB more in use; `holders` as the driver lists them."""
    listed = "".join(f"process = {holder}\n" for holder in holders)
    return f"[device]\nmemory_used_mib = {used_mib}\n{listed}"


class Driver(Scenario):
    """With a log of what was asked, so that a test knows when a text was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "scenario", IDLE)
        self.log = folder / "asked"

    def shown(self, text: str) -> None:
        """Written, and read by a sample since."""
        self.write(text)
        before = self._asked()
        # The sample under way may have begun with the old text: the second one has not.
        wait_for(lambda: self._asked() >= before + 4, "two samples", timeout_s=10)

    def _asked(self) -> int:
        return self.log.read_text().count(USED) if self.log.exists() else 0


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver(tmp_path)
    for name, value in environment(build(tmp_path), made.path, made.log).items():
        monkeypatch.setenv(name, value)
    yield made
    end_askers(made)


def waiting_for(bed: HostBed, *words: str) -> str:
    """What the job waits for, once all of these words are in it."""

    def look() -> str | None:
        with contextlib.suppress(OSError):
            if (bed.state / "control.sock").exists():
                view = request(bed.state / "control.sock", {"command": "status"}, 5.0)["status"]
                said = view["waiting_for"] or ""
                return said if all(each in said for each in words) else None
        return None

    try:
        return wait_for(look, f"waiting for {words}", timeout_s=20, every_s=0.02)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{bed.tell()}") from None


def launches(bed: HostBed) -> int:
    return len(bed.kinds("run_launching"))


@contextlib.contextmanager
def bystander() -> Iterator[int]:
    """A process of somebody else, alive at the end."""
    process = subprocess.Popen([*BARE, "-c", "import time\nwhile True: time.sleep(0.2)"], start_new_session=True)
    try:
        yield process.pid
        assert process.poll() is None, "it was not ours, and was ended"
    finally:
        process.kill()
        process.wait()


# --- memory -------------------------------------------------------------------------------------------------------
def test_memory_that_comes_back_late_is_waited_for(tmp_path: Path, driver: Driver) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job=JOB) as bed:
        bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        driver.shown(full(f"{run.trainer} 9000 compute python"))
        driver.write(full())  # the process goes at once, its memory does not
        bed.harm(run.trainer)
        said = waiting_for(bed, "given back so far, 80 % are waited for")
        assert "NVIDIA GeForce RTX 3060" in said
        assert launches(bed) == 1, bed.tell()
        driver.write(IDLE)
        bed.run_where(lambda _run, _beat: True, "the next run", after=run.number)
        assert "% of the 8.8 GiB given back ✓" in bed.screen
        record = [event["data"] for event in bed.kinds("gpu_memory") if event["data"]["run_id"] == run.run_id][-1]
        assert record["devices"][UUID]["own"] == 9000 << 20
        assert record["devices"][UUID]["before"] == 400 << 20
        assert record["devices"][UUID]["pids"] == [run.trainer]
        assert "gpu_memory" not in bed.screen
        assert "took of" not in bed.screen, "for a restart, not for people"


@pytest.mark.timeout(90)
def test_memory_that_does_not_come_back_is_held_for_with_the_one_thing_to_do(tmp_path: Path, driver: Driver) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job=JOB, relaunch={"gate_wait": "13s"}) as bed:
        supervisor = bed.start("--on-hold", "exit")
        run = bed.run_where(lambda _run, _beat: True, "a run")
        driver.shown(full(f"{run.trainer} 9000 compute python"))
        driver.write(full())
        bed.harm(run.trainer)
        assert bed.ended(supervisor) == 3, bed.tell()
        (hold,) = bed.kinds("hold")
        assert "a gate stayed closed for 13 s" in hold["data"]["reason"]
        assert "8.8 GiB are nobody's any more: reboot the host" in hold["data"]["reason"]
        assert launches(bed) == 1, bed.tell()
        # Another supervisor finds the same: what was in use before is in the ledger.
        assert bed.call("relaunch").returncode == 0
        bed.start()
        waiting_for(bed, "8.8 GiB are nobody's any more: reboot the host")
        driver.write(IDLE)
        bed.run_where(lambda _run, _beat: True, "a run after what a person did", after=run.number)


def test_whoever_else_holds_it_is_named_and_left_alone(tmp_path: Path, driver: Driver) -> None:
    with bystander() as pid, make_bed(tmp_path / "bed", SLEEPER, level=0, job=JOB) as bed:
        bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        driver.shown(full(f"{run.trainer} 9000 compute python"))
        driver.write(full(f"{pid} 9000 compute python"))
        bed.harm(run.trainer)
        said = waiting_for(bed, "it is held by pid", "not of the job and left alone")
        assert f"pid {pid} (python" in said
        assert "8.8 GiB)" in said
        assert "reboot" not in said
        assert launches(bed) == 1, bed.tell()
        assert not [event for event in bed.kinds("signal_sent", "run_killing") if pid in event["data"].values()]
        driver.write(IDLE)
        bed.run_where(lambda _run, _beat: True, "a run, once it is free", after=run.number)


def test_a_pid_that_nobody_knows_closes_the_gate_until_it_is_gone(tmp_path: Path, driver: Driver) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job=JOB, probe={"python": "/bin/false"}) as bed:
        bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        driver.shown(full(f"{run.trainer} 9000 compute python"))
        bed.harm(run.trainer)  # and the driver goes on listing it
        said = waiting_for(bed, f"the driver lists pid {run.trainer} with 8.8 GiB, which this system does not know")
        assert "if it stays: reboot the host" in said
        assert launches(bed) == 1, bed.tell()
        driver.write(IDLE)
        wait_for(lambda: launches(bed) == 2 or bed.kinds("device_probing"), f"the way on\n{bed.tell()}", timeout_s=20)


def test_a_supervisor_that_comes_back_knows_what_was_in_use_before(tmp_path: Path, driver: Driver) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job=JOB) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.wait_event("run_launching")
        bed.kill_supervisor(supervisor)
        driver.write(full(f"{run.trainer} 9000 compute python"))
        bed.start()
        bed.wait_event("run_adopted")
        driver.shown(full(f"{run.trainer} 9000 compute python"))
        driver.write(full())
        bed.harm(run.trainer)
        waiting_for(bed, "% of the 8.8 GiB given back so far")
        driver.write(IDLE)
        bed.run_where(lambda _run, _beat: True, "the next run", after=run.number)


def test_a_job_without_a_gpu_pays_nothing(tmp_path: Path, driver: Driver) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job={"devices": []}) as bed:
        bed.start()
        driver.write(full())
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.harm(run.trainer)
        bed.run_where(lambda _run, _beat: True, "the next run", after=run.number)
        assert not bed.kinds("gpu_memory", "device_probing"), bed.tell()
        assert not driver.log.exists(), "the driver is not asked at all"


# --- measuring ----------------------------------------------------------------------------------------------------
FAULTY = """
import os, sys, time
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    time.sleep(1)
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
while True: time.sleep(0.05)
"""
# Stands for the Python that has torch. Says whether anybody holds the run lock while it measures.
PYTHON = """#!{python} -ISB
import fcntl, json, os, sys, time
with open({log!r}, "a") as log:
    lock = open({lock!r})
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.write("alone\\n")
    except BlockingIOError:
        log.write("beside a run\\n")
    lock.close()
time.sleep({takes_s})
print(json.dumps({answer!r}))
sys.exit({code})
"""
GOOD = {
    **{"device": "card", "tflops": 8.125, "seconds": 0.01, "dtype": "bfloat16", "size": 4096, "correct": True},
    **{"worst_error": 0.001, "threads": None, "total_s": 1.0, "torch": "2.5"},
}


def measuring(bed: HostBed, answer: dict[str, Any], *, takes_s: float = 0.3, code: int = 0) -> Path:
    """The program that [probe] python names; its log. The configuration has to name `bed.root / "python"`."""
    log, lock = bed.root / "measured", bed.checkpoints / contract.CONTROL_FOLDER / contract.RUN_LOCK
    text = PYTHON.format(python=sys.executable, log=str(log), lock=str(lock), takes_s=takes_s, answer=answer, code=code)
    path = bed.root / "python"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return log


def faulty_bed(tmp_path: Path) -> HostBed:
    root = tmp_path / "bed"
    command = [*script(root, FAULTY), str(root / "flag")]
    return make_bed(root, command, level=0, job=JOB, probe={"python": str(root / "python")})


def test_after_an_error_of_cuda_the_device_is_measured_before_the_launch(tmp_path: Path, driver: Driver) -> None:
    with faulty_bed(tmp_path) as bed:
        log = measuring(bed, GOOD)
        bed.start()
        run = bed.run_where(lambda run, _beat: run.number == 2, "the second run", timeout_s=30)
        kinds = [
            event["event"] for event in bed.kinds("run_weighed", "device_probing", "device_probed", "run_launching")
        ]
        assert kinds == ["run_launching", "run_weighed", "device_probing", "device_probed", "run_launching"]
        assert log.read_text() == "alone\n", "beside a run it would take its load for a sickness"
        (probed,) = bed.kinds("device_probed")
        assert (probed["data"]["device"], probed["data"]["passed"]) == (UUID, True)
        assert "probe 8.12 TFLOP/s, product right" in bed.screen
        # What was found stays valid: an ordinary death costs no second measurement.
        bed.harm(run.trainer)
        bed.run_where(lambda _run, _beat: True, "the third run", after=2)
        assert len(bed.kinds("device_probing")) == 1, bed.tell()


def test_a_device_that_computes_too_slowly_is_not_launched_on(tmp_path: Path, driver: Driver) -> None:
    with faulty_bed(tmp_path) as bed:
        measuring(bed, GOOD | {"tflops": 0.02})
        bed.start()
        said = waiting_for(bed, "probe 0.02 TFLOP/s")
        assert "floor 2.0" in said
        assert launches(bed) == 1, bed.tell()
        assert [event["data"]["passed"] for event in bed.kinds("device_probed")] == [False]


def test_where_nothing_can_measure_the_launch_goes_on_and_says_so(tmp_path: Path, driver: Driver) -> None:
    with faulty_bed(tmp_path) as bed:
        log = measuring(bed, {"error": "no-torch", "text": "torch cannot be loaded"}, code=2)
        bed.start()
        bed.run_where(lambda run, _beat: run.number == 2, "the second run", timeout_s=30)
        assert "not measured: could not be measured: torch cannot be loaded" in bed.screen
        assert "[probe] python" in bed.screen
        assert log.read_text() == "alone\n"


def test_a_measurement_that_hangs_makes_nobody_wait_for_it_but_the_launch(tmp_path: Path, driver: Driver) -> None:
    """The supervisor answers and leaves at once; the child ends by itself."""
    with faulty_bed(tmp_path) as bed:
        measuring(bed, GOOD, takes_s=8)
        supervisor = bed.start()
        waiting_for(bed, "the measurement is under way")
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()
        assert launches(bed) == 1, bed.tell()
        wait_for(lambda: not _measurers(bed), "the end of the child", timeout_s=30)


def _measurers(bed: HostBed) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if str(bed.root / "python").encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if is_living(pid, None) is not None]


def test_a_dry_run_says_what_will_be_asked_of_the_device(tmp_path: Path, driver: Driver) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0, job=JOB) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.wait_event("run_launching")
        bed.kill_supervisor(supervisor)  # the next one asks for a first sample at once, whatever is calm
        driver.write(full(f"{run.trainer} 9000 compute python"))
        bed.start()
        wait_for(lambda: str(9400 << 20) in str(bed.kinds("gpu_memory")), "its peak on record", timeout_s=30)
        said = bed.call("relaunch", "--dry-run").stdout
        assert "NVIDIA GeForce RTX 3060 (GPU-00000000): 7.0 of the 8.8 GiB given back, 9.3 GiB free" in said, said
