"""What is trained in a drill: the quick job of the standard library, or the bundled trainer on the CPU.

Responsible for the command of each, for the deadlines that suit it, and for what an undisturbed run of it ends with.
Refuses to import the bundled trainer or torch: it is a command, as any user's would be.
"""

from __future__ import annotations

import abc
import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watchdog import contract
from watchdog.drills import job
from watchdog.drills.bed import BedError
from watchdog.drills.leftovers import BED
from watchdog.drills.whose import own_home

STEPS = 40
_PHASES = ("start", "import", "prepare", "load", "compile", "first_step", "train", "evaluate", "save", "drain")
_REFERENCE_S = 300.0


class Trained(abc.ABC):
    """One kind of job."""

    name: str
    strike_step = 12  # past two checkpoints, before an evaluation
    slower = 1.0  # how many times longer its drills take
    settings: Mapping[str, Mapping[str, Any]]

    def why_not(self) -> str:
        """Why this host cannot run it; empty when it can."""
        return ""

    @abc.abstractmethod
    def prepare(self, folder: Path) -> list[str]:
        """Make what it needs in the drill's folder; its command."""

    @abc.abstractmethod
    def expected(self, folder: Path) -> Mapping[str, Any]:
        """What an undisturbed run on that data ends with."""

    @abc.abstractmethod
    def found(self, checkpoints: Path) -> Mapping[str, Any]:
        """What this one has ended with. Raises OSError, ValueError."""


class Quick(Trained):
    """watchdog/drills/job.py: starts in a tenth of a second, and every fault of the catalogue can be made in it."""

    name = "quick"
    settings: Mapping[str, Mapping[str, Any]] = {
        "deadlines": {phase: "2s" for phase in _PHASES} | {"start": "20s", "finished": "5s"}
    }

    def prepare(self, folder: Path) -> list[str]:
        job.write_data(data_in(folder), STEPS)
        words = ["--data", str(data_in(folder)), "--steps", str(STEPS)]
        return [sys.executable, "-P", "-m", "watchdog.drills.job", *words]

    def expected(self, folder: Path) -> Mapping[str, Any]:
        return job.final_weights(data_in(folder), STEPS)

    def found(self, checkpoints: Path) -> Mapping[str, Any]:
        return dict(json.loads((checkpoints / "weights.json").read_bytes()))


def data_in(folder: Path) -> Path:
    return folder / "lessons.gz"


class Bundled(Trained):
    """The bundled trainer with its smallest transformer: a real torch, seconds to start, checkpoints of tensors."""

    name = "bundled"
    strike_step = 23
    slower = 3.0
    settings: Mapping[str, Mapping[str, Any]] = {
        # torch is imported anew in each run; on a busy host that takes ten seconds and more.
        "deadlines": {phase: "90s" for phase in _PHASES}
        | {"train": "4s", "save": "15s", "evaluate": "15s", "finished": "15s"},
        "memory": {"need": "256MiB"},
        "stop": {"grace": "5s"},
    }

    def __init__(self) -> None:
        self._undisturbed: Mapping[str, Any] | None = None  # the same for every drill: the text is

    def why_not(self) -> str:
        needed = ("trainer", "torch", "tokenizers", "numpy")
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        install = "pip install 'gpuhost-watchdog[trainer]'"
        return f"{', '.join(missing)} not installed: {install}, or leave out --trainer bundled" if missing else ""

    def prepare(self, folder: Path) -> list[str]:
        text = make_text(folder / "text")
        options = {"--preset": "transformer-test", "--data": text, "--cache": folder / "cache", "--steps": STEPS}
        cadence = {"--threads": 1, "--save-every": 5, "--eval-every": 20, "--step-delay": 0.05}
        given = [str(word) for pair in (options | cadence).items() for word in pair]
        return [sys.executable, "-P", "-m", "trainer", "train", *given]

    def expected(self, folder: Path) -> Mapping[str, Any]:
        """Trained here, without a watchdog, the first time that it is asked for."""
        if self._undisturbed is None:
            alone = folder / "undisturbed"
            alone.mkdir()
            (folder / BED / "tmp").mkdir(parents=True)  # torch makes folders there
            words = [*self.prepare(alone), "--checkpoints", str(alone / "checkpoints")]
            at = words.index("--step-delay") + 1
            words[at] = "0"
            kept = {name: value for name, value in os.environ.items() if not name.startswith(contract.ENV_PREFIX)}
            done = subprocess.run(
                words, env=kept | own_home(folder / BED), cwd="/", capture_output=True, text=True, timeout=_REFERENCE_S
            )
            if done.returncode != 0:
                raise BedError(
                    f"the trainer left with {done.returncode} when nothing disturbed it: {done.stderr[-500:]}"
                )
            self._undisturbed = self.found(alone / "checkpoints")
        return self._undisturbed

    def found(self, checkpoints: Path) -> Mapping[str, Any]:
        newest = max(checkpoints.glob("step-*" + contract.MANIFEST_SUFFIX))
        manifest = contract.Manifest.read(newest)
        return {"step": manifest.step, "tensors": tensors_digest(checkpoints / manifest.files[0].name)}


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
    Raises BedError where it holds no tensor: the digest of nothing is that of every other nothing.
    """
    with zipfile.ZipFile(path) as archive:
        records = [name for name in archive.namelist() if "/data/" in name]
        if not records:
            raise BedError(f"{path} holds no tensors (of its {len(archive.namelist())} records none is in data/)")
        digests = sorted(hashlib.sha256(archive.read(name)).hexdigest() for name in records)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


KINDS: Sequence[type[Trained]] = (Quick, Bundled)


def by_name(name: str) -> Trained | None:
    return next((kind() for kind in KINDS if kind.name == name), None)
