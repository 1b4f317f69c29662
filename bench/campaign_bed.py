"""A test bed: one job in a folder of its own, a real `watchdog run` over it, and eyes on both.

Responsible for starting supervisors, for finding shim and trainer of the living run, for waiting with deadlines, for
what a job ended with, and for leaving nothing behind: whatever it started is killed by pidfd and seen gone.
Refuses to sleep as a proof, and to signal a process that it has not identified as its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench import campaign_judge as judge
from bench.campaign_observer import is_living, run_of
from watchdog import contract

T = TypeVar("T")
PATIENCE_S = 60.0
WATCHDOG = [sys.executable, "-P", "-c", "from watchdog.cli import main; main()"]
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "OMP_NUM_THREADS")


class BedError(AssertionError):
    """Something that should have happened in time did not."""


def words(seed: int, count: int) -> str:
    """Text with something to learn in it, the same for the same seed."""
    source = random.Random(seed)
    lexicon = ["def", "return", "value", "self", "index", "name", "for", "in", "if", "not", "none", "list", "(x):", "="]
    return "\n".join(" ".join(source.choice(lexicon) for _ in range(12)) for _ in range(count // 12)) + "\n"


def make_text(folder: Path) -> Path:
    """A folder of text, small enough that 80 steps of a test preset go into a second epoch."""
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"file{number}.txt").write_text(words(number, 1500))
    return folder


def tensors_digest(path: Path) -> str:
    """One digest of all tensors of a torch checkpoint: model, optimizer and random state, read without torch.

    The file as a whole is not compared: how often the pickle inside names a text again depends on where it came from.
    """
    with zipfile.ZipFile(path) as archive:
        records = [name for name in archive.namelist() if "/data/" in name]
        digests = sorted(hashlib.sha256(archive.read(name)).hexdigest() for name in records)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def wait_for(look: Callable[[], T | None], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.005) -> T:
    """Polls until `look()` is true; raises BedError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise BedError(f"not within {timeout_s:g} s: {what}; last seen {seen!r}")
        time.sleep(every_s)
    return seen


