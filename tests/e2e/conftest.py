"""What the end-to-end tests share: one workshop a session (text, cache, undisturbed reference), a bed for each test.

Whatever a test does, its bed is closed after it: every process of its job is killed by number and seen gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import Bed
from bench.campaign_workshop import PRESET, Workshop, differences


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def beds() -> Iterator[list[Bed]]:
    """Beds put in here are closed at the end."""
    made: list[Bed] = []
    yield made
    for bed in made:
        bed.close()


@pytest.fixture
def real_bed(tmp_path: Path, workshop: Workshop, beds: list[Bed]) -> Callable[..., Bed]:
    """`real_bed(disturbed=..., settings=..., delay_s=...)`: a job of the bundled trainer, with the observer on it."""

    def make(**how: Any) -> Bed:
        bed = workshop.bed(tmp_path / "bed", **how)
        beds.append(bed)
        bed.observe()
        return bed

    return make


@pytest.fixture
def counter_bed(tmp_path: Path, beds: list[Bed]) -> Callable[..., Bed]:
    """`counter_bed("--steps", "40", settings=...)`: a job of the torch-free counter."""

    def make(*words: str, **how: Any) -> Bed:
        root = tmp_path / "bed"
        root.mkdir()
        bed = Bed(root, [sys.executable, "-P", "-m", "bench.campaign_counter", *words], **how)
        beds.append(bed)
        return bed

    return make


@pytest.fixture
def ends_as_undisturbed(workshop: Workshop) -> Callable[..., None]:
    """Every rule holds, and the losses are the undisturbed run's to the last digit."""

    def check(bed: Bed, *, preset: str = PRESET, refused_runs: frozenset[str] = frozenset()) -> None:
        found = [*bed.problems(refused_runs), *differences(bed.outcome(), workshop.reference(preset))]
        assert not found, "\n".join([*found, bed.tell()])

    return check


_BYSTANDER = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.2)"


@pytest.fixture
def bystander() -> Iterator[Callable[..., int]]:
    """`bystander(like=bed)` or `bystander(pid=number)`: a process that is none of ours. Ended, by number, afterwards.

    `like`: the words of the bed's command, with the same interpreter. `pid`: the number it is to have.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(*, like: Bed | None = None, pid: int | None = None) -> int:
        more = [] if like is None else tomllib.loads(like.config.read_text())["job"]["command"][1:]
        for _ in range(200):
            if pid is not None:
                Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            process = subprocess.Popen(
                [sys.executable, "-c", _BYSTANDER, *more], stdout=subprocess.PIPE, start_new_session=True, cwd="/"
            )
            started.append(process)
            if pid is None or process.pid == pid or os.path.exists(f"/proc/{pid}"):
                break
            started.remove(process)
            process.kill()
            process.communicate()
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()
