"""A trainer of level 2 without torch, for everything that is about the supervisor and not about losses.

Its state is a chain of hashes, so a wrong resume shows at the end. Starts in a tenth of a second.
Refuses nothing it is told to do wrong: exit early, fail, forget a resume, ignore TERM.

    python -P -m bench.campaign_counter --steps 40 [--save-every 5] [--delay 0.01] [--fail-at N] [--exit-zero-at N]
                                        [--forget-resume] [--ignore-term] [--silent-at N]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import time
from pathlib import Path

from watchdog import contract


def advance(value: str, step: int) -> str:
    """The state after `step`, from the one before."""
    return hashlib.sha256(f"{value}{step}".encode()).hexdigest()


def final_value(steps: int) -> str:
    """What an undisturbed run ends with."""
    value = ""
    for step in range(1, steps + 1):
        value = advance(value, step)
    return value


def save(run: contract.Run, folder: Path, step: int, value: str, target: int) -> None:
    """Data first, manifest last. Raises OSError."""
    run.beat("save")
    content = json.dumps({"step": step, "value": value}).encode()
    written = contract.write_durably(folder / f"count-{step:06d}.json", lambda file: file.write(content))
    manifest = contract.Manifest(step=step, files=(written,), target_step=target, run_id=run.run_id)
    run.publish(folder / f"count-{step:06d}{contract.MANIFEST_SUFFIX}", manifest)
    run.beat("train", checkpoint_step=step)


def restore(run: contract.Run) -> tuple[int, str]:
    """Load what the environment names, and say so."""
    assert run.resume_manifest is not None
    manifest = contract.Manifest.read(run.resume_manifest)
    path = run.resume_manifest.parent / manifest.files[0].name
    content = path.read_bytes()
    digest = contract.FileDigest(name=path.name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    state = json.loads(content)
    run.acknowledge(step=state["step"], files=[digest])
    return int(state["step"]), str(state["value"])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.01)
    for name in ("--fail-at", "--exit-zero-at", "--silent-at"):
        parser.add_argument(name, type=int, default=-1)
    parser.add_argument("--forget-resume", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    wishes = parser.parse_args(argv)
    run = contract.join()
    assert run.checkpoints is not None, "this trainer is made for a supervisor"
    if wishes.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        run.drain_on_sigterm()
    run.beat("load", target_step=wishes.steps)
    step, value = 0, ""
    if run.must_resume and not wishes.forget_resume:
        step, value = restore(run)
    else:
        run.acknowledge(fresh=True, step=0)
        save(run, run.checkpoints, 0, "", wishes.steps)
    run.beat("first_step", step=step)
    while step < wishes.steps:
        if run.draining:
            run.beat("drain")
            save(run, run.checkpoints, step, value, wishes.steps)
            return 0
        step += 1
        if step == wishes.fail_at:
            raise RuntimeError(f"CUDA error: an illegal memory access, made on purpose at step {step}")
        if step == wishes.exit_zero_at:
            return 0
        while step == wishes.silent_at:
            time.sleep(0.05)
        value = advance(value, step)
        run.beat("train", step=step, loss=1.0 / step)
        if step % wishes.save_every == 0 or step == wishes.steps:
            save(run, run.checkpoints, step, value, wishes.steps)
        time.sleep(wishes.delay)
    run.beat("finished")
    contract.write_json_durably(run.checkpoints / "count.json", {"step": step, "value": value})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
