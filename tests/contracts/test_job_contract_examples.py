"""docs/job-contract.md keeps its word: its examples compile, use names that exist, and the PyTorch one really runs.

Hugging Face and Lightning are no dependencies of this project, so their examples are only checked against the contract.
"""

from __future__ import annotations

import ast
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog import contract

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "job-contract.md").read_text(encoding="utf-8")


def code_blocks(document: str, language: str) -> dict[str, list[str]]:
    """Code blocks by the heading above them."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", document, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0].strip()
        blocks = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        if blocks:
            found[heading] = blocks
    return found


EXAMPLES = code_blocks(DOCUMENT, "python")
[PLAIN] = EXAMPLES["Plain PyTorch"]
TARGET = 40  # as the example has it


def test_the_promised_examples_are_there() -> None:
    assert set(EXAMPLES) == {"Leaving", "A smaller batch", "Plain PyTorch", "Hugging Face Trainer", "Lightning"}


@pytest.mark.parametrize("heading", sorted(EXAMPLES))
def test_examples_compile_and_use_names_that_exist(heading: str) -> None:
    run_names = {name for name in dir(contract.Run(run_id=None)) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(contract.Beat)}
    manifest_fields = {field.name for field in dataclasses.fields(contract.Manifest)}
    used = 0
    for source in EXAMPLES[heading]:
        tree = ast.parse(source)
        compile(tree, heading, "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                if owner == "contract":
                    used += 1
                    assert hasattr(contract, node.attr), f"contract.{node.attr} does not exist"
                if owner in ("run", "self.run"):
                    used += 1
                    assert node.attr in run_names, f"Run.{node.attr} does not exist"
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                names = {keyword.arg for keyword in node.keywords}
                if called.endswith("run.beat"):
                    assert names <= fields
                    if isinstance(node.args[0], ast.Constant):
                        assert node.args[0].value in contract.PHASES
                if called == "contract.Manifest":
                    assert names <= manifest_fields
                    assert {"step", "files", "target_step", "run_id"} <= names
    assert used > 2


def test_every_variable_exit_code_and_phase_is_explained() -> None:
    for name in sorted(contract.CONTRACT_ENVIRONMENT):
        assert f"| `{name}` |" in DOCUMENT, f"{name} is missing in docs/job-contract.md"
    codes = {name: value for name, value in vars(contract).items() if name.startswith("EXIT_")}
    for name, value in codes.items():
        assert f"| {value} | `{name}` |" in DOCUMENT, f"{name} is missing in docs/job-contract.md"
    for phase in contract.PHASES:
        assert f"`{phase}`" in DOCUMENT, f"phase {phase} is missing in docs/job-contract.md"


def test_the_json_examples_are_read_by_the_contract() -> None:
    [beat] = code_blocks(DOCUMENT, "json")["Beats"]
    read = contract.Beat.from_bytes(json.dumps(json.loads(beat)).encode())
    assert (read.step, read.phase, read.checkpoint_step) == (213, "train", 200)
    [manifest] = code_blocks(DOCUMENT, "json")["Manifest"]
    manifest_read = contract.Manifest.from_record(json.loads(manifest.replace("9f2c…", "9f2c" * 16)))
    assert (manifest_read.step, manifest_read.files[0].name) == (200, "step-200.pt")


class Job:
    """A folder of a job, with the files and the environment that a supervisor would give its trainer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.beat_file, self.ack_file = folder / "beat", folder / "ack.json"
        self.lock, self.record = folder / "run.lock", folder / "run.json"
        self.checkpoints.mkdir()
        self.lock.touch()

    def start(self, run_id: str, *, resume: Path | None = None, script: str = PLAIN) -> subprocess.Popen[str]:
        self.record.write_text(json.dumps({"run_id": run_id}))
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            contract.ENV_RUN_ID: run_id,
            contract.ENV_BEAT_FILE: str(self.beat_file),
            contract.ENV_ACK_FILE: str(self.ack_file),
            contract.ENV_CHECKPOINTS: str(self.checkpoints),
            contract.ENV_RUN_LOCK: str(self.lock),
            contract.ENV_RUN_RECORD: str(self.record),
            contract.ENV_RESUME: contract.RESUME_REQUIRE if resume else contract.RESUME_FRESH,
        }
        if resume:
            environment[contract.ENV_RESUME_MANIFEST] = str(resume)
        return start(script, environment, self.folder)

    def beat(self) -> contract.Beat:
        return contract.Beat.from_bytes(self.beat_file.read_bytes())

    def acknowledgement(self) -> contract.Acknowledgement:
        return contract.Acknowledgement.read(self.ack_file)

    def manifest_path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}.manifest.json"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, each verified against its bytes."""
        found = []
        for path in self.checkpoints.glob("*" + contract.MANIFEST_SUFFIX):
            manifest = contract.Manifest.read(path)
            for file in manifest.files:
                assert contract.digest_file(self.checkpoints / file.name) == file
            found.append(manifest.step)
        return sorted(found)


