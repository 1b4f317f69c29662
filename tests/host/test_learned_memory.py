"""A job that host memory is refused to: what its run held is seen while it lives, and is what the next one needs.

Supervisor, shim and trainer are real. What the host has to give is told by a file where a test must decide it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import BARE, CLOCK, HostBed, make_bed, script
from watchdog.collectors.roots import Roots
from watchdog.collectors.runmemory import RunMemory, read_run_memory
from watchdog.contract import start_ticks
from watchdog.core.fact import Known
from watchdog.core.identity import ProcessId

MIB = 1024**2
HELD = 200 * MIB
# Takes its memory, is refused more, and dies of it; the second time it is content.
GREEDY = f"""
import os, resource, sys, time
from pathlib import Path
again = Path({{flag!r}})
if again.exists():
    sys.exit(0)
resource.setrlimit(resource.RLIMIT_AS, (2 * 1024**3, 2 * 1024**3))
held = bytearray(b"x") * {HELD}
while not Path({{go!r}}).exists():
    time.sleep(0.02)
again.touch()
more = bytearray(4 * 1024**3)
"""
# `watchdog run` on a host whose memory is what a file says: available and total, in bytes.
_TOLD = """
import json, sys
from msgspec.structs import replace
from watchdog import lookout
from watchdog.core.fact import Known
place, read = sys.argv.pop(1), lookout.read_memory
def told(roots, clock):
    fact = read(roots, clock)
    with open(place) as file:
        available, total = json.load(file)
    return Known(replace(fact.value, available_bytes=available, host_available_bytes=available, total_bytes=total,
                         limit_bytes=None, limit_cgroup=None, limits=()), fact.at_s)
lookout.read_memory = told
from watchdog.cli import main
main()
"""


class MemoryBed:
    """A greedy job below a host whose memory a file tells."""

    def __init__(self, tmp_path: Path, **relaunch: Any) -> None:
        self.go, self.told = tmp_path / "go", tmp_path / "told"
        body = GREEDY.format(flag=str(tmp_path / "again"), go=str(self.go))
        self.bed: HostBed = make_bed(tmp_path / "bed", script(tmp_path / "job", body), level=0, relaunch=relaunch)

    def host_has(self, available: int, total: int) -> None:
        new = self.told.with_suffix(".new")
        new.write_text(json.dumps([available, total]))
        os.replace(new, self.told)

    def run(self) -> subprocess.Popen[bytes]:
        bed = self.bed
        with open(bed.root / "screen.txt", "ab") as screen:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _TOLD, str(self.told), "run", "--config", str(bed.config)],
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env=bed.environment(),
                cwd="/",
                start_new_session=True,
            )
        bed.supervisors.append(process)
        return process

    def first(self, kind: str) -> dict[str, Any]:
        found = wait_for(
            lambda: next((each for each in self.bed.records() if each["event"] == kind), None), kind, timeout_s=30
        )
        return dict(found)

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.bed.events() if event["event"] == kind]


def test_what_a_run_held_when_memory_ran_out_is_what_the_next_one_waits_for(tmp_path: Path) -> None:
    """Its need grew from 16 MiB: room is tried once, it is waited for, and with room there is a launch."""
    job = MemoryBed(tmp_path, gate_wait="60s")
    with job.bed as bed:
        job.host_has(1024 * MIB, 23 * 1024 * MIB)
        supervisor = job.run()
        peak = job.first("host_memory")["data"]
        assert HELD <= peak["peak_bytes"] < HELD * 1.5, "its interpreter, its shim, and what it took"
        assert peak["before_bytes"] == 1024 * MIB
        job.host_has(230 * MIB, 23 * 1024 * MIB)
        job.go.touch()
        closed = wait_for(lambda: (seen := bed.status())["waiting_for"] and seen, "a closed gate", timeout_s=20)
        assert "when memory ran out" in closed["waiting_for"]
        assert closed["memory_need_bytes"] > 230 * MIB
        assert job.data("run_ended")[0]["cause"] == "host_memory"
        assert len(job.data("run_launching")) == 1

        # A supervisor that is killed here, and the one after it, know the same.
        supervisor.kill()
        supervisor.wait(10)
        supervisor = job.run()
        again = wait_for(lambda: (seen := bed.status())["waiting_for"] and seen, "the same gate", timeout_s=20)
        assert again["waiting_for"].split(";")[0] == closed["waiting_for"].split(";")[0]

        job.host_has(1024 * MIB, 23 * 1024 * MIB)
        assert supervisor.wait(30) == 0
        gates = job.data("run_launching")[1]["gates"]
        assert any("when memory ran out" in words for words in gates), gates


def test_what_the_host_could_never_give_is_held_for_before_the_wait_is_over(tmp_path: Path) -> None:
    job = MemoryBed(tmp_path, gate_wait="600s")
    with job.bed as bed:
        job.host_has(100 * MIB, 120 * MIB)
        supervisor = job.run()
        job.first("host_memory")
        job.go.touch()
        assert supervisor.wait(30) == 3
        hold = bed.status()["hold_reason"]
        assert "memory: the job needs 0.2" in hold
        assert "(its last run had 0.2" in hold
        assert "this host has 0.12 GiB in all: make the job smaller, then watchdog relaunch" in hold
        assert bed.call("relaunch").returncode == 0, "a person has made it smaller: what was learned is forgotten"
        assert job.run().wait(30) == 0


# --- the figure itself --------------------------------------------------------------------------------------
TAKES = "import sys,time\nheld=bytearray(b'x')*{size}\nprint(1,flush=True)\ntime.sleep(600)"
FORKS = """
import os, time
held = bytearray(b"x") * {size}
for _ in range(2):
    if os.fork() == 0:
        time.sleep(600)
print(1, flush=True)
time.sleep(600)
"""


@pytest.fixture
def holding() -> Any:
    """Starts a program that says when it holds its memory; ends it and its children afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(body: str) -> list[ProcessId]:
        process = subprocess.Popen([*BARE, "-c", body], stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return [ProcessId(pid, start_ticks(pid)) for pid in (process.pid, *map(int, children))]

    yield start
    for process in started:
        os.killpg(process.pid, 9)  # its leader is not reaped yet
        process.wait(5)
        assert process.stdout is not None
        process.stdout.close()


def read(members: list[ProcessId], last: RunMemory | None = None) -> RunMemory:
    fact = read_run_memory(members, None, "1-a", Roots(), CLOCK, last)
    assert isinstance(fact, Known)
    return fact.value


def test_what_one_process_holds(holding: Callable[[str], list[ProcessId]]) -> None:
    (one,) = holding(TAKES.format(size=80 * MIB))
    assert 80 * MIB <= read([one]).held_bytes < 110 * MIB
    assert read([ProcessId(one.pid, one.start_ticks + 1)]).held_bytes == 0, "another one of that number"


def test_what_forked_workers_share_is_counted_once(holding: Callable[[str], list[ProcessId]]) -> None:
    members = holding(FORKS.format(size=80 * MIB))
    assert len(members) == 3
    seen = read(members)
    assert seen.rough_bytes > 230 * MIB
    assert 80 * MIB <= seen.held_bytes < 130 * MIB
    assert read(members, seen) == seen, "not asked again before the rough sum has grown"
