"""The trainer as a process: killed, asked to stop, with a disk that fills."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog import contract


def test_killed_twice_inside_one_epoch_it_ends_on_the_same_digits(
    call: Callable[..., int], launch, arguments: list[str], supervised, tmp_path: Path
) -> None:
    steps = ["--steps", "40", "--save-every", "5", "--log-every", "1", "--threads", "2"]
    undisturbed = tmp_path / "undisturbed"
    assert call([*arguments, *steps, "--checkpoints", str(undisturbed)]) == 0
    slow = [*arguments, *steps, "--step-delay", "0.05"]
    environment = supervised.environment(resume="fresh")
    for kill_at in (8, 21):
        process = launch(slow, environment)
        process.wait_for(f"step {kill_at}/40")
        process.popen.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        newest = sorted(supervised.checkpoints.glob("*.manifest.json"))[-1]
        assert contract.Manifest.read(newest).step == kill_at // 5 * 5
        environment = supervised.environment(resume="require", manifest=newest)
    process = launch([*arguments, *steps], environment)
    assert process.wait() == 0, process.text()
    read = [json.loads((folder / "summary.json").read_text()) for folder in (supervised.checkpoints, undisturbed)]
    assert read[0] == read[1]
    assert supervised.ack().step == 20


def test_asked_to_stop_twice_it_saves_once_and_ends_with_0(launch, arguments: list[str], supervised) -> None:
    slow = [*arguments, "--step-delay", "0.2", "--log-every", "1"]
    process = launch(slow, supervised.environment(resume="fresh"))
    process.wait_for("step 3/60")
    process.popen.send_signal(signal.SIGTERM)
    process.popen.send_signal(signal.SIGTERM)
    assert process.wait() == 0, process.text()
    beat = supervised.beat()
    assert beat.phase == "drain"
    assert beat.step is not None
    assert 3 <= beat.step < 10
    assert beat.checkpoint_step == beat.step
    newest = sorted(supervised.checkpoints.glob("*.manifest.json"))[-1]
    manifest = contract.Manifest.read(newest)
    assert manifest.step == beat.step
    assert manifest.files == (contract.digest_file(supervised.checkpoints / manifest.files[0].name),)
    assert not list(supervised.checkpoints.glob(".*.tmp"))
    assert f"step {beat.step} of 60 is saved" in process.text()


def test_when_no_checkpoint_fits_it_trains_on_and_saves_when_one_does(launch, arguments: list[str], supervised) -> None:
    """A real refusal by the kernel: the size of files is limited while it runs, and later is not."""
    slow = [*arguments, "--steps", "30", "--save-every", "5", "--step-delay", "0.1", "--log-every", "1"]
    process = launch(slow, supervised.environment(resume="fresh"))
    process.wait_for("step 2/30")
    soft, hard = resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (100_000, hard))
    process.wait_for("could not be saved")
    assert [path.name for path in supervised.checkpoints.glob("*.pt")] == ["step-00000000.pt"]
    assert not list(supervised.checkpoints.glob(".*.tmp"))
    resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert process.wait() == 0, process.text()
    assert contract.Manifest.read(supervised.checkpoints / "step-00000030.manifest.json").step == 30


def test_output_that_goes_nowhere_ends_nothing(arguments: list[str], supervised) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(contract.ENV_PREFIX)}
    environment |= supervised.environment(resume="fresh") | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", "trainer", *arguments, "--steps", "3"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=full, env=environment, timeout=60, check=False)
    assert ended.returncode == 0
    assert supervised.beat().phase == "finished"
    assert (supervised.checkpoints / "summary.json").exists()


def test_the_first_beat_comes_before_torch() -> None:
    """An import that hangs must be a phase with a deadline, not a silence."""
    program = (
        "import sys, trainer.__main__, trainer.arguments, trainer.prepare\nsys.exit(1 if 'torch' in sys.modules else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-P", "-c", program], env=environment, check=False).returncode == 0


def test_the_cores_are_shared_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.__main__ import SPIN_COUNT, share_the_cores

    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that both are put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    share_the_cores()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    share_the_cores()
    assert os.environ["GOMP_SPINCOUNT"] == SPIN_COUNT
    os.environ["GOMP_SPINCOUNT"] = "7"
    share_the_cores()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
