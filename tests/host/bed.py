"""A bed for tests of one job with real processes: bench's bed with what these tests need beside it.

Responsible for supervisors that die at a chosen instruction, for runs that are launched without a supervisor, and for
reading a ledger that a test has spoiled. Refuses to sleep as a proof; whatever a test started is gone after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.campaign_bed import Bed, wait_for
from watchdog import contract
from watchdog.actuators.launch import LaunchOrder, launch, ticks_now
from watchdog.clock import SystemClock
from watchdog.collectors.processes import ancestry, is_alive, this_host
from watchdog.collectors.run import StartRecord, read_start
from watchdog.core.history import Event, History, fold
from watchdog.core.identity import Host, ProcessId
from watchdog.core.runrecord import Expectation, RunRecord
from watchdog.folders import JobFolders, RunFolder, job_folders

COUNTER = [sys.executable, "-P", "-m", "bench.campaign_counter"]
BARE = [sys.executable, "-I", "-S"]  # starts in 10 ms
SLEEPER = [*BARE, "-c", "import time\nwhile True: time.sleep(0.05)"]
CLOCK = SystemClock()

# A supervisor that is killed right after an event of the kind was recorded, right after a run was launched, or right
# after somebody was asked to end; or that gets no descriptor for 1.5 s from the launch, or from that moment, on.
_DEADLY = """
import os, resource, signal, sys, threading
from watchdog import launching, ledger, signalling
where, _, count = sys.argv.pop(1).partition(":")
left = int(count or 1)
record_all, launch, terminate = ledger.Ledger.record_all, launching.launch, signalling.terminate
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def recording(self, entries):
    global left
    events = record_all(self, entries)
    left -= sum(event.kind == where for event in events)
    if left <= 0:
        die()
    return events
def launching_it(*what):
    child = launch(*what)
    if where == "launched":
        die()
    if where == "starving":
        starve()
    return child
def starve():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    threading.Timer(1.5, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard))).start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
def asking(*whom):
    sent = terminate(*whom)
    if where == "asked":
        die()
    if where == "starving when asked":
        starve()
    return sent
signalling.terminate = asking
ledger.Ledger.record_all, launching.launch = recording, launching_it
from watchdog.cli import main
main()
"""


class HostBed(Bed):
    """One job, its supervisors, and what becomes of it."""

    def start_deadly(self, where: str, *words: str) -> subprocess.Popen[bytes]:
        """`watchdog run` that is killed right after it recorded an event of that kind (`kind:2`: the second one).

        At "launched": right after a launch; at "asked": right after a TERM. One "starving", or "starving when asked",
        is not killed: it gets no descriptor for 1.5 s from there on.
        """
        with open(self.root / "screen.txt", "ab") as screen:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _DEADLY, where, "run", "--config", str(self.config), *words],
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env=self.environment(),
                cwd="/",
                start_new_session=True,
            )
        self.supervisors.append(process)
        return process

    def records(self) -> list[dict[str, Any]]:
        """The events of a ledger with lines in it that are none."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in (self.state / "ledger.jsonl").read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    if isinstance(record, dict) and "event" in record:
                        found.append(record)
        return found

    def status(self) -> dict[str, Any]:
        """`watchdog status --json`, which must be JSON as the standard has it: no NaN."""
        answer = self.call("status", "--json")
        assert answer.returncode == 0, answer.stderr
        return strict_json(answer.stdout)

    def wait_status(self, **wanted: object) -> dict[str, Any]:
        """The status once each of these fields, of the job or of its run, has the value."""

        def look() -> dict[str, Any] | None:
            seen = self.status()
            fields = seen | {f"run_{name}": value for name, value in (seen["run"] or {}).items()}
            return seen if all(fields.get(name) == value for name, value in wanted.items()) else None

        return wait_for(look, f"status {wanted}\n", timeout_s=20)


def strict_json(text: str) -> dict[str, Any]:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def make_bed(root: Path, command: Sequence[str], level: int = 2, **sections: Mapping[str, Any]) -> HostBed:
    """A bed in `root`, which is made; `sections` are tables of its configuration. Use it in a `with`."""
    root.mkdir(parents=True, exist_ok=True)
    return HostBed(root, command, level=level, settings=sections)


def counter(root: Path, *words: str, **sections: Mapping[str, Any]) -> HostBed:
    """A bed of the torch-free counter."""
    return make_bed(root, [*COUNTER, *words], **sections)


