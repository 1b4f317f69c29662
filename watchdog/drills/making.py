"""How each fault is made: from outside, by signals, files, mounts and limits.

Responsible for the making and for the mending of what was spoiled. Refuses to wait for what comes of it (run.py does),
and to touch anything but the processes and files of its own bed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from watchdog import contract
from watchdog.collectors.processes import is_alive, read_process
from watchdog.core.identity import ProcessId
from watchdog.drills import job
from watchdog.drills.bed import Bed, BedError, Living, wait_for
from watchdog.drills.damage import replace
from watchdog.drills.places import Disk, LockHolder, MemoryLimit, ReadOnly, Stranger

_BIG_MIB = 160  # what the data is made to be, once it is unpacked
_ROOM_BYTES = 48 * 2**20  # what is left to a trainer that is to read it
_SOON_S = 10.0


@dataclasses.dataclass(kw_only=True)
class Ring:
    """What a fault has to work with; `restart` is set by one that killed the supervisor."""

    bed: Bed
    run: Living
    data: Path
    supervisor: subprocess.Popen[bytes]
    cleanup: contextlib.ExitStack  # closed after the end of all processes
    disk: Disk | None = None
    restart: bool = False
    promises: list[Callable[[], Sequence[str]]] = dataclasses.field(default_factory=list)  # asked at the end
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def trainer(self) -> ProcessId:
        """The process that beats."""
        beat = self.run.beat()
        return self.run.trainer_id if beat is None else ProcessId(beat.pid, beat.start_ticks)

    def at_step(self, more: int) -> int:
        """So many steps from here."""
        beat = self.run.beat()
        return more + (0 if beat is None or beat.step is None else beat.step)

    def gone(self, identity: ProcessId, what: str) -> None:
        wait_for(lambda: not is_alive(identity), what, timeout_s=_SOON_S)


# --- processes ----------------------------------------------------------------------------------------------------
def signalled(number: signal.Signals) -> Callable[[Ring], None]:
    return lambda ring: ring.bed.strike(ring.trainer, number)


def kill_shim(ring: Ring) -> None:
    ring.bed.strike(ring.run.shim_id)


def kill_supervisor(ring: Ring) -> None:
    ring.bed.kill_supervisor(ring.supervisor)
    ring.restart = True


def kill_supervisor_and_trainer(ring: Ring) -> None:
    kill_supervisor(ring)
    ring.bed.strike(ring.trainer)


def kill_supervisor_and_shim(ring: Ring) -> None:
    kill_supervisor(ring)
    ring.bed.strike(ring.run.shim_id)


def kill_everybody(ring: Ring) -> None:
    trainer = ring.trainer
    kill_supervisor_and_shim(ring)
    ring.bed.strike(trainer)


def kill_supervisor_after(event: str, number: signal.Signals = signal.SIGKILL) -> Callable[[Ring], None]:
    """In the middle of a relaunch: as soon as it has recorded that. The trainer is sent `number` before."""

    def make(ring: Ring) -> None:
        ledger = ring.bed.state / "ledger.jsonl"
        known, sought = ledger.stat().st_size, f'"event":"{event}"'.encode()
        ring.bed.strike(ring.trainer, number)

        def recorded() -> bool:
            with open(ledger, "rb") as file:
                file.seek(known)
                return sought in file.read().replace(b'": "', b'":"')

        wait_for(recorded, f"{event} in the ledger", timeout_s=_SOON_S, every_s=0.0005)
        kill_supervisor(ring)

    return make


def take_number(ring: Ring) -> None:
    """Supervisor and trainer are killed, and the trainer's number goes to a stranger with the same command line."""
    trainer = ring.trainer
    words = [os.fsdecode(word) for word in Path(f"/proc/{trainer.pid}/cmdline").read_bytes().split(b"\0")[1:-1]]
    kill_supervisor_and_trainer(ring)
    wait_for(lambda: not os.path.exists(f"/proc/{trainer.pid}"), "the end of the trainer", timeout_s=_SOON_S)
    stranger = Stranger(trainer.pid, words, ring.cleanup)
    ring.promises.append(stranger.harm)


def ghost(ring: Ring) -> None:
    """The trainer stands still and keeps its share of the run lock; whoever would have ended it is gone."""
    ring.bed.strike(ring.trainer, signal.SIGSTOP)
    ring.bed.strike(ring.run.shim_id)


def freeze_everybody(ring: Ring) -> None:
    """As a suspended laptop does: longer than any deadline of the job."""
    process = read_process(ring.supervisor.pid)
    assert process is not None, "the supervisor is our child and not reaped"
    order = (process.id, ring.run.shim_id, ring.trainer)
    for each in order:
        ring.bed.strike(each, signal.SIGSTOP)
    time.sleep(3.0)  # the time itself is the fault
    for each in reversed(order):
        ring.bed.strike(each, signal.SIGCONT)


def second_supervisor(ring: Ring) -> None:
    code = ring.bed.ended(ring.bed.start())
    if code != 4:
        raise BedError(f"a second supervisor left with {code}, not with 4\n{ring.bed.tell()}")


