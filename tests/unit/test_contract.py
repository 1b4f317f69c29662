"""The job contract: both directions, and what is refused because it cannot be what it claims to be."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog import contract
from watchdog.contract import Acknowledgement, Beat, ContractError, FileDigest, Manifest

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = st.none() | st.floats(width=64)
COUNTS = st.none() | st.integers(0, 2**53)


def same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


# --- numbers and beats --------------------------------------------------------------------------------------
@given(NUMBERS)
def test_every_number_survives_json(value: float | None) -> None:
    assert same(
        contract.decode_number(json.loads(json.dumps(contract.encode_number(value), allow_nan=False)), "x"), value
    )


@pytest.mark.parametrize(
    "value", [True, "1", "NaN", "infinity", [], {}, "", 10**400, -(10**400)], ids=lambda value: repr(value)[:12]
)
def test_what_is_no_number_is_said_to_be_none(value: object) -> None:
    with pytest.raises(ContractError, match="loss"):
        contract.decode_number(value, "loss")


@settings(derandomize=True, deadline=None)
@given(
    seq=st.integers(0, 2**53),
    at_s=st.floats(0, 1e9),
    phase=st.sampled_from(contract.PHASES),
    step=COUNTS,
    loss=NUMBERS,
    norm=NUMBERS,
    status=st.none() | st.text(max_size=400),
)
def test_every_beat_survives_its_file(
    seq: int, at_s: float, phase: str, step: int | None, loss: float | None, norm: float | None, status: str | None
) -> None:
    beat = Beat(
        seq=seq, monotonic_s=at_s, run_id="1-a", pid=7, start_ticks=8, phase=phase, step=step, loss=loss,
        gradient_norm=norm, status=status,
    )  # fmt: skip
    content = beat.to_bytes()
    assert len(content) == contract.BEAT_SIZE_BYTES
    again = Beat.from_bytes(content)
    assert (again.seq, again.monotonic_s, again.phase, again.step) == (seq, at_s, phase, step)
    assert same(again.loss, loss)
    assert same(again.gradient_norm, norm)
    assert again.status == (None if status is None else status[:200])


def beat_bytes(**changes: object) -> bytes:
    record: dict[str, object] = {
        "format": 1, "seq": 1, "monotonic_s": 5.0, "run_id": "1-a", "pid": 7, "start_ticks": 8, "phase": "train",
        "step": 3,
    }  # fmt: skip
    for name, value in changes.items():
        if value is ...:
            del record[name]
        else:
            record[name] = value
    line = json.dumps(record).encode()
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": -1}, {"seq": 1.5}, {"seq": True}, {"seq": "1"}, {"seq": ...}, {"pid": 0}, {"pid": -1}, {"run_id": ""},
        {"run_id": 3}, {"phase": "dance"}, {"phase": None}, {"step": -1}, {"step": "x"}, {"loss": "low"},
        {"loss": 10**400}, {"progress": []}, {"start_ticks": None}, {"monotonic_s": ...}, {"monotonic_s": None},
        {"monotonic_s": "nan"}, {"monotonic_s": "-inf"}, {"monotonic_s": "inf"}, {"step": 10**400},
        {"target_step": 10**400}, {"tokens": 10**400}, {"pid": 10**400},
    ],
    ids=lambda changes: str(changes)[:40],
)  # fmt: skip
def test_a_beat_with_impossible_values_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        Beat.from_bytes(beat_bytes(**changes))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_a_beat_reader_fall_over(content: bytes) -> None:
    with pytest.raises(ContractError):
        Beat.from_bytes(content)


@pytest.mark.parametrize("length", [1, 10, 50, 100])
def test_a_beat_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ContractError):
        Beat.from_bytes(beat_bytes()[:length])


def test_a_flipped_bit_in_a_beat_is_refused() -> None:
    content = beat_bytes()
    for position in range(len(content) - 10):
        damaged = bytearray(content)
        damaged[position] ^= 4
        with pytest.raises(ContractError):
            Beat.from_bytes(bytes(damaged))


# --- files --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../x", "..", "a\0b"])
def test_a_file_of_a_checkpoint_stays_in_its_folder(name: str) -> None:
    with pytest.raises(ContractError):
        FileDigest(name=name, size_bytes=1, sha256="0" * 64)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_a_digest_is_64_hex_digits(digest: str) -> None:
    with pytest.raises(ContractError):
        FileDigest(name="x", size_bytes=1, sha256=digest)


def test_one_file_speaks_for_itself_and_several_for_their_names_too() -> None:
    one = FileDigest(name="a", size_bytes=1, sha256="1" * 64)
    two = FileDigest(name="b", size_bytes=1, sha256="2" * 64)
    assert contract.combined_digest([one]) == "1" * 64
    assert contract.combined_digest([one, two]) == contract.combined_digest([two, one])
    swapped = [FileDigest(name="a", size_bytes=1, sha256="2" * 64), FileDigest(name="b", size_bytes=1, sha256="1" * 64)]
    assert contract.combined_digest(swapped) != contract.combined_digest([one, two])


def test_a_durable_write_is_the_old_or_the_new_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "x"
    digest = contract.write_durably(path, lambda out: (out.write(b"one"), out.write(bytearray(b"two"))))
    assert path.read_bytes() == b"onetwo"
    assert digest == contract.digest_file(path)

    def failing(out: object) -> None:
        out.write(b"half")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        contract.write_durably(path, failing)
    assert path.read_bytes() == b"onetwo"
    assert os.listdir(tmp_path) == ["x"]


def test_a_manifest_and_an_acknowledgement_survive_their_files(tmp_path: Path) -> None:
    files = (FileDigest(name="a", size_bytes=1, sha256="1" * 64), FileDigest(name="b/c", size_bytes=2, sha256="2" * 64))
    manifest = Manifest(step=3, files=files, target_step=9, tokens=7, run_id="1-a", loss=math.inf, created_s=1.5)
    contract.write_json_durably(tmp_path / "m", manifest.to_record())
    assert Manifest.read(tmp_path / "m") == manifest
    ack = Acknowledgement(run_id="1-a", pid=7, fresh=False, step=3, files=files)
    contract.write_json_durably(tmp_path / "a", ack.to_record())
    again = Acknowledgement.read(tmp_path / "a")
    assert again == ack
    assert again.digest == manifest.digest


@pytest.mark.parametrize(
    "record",
    [
        {}, {"run_id": "1", "pid": 1, "fresh": "yes", "step": 1}, {"run_id": "1", "pid": 1, "fresh": False, "step": 1},
        {"run_id": "1", "pid": 1, "fresh": False, "step": 1, "files": []},
        {"run_id": "", "pid": 1, "fresh": True, "step": 0},
        {"run_id": "1", "pid": 1, "fresh": True, "step": -1},
    ],
)  # fmt: skip
def test_an_acknowledgement_that_says_nothing_is_refused(tmp_path: Path, record: dict[str, object]) -> None:
    path = tmp_path / "a"
    path.write_text(json.dumps(record))
    with pytest.raises(ContractError):
        Acknowledgement.read(path)


# --- the trainer's side -------------------------------------------------------------------------------------
def environment(tmp_path: Path, run_id: str = "1-a") -> dict[str, str]:
    (tmp_path / "run.lock").touch()
    contract.write_json_durably(tmp_path / "run.json", {"run_id": "1-a"})
    return {
        contract.ENV_RUN_ID: run_id,
        contract.ENV_BEAT_FILE: str(tmp_path / "beat"),
        contract.ENV_ACK_FILE: str(tmp_path / "ack"),
        contract.ENV_FAILURE_FILE: str(tmp_path / "failure"),
        contract.ENV_RUN_LOCK: str(tmp_path / "run.lock"),
        contract.ENV_RUN_RECORD: str(tmp_path / "run.json"),
        contract.ENV_RESUME: contract.RESUME_REQUIRE,
    }


def test_without_a_supervisor_nothing_is_written(chdir_tmp: Path) -> None:
    run = contract.join({})
    run.beat("train", step=1)
    run.acknowledge(step=0, fresh=True)
    run.fail(ValueError("x"))
    assert (run.supervised, run.must_resume) == (False, False)
    assert os.listdir(chdir_tmp) == []


def test_a_rank_of_this_run_beats_and_keeps_what_it_did_not_say_anew(tmp_path: Path) -> None:
    run = contract.join(environment(tmp_path))
    run.beat("load", progress=0.5, status="reading")
    run.beat("train", step=3, loss=math.nan)
    beat = Beat.from_bytes((tmp_path / "beat").read_bytes())
    assert (beat.seq, beat.phase, beat.step, beat.progress, beat.status) == (2, "train", 3, None, None)
    assert beat.loss is not None
    assert math.isnan(beat.loss)
    assert (beat.pid, beat.start_ticks) == (os.getpid(), contract.start_ticks())
    with pytest.raises(ContractError):
        run.beat("dance")


def test_a_beat_that_cannot_be_written_is_counted_and_never_raised(tmp_path: Path) -> None:
    run = contract.join(environment(tmp_path) | {contract.ENV_BEAT_FILE: str(tmp_path / "gone" / "beat")})
    run.beat("train", step=1)
    run.beat("train", step=2)
    assert run.beats_dropped == 2


def test_a_rank_of_another_run_does_not_join(tmp_path: Path) -> None:
    with pytest.raises(contract.WrongRunError, match="1-a"):
        contract.join(environment(tmp_path, run_id="0-old"))


def test_a_rank_that_finds_the_lock_held_exclusively_gives_up_in_time(tmp_path: Path) -> None:
    values = environment(tmp_path)
    (tmp_path / contract.CONTROL_FOLDER).mkdir()
    by_hand = contract.lock_by_hand(tmp_path)
    values[contract.ENV_RUN_LOCK] = str(tmp_path / contract.CONTROL_FOLDER / contract.RUN_LOCK)
    with pytest.raises(contract.WrongRunError, match="held exclusively"):
        contract.join(values, patience_s=0.1)
    with pytest.raises(contract.WrongRunError, match="alive"):
        contract.lock_by_hand(tmp_path)
    os.close(by_hand)
    contract.join(values, patience_s=0.1)


def test_an_error_keeps_what_is_behind_it(tmp_path: Path) -> None:
    run = contract.join(environment(tmp_path))
    try:
        try:
            raise MemoryError("no room")
        except MemoryError as error:
            raise RuntimeError("step failed") from error
    except RuntimeError as error:
        run.fail(error)
    record = json.loads((tmp_path / "failure").read_bytes())
    assert [link["class"] for link in record["chain"]] == ["RuntimeError", "MemoryError"]
    assert "step failed" in record["traceback"]


def test_term_asks_to_drain() -> None:
    program = (
        "import os, signal, sys; from watchdog import contract; run = contract.join({}); run.drain_on_sigterm();"
        "os.kill(os.getpid(), signal.SIGTERM); sys.exit(0 if run.draining else 1)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=20, check=False).returncode == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_copy_of_the_file_alone_is_a_full_citizen(tmp_path: Path) -> None:
    (tmp_path / "contract.py").write_bytes((ROOT / "watchdog/contract.py").read_bytes())
    program = "import contract; run = contract.join({}); run.beat('train', step=1)"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"], check=True
    )


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_regular_file_is_refused_by_its_name_and_left_closed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no regular file") as caught:
        contract.open_regular(path)
    assert caught.value.filename == str(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- SIGUSR2 asks for stacks ----------------------------------------------------------------------------------------
def usr2(tmp_path: Path, before: str, send: bool = True) -> subprocess.CompletedProcess[bytes]:
    """A program that joins after `before`, and is sent SIGUSR2 by itself."""
    program = (
        f"import os, signal, sys\n{before}\nfrom watchdog import contract\ncontract.join()\n"
        "print(contract.handles(signal.SIGUSR2), flush=True)\n"
        "def stands_here(): os.kill(os.getpid(), signal.SIGUSR2)\n"
        f"{'stands_here()' if send else ''}\nprint('goes on', flush=True)\n"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", program], env=os.environ | environment(tmp_path), capture_output=True, timeout=60
    )


def test_who_has_joined_says_where_it_stands(tmp_path: Path) -> None:
    done = usr2(tmp_path, "sys.stderr = None")
    assert (done.returncode, done.stdout) == (0, b"True\ngoes on\n")
    assert b"(most recent call first):\n" in done.stderr
    assert b" in stands_here\n" in done.stderr


@pytest.mark.parametrize(
    ("before", "handled", "said"),
    [
        ("signal.signal(signal.SIGUSR2, lambda *_: print('its own', flush=True))", b"True", b"its own\n"),
        ("signal.signal(signal.SIGUSR2, signal.SIG_IGN)", b"False", b""),
        ("import faulthandler; faulthandler.register(signal.SIGUSR2, file=1, all_threads=False)", b"True", b"Stack "),
    ],
    ids=["a handler", "ignored", "another faulthandler"],
)
def test_a_use_that_the_program_has_for_the_signal_is_left_to_it(
    tmp_path: Path, before: str, handled: bytes, said: bytes
) -> None:
    done = usr2(tmp_path, before)
    assert done.returncode == 0
    assert done.stdout.startswith(handled + b"\n" + said)
    assert done.stdout.endswith(b"goes on\n")
    assert done.stderr == b""


def test_without_a_supervisor_the_signal_is_as_it_was(tmp_path: Path) -> None:
    program = "import signal; from watchdog import contract; contract.join({}); print(contract.handles(signal.SIGUSR2))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, timeout=60, cwd=Path.cwd())
    assert done.stdout == b"False\n"


def test_the_mask_is_read_bit_by_bit(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nSigIgn:\t0000000000000800\nSigCgt:\t0000000100000401\n")
    caught = [name for name in signal.Signals if contract.handles(name, 7, str(tmp_path))]
    assert caught == [signal.SIGHUP, signal.SIGSEGV]
    with pytest.raises(OSError, match="No such file"):
        contract.handles(signal.SIGUSR2, 8, str(tmp_path))
