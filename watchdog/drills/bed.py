"""A bed: one throw-away job in a folder of its own, a real `watchdog run` over it, and eyes on both.

Responsible for starting supervisors with settings of their own, for finding shim and trainer of the living run, for
waiting with deadlines, and for leaving nothing behind: whatever it started is ended by its identity and seen gone.
Refuses to sleep as a proof, and to signal a process that is not proven to be of this bed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from watchdog import contract
from watchdog.actuators.signals import Sent, signal_process
from watchdog.collectors.processes import is_alive, process_table
from watchdog.collectors.run import read_start
from watchdog.core.identity import ProcessId
from watchdog.drills.interrupts import held_off
from watchdog.drills.whose import Whose, own_home
from watchdog.folders import RunFolder
from watchdog.ledger import parse_line

T = TypeVar("T")
PATIENCE_S = 60.0
WATCHDOG = [sys.executable, "-P", "-c", "from watchdog.cli import main; main()"]
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "OMP_NUM_THREADS")


class BedError(AssertionError):
    """Something that should have happened in time did not, or a process is not of this bed."""


def wait_for(look: Callable[[], T | None], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.005) -> T:
    """Polls until `look()` is true; raises BedError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise BedError(f"not within {timeout_s:g} s: {what}; last seen {seen!r}")
        time.sleep(every_s)
    return seen


def _event(line: bytes, number: int) -> dict[str, Any]:
    """One line of the ledger. Raises BedError."""
    event = parse_line(line)
    if event is None:
        raise BedError(f"line {number} of the ledger is no record: {line[:100]!r}")
    return {**json.loads(line), "data": dict(event.data)}


@dataclasses.dataclass(frozen=True)
class Living:
    """The run that lives now."""

    run_id: str
    number: int
    folder: Path
    shim_id: ProcessId
    trainer_id: ProcessId

    @property
    def shim(self) -> int:
        return self.shim_id.pid

    @property
    def trainer(self) -> int:
        return self.trainer_id.pid

    def beat(self) -> contract.Beat | None:
        try:
            return contract.Beat.from_bytes((self.folder / "beat.json").read_bytes())
        except (OSError, contract.ContractError):
            return None


