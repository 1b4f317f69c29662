"""The job that is harmed: a deterministic trainer of level 2 in the standard library. It starts in a tenth of a second.

Its weights depend on every step and on the data of that step, so a step that was skipped, done twice or done from
other weights shows at the end. It saves, evaluates, drains, and stops at a loss that is not finite, as trainers do.
The data is one compressed file that is read anew, whole, at each step; where it ends before the job does, the job waits
for more, beating.

Refuses to know that it is harmed: no option makes a fault. Some are bad habits of real trainers: `--deaf` and `--child`
to TERM, `--hasty` (leaves with 0 when its data is over) and `--forgetful` (begins anew, whatever it is told to resume).

    python -P -m watchdog.drills.job --data FILE [--steps 40] [--save-every 5] [--evaluate-every 10] [--delay 0.02]
                                     [--pause 0.15] [--deaf] [--child] [--hasty] [--forgetful]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from watchdog import contract

_RATE = 0.1
_WAIT_S = 0.05  # for data that is not there yet
# Ignores what can be ignored and needs nothing: no descriptor, no environment, no folder.
_CHILD = "import signal,time\nfor n in (1,2,15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(0.2)"


def write_data(path: Path, steps: int, seed: int = 1) -> None:
    """One line a step: its number and what is learned in it."""
    value, lines = seed, []
    for step in range(1, steps + 1):
        value = (value * 1103515245 + 12345) % 2**31  # the same on every Python
        lines.append(f"{step} {value / 2**31:.6f}\n")
    put_data(path, "".join(lines))


def put_data(path: Path, text: str, *, zeroes_mib: int = 0) -> None:
    """The data anew, compressed, with so many zeroes after it. A reader sees the old data or this."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(gzip.compress(text.encode()))
        if zeroes_mib:  # as members of their own, which are quick to make: the job goes on meanwhile
            file.write(gzip.compress(bytes(2**20), 1) * zeroes_mib)
    temporary.replace(path)


def get_data(path: Path) -> str:
    """All of it, in memory. Raises OSError."""
    return gzip.decompress(path.read_bytes()).decode()


def read_lesson(path: Path, step: int) -> float | None:
    """What is learned in `step`; None while the data ends before it. Raises OSError, ValueError for other data."""
    lines = get_data(path).splitlines()
    if len(lines) < step:
        return None
    number, value = lines[step - 1].split()
    if int(number) != step:
        raise ValueError(f"{path} has step {int(number)} where step {step} belongs")
    return float(value)


def advance(weights: dict[str, Any], lesson: float) -> tuple[dict[str, Any], float]:
    """(the weights after one more step, the loss before it)."""
    step, value = int(weights["step"]) + 1, float(weights["value"])
    loss = (value - lesson) ** 2
    value -= _RATE * (value - lesson)
    chain = hashlib.sha256(f"{weights['chain']} {step} {value!r}".encode()).hexdigest()
    return {"step": step, "value": value, "chain": chain}, loss


def first_weights() -> dict[str, Any]:
    return {"step": 0, "value": 0.5, "chain": ""}


def final_weights(data: Path, steps: int) -> dict[str, Any]:
    """What an undisturbed run ends with."""
    weights = first_weights()
    for step in range(1, steps + 1):
        lesson = read_lesson(data, step)
        assert lesson is not None, f"{data} ends before step {step}"
        weights, _ = advance(weights, lesson)
    return weights


