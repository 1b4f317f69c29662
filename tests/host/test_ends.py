"""Real trainers die of real reasons under a real supervisor: the cause, the ledger it spends, and what follows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.host.bed import HostBed, make_bed, script

LOAD_UNDER_A_LIMIT = """
import re, resource, sys, torch
from pathlib import Path
path = Path(__file__).with_name("weights.pt")
if not path.exists():
    torch.save({"w": torch.zeros(16 * 2**20)}, path)
size = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + 32 * 2**20, size + 32 * 2**20))
torch.load(path, map_location="cpu")
"""
SAVE_ON_A_FULL_DISK = """
print("step 1", flush=True)
with open("/dev/full", "w") as file:
    file.write("x" * 100_000)
"""
TYPE_ERROR = """
from watchdog import contract
run = contract.join()
run.beat("train", step=7, target_step=40)

def step(number):
    return number + "1"

step(7)
"""


def weighed(bed: HostBed) -> list[dict[str, Any]]:
    return [event["data"] for event in bed.kinds("run_weighed")]


def test_a_type_error_at_the_same_step_twice_holds_and_names_the_line(tmp_path: Path) -> None:
    """Twenty tries are allowed; the second is the last."""
    command = script(tmp_path, TYPE_ERROR)
    with make_bed(tmp_path / "bed", command, level=1) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [end["cause"] for end in weighed(bed)] == ["code_error"] * 2, bed.tell()
        (hold,) = bed.kinds("hold")
        line = 1 + next(at for at, text in enumerate(TYPE_ERROR.splitlines()) if "number +" in text)
        assert f"TypeError at {command[-1]}:{line} in step, step 7" in hold["data"]["reason"], bed.tell()
        assert weighed(bed)[-1]["spends"] == "trainer"


def test_memory_refused_to_a_load_is_the_hosts_fault_and_never_twice_the_same(tmp_path: Path) -> None:
    """RLIMIT_AS refuses what torch.load asks for: always at the same line, and yet no error of the program."""
    with make_bed(tmp_path / "bed", script(tmp_path, LOAD_UNDER_A_LIMIT), level=0, relaunch={"failures": 3}) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        ends = weighed(bed)
        assert [(end["cause"], end["failures"], end["host_failures"]) for end in ends] == [
            ("host_memory", 0, 1),
            ("host_memory", 0, 2),
            ("host_memory", 0, 3),
        ], bed.tell()
        assert ends[0]["cure"].startswith("make room")
        assert bed.kinds("run_ended")[0]["data"]["confidence"] == "certain"
        assert " GiB were available: the program asks for more than there is" in bed.kinds("hold")[0]["data"]["reason"]
        assert "can't allocate memory" in bed.kinds("hold")[0]["data"]["reason"]


def test_a_full_disk_is_the_hosts_fault(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", script(tmp_path, SAVE_ON_A_FULL_DISK), level=0, relaunch={"failures": 2}) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [(end["cause"], end["spends"]) for end in weighed(bed)] == [("disk_full", "host")] * 2, bed.tell()
        assert "[Errno 28]" in bed.kinds("run_ended")[0]["data"]["words"]


def test_a_shortage_in_the_failure_record_is_believed_before_the_exit_code(tmp_path: Path) -> None:
    """The trainer refused the checkpoint because it could not be read into memory."""
    body = (
        "from watchdog import contract\nrun = contract.join()\n"
        "try:\n    try:\n        raise OSError(12, 'Cannot allocate memory')\n"
        "    except OSError as error:\n        raise SystemError('readinto returned') from error\n"
        "except SystemError as error:\n    run.fail(error)\n"
        "raise SystemExit(contract.EXIT_CHECKPOINT_REFUSED)\n"
    )
    with make_bed(tmp_path / "bed", script(tmp_path, body), level=1, relaunch={"failures": 1}) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [end["cause"] for end in weighed(bed)] == ["host_memory"], bed.tell()


def test_a_kill_from_outside_is_no_oom_kill_and_is_seen_at_once(tmp_path: Path) -> None:
    """The kernel is asked anew before the end is written down, and that costs no second."""
    body = "import time\nwhile True: time.sleep(0.2)\n"
    with make_bed(tmp_path / "bed", script(tmp_path, body), level=0) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        bed.harm(run.trainer, signal.SIGKILL)
        ended = bed.wait_event("run_ended")
        assert ended["data"]["cause"] == "killed", bed.tell()
        assert ended["wall_s"] - ended["data"]["died_wall_s"] < 1.0
        second = bed.run_where(lambda _run, _beat: True, "the next run", after=run.number)
        assert second.number == 2
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()


def test_output_that_cannot_be_read_delays_the_end_by_its_deadline_only(tmp_path: Path) -> None:
    """A named pipe put in the place of the log is refused at once; the end is judged by what is known."""
    body = (
        "import os\nfrom pathlib import Path\nfrom watchdog import contract\n"
        "folder = Path(os.environ[contract.ENV_FAILURE_FILE]).parent\n"
        "os.unlink(folder / 'output.log')\nos.mkfifo(folder / 'output.log')\nos.mkfifo(folder / 'failure.json')\n"
        "raise SystemExit(3)\n"
    )
    with make_bed(tmp_path / "bed", script(tmp_path, body), level=0, relaunch={"failures": 1}) as bed:
        assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
        assert [end["cause"] for end in weighed(bed)] == ["exited"], bed.tell()
        assert bed.kinds("run_ended")[0]["data"]["words"] == "exit 3"


@pytest.mark.campaign  # for an hour the whole host is told of this kill, also the tests that want a quiet one
@pytest.mark.skipif(os.getuid() != 0, reason="a cgroup with a limit of memory needs root")
def test_an_oom_kill_is_told_by_the_kernel(tmp_path: Path) -> None:
    """A memory cgroup around the trainer alone; where none can be made here, nothing is claimed."""
    folders = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    version, top = next(((1 + index, f) for index, f in enumerate(folders) if (f / "cgroup.procs").exists()), (0, None))
    if top is None:
        pytest.skip("no cgroups here")
    group = top / f"gpuhost-watchdog-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        limit.write_text(str(48 * 2**20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    body = (
        f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
        "held = []\nwhile True: held.append(bytearray(b'x' * 2**20))\n"
    )
    try:
        with make_bed(tmp_path / "bed", script(tmp_path, body), level=0, relaunch={"failures": 1}) as bed:
            assert bed.ended(bed.start("--on-hold", "exit")) == 3, bed.tell()
            (end,) = weighed(bed)
            assert (end["cause"], end["spends"]) == ("oom_kill", "host"), bed.tell()
    finally:
        group.rmdir()
