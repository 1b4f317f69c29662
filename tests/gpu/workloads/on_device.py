"""The job of the drills, computing on a device: deterministic, level 2, and its memory is the device's.

Responsible for what can only be done from inside: holding device memory, an orphan that holds more of it and the run
lock, a kernel that never ends, and asking for memory that is not there. Each is done on order of whoever tests: a file
in a folder that names the run it is meant for, or is gone once it was obeyed, so that the next run trains as ever.

    python -P on_device.py DEVICE ORDERS DATA STEPS MIB SAMPLE_MIB

DEVICE is cuda or torch. MIB is held for good, SAMPLE_MIB for each sample of a micro-batch of 8, which
the supervisor may want halved.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from devices import Device, open_device  # a neighbour, wherever the checkout lies

from watchdog import contract
from watchdog.drills import job

MICRO_BATCH = 8
PAUSE_S = 0.5  # before the device is touched: long enough for somebody who looks each 20 ms
DELAY_S = 0.05
ORPHAN_S = 40.0


def ordered(orders: Path, what: str) -> str | None:
    """What is ordered of this run: the words after its run id; None: nothing."""
    try:
        run_id, _, more = (orders / what).read_text().partition(" ")
    except FileNotFoundError:
        return None
    return more if run_id == os.environ[contract.ENV_RUN_ID] else None


class OnDevice(job.Job):
    """Each step computes on the device before it learns."""

    def __init__(
        self, run: contract.Run, wishes: argparse.Namespace, device: Device, orders: Path, accumulation: int
    ) -> None:
        super().__init__(run, wishes)
        self._device = device
        self._orders = orders
        self._accumulation = accumulation
        self._grown = False

    def _step(self) -> Any:
        if ordered(self._orders, "endless") is not None:
            self._device.endless()
        more = ordered(self._orders, "grow")
        if more is not None and not self._grown:
            self._device.take(int(more))
            self._grown = True
        for _ in range(self._accumulation):
            self._device.work()
        return super()._step()


def leave_an_orphan(kind: str, orders: Path, mib: int) -> None:
    """A child in a session of its own, deaf to what can be ignored, with all our descriptors: the run lock's, too.

    Returns once it holds its memory. Raises OSError when it never does.
    """
    words = [sys.executable, "-P", os.path.abspath(__file__), "--orphan", kind, str(orders), str(mib)]
    child = subprocess.Popen(words, start_new_session=True, close_fds=False)
    until_s = time.monotonic() + ORPHAN_S
    while not (orders / "orphan").exists():
        if child.poll() is not None or time.monotonic() > until_s:
            raise OSError(f"the orphan holds no memory: exit {child.returncode}")
        time.sleep(0.02)


def be_an_orphan(kind: str, orders: Path, mib: int) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    open_device(kind).take(mib)
    temporary = orders / "orphan.new"
    temporary.write_text(str(os.getpid()))
    os.replace(temporary, orders / "orphan")
    while True:
        time.sleep(0.2)


def train(kind: str, orders: Path, wishes: argparse.Namespace, mib: int, sample_mib: int) -> int:
    run = contract.join()
    run.beat("import")
    time.sleep(PAUSE_S)
    (orders / f"touched-{run.run_id}").write_text(str(time.time()))
    run.drain_on_sigterm()
    try:
        device = open_device(kind)
        run.beat("load")
        device.take(mib)
        micro_batch, accumulation = contract.shrunk_batch(MICRO_BATCH, 1, run.batch_halvings)
        if sample_mib:
            device.take(micro_batch * sample_mib)
        device.work()
        with contextlib.suppress(FileNotFoundError):  # the first run takes the order away with it
            (orders / "orphan-wanted").replace(orders / "orphan-made")
            leave_an_orphan(kind, orders, int((orders / "orphan-made").read_text()))
        return OnDevice(run, wishes, device, orders, accumulation).train()
    except Exception as error:
        run.fail(error)
        raise


def main(argv: list[str]) -> int:
    if argv[0] == "--orphan":
        be_an_orphan(argv[1], Path(argv[2]), int(argv[3]))
    kind, orders, data, steps, mib, sample_mib = argv
    wishes = argparse.Namespace(
        data=Path(data),
        steps=int(steps),
        save_every=5,
        evaluate_every=10**9,
        delay=DELAY_S,
        pause=0.05,
        hasty=False,
        forgetful=False,
    )
    return train(kind, Path(orders), wishes, int(mib), int(sample_mib))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