class Job:
    """One run."""

    def __init__(self, run: contract.Run, wishes: argparse.Namespace) -> None:
        assert run.checkpoints is not None, "this job is made for a supervisor"
        self._run = run
        self._wishes = wishes
        self._folder = run.checkpoints
        self._weights = first_weights()

    def _pause(self, phase: str, **fields: Any) -> None:
        """A phase that lasts long enough to be seen from outside."""
        self._run.beat(phase, **fields)
        time.sleep(self._wishes.pause)

    def save(self, *, phase: str = "save") -> None:
        """Data first, manifest last. Raises OSError."""
        self._run.beat(phase)
        step = int(self._weights["step"])
        content = json.dumps(self._weights).encode().ljust(16384)
        name = f"step-{step:08d}"
        written = contract.write_durably(self._folder / f"{name}.json", lambda file: file.write(content))
        time.sleep(self._wishes.pause)
        manifest = contract.Manifest(
            step=step, files=(written,), target_step=self._wishes.steps, run_id=self._run.run_id
        )
        self._run.publish(self._folder / f"{name}{contract.MANIFEST_SUFFIX}", manifest)
        self._run.beat(phase, checkpoint_step=step)

    def restore(self) -> None:
        """Load what the environment names, and say what was really loaded. Raises OSError, ValueError."""
        assert self._run.resume_manifest is not None
        manifest = contract.Manifest.read(self._run.resume_manifest)
        path = self._folder / manifest.files[0].name
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        self._weights = json.loads(content)
        loaded = contract.FileDigest(name=path.name, size_bytes=len(content), sha256=sha256)
        self._run.acknowledge(step=int(self._weights["step"]), files=[loaded])

    def train(self) -> int:
        """To the last step. Returns the exit code."""
        self._pause("load", target_step=self._wishes.steps)
        if self._run.must_resume and not self._wishes.forgetful:
            self.restore()
        else:
            self._run.acknowledge(fresh=True, step=0)
            self.save()
        self._pause("first_step", step=int(self._weights["step"]))
        while int(self._weights["step"]) < self._wishes.steps:
            if self._run.draining:
                self._pause("drain")
                self.save(phase="drain")
                return contract.EXIT_FINISHED
            if (code := self._step()) is not None:
                return code
        self._run.beat("finished")
        contract.write_json_durably(self._folder / "weights.json", self._weights)
        return contract.EXIT_FINISHED

    def _step(self) -> int | None:
        """One step with what follows it; a code is one to leave with."""
        step = int(self._weights["step"]) + 1
        lesson = read_lesson(self._wishes.data, step)
        if lesson is None:
            if self._wishes.hasty:
                print(f"no more data at step {step}: done", file=sys.stderr)
                return contract.EXIT_FINISHED
            self._run.beat("train", status="waits for data")
            time.sleep(_WAIT_S)
            return None
        self._weights, loss = advance(self._weights, lesson)
        self._run.beat("train", step=step, loss=loss, gradient_norm=2 * math.sqrt(loss))
        if not math.isfinite(loss):
            print(f"loss is {loss} at step {step}", file=sys.stderr)
            return contract.EXIT_DIVERGED
        time.sleep(self._wishes.delay)
        if step % self._wishes.evaluate_every == 0:
            self._pause("evaluate")
        if step % self._wishes.save_every == 0 or step == self._wishes.steps:
            self.save()
        return None


def leave_a_child() -> None:
    """A grandchild in a session of its own, without descriptors and environment, that would outlive everybody."""
    run_id, folder = os.environ[contract.ENV_RUN_ID], os.environ[contract.ENV_CHECKPOINTS]
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(0, 4096)
    words = [sys.executable, "-I", "-S", "-c", _CHILD, f"--of-run={run_id}", f"--of-job={folder}"]
    os.execve(os.path.realpath(sys.executable), words, {})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--pause", type=float, default=0.15)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--hasty", action="store_true")
    parser.add_argument("--forgetful", action="store_true")
    wishes = parser.parse_args(argv)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a drill leaves no core file
    run = contract.join()
    run.beat("import")
    time.sleep(wishes.pause)
    if wishes.child:
        leave_a_child()
    if wishes.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        run.drain_on_sigterm()
    try:
        return Job(run, wishes).train()
    except FileNotFoundError as error:
        if error.filename != str(wishes.data):
            run.fail(error)
            raise
        print(f"the data is gone: {error}", file=sys.stderr)
        return contract.EXIT_DATA
    except Exception as error:
        run.fail(error)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
