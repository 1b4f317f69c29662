"""A drill beside a real job with the same command, started inside its folder and with its environment: it harms neither
the job nor one byte of its checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.host.bed import HostBed, make_bed
from watchdog import contract
from watchdog.drills import job
from watchdog.drills.bed import WATCHDOG
from watchdog.drills.faults import by_name

STEPS = 2000  # of which few are made before the test ends it


def digests(folder: Path) -> dict[Path, str]:
    """Every file that will not be written again: checkpoints and manifests, other checkpoints, what lies beside."""
    files = [path for path in folder.rglob("*") if path.is_file() and contract.CONTROL_FOLDER not in path.parts]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.name[:4] in ("step", "mine")}


def real_job(root: Path) -> HostBed:
    root.mkdir()
    data = root / "lessons.gz"
    job.write_data(data, STEPS)
    command = [sys.executable, "-P", "-m", "watchdog.drills.job", "--data", str(data), "--steps", str(STEPS)]
    # Nothing but a drill may end a checkpoint of it.
    return make_bed(root / "bed", command, retention={"keep_last": 1000})


FAULTS = ("everybody", "checkpoint-lost", "lock-held", "disk-full")


def test_it_touches_no_other_job(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with real_job(tmp_path / "real") as real:
        supervisor = real.start()
        run = real.run_at_step(12)
        (real.checkpoints / "mine").write_text("weeks")
        before = digests(real.checkpoints)
        environment = os.environ | {
            "TMPDIR": str(temporary),
            "HOME": str(real.root),
            "GPUHOST_WATCHDOG_JOB__CHECKPOINTS": str(real.checkpoints),
            "GPUHOST_WATCHDOG_STATE__FOLDER": str(real.root / "state"),
            contract.ENV_CHECKPOINTS: str(real.checkpoints),
        }
        for fault in FAULTS:
            known = by_name(fault)
            assert known is not None
            if known.why_not():
                continue
            done = subprocess.run(
                [*WATCHDOG, "drill", fault, "--json"],
                cwd=real.checkpoints,
                env=environment,
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert json.loads(done.stdout)["ok"]
        assert supervisor.poll() is None
        now = real.living()
        assert now is not None
        assert (now.run_id, now.trainer_id, now.shim_id) == (run.run_id, run.trainer_id, run.shim_id)
        after = digests(real.checkpoints)
        assert {path: after.get(path) for path in before} == before
        assert not real.kinds("run_ended", "run_stopping", "hold", "checkpoint_refused", "run_adopted")
        beat = now.beat()
        assert beat is not None
        assert (beat.step or 0) > 12, "it went on meanwhile"
    assert not list(temporary.iterdir())