@dataclasses.dataclass(frozen=True)
class Living:
    """The run that lives now."""

    run_id: str
    number: int
    folder: Path
    shim: int
    trainer: int

    def beat(self) -> contract.Beat | None:
        try:
            return contract.Beat.from_bytes((self.folder / "beat.json").read_bytes())
        except (OSError, contract.ContractError):
            return None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a job ended with: all digits of its losses, and the digest of every tensor of its last checkpoint."""

    summary: Mapping[str, Any]
    digest: str


def trainer_command(
    *, text: Path, cache: Path, preset: str, steps: int, delay_s: float, more: Sequence[str] = ()
) -> list[str]:
    """The arguments of `train`, without the interpreter."""
    options = {"--preset": preset, "--data": text, "--cache": cache, "--steps": steps, "--step-delay": delay_s}
    fixed = ["--threads", "1", "--save-every", "10", "--eval-every", "0"]
    return ["train", *(str(word) for pair in options.items() for word in pair), *fixed, *more]


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
        self.name = "bed"
        self.prefix = list(prefix)
        self.checkpoints = self.seen / "checkpoints"
        self.state = self.seen / "state" / self.name
        self.config = self.seen / "watchdog.toml"
        self.harmed: set[int] = set()  # killed by a drill
        self.supervisors: list[subprocess.Popen[bytes]] = []
        self._observer: subprocess.Popen[bytes] | None = None
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

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the supervisor -------------------------------------------------------------------------------------
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(contract.ENV_PREFIX) and name not in _NOT_INHERITED
        }
        return kept | {"HOME": str(self.root), "XDG_STATE_HOME": str(self.root / "xdg")}

    def command(self, *words: str) -> list[str]:
        config = str(self.root / "watchdog.toml")
        return [*self.prefix, *WATCHDOG, words[0], "--config", config, *words[1:]]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """`watchdog run` in the background; what it says is added to `screen.txt`."""
        with open(self.seen / "screen.txt", "ab") as screen:
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
        supervisor.kill()
        supervisor.wait()

    # --- what is seen ---------------------------------------------------------------------------------------
    def events(self) -> list[dict[str, Any]]:
        """The ledger. A line that is no JSON raises: it should be intact, always (a torn last line is passed over)."""
        try:
            content = (self.state / "ledger.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        whole, _, _torn = content.rpartition(b"\n")
        return [json.loads(line) for line in whole.split(b"\n") if line]

    def kinds(self, *kinds: str) -> list[dict[str, Any]]:
        return judge.of_kind(self.events(), *kinds)  # type: ignore[return-value]

    def living(self) -> Living | None:
        """The run of the run record, when its trainer lives."""
        with contextlib.suppress(OSError, contract.ContractError, KeyError, TypeError, ValueError):
            record = contract.read_json(self.checkpoints / contract.CONTROL_FOLDER / contract.RUN_RECORD, "record")
            folder = self.state / "runs" / record["run_id"]
            start = contract.read_json(folder / "start.json", "start")
            leader = start["leader"]
            if leader is not None and is_living(int(leader["pid"]), int(leader["start_ticks"])) is not None:
                return Living(record["run_id"], record["number"], folder, int(start["shim"]["pid"]), int(leader["pid"]))
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

    def harm(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process of ours as part of a drill."""
        if number is signal.SIGKILL:
            self.harmed.add(pid)
        os.kill(pid, number)

    def outcome(self) -> Outcome:
        summary = json.loads((self.checkpoints / "summary.json").read_bytes())
        newest = self.newest_manifest()
        return Outcome(summary, tensors_digest(newest.parent / contract.Manifest.read(newest).files[0].name))

    def tell(self) -> str:
        """For a failed test: the ledger in words, the screen, the end of the trainer's output."""
        said = "\n".join(f"  {event['event']}: {event['sentence']}" for event in self.events())
        run_id = (self.kinds("run_launching") or [{"data": {"run_id": "-"}}])[-1]["data"]["run_id"]
        log = self.state / "runs" / run_id / "output.log"
        output = log.read_bytes()[-1500:].decode(errors="replace") if log.exists() else ""
        return f"ledger:\n{said}\nscreen:\n{self.screen[-3000:]}\noutput:\n{output}"

    # --- the observer ---------------------------------------------------------------------------------------
    def observe(self) -> None:
        """Start the independent observer; returns when it has looked once."""
        self._observer = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.campaign_observer", str(self.root / "checkpoints")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert self._observer.stdout is not None
        self._observer.stdout.readline()

    def observed(self) -> dict[str, Any]:
        """End the observer, and what it saw."""
        assert self._observer is not None, "observe() first"
        observer, self._observer = self._observer, None
        output, _ = observer.communicate(timeout=PATIENCE_S)
        report: dict[str, Any] = json.loads(output)
        return report

    def problems(self, refused_runs: frozenset[str] = frozenset()) -> list[str]:
        """Every rule of campaign_judge; call when the job is over."""
        events = self.events()
        return [
            *judge.alternation(events),
            *judge.resumes(events),
            *judge.acknowledgements(events, refused_runs),
            *self.kill_problems(events),
            *([] if self._observer is None else judge.observed(self.observed(), events)),
        ]

    def kill_problems(self, events: Sequence[judge.Event]) -> list[str]:
        """Nobody was killed unrecorded, but by the drill itself."""
        return judge.kills(events, self._deaths(), frozenset(self.harmed))

    def _deaths(self) -> dict[int, float]:
        """Who died of KILL and when, from the shims' exit records."""
        deaths: dict[int, float] = {}
        for path in (self.state / "runs").glob("*/exit.json"):
            with contextlib.suppress(ValueError):
                record = json.loads(path.read_bytes())
                for end in [record["leader"], *record["ended"]]:
                    if end is not None and end["signal"] == signal.SIGKILL:
                        deaths[end["pid"]] = end["wall_s"]
        return deaths

    # --- the end --------------------------------------------------------------------------------------------
    def ours(self) -> list[int]:
        """Living processes of this job: trainers, escapees, shims; and the supervisors that we started."""
        folder = os.path.realpath(self.root / "checkpoints")
        found = [process.pid for process in self.supervisors if process.poll() is None]
        for name in filter(str.isdigit, os.listdir("/proc")):
            pid = int(name)
            if is_living(pid, None) is None:
                continue
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                is_shim = any(word.endswith(b"/shim.py") for word in words[:5]) and any(
                    word.startswith(os.fsencode(self.root) + b"/") for word in words
                )
                detached = b"--detached" in words and os.fsencode(self.root / "watchdog.toml") in words
                if is_shim or detached or run_of(pid, folder) is not None:
                    found.append(pid)
        return found

    def close(self) -> None:
        """Kill what is left, supervisors first so that nothing is launched anew, and see it gone."""
        if self._observer is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._observer.communicate(timeout=5)
            self._observer.kill()
            self._observer = None

        def gone() -> bool:
            left = self.ours()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.supervisors:
                process.poll()
            return not left

        wait_for(gone, "the end of everything that this bed started", timeout_s=20, every_s=0.05)
