"""The ledger on real files: torn, damaged, full, read-only and hanging disks lose nothing and promise nothing false."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.core.history import fold
from watchdog.errors import RecordingError, StateError
from watchdog.ledger import BALLAST_BYTES, END_BYTES, LINE_LIMIT_BYTES, Ledger, parse_line, read_events, read_ledger

ROOT = Path(__file__).resolve().parents[2]


def open_ledger(folder: Path, deadline_s: float = 5.0) -> Ledger:
    return Ledger(
        folder / "ledger.jsonl", folder / "ballast", clock=SystemClock(), boot_id="boot", deadline_s=deadline_s
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = open_ledger(tmp_path)
    yield ledger
    ledger.close()


def kinds(path: Path) -> list[str]:
    return [event.kind for event in read_events(path)[0]]


# --- plain life ---------------------------------------------------------------------------------------------
def test_what_was_recorded_is_on_disk_when_the_call_returns_and_is_read_back_whole(path: Path, ledger: Ledger) -> None:
    event = ledger.record("hold", "HOLD: three\nlines – and an é \ud800", reason="r", number=3)
    events, bad = read_events(path)
    assert (events, bad) == ((event.__class__(**{**_fields(event), "wall_s": events[0].wall_s}),), 0)
    assert path.read_bytes().count(b"\n") == 1
    assert os.stat(path).st_mode & 0o077 == 0


def _fields(event: object) -> dict[str, object]:
    return {name: getattr(event, name) for name in ("seq", "wall_s", "kind", "sentence", "data")}


def test_the_clock_that_nobody_sets_is_kept_with_it_and_what_is_none_is_none(path: Path, ledger: Ledger) -> None:
    event = ledger.record("a", "")
    assert event.monotonic_s is not None
    [read] = read_events(path)[0]
    assert (read.monotonic_s, read.boot_id) == (event.monotonic_s, "boot")
    for value in ('"x"', "null", "NaN", "Infinity", "[]"):
        line = f'{{"seq":1,"wall_s":1,"event":"a","sentence":"","monotonic_s":{value}}}'
        read_back = parse_line(line.encode())
        assert read_back is not None
        assert (read_back.monotonic_s, read_back.boot_id) == (None, None)


def test_a_batch_is_in_one_piece_and_in_order(path: Path, ledger: Ledger) -> None:
    ledger.record("a", "")
    events = ledger.record_all([("b", "", {}), ("c", "", {"x": 1})])
    assert [event.seq for event in events] == [2, 3]
    assert kinds(path) == ["a", "b", "c"]


def test_numbers_go_on_after_a_restart(tmp_path: Path, path: Path) -> None:
    for number in (1, 2, 3):
        ledger = open_ledger(tmp_path)
        assert ledger.record("x", "").seq == number
        ledger.close()
    assert [event.seq for event in read_events(path)[0]] == [1, 2, 3]


def test_a_missing_ledger_has_no_events(path: Path) -> None:
    assert read_events(path) == ((), 0)


# --- damage -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("torn", [b'{"seq": 2, "wall', b'{"seq": 2}', b"\0\0\0\0", b"\xff"])
def test_a_torn_last_line_is_closed_and_the_next_record_is_not_lost(tmp_path: Path, path: Path, torn: bytes) -> None:
    first = open_ledger(tmp_path)
    first.record("a", "")
    first.close()
    before = path.read_bytes()
    path.write_bytes(before + torn)
    second = open_ledger(tmp_path)
    assert second.bad_lines == 1
    second.record("b", "")
    second.record("c", "")
    second.close()
    assert kinds(path) == ["a", "b", "c"]
    assert path.read_bytes().startswith(before + torn + b"\n")  # passed over, never removed


def test_a_whole_last_line_that_lacks_only_its_end_counts(tmp_path: Path, path: Path) -> None:
    first = open_ledger(tmp_path)
    first.record("a", "")
    first.close()
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    second = open_ledger(tmp_path)
    second.record("b", "")
    second.close()
    assert kinds(path) == ["a", "b"]


GARBAGE = [
    b"garbage",
    bytes(5000),
    b"[]",
    b"null",
    b'"text"',
    b"[" * 100_000,
    b'{"seq": 1}',
    b'{"seq": "x", "wall_s": 1, "event": "hold", "sentence": ""}',
    b'{"seq": 1, "wall_s": 1, "event": "hold", "sentence": "", "data": [1]}',
    b'{"seq": 1e999, "wall_s": 1, "event": "hold", "sentence": ""}',
    b'{"seq": NaN, "wall_s": 1, "event": "hold", "sentence": ""}',
    b'{"seq": 1, "wall_s": 1' + b"0" * 400 + b', "event": "hold", "sentence": ""}',
    b"\xff\xfe" * 10,
    b"x" * (LINE_LIMIT_BYTES + 10),
]


@pytest.mark.parametrize("content", [b"\xff\x00\n\x07" * 50, b"garbage\n", b'{"seq": 1}\n', b"\0" * 4096])
def test_a_ledger_without_a_single_record_is_not_an_empty_one(tmp_path: Path, path: Path, content: bytes) -> None:
    """It may have held a HOLD: nobody goes on as if the job were new, and nothing of it is touched."""
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"cannot be understood \(byte 0 of \d+"):
        read_events(path)
    with pytest.raises(StateError):
        open_ledger(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\n", b'{"seq": 1, "at": "2026'])
def test_a_first_record_that_was_torn_is_no_damage(tmp_path: Path, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_ledger(path).damage == ""
    ledger = open_ledger(tmp_path)
    ledger.record("a", "")
    ledger.close()
    assert (kinds(path), read_ledger(path).damage) == (["a"], "")


def test_whole_lines_behind_the_last_record_that_are_none_are_damage_and_a_torn_one_is_not(
    tmp_path: Path, path: Path
) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record("a", "")
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b"\xfe\n\xff")
    assert f"(byte {len(whole)} of {len(whole) + 3}" in read_ledger(path).damage
    assert [event.kind for event in read_events(path)[0]] == ["a"]
    path.write_bytes(whole + b"\xfe")
    assert read_ledger(path).damage == ""


def test_many_bytes_in_the_middle_that_are_no_records_are_damage_and_torn_lines_are_not(
    tmp_path: Path, path: Path
) -> None:
    """A quiet record behind them must not hide that a hold may have stood there."""
    ledger = open_ledger(tmp_path)
    ledger.record("a", "")
    ledger.close()
    first = path.read_bytes()
    garbage = b"\xfe" * 2000 + b"\n" + b"\xff" * 3000 + b"\n"
    path.write_bytes(first + garbage + first)
    for reading in (read_ledger(path), read_ledger(path, END_BYTES)):
        assert f"cannot be understood (byte {len(first)} of {path.stat().st_size} on: 5002 bytes" in reading.damage
        assert "a hold too" in reading.damage
    assert len(read_events(path)[0]) == 2, "what is known before it stays known"
    path.write_bytes(garbage + first)
    with pytest.raises(StateError, match=r"cannot be understood \(byte 0 of"):
        read_events(path)
    zeros = first[:50] + b"\0" * 4000 + b"\n"  # a power failure
    for torn in (first[:120] + b"\n", first[:120] + b"\n" + first[:3] + b"\n", b"xyz\n", zeros, b"\0" * 4000 + b"\n"):
        path.write_bytes(first + torn + first)
        assert read_ledger(path).damage == "", torn
        path.write_bytes(torn + first)
        assert len(read_events(path)[0]) == 1, torn


def test_the_end_of_a_long_ledger_is_enough_to_see_its_damage(path: Path, ledger: Ledger) -> None:
    for _ in range(4):
        ledger.record("a", "x" * (LINE_LIMIT_BYTES - 1000))
    assert (len(read_ledger(path, END_BYTES).events), read_ledger(path, END_BYTES).damage) == (2, "")
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"\xfe\n\xff\n")
    assert f"(byte {size} of {size + 4}" in read_ledger(path, END_BYTES).damage
    assert read_ledger(path, END_BYTES).damage == read_ledger(path).damage


@pytest.mark.parametrize("garbage", GARBAGE, ids=[repr(line[:24]) for line in GARBAGE])
def test_garbage_in_the_middle_is_counted_passed_over_and_kept(tmp_path: Path, path: Path, garbage: bytes) -> None:
    first = open_ledger(tmp_path)
    first.record("a", "")
    first.close()
    with open(path, "ab") as file:
        file.write(garbage + b"\n")
    second = open_ledger(tmp_path)
    assert second.bad_lines == 1
    second.record("b", "")
    second.close()
    assert kinds(path) == ["a", "b"]
    assert garbage in path.read_bytes()


def test_no_flipped_bit_anywhere_keeps_a_supervisor_from_starting(tmp_path: Path, path: Path) -> None:
    """Each bit of a real ledger in turn: what is no record is passed over, and folding never falls over the rest."""
    ledger = open_ledger(tmp_path)
    launch = {"number": 1, "run_id": "1-a", "baseline_step": -1}
    end = {"number": 1, "run_id": "1-a", "cause": "exited", "words": "w", "baseline_step": -1, "error": None}
    entries = [
        ("run_launching", "s", launch),
        ("checkpoint_verified", "s", {"step": 3, "digest": "d", "run_id": "1-a"}),
        ("run_ended", "s", end),
        ("run_weighed", "s", {"cause": "exited", "failures": 1, "repeated": 2}),
        ("run_refused", "s", {"run_id": "1-a"}),
        ("hold", "s", {"reason": "r"}),
    ]
    ledger.record_all(entries)
    ledger.close()
    good = path.read_bytes()
    broken: dict[str, bytes] = {}
    for line in good.splitlines():
        for position in range(len(line)):
            for bit in range(7):
                damaged = bytearray(line)
                damaged[position] ^= 1 << bit
                if 0x0A in damaged:
                    continue
                try:
                    event = parse_line(bytes(damaged))
                    fold([event] if event is not None else [])
                except Exception as error:
                    broken.setdefault(f"{type(error).__name__}: {error}"[:80], bytes(damaged))
    assert not broken


def test_a_record_too_long_to_be_read_again_is_not_accepted(path: Path, ledger: Ledger) -> None:
    """A launch that a restart cannot see would be a launch that was never recorded."""
    ledger.record("a", "")
    try:
        ledger.record("run_launching", "", command=["x" * LINE_LIMIT_BYTES])
    except RecordingError:
        assert kinds(path) == ["a"]
    else:
        assert kinds(path) == ["a", "run_launching"]


# --- disks that refuse --------------------------------------------------------------------------------------
def test_a_folder_in_the_place_of_the_ledger_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        open_ledger(tmp_path)


PRELUDE = f"""
import errno, json, os, resource, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from watchdog.clock import SystemClock
from watchdog.core.history import fold
from watchdog.errors import RecordingError, StateError
from watchdog.ledger import BALLAST_BYTES, Ledger, read_events

