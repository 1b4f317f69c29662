"""The one trainer that every supervisor of bench/peers.py is given: small, on the CPU, resumable, and easy to check.

Its state is a chain of hashes, so that a wrong resume shows in its last value. It pays for `import torch` as every real
trainer does, and holds a lock that stands for the memory of a GPU: a second one beside it cannot start.
It loads as trainers load: the newest checkpoint, without a look at its digest; under a supervisor that names one, that.
It beats in whatever way its supervisor understands. Refuses to recover from anything by itself.

    python -P -m bench.peers_trainer --folder F --trace T [--beats circus|torch|nvrx] [--exit-zero-once STEP] [--helper]
                                     [--light]
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.campaign_counter import advance
from watchdog import contract

STEPS, SAVE_EVERY, STEP_S = 100, 10, 0.05
SILENT_S = 5.0  # what every supervisor that knows beats is told to wait; `import torch` must fit in on a busy machine
_PATIENCE_S = 1.0  # for the lock of one that is just ending
_NAME = "count-{:06d}"
# A worker that lives on when its parent is gone, as those of data loaders do; it holds what it inherited.
_HELPER = "import time\nwhile True: time.sleep(1)"


def take_device(path: Path, *, helper: bool) -> int:
    """The lock that stands for the GPU's memory. Raises SystemExit when somebody else has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > deadline_s:
                raise SystemExit("the device has no memory left: somebody holds it") from None
            time.sleep(0.05)
    if helper:
        subprocess.Popen([sys.executable, "-I", "-S", "-c", _HELPER], pass_fds=[fd])
    return fd


def beater(kind: str) -> Callable[[], None]:
    """What to call after each step, as this supervisor's documentation says."""
    match kind:
        case "circus":
            address = ("127.0.0.1", int(os.environ["PEERS_PORT"]))
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

            def word() -> None:
                udp.sendto(f"{os.getpid()};{time.time()}".encode(), address)

            return word
        case "torch":
            timer = importlib.import_module("torch.distributed.elastic.timer")
            client = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])
            return lambda: client.acquire("step", time.time() + SILENT_S)
        case "nvrx":
            sys.path.append(os.environ["PEERS_SITE"])
            monitor = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
            monitor.init_workload_monitoring()
            return lambda: monitor.send_heartbeat()
    return lambda: None


def save(run: contract.Run, folder: Path, step: int, value: str) -> None:
    """Data first, manifest last. Raises OSError."""
    run.beat("save")
    name = _NAME.format(step)
    content = json.dumps({"step": step, "value": value}).encode()
    written = contract.write_durably(folder / f"{name}.json", lambda file: file.write(content))
    manifest = contract.Manifest(step=step, files=(written,), target_step=STEPS, run_id=run.run_id)
    run.publish(folder / (name + contract.MANIFEST_SUFFIX), manifest)


def load(run: contract.Run, folder: Path) -> tuple[int, str]:
    """What the supervisor names, or else the newest; the digest that is acknowledged is of what was read."""
    manifest = run.resume_manifest
    if manifest is None:
        found = sorted(folder.glob("count-*" + contract.MANIFEST_SUFFIX))
        if run.supervised or not found:
            run.acknowledge(fresh=True, step=0)
            save(run, folder, 0, "")
            return 0, ""
        manifest = found[-1]
    path = manifest.parent / contract.Manifest.read(manifest).files[0].name
    content = path.read_bytes()
    state = json.loads(content)
    sha256 = hashlib.sha256(content).hexdigest()
    loaded = contract.FileDigest(name=path.name, size_bytes=len(content), sha256=sha256)
    run.acknowledge(step=state["step"], files=[loaded])
    return int(state["step"]), str(state["value"])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--beats", choices=("circus", "torch", "nvrx", "none"), default="none")
    parser.add_argument("--exit-zero-once", type=int, default=-1)
    parser.add_argument("--helper", action="store_true")
    parser.add_argument("--light", action="store_true")
    wishes = parser.parse_args(argv)
    trace = os.open(wishes.trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(what: str, word: object) -> None:
        os.write(trace, f"{what} {word} {time.monotonic():.4f}\n".encode())

    tell("start", os.getpid())
    run = contract.join()
    run.beat("import", target_step=STEPS)
    try:
        return train(run, wishes, tell)
    except Exception as error:
        run.fail(error)
        raise


def train(run: contract.Run, wishes: argparse.Namespace, tell: Callable[[str, object], None]) -> int:
    if not wishes.light:
        importlib.import_module("torch")
    folder: Path = run.checkpoints or wishes.folder
    take_device(wishes.folder.parent / "device.lock", helper=wishes.helper)
    beat = beater(wishes.beats)
    beat()
    run.beat("load")
    step, value = load(run, folder)
    run.drain_on_sigterm()
    while step < STEPS:
        if run.draining:
            save(run, folder, step, value)
            return 0
        step += 1
        time.sleep(STEP_S)
        value = advance(value, step)
        tell("step", step)
        run.beat("train", step=step)
        beat()
        if step % SAVE_EVERY == 0:
            save(run, folder, step, value)
            run.beat("train", checkpoint_step=step)
        marker = wishes.folder.parent / "exited"
        if step == wishes.exit_zero_once and not marker.exists():
            marker.touch()
            return 0
    tell("done", value)
    run.beat("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
