"""What the trainer's tests share: a small text, one cache for all of them, and two ways to run the trainer.

`call` runs it in this process (torch is imported once), `launch` in a process of its own, for everything that is about
dying and signals. Torch is imported by nobody before a test needs it.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog import contract

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0


def words(seed: int, count: int) -> str:
    """Text with something to learn in it: few words, lines of a dozen, the same for the same seed."""
    source = random.Random(seed)
    lexicon = ["def", "return", "value", "self", "index", "name", "for", "in", "if", "not", "none", "list", "(x):", "="]
    lines = [" ".join(source.choice(lexicon) for _ in range(12)) for _ in range(count // 12)]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(24):
        (folder / f"file{number:02d}.txt").write_text(words(number, 3600))
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised:
    """The supervisor's side of the contract, as files in a folder."""

    root: Path
    checkpoints: Path
    run_id: str = "run-under-test"

    @property
    def ack_file(self) -> Path:
        return self.root / "ack.json"

    @property
    def failure_file(self) -> Path:
        return self.root / "failure.json"

    @property
    def beat_file(self) -> Path:
        return self.root / "beat"

    def environment(self, *, resume: str, manifest: Path | None = None) -> dict[str, str]:
        names = {
            contract.ENV_RUN_ID: self.run_id,
            contract.ENV_BEAT_FILE: str(self.beat_file),
            contract.ENV_ACK_FILE: str(self.ack_file),
            contract.ENV_FAILURE_FILE: str(self.failure_file),
            contract.ENV_CHECKPOINTS: str(self.checkpoints),
            contract.ENV_RESUME: resume,
        }
        return names if manifest is None else {**names, contract.ENV_RESUME_MANIFEST: str(manifest)}

    def beat(self) -> contract.Beat:
        return contract.Beat.from_bytes(self.beat_file.read_bytes())

    def ack(self) -> contract.Acknowledgement:
        return contract.Acknowledgement.read(self.ack_file)


@pytest.fixture
def supervised(tmp_path: Path) -> Supervised:
    checkpoints = tmp_path / "job"
    checkpoints.mkdir()
    return Supervised(root=tmp_path, checkpoints=checkpoints)


@pytest.fixture
def arguments(text: Path, cache: Path) -> list[str]:
    """`train` on the small text with the small model; one thread, since the machine may be shared."""
    return ["train", "--preset", "bitmamba-test", "--threads", "1", "--data", str(text), "--cache", str(cache)]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """`main(arguments)` in this process, with the contract's environment as given and nothing else of it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for name in contract.CONTRACT_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")  # main would set it, and leave it to the tests after this one

    def run(arguments: list[str], environment: dict[str, str] | None = None) -> int:
        from trainer.__main__ import main

        with monkeypatch.context() as patch:
            for name, value in (environment or {}).items():
                patch.setenv(name, value)
            return main(arguments)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Process:
    """A trainer in a process of its own; its output is read as it comes."""

    def __init__(self, arguments: list[str], environment: dict[str, str], output: Path) -> None:
        self.output = output
        env = {key: value for key, value in os.environ.items() if not key.startswith(contract.ENV_PREFIX)}
        env |= {"PYTHONPATH": str(REPOSITORY), **environment}
        with open(output, "ab") as file:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainer", *arguments], stdout=file, stderr=subprocess.STDOUT, env=env
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, what: str) -> None:
        """Until the output holds `what`; fails when the process ends or the deadline passes before."""
        until = time.monotonic() + DEADLINE_S
        while what not in self.text():
            ended = self.popen.poll() is not None
            assert not ended or what in self.text(), f"ended without {what!r}:\n{self.text()}"
            assert time.monotonic() < until, f"no {what!r} within {DEADLINE_S} s:\n{self.text()}"
            time.sleep(0.01)

    def wait(self) -> int:
        return self.popen.wait(DEADLINE_S)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(arguments: list[str], environment: dict[str, str] | None = None) -> Process:
        process = Process(arguments, environment or {}, tmp_path / f"output{len(started)}")
        started.append(process)
        return process

    yield start
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()
