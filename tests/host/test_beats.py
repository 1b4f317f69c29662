"""The beat file as a fact: believed only when it is whole, ours, of this time and of a process that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import Shims, until
from watchdog import contract
from watchdog.collectors.beats import descends_from, read_beat_file, see_beat
from watchdog.contract import Beat
from watchdog.core.facts import Absent, Fact, Known, Unknown
from watchdog.core.identity import ProcessId
from watchdog.core.seen import BeatSeen

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Shims]:
    bed = Shims(tmp_path)
    yield bed
    bed.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "beat.json"


def beat(**changes: object) -> Beat:
    values: dict[str, object] = {
        "seq": 1, "monotonic_s": time.monotonic(), "run_id": "1-a", "pid": os.getpid(),
        "start_ticks": contract.start_ticks(), "phase": "train", "step": 3,
    }  # fmt: skip
    return Beat(**(values | changes))  # type: ignore[arg-type]


def see(path: Path, shim: ProcessId | None = None) -> Fact[BeatSeen]:
    return see_beat(path, run_id="1-a", now=time.monotonic, shim=shim)


def test_a_whole_beat_of_a_living_process_is_known_and_alive(path: Path) -> None:
    path.write_bytes(beat().to_bytes())
    fact = see(path)
    assert isinstance(fact, Known)
    assert (fact.value.beat.step, fact.value.alive, fact.value.stopped) == (3, True, False)


def test_no_file_and_an_empty_one_are_absent(path: Path) -> None:
    assert isinstance(see(path), Absent)
    path.touch()
    assert isinstance(see(path), Absent)


@pytest.mark.parametrize("length", [1, 50, 150, 200])
def test_a_truncated_file_is_unknown(path: Path, length: int) -> None:
    path.write_bytes(beat().to_bytes()[:length])
    assert isinstance(see(path), Unknown)


def test_a_torn_file_is_unknown(path: Path) -> None:
    one, two = beat(seq=1).to_bytes(), beat(seq=10**9, step=10**9).to_bytes()
    path.write_bytes(one[:120] + two[120:])
    assert isinstance(see(path), Unknown)


@pytest.mark.parametrize("content", [b"\0" * 4096, b" " * 4096, b"garbage", b"[]\n", b"\xff" * 4096, b"[" * 4096])
def test_garbage_is_unknown(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert isinstance(see(path), Unknown)


def with_values(**changes: object) -> bytes:
    record = json.loads(beat().to_bytes().split(b"\n")[0]) | changes
    line = json.dumps(record).encode()
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


@pytest.mark.parametrize(
    "changes",
    [
        {"monotonic_s": "nan"}, {"monotonic_s": "-inf"}, {"monotonic_s": "inf"}, {"monotonic_s": None},
        {"loss": 10**400},
        {"pid": 2**31}, {"pid": 10**30}, {"step": 10**400}, {"start_ticks": -1},
    ],
    ids=lambda changes: str(changes)[:30],
)  # fmt: skip
def test_impossible_values_are_unknown_and_never_a_crash(path: Path, changes: dict[str, object]) -> None:
    path.write_bytes(with_values(**changes))
    fact = see(path)
    assert isinstance(fact, Unknown) or (isinstance(fact, Known) and "pid" in changes and not fact.value.alive)


def test_another_runs_beat_is_unknown_and_names_it(path: Path) -> None:
    path.write_bytes(beat(run_id="0-old").to_bytes())
    fact = see(path)
    assert isinstance(fact, Unknown)
    assert "0-old" in fact.why


def test_a_beat_from_the_future_is_unknown_and_one_of_just_now_is_not(path: Path) -> None:
    path.write_bytes(beat(monotonic_s=time.monotonic() + 60).to_bytes())
    assert isinstance(see(path), Unknown)
    path.write_bytes(beat(monotonic_s=time.monotonic() + 0.2).to_bytes())
    assert isinstance(see(path), Known)


def test_a_number_that_another_process_has_now_is_not_alive(path: Path) -> None:
    path.write_bytes(beat(start_ticks=contract.start_ticks() - 5).to_bytes())
    fact = see(path)
    assert isinstance(fact, Known)
    assert not fact.value.alive


def test_a_dead_or_stopped_process_is_said_to_be_so(path: Path) -> None:
    child = subprocess.Popen(["/bin/sleep", "600"])
    path.write_bytes(beat(pid=child.pid, start_ticks=contract.start_ticks(child.pid)).to_bytes())
    os.kill(child.pid, signal.SIGSTOP)

    def stopped() -> bool:
        fact = see(path)
        return isinstance(fact, Known) and fact.value.alive and fact.value.stopped

    until(stopped, "alive and stopped")
    child.kill()

    def dead() -> bool:
        fact = see(path)
        return isinstance(fact, Known) and not fact.value.alive and not fact.value.stopped

    until(dead, "a zombie is not alive")
    child.wait()
    assert dead()


@pytest.mark.parametrize("kind", ["fifo", "symlink", "dangling", "folder", "device"])
def test_what_is_no_regular_file_is_unknown_at_once(path: Path, tmp_path: Path, kind: str) -> None:
    real = tmp_path / "real"
    real.write_bytes(beat().to_bytes())
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "symlink":
            path.symlink_to(real)
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
    begun = time.monotonic()
    assert isinstance(see(path), Unknown)
    assert time.monotonic() - begun < 1.0


def test_a_beat_counts_as_alive_only_below_its_shim(bed: Shims, path: Path) -> None:
    run = bed.run("import time; time.sleep(600)")
    leader = run.leader()
    path.write_bytes(beat(pid=leader.pid, start_ticks=leader.start_ticks).to_bytes())
    fact = see(path, run.id)
    assert isinstance(fact, Known)
    assert fact.value.alive
    path.write_bytes(beat().to_bytes())  # ours: a process that lives and is no part of the run
    fact = see(path, run.id)
    assert isinstance(fact, Known)
    assert not fact.value.alive
    assert not descends_from(leader.pid, ProcessId(run.id.pid, run.id.start_ticks + 1))
    assert not descends_from(run.id.pid, leader)


def test_reading_beside_a_writer_gives_whole_beats_only(path: Path) -> None:
    run = contract.Run(run_id="1-a", beat_file=path)
    run.beat("train", step=0)
    pid = os.fork()
    if pid == 0:
        writer = contract.Run(run_id="1-a", beat_file=path)
        step = 0
        while True:
            step = step + 1 if step % 2 else step * 1000 + 1
            writer.beat("train", step=step % 10**9, status="x" * (step % 100))
    try:
        seen = 0
        for _ in range(3000):
            fact = see(path)
            assert isinstance(fact, Known), fact
            seen = max(seen, fact.value.beat.seq)
        assert seen > 10
        assert read_beat_file(path) is not None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