def take_port(ring: Ring) -> None:
    """While the supervisor was dead, somebody took the port of its metrics. It says so; then the port is free again."""
    text = ring.bed.config.read_text()
    kill_supervisor(ring)
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        port = taker.getsockname()[1]
        ring.bed.config.write_text(text.replace('port = "off"', f"port = {port}"))
        code = ring.bed.ended(ring.bed.start())
        if code != 2 or f":{port} is taken by pid {os.getpid()} " not in ring.bed.screen:
            raise BedError(f"it left with {code} and does not name who has its port\n{ring.bed.tell()}")


# --- limits -------------------------------------------------------------------------------------------------------
def grow_data(ring: Ring) -> None:
    """The data becomes large, in memory and not on disk."""
    ring.kept["data"] = job.get_data(ring.data)
    job.put_data(ring.data, ring.kept["data"], zeroes_mib=_BIG_MIB)


def refuse_memory(ring: Ring) -> None:
    trainer = ring.trainer
    pages = int(Path(f"/proc/{trainer.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM_BYTES
    if not ring.bed.is_ours(trainer):
        raise BedError(f"pid {trainer.pid} is not proven to be of this drill: its limits were left alone")
    resource.prlimit(trainer.pid, resource.RLIMIT_AS, (limit, limit))
    grow_data(ring)
    ring.gone(trainer, "the end of the trainer by its limit")
    mend_data(ring)


def out_of_memory(ring: Ring) -> None:
    trainer = ring.trainer
    limit = MemoryLimit(_ROOM_BYTES, ring.cleanup, ring.bed.root.parent.name)
    if not ring.bed.is_ours(trainer):
        raise BedError(f"pid {trainer.pid} is not proven to be of this drill: its limits were left alone")
    ring.bed.harmed.add(trainer.pid)
    limit.take(trainer.pid)
    grow_data(ring)
    ring.gone(trainer, "the end of the trainer by the kernel")
    mend_data(ring)


# --- disks --------------------------------------------------------------------------------------------------------
def fill_disk(ring: Ring) -> None:
    """Full until the watchdog has either held or waited for two seconds at its gate."""
    assert ring.disk is not None
    trainer = ring.trainer
    ring.disk.fill()
    ring.gone(trainer, "the end of the trainer by the full disk")
    with contextlib.suppress(BedError):
        ring.bed.wait_event("hold", timeout_s=2.0)
        return
    if ring.bed.living() is not None:
        raise BedError(f"a run was launched onto a full disk\n{ring.bed.tell()}")
    ring.disk.free()


def free_disk(ring: Ring) -> None:
    assert ring.disk is not None
    ring.disk.free()


def fill_log_disk(ring: Ring) -> None:
    """The disk of ledger and logs is full, and the trainer is killed; there is room again after two seconds."""
    assert ring.disk is not None
    ring.disk.fill()
    ring.bed.strike(ring.trainer)
    with contextlib.suppress(BedError):
        wait_for(lambda: ring.supervisor.poll() is not None, "the supervisor's end", timeout_s=2.0)
    ring.disk.free()
    if ring.supervisor.poll() is not None:
        ring.kept["code"] = ring.supervisor.returncode
        ring.restart = ring.supervisor.returncode != 3


def read_only(ring: Ring) -> None:
    ring.kept["folder"] = ReadOnly(ring.bed.checkpoints, ring.cleanup)


def writable(ring: Ring) -> None:
    ring.kept["folder"].close()


# --- checkpoints --------------------------------------------------------------------------------------------------
def stand_still(ring: Ring) -> Path:
    """The trainer stops and saves no more; its newest manifest, which is verified by then."""
    ring.bed.strike(ring.trainer, signal.SIGSTOP)
    newest = ring.bed.newest_manifest()
    step = contract.Manifest.read(newest).step
    known = "checkpoint_verified"
    wait_for(
        lambda: step in {event["data"]["step"] for event in ring.bed.kinds(known)},
        f"step {step} to be verified",
        timeout_s=_SOON_S,
    )
    ring.kept["step"] = step
    return newest


def damage(how: Callable[[Path], None]) -> Callable[[Ring], None]:
    def make(ring: Ring) -> None:
        how(stand_still(ring))
        ring.bed.strike(ring.trainer)

    return make


def swap_before_load(ring: Ring) -> None:
    """After it was chosen and verified, before the next run loads it."""
    newest = stand_still(ring)
    ring.bed.strike(ring.trainer)

    def importing(_run: Living, beat: contract.Beat | None) -> bool:
        return beat is not None and beat.phase == "import"

    ring.bed.run_where(importing, "the next run, before it loads", after=ring.run.number, timeout_s=_SOON_S)
    replace(newest)


# --- what is heard ------------------------------------------------------------------------------------------------
def remove_beats(ring: Ring) -> None:
    (ring.run.folder / "beat.json").unlink()


def garble_beats(ring: Ring) -> None:
    (ring.run.folder / "beat.json").write_bytes(b"\xff" * 4096)


def break_settings(ring: Ring) -> None:
    """A person who saves half an edit; the run dies meanwhile."""
    text = ring.bed.config.read_text()
    ring.bed.config.write_text(text[: len(text) // 2] + "= [")
    ring.bed.strike(ring.trainer)
    ring.bed.run_where(lambda _run, _beat: True, "the next run", after=ring.run.number, timeout_s=_SOON_S)
    ring.bed.config.write_text(text)


def tear_ledger(ring: Ring) -> None:
    kill_supervisor(ring)
    torn = b'{"seq": 99, "event": "run_en'
    ring.bed.spoiled.add(torn)
    with open(ring.bed.state / "ledger.jsonl", "ab") as file:
        file.write(torn)


# --- data ---------------------------------------------------------------------------------------------------------
def rewrite_lesson(value: str) -> Callable[[Ring], None]:
    """What is learned a few steps from here is something else."""

    def make(ring: Ring) -> None:
        text = job.get_data(ring.data)
        ring.kept["data"] = text
        at = ring.at_step(3)
        lines = text.splitlines()
        lines[at] = f"{at + 1} {value}"
        job.put_data(ring.data, "\n".join(lines) + "\n")

    return make


def end_data(ring: Ring) -> None:
    """No more data comes: the trainer waits for it and beats on, until that is noticed."""
    text = job.get_data(ring.data)
    at = ring.at_step(2)
    job.put_data(ring.data, "\n".join(text.splitlines()[:at]) + "\n")

    def noticed() -> bool:
        found = (event["data"].get("check") for event in ring.bed.kinds("finding"))
        return "steps-frozen" in found or bool(ring.bed.kinds("run_stopping"))

    wait_for(noticed, "frozen steps to be noticed", timeout_s=30, every_s=0.05)
    job.put_data(ring.data, text)


def cut_data(ring: Ring) -> None:
    """The data is over a few steps from here, until the trainer has left over it."""
    ring.kept["data"] = job.get_data(ring.data)
    job.put_data(ring.data, "\n".join(ring.kept["data"].splitlines()[: ring.at_step(2)]) + "\n")
    ring.gone(ring.trainer, "the end of the trainer by the end of its data")
    mend_data(ring)


def block_data(ring: Ring) -> None:
    """What reads the data never comes back, as on a dead network disk; until the trainer is given up."""
    ring.kept["data"] = job.get_data(ring.data)
    trainer, fifo = ring.trainer, ring.data.with_name("fifo")
    os.mkfifo(fifo)
    fifo.replace(ring.data)
    ring.gone(trainer, "the end of the trainer that reads and reads")
    mend_data(ring)


def flatten_loss(ring: Ring) -> None:
    """From a few steps from here on there is nothing more to learn: the loss is the very same in each step."""
    lines, weights = job.get_data(ring.data).splitlines(), job.first_weights()
    at = ring.at_step(3)
    for step in range(1, len(lines) + 1):
        if step > at:
            lines[step - 1] = f"{step} {weights['value']!r}"
        weights, _ = job.advance(weights, float(lines[step - 1].split()[1]))
    job.put_data(ring.data, "\n".join(lines) + "\n")


def raise_loss(ring: Ring) -> None:
    """From a few steps from here on the data is twice as far off in each step."""
    lines = job.get_data(ring.data).splitlines()
    for step in range(ring.at_step(3), len(lines) + 1):
        lines[step - 1] = f"{step} {2.0**step}"
    job.put_data(ring.data, "\n".join(lines) + "\n")


def remove_data(ring: Ring) -> None:
    ring.kept["data"] = job.get_data(ring.data)
    ring.data.unlink()


def mend_data(ring: Ring) -> None:
    job.put_data(ring.data, ring.kept["data"])


# --- locks --------------------------------------------------------------------------------------------------------
def foreign_holder(ring: Ring) -> None:
    lock = ring.bed.checkpoints / contract.CONTROL_FOLDER / contract.RUN_LOCK
    ring.kept["holder"] = LockHolder(sys.executable, lock, ring.cleanup)
    ring.bed.strike(ring.trainer)


def end_holder(ring: Ring) -> None:
    ring.kept["holder"].close()


def replace_lock(ring: Ring) -> None:
    """The lock file of the supervisor is another one, as after a restored backup; and the trainer is killed."""
    lock = ring.bed.checkpoints / contract.CONTROL_FOLDER / "supervisor.lock"
    lock.unlink()
    lock.touch()
    ring.bed.strike(ring.trainer)


def remove_run_lock(ring: Ring) -> None:
    """The run's lock file is gone while the run holds it; then the trainer is killed."""
    (ring.bed.checkpoints / contract.CONTROL_FOLDER / contract.RUN_LOCK).unlink()
    ring.bed.strike(ring.trainer)


def nothing(_ring: Ring) -> None:
    """What is in order again by the time that a person looks."""


# --- habits -------------------------------------------------------------------------------------------------------
def mend_command(ring: Ring) -> None:
    """A person takes the bad habit out of the command."""
    text = ring.bed.config.read_text()
    ring.bed.config.write_text(text.replace(', "--forgetful"', ""))
