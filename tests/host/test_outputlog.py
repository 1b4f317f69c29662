"""The output log stays bounded while its writer keeps it open for append."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog.actuators.outputlog import punch_front
from watchdog.collectors.outputlog import tail

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 64 * 1024
WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for number in range(1, 40001):
    os.write(fd, b"line %8d\\n" % number)
    if number % 4000 == 0:
        print(number, flush=True)
        sys.stdin.readline()
"""


def held(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def test_the_front_goes_and_the_writer_notices_nothing(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.touch()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    released = 0
    for number in range(4000, 40001, 4000):
        assert writer.stdout.readline() == f"{number}\n"
        released += punch_front(path, LIMIT)
        assert held(path) <= LIMIT + LIMIT // 8 + 8192
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert writer.wait(10) == 0
    writer.stdin.close()
    writer.stdout.close()
    assert released > 0
    assert os.stat(path).st_size == 40000 * 14
    lines = tail(path, LIMIT).splitlines()
    numbers = [int(line.split()[1]) for line in lines[1:]]
    assert numbers == list(range(numbers[0], 40001)), "not a line of what was kept is lost or torn"
    assert len(numbers) > 4000


def test_what_is_small_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    content = b"x" * LIMIT
    path.write_bytes(content)
    assert punch_front(path, LIMIT) == 0
    assert path.read_bytes() == content


def test_the_last_bytes_are_never_punched(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    content = os.urandom(5 * LIMIT + 123)
    path.write_bytes(content)
    assert punch_front(path, LIMIT) > 0
    assert path.stat().st_size == len(content)
    assert path.read_bytes()[-LIMIT:] == content[-LIMIT:]
    assert punch_front(path, LIMIT) == 0  # nothing more to release


def test_a_log_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        punch_front(tmp_path / "output.log", LIMIT)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"one\ntwo\n", "\xff\xfeé".encode("latin-1"), b"a\0b"])
def test_a_tail_is_text_whatever_was_written(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(content)
    assert isinstance(tail(path), str)
    assert tail(path, 4) in content.decode("utf-8", "replace") or content[-4:].startswith(b"\0")


RAMFS = f"""
import os, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from watchdog.actuators.outputlog import punch_front
folder = sys.argv[1]
if subprocess.run(["mount", "-t", "ramfs", "ramfs", folder]).returncode:
    sys.exit(77)
path = Path(folder, "output.log")
path.write_bytes(b"x" * 500_000)
try:
    punch_front(path, {LIMIT})
except OSError as error:
    print(error.errno, error.filename == str(path), path.read_bytes() == b"x" * 500_000)
"""


def test_a_file_system_that_cannot_do_it_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    own_namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    argv = [*own_namespace, sys.executable, "-c", RAMFS, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no ramfs can be mounted here: {done.stderr.strip()}")
    assert done.stdout == f"{errno.EOPNOTSUPP} True True\n", done.stderr
