"""Decision 0002: a beat needs no free block, and a half-written one is never believed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog import contract

ROOT = Path(__file__).resolve().parents[2]


def beat(number: int) -> bytes:
    return contract.Beat(
        seq=number, monotonic_s=float(number), run_id="run", pid=1, start_ticks=1, phase="train", step=number
    ).to_bytes()


FULL_DISK = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from watchdog import contract
run = contract.join({{contract.ENV_RUN_ID: "run", contract.ENV_BEAT_FILE: "beat"}})
run.beat("train", step=0)
with open("fill", "wb", buffering=0) as fill:
    try:
        while True:
            fill.write(bytes(4096))
    except OSError as error:
        print(error.errno)
for step in range(1, 101):
    run.beat("train", step=step)
print(run.beats_dropped, contract.Beat.from_bytes(open("beat", "rb").read()).step)
try:
    contract.write_durably(contract.Path("beat"), lambda out: out.write(bytes(4096)))
except OSError as error:
    print(error.errno, contract.Beat.from_bytes(open("beat", "rb").read()).step, sorted(os.listdir()))
"""


def test_beats_go_on_when_the_disk_is_full(tmp_path: Path) -> None:
    """A tmpfs in a mount namespace of its own, filled to the last byte."""
    # Root needs no user namespace, and some systems refuse one to everybody else.
    own_namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*own_namespace, sys.executable, "-c", MOUNT, str(tmp_path), FULL_DISK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    full, beats, renamed = done.stdout.splitlines()
    assert full == "28"  # ENOSPC
    assert beats == "0 100"
    # A rename would have failed; and write_durably leaves the old file as it was, with nothing beside it.
    assert renamed == "28 100 ['beat', 'fill']"


MOUNT = """
import os, subprocess, sys
folder, program = sys.argv[1:]
done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder])
if done.returncode:
    sys.exit(77)
os.chdir(folder)
os.execv(sys.executable, [sys.executable, "-c", program])
"""

WRITER = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
fd = os.open(sys.argv[1], os.O_WRONLY)
first, second = sys.stdin.buffer.read(4096), sys.stdin.buffer.read(4096)
while True:
    os.pwrite(fd, first, 0)
    os.pwrite(fd, second, 0)
"""


@contextlib.contextmanager
def writing(path: Path, first: bytes, second: bytes) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(first + second)
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_every_read_under_a_writer_is_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    beats = (beat(1), beat(10**9))
    path.write_bytes(beats[0])
    seen = set()
    with writing(path, *beats), open(path, "rb", buffering=0) as file:
        for _ in range(20_000):
            content = os.pread(file.fileno(), contract.BEAT_SIZE_BYTES, 0)
            try:
                read = contract.Beat.from_bytes(content)
            except contract.ContractError:
                assert content not in beats
                continue
            assert (read.seq, read.step) in {(1, 1), (10**9, 10**9)}
            seen.add(read.seq)
    assert seen == {1, 10**9}


def test_a_torn_beat_is_refused() -> None:
    one, other = beat(1), beat(10**9)
    torn = one[:100] + other[100:]
    assert torn not in (one, other)
    with pytest.raises(contract.ContractError, match="torn"):
        contract.Beat.from_bytes(torn)