folder = Path(sys.argv[1])

def open_ledger(deadline_s=5.0):
    return Ledger(folder / "ledger.jsonl", folder / "ballast", clock=SystemClock(), boot_id="b", deadline_s=deadline_s)

def kinds():
    return [event.kind for event in read_events(folder / "ledger.jsonl")[0]]

def fill():
    with open(folder / "fill", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
"""


def in_own_mounts(tmp_path: Path, mounts: str, program: str, timeout_s: float = 60.0) -> list[str]:
    """Run a program in a mount namespace of its own, after a shell snippet of mounts. Skips where that is refused."""
    own_namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    script = tmp_path / "program.py"
    script.write_text(PRELUDE + textwrap.dedent(program))
    folder = tmp_path / "mounted"
    folder.mkdir()
    shell = f'set -e; ({mounts}) || exit 77; exec "$0" "$1" "$2"'
    done = subprocess.run(
        [*own_namespace, "sh", "-c", shell, sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | {"FOLDER": str(folder), "IMAGE": str(tmp_path / "image")},
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_full_disk_releases_the_ballast_and_then_refuses_without_a_scratch(tmp_path: Path) -> None:
    said = in_own_mounts(
        tmp_path,
        'mount -t tmpfs -o size=8m tmpfs "$FOLDER"',
        """
        ledger = open_ledger()
        ledger.record("a", "")
        print("ballast", os.stat(folder / "ballast").st_size)
        fill()
        ledger.record("b", "the last room there is", padding="x" * 6000)
        print("released", not (folder / "ballast").exists())
        fill()
        before = (folder / "ledger.jsonl").read_bytes()
        refused = 0
        for number in range(20):
            try:
                ledger.record_all([("c", "", {"x": "y" * 3000}), ("d", "", {"x": "y" * 9000})])
            except RecordingError as error:
                refused += 1
                words = str(error)
        print("refused", refused, words.split("; ")[-1])
        after = (folder / "ledger.jsonl").read_bytes()
        print("same", after == before)
        print("kinds", kinds()[:2], len(kinds()) - refused if refused < 20 else len(kinds()))
        (folder / "fill").unlink()
        ledger.record("e", "room again")
        ledger.tend()
        print("back", os.stat(folder / "ballast").st_size, kinds()[-1], read_events(folder / "ledger.jsonl")[1])
        """,
    )
    assert said[0] == f"ballast {BALLAST_BYTES}"
    assert said[1] == "released True"
    assert said[2] == "refused 20 free disk space"
    assert said[3] == "same True"
    assert said[4] == "kinds ['a', 'b'] 2"
    assert said[5] == f"back {BALLAST_BYTES} e 0"


def test_a_write_that_ends_in_the_middle_is_cut_off_again(tmp_path: Path) -> None:
    """RLIMIT_FSIZE lets a part of the batch through and then refuses: all of it or none."""
    said = in_own_mounts(
        tmp_path,
        "true",
        """
        ledger = open_ledger()
        ledger.record("a", "")
        size = os.stat(folder / "ledger.jsonl").st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
        try:
            ledger.record_all([("b", "fits", {"x": "y" * 100}), ("c", "does not", {"x": "y" * 5000})])
        except RecordingError as error:
            print("refused", "File too large" in str(error))
        print(os.stat(folder / "ledger.jsonl").st_size == size, kinds())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ledger.record("d", "")
        print(kinds(), read_events(folder / "ledger.jsonl")[1])
        """,
    )
    assert said == ["refused True", "True ['a']", "['a', 'd'] 0"]


def test_a_read_only_disk_is_one_clear_error(tmp_path: Path) -> None:
    said = in_own_mounts(
        tmp_path,
        'mount -t tmpfs -o size=8m tmpfs "$FOLDER"; touch "$FOLDER/ledger.jsonl"; mount -o remount,ro "$FOLDER"',
        """
        try:
            open_ledger()
        except StateError as error:
            print(error)
        """,
    )
    assert len(said) == 1
    assert "Read-only file system" in said[0]
    assert "[state] folder" in said[0]


def test_a_disk_that_hangs_is_an_error_within_the_deadline_and_not_a_hang(tmp_path: Path) -> None:
    """A frozen ext4 on a loop device: writes wait in the kernel, as on a disk that does not answer."""
    said = in_own_mounts(
        tmp_path,
        'truncate -s 16M "$IMAGE" && mkfs.ext4 -q -F "$IMAGE" && mount -o loop "$IMAGE" "$FOLDER"',
        """
        import fcntl
        FREEZE, THAW = 0xC0045877, 0xC0045878
        ledger = open_ledger(deadline_s=0.5)
        ledger.record("a", "")
        place = os.open(folder, os.O_RDONLY)
        # Whatever happens to us, somebody thaws it: else nobody who touches it could ever end.
        guard = os.fork()
        if guard == 0:
            time.sleep(15)
            fcntl.ioctl(place, THAW, 0)
            os._exit(0)
        fcntl.ioctl(place, FREEZE, 0)
        try:
            begun = time.monotonic()
            try:
                ledger.record("b", "")
            except RecordingError as error:
                print("refused", "hangs" in str(error), time.monotonic() - begun < 3.0)
        finally:
            fcntl.ioctl(place, THAW, 0)
        event = ledger.record("c", "")
        print(kinds() in (["a", "b", "c"], ["a", "c"]), event.seq)
        ledger.close()
        os.kill(guard, 9)
        os.waitpid(guard, 0)
        """,
    )
    # The late record may still arrive; its number is never given to another.
    assert said == ["refused True True", "True 3"]


def test_a_killed_writer_leaves_whole_lines_or_one_torn_one(tmp_path: Path, path: Path) -> None:
    program = PRELUDE + textwrap.dedent(
        """
        ledger = open_ledger()
        number = 0
        while True:
            number += 1
            ledger.record_all([("x", "", {"number": number, "padding": "y" * 500})] * 3)
            print(number, flush=True)
        """
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(20)]
        process.kill()
        said += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        events, bad = read_events(path)
        assert bad <= 1
        promised = int([line for line in said if line.endswith("\n")][-1])
        numbers = [event.data["number"] for event in events]
        assert numbers.count(promised) >= 3, "what was promised is there"
        path.unlink()


def test_an_unknown_directory_of_the_ballast_is_no_reason_to_fail(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", tmp_path / "nowhere" / "ballast", clock=SystemClock(), boot_id="b")
    ledger.record("a", "")
    ledger.close()