class Bed:
    """One job. Use as a context manager: leaving it ends everything that it started."""

    def __init__(
        self,
        root: Path,
        command: Sequence[str],
        *,
        level: int = 2,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        prefix: Sequence[str] = (),
        seen_root: Path | None = None,
    ) -> None:
        """`prefix`: words before the watchdog's command (another user, another namespace). `seen_root`: where the
        files of `root` are seen from here, when they lie in another mount namespace."""
        self.root = root
        self.seen = seen_root or root
        self.whose = Whose(root)
        self.name = "bed"
        self.prefix = list(prefix)
        self.checkpoints = self.seen / "checkpoints"
        self.state = self.seen / "state" / self.name
        self.config = self.seen / "watchdog.toml"
        self.harmed: set[int] = set()  # killed by a drill
        self.spoiled: set[bytes] = set()  # what a drill wrote into the ledger
        self.supervisors: list[subprocess.Popen[bytes]] = []
        tables: dict[str, dict[str, Any]] = {
            "job": {
                "name": self.name,
                "command": list(command),
                "checkpoints": str(root / "checkpoints"),
                "level": level,
            },
            "state": {"folder": str(root / "state")},
            "memory": {"need": "16MiB"},
            "disk": {"need": 0},
            "deadlines": {"train": "30s"},
            "stop": {"grace": "1s", "kill_wait": "10s"},
            "relaunch": {"failures": 20, "backoff": "0.2s", "backoff_limit": "0.2s"},
            "metrics": {"port": "off"},
            "loop": {"period": "0.1s"},
        }
        for section, values in (settings or {}).items():
            tables.setdefault(section, {}).update(values)
        lines = []
        for section, values in tables.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
        self.config.write_text("\n".join(lines))
        (self.seen / "tmp").mkdir(exist_ok=True)
        (self.seen / "tmp").chmod(0o1777)  # as any: what is started may be another user's

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the supervisor -------------------------------------------------------------------------------------
    def environment(self) -> dict[str, str]:
        """Nothing of the settings, of a supervisor around us, or of the home of whoever starts the drill."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(contract.ENV_PREFIX) and name not in _NOT_INHERITED
        }
        return kept | own_home(self.root)

    def command(self, *words: str) -> list[str]:
        config = str(self.root / "watchdog.toml")
        return [*self.prefix, *WATCHDOG, words[0], "--config", config, *words[1:]]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """`watchdog run` in the background; what it says is added to `screen.txt`."""
        with open(self.seen / "screen.txt", "ab") as screen, held_off():
            process = subprocess.Popen(
                self.command("run", *words),
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env=self.environment(),
                cwd="/",
                start_new_session=True,
            )
            self.supervisors.append(process)
        return process

    def call(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Another command of the watchdog, to its end."""
        return subprocess.run(
            self.command(*words), env=self.environment(), cwd="/", capture_output=True, text=True, timeout=timeout_s
        )

    @property
    def screen(self) -> str:
        try:
            return (self.seen / "screen.txt").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def ended(self, supervisor: subprocess.Popen[bytes], *, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code, once it has left by itself."""
        try:
            return supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BedError(f"the supervisor is still there after {timeout_s:g} s\n{self.tell()}") from None

    def kill_supervisor(self, supervisor: subprocess.Popen[bytes]) -> None:
        """A child of ours that is not reaped: its number is its own."""
        supervisor.kill()
        supervisor.wait()

    # --- what is seen ---------------------------------------------------------------------------------------
    def events(self) -> list[dict[str, Any]]:
        """The ledger; a torn last line is passed over. Raises BedError for one that is no record: all should be."""
        try:
            content = (self.state / "ledger.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        whole, _, _torn = content.rpartition(b"\n")
        lines = [line for line in whole.split(b"\n") if line and line not in self.spoiled]
        return [_event(line, number) for number, line in enumerate(lines, start=1)]

    def kinds(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["event"] in kinds]

    def living(self) -> Living | None:
        """The run of the run record, when its trainer lives."""
        with contextlib.suppress(OSError, contract.ContractError, KeyError, TypeError, ValueError):
            record = contract.read_json(self.checkpoints / contract.CONTROL_FOLDER / contract.RUN_RECORD, "record")
            folder = self.state / "runs" / record["run_id"]
            start = read_start(RunFolder(path=folder))
            if start is not None and start.leader is not None and is_alive(start.leader):
                return Living(record["run_id"], record["number"], folder, start.shim, start.leader)
        return None

    def run_where(
        self,
        holds: Callable[[Living, contract.Beat | None], object],
        what: str,
        *,
        after: int = 0,
        timeout_s: float = PATIENCE_S,
    ) -> Living:
        """The living run, later than number `after`, once `holds(run, beat)`."""

        def look() -> Living | None:
            run = self.living()
            return run if run is not None and run.number > after and holds(run, run.beat()) else None

        try:
            return wait_for(look, what, timeout_s=timeout_s, every_s=0.002)
        except BedError as error:
            raise BedError(f"{error}\n{self.tell()}") from None

    def run_at_step(self, step: int, *, after: int = 0) -> Living:
        def reached(_run: Living, beat: contract.Beat | None) -> bool:
            return beat is not None and beat.phase == "train" and (beat.step or 0) >= step

        return self.run_where(reached, f"step {step}", after=after)

    def wait_event(self, kind: str, *, count: int = 1, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The `count`-th event of that kind."""
        try:
            return wait_for(
                lambda: next(iter(self.kinds(kind)[count - 1 : count]), None),
                f"{count} times {kind}",
                timeout_s=timeout_s,
                every_s=0.02,
            )
        except BedError as error:
            raise BedError(f"{error}\n{self.tell()}") from None

    def newest_manifest(self) -> Path:
        return max(self.checkpoints.glob("step-*" + contract.MANIFEST_SUFFIX))

    def tell(self) -> str:
        """For a failure: the ledger in words, the screen, the end of the trainer's output."""
        try:
            events = self.events()
        except BedError as error:
            return f"{error}\nscreen:\n{self.screen[-3000:]}"
        said = "\n".join(f"  {event['event']}: {event['sentence']}" for event in events)
        launched = [event["data"]["run_id"] for event in events if event["event"] == "run_launching"]
        run_id = (launched or ["-"])[-1]
        log = self.state / "runs" / run_id / "output.log"
        output = log.read_bytes()[-1500:].decode(errors="replace") if log.exists() else ""
        return f"ledger:\n{said}\nscreen:\n{self.screen[-3000:]}\noutput:\n{output}"

    # --- whose a process is ---------------------------------------------------------------------------------
    def is_ours(self, identity: ProcessId) -> bool:
        """Of this bed: started by us and not reaped, or with its marks."""
        own = any(process.pid == identity.pid and process.returncode is None for process in self.supervisors)
        return own or self.whose.is_ours(identity)

    def strike(self, identity: ProcessId, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process of this bed as part of a drill. Raises BedError for one that is not proven ours."""
        if not is_alive(identity):
            return
        if not self.is_ours(identity):
            if not is_alive(identity):
                return
            raise BedError(f"pid {identity.pid} is not proven to be of this drill: it was not signalled")
        if number is signal.SIGKILL:
            self.harmed.add(identity.pid)
        sent = signal_process(identity, number)
        if sent not in (Sent.DELIVERED, Sent.GONE):
            raise BedError(f"pid {identity.pid} could not be signalled: {sent.value}")

    # --- the end --------------------------------------------------------------------------------------------
    def members(self) -> list[ProcessId]:
        """Living processes of this job: trainers, escaped children, shims; and the supervisors that we started."""
        own = {process.pid for process in self.supervisors if process.poll() is None}
        found = [process.id for process in process_table() if process.id.pid in own]
        for process in process_table():
            if process.living and process.id.pid not in own and self.is_ours(process.id):
                found.append(process.id)
        return found

    def end(self, identity: ProcessId) -> None:
        """KILL one process that `members` has named."""
        signal_process(identity, signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left, supervisors first so that nothing is launched anew, and see it gone."""

        def gone() -> bool:
            left = self.members()
            for identity in left:
                self.end(identity)
            for process in self.supervisors:
                process.poll()
            return not left

        wait_for(gone, "the end of everything that this bed started", timeout_s=20, every_s=0.05)
        self.whose.sweep_cgroups(self.state)