def script(folder: Path, body: str, name: str = "trainer_of_test.py") -> list[str]:
    """A trainer in plain Python; its command."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(body)
    return [sys.executable, "-P", str(path)]


# --- runs without a supervisor ------------------------------------------------------------------------------
@dataclasses.dataclass(kw_only=True)
class Launched:
    """A run that a test has launched itself, as a supervisor would have."""

    folders: JobFolders
    record: RunRecord
    child: subprocess.Popen[bytes]
    start: StartRecord

    @property
    def folder(self) -> RunFolder:
        return RunFolder(path=Path(self.record.folder))

    @property
    def leader(self) -> ProcessId:
        assert self.start.leader is not None
        return self.start.leader

    def kill(self, *who: ProcessId) -> None:
        for each in who or (self.leader,):
            if is_alive(each):
                os.kill(each.pid, 9)

    def wait_over(self) -> None:
        """Shim and leader are gone; the shim, our child, is reaped."""
        self.child.wait(20)
        wait_for(lambda: not is_alive(self.leader), "the end of the leader")

    def close(self) -> None:
        self.kill(self.leader)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(5)
        self.kill(self.leader, self.start.shim)
        self.wait_over()


def folders_in(root: Path, state: str = "state") -> JobFolders:
    folders = job_folders(state=root / state, job="bed", checkpoints=root / "checkpoints", native_checkpoints=True)
    folders.control.mkdir(parents=True, exist_ok=True)
    folders.state.mkdir(parents=True, exist_ok=True)
    return folders


def record_of(
    folders: JobFolders, *, run_id: str = "", number: int = 1, level: int = 0, host: Host | None = None
) -> RunRecord:
    """A record as a launch writes it. Ids are never used twice: tests run beside each other, and ids are marks."""
    host = host or this_host()
    run_id = run_id or f"{number}-{secrets.token_hex(4)}"
    return RunRecord(
        run_id=run_id,
        number=number,
        job="bed",
        boot_id=host.boot_id,
        pid_namespace=host.pid_namespace,
        started_ticks=ticks_now(),
        started_wall_s=CLOCK.wall(),
        folder=str(folders.run(run_id).path),
        level=level,
        baseline_step=-1,
        expectation=Expectation(fresh=True),
        ancestors=ancestry(),
    )


@contextlib.contextmanager
def launched(folders: JobFolders, command: Sequence[str] = SLEEPER, **record: Any) -> Iterator[Launched]:
    """A run under a real shim, whose leader is known; ended afterwards."""
    order = record_of(folders, **record)
    child = launch(
        LaunchOrder(
            record=order,
            command=tuple(command),
            directory=folders.state,
            environment={},
            manifest=None,
            beat_deadline_s=30.0,
        ),
        folders,
    )

    def started() -> StartRecord | None:
        found = read_start(RunFolder(path=Path(order.folder)))
        return found if found is not None and found.leader is not None else None

    run = Launched(folders=folders, record=order, child=child, start=wait_for(started, "the start record"))
    try:
        yield run
    finally:
        run.close()


def history_of(*records: RunRecord, ended: Sequence[RunRecord] = ()) -> History:
    """The ledger of a supervisor that launched these, and saw the end of some."""
    events = []
    for record in records:
        data = {"number": record.number, "run_id": record.run_id, "baseline_step": record.baseline_step}
        events.append(("run_launching", data))
        if record in ended:
            end = {"cause": "exited", "words": "exit 1", **data}
            events += [("run_ended", end), ("run_weighed", {"cause": "exited", "failures": 1, "run_id": record.run_id})]
    return fold(
        Event(seq=number, wall_s=1.0, kind=kind, sentence=kind, data=data)
        for number, (kind, data) in enumerate(events, 1)
    )


def write_record(folders: JobFolders, record: RunRecord) -> None:
    contract.write_json_durably(folders.run_record, record.to_record())


@contextlib.contextmanager
def holding(path: Path, *, exclusive: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds a flock on the path until its standard input is closed."""
    code = (
        "import fcntl, os, sys\n"
        f"fd = os.open({str(path)!r}, os.O_RDONLY | os.O_CREAT)\n"
        f"fcntl.flock(fd, fcntl.{'LOCK_EX' if exclusive else 'LOCK_SH'} | fcntl.LOCK_NB)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen([*BARE, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.communicate(timeout=20)