def start(script: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    path = folder / "train.py"
    path.write_text(script, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-P", str(path)],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """Wait for the end, which must have this exit code. Returns what was said."""
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, said
    return said


def test_plain_pytorch_starts_fresh_and_resumes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    finish(job.start("run-1"))
    assert job.steps() == [0, 10, 20, 30, TARGET]
    assert job.acknowledgement().fresh
    beat = job.beat()
    assert (beat.run_id, beat.phase, beat.step, beat.target_step) == ("run-1", "finished", TARGET, TARGET)
    assert beat.checkpoint_step == TARGET
    undisturbed = (beat.loss, contract.Manifest.read(job.manifest_path(TARGET)).digest)

    resumed_from = contract.Manifest.read(job.manifest_path(20))
    for step in (30, TARGET):
        job.manifest_path(step).unlink()
    finish(job.start("run-2", resume=job.manifest_path(20)))
    acknowledgement = job.acknowledgement()
    assert (acknowledgement.run_id, acknowledgement.fresh, acknowledgement.step) == ("run-2", False, 20)
    assert acknowledgement.digest == resumed_from.digest
    assert job.steps() == [0, 10, 20, 30, TARGET]
    assert (job.beat().loss, contract.Manifest.read(job.manifest_path(TARGET)).digest) == undisturbed


def test_plain_pytorch_acknowledges_the_bytes_it_loaded_and_not_the_manifest(tmp_path: Path) -> None:
    job = Job(tmp_path)
    finish(job.start("run-1"))
    swapped = (job.checkpoints / "step-10.pt").read_bytes()
    (job.checkpoints / "step-20.pt").write_bytes(swapped)
    finish(job.start("run-2", resume=job.manifest_path(20)))
    assert job.acknowledgement().digest == hashlib.sha256(swapped).hexdigest()
    assert job.acknowledgement().step == 10


def test_plain_pytorch_saves_and_leaves_on_term(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    job = Job(tmp_path)
    endless = PLAIN.replace(f"TARGET, EVERY = {TARGET}, 10", "TARGET, EVERY = 10**9, 10**9")
    assert endless != PLAIN
    process = job.start("run-1", script=endless)
    try:
        wait_until(
            lambda: job.beat_file.exists() and b'"train", "step": 2' in job.beat_file.read_bytes(),
            "step 2.",
            timeout_s=60,
        )
        process.send_signal(signal.SIGTERM)
    finally:
        finish(process)
    beat = job.beat()
    assert beat.phase == "drain"
    assert job.steps() == [0, beat.step]


def test_plain_pytorch_refuses_a_run_that_is_over(tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start(
        "run-1",
        script="import json, sys\nfrom watchdog import contract\n"
        "open('run.json', 'w').write(json.dumps({'run_id': 'run-2'}))\n" + PLAIN,
    )
    said = finish(process, code=1)
    assert "belongs to run run-1, the job's run is run-2" in said
    assert job.steps() == []


def test_plain_pytorch_holds_a_share_of_the_run_lock(tmp_path: Path) -> None:
    job = Job(tmp_path)
    probe = (
        "import fcntl\nother = open('run.lock')\ntry:\n    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError:\n    print('held')\n"
    )
    process = job.start("run-1", script=PLAIN + probe)
    assert finish(process) == "held\n"
    with open(job.lock) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_plain_pytorch_runs_without_a_supervisor(tmp_path: Path) -> None:
    finish(start(PLAIN, os.environ | {"PYTHONPATH": str(ROOT)}, tmp_path))
    assert contract.Manifest.read(tmp_path / f"step-{TARGET}.manifest.json").run_id is None
    assert not (tmp_path / "beat").exists()
