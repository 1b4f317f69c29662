"""Bad input (Invariant 10): each gets one clear error, ends nothing that was well, and loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from bench.campaign_counter import final_value
from tests.host.bed import (
    BARE,
    CLOCK,
    COUNTER,
    HostBed,
    counter,
    folders_in,
    launched,
    make_bed,
    script,
)
from watchdog import contract
from watchdog.checkpoints.verifier import Found, Knowledge, Verifier
from watchdog.classify.ends import Evidence, last_error
from watchdog.collectors.beats import see_beat
from watchdog.collectors.processes import this_host
from watchdog.collectors.run import read_last_words
from watchdog.core.choice import Known as KnownCheckpoint
from watchdog.core.facts import Absent, Known, Unknown
from watchdog.core.history import fold
from watchdog.folders import RunFolder
from watchdog.opening import open_ledger

ROOT = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def value_of(bed: HostBed) -> object:
    return json.loads((bed.checkpoints / "count.json").read_bytes())["value"]


def one_error(text: str) -> str:
    """What was said, which must be words and no traceback."""
    assert text.strip()
    assert "Traceback" not in text, text
    return text


# --- configuration ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text + "\n[stop\ngrace = ", "watchdog.toml"),
        (lambda text: text[: text.index("level")] + 'level = "tw', "watchdog.toml"),
        (lambda text: text.replace("level = ", "levle = "), "levle"),
        (lambda text: text.replace('need = "16MiB"', 'need = "sixteen"'), "sixteen"),
        (lambda text: text.replace("level = 0", "level = 7"), "level = 7"),
    ],
)
def test_a_broken_configuration(spoil: Callable[[str], str], said: str, tmp_path: Path) -> None:
    """One line, exit 2, for every command; and nothing was made."""
    with make_bed(tmp_path / "bed", ["true"], level=0) as bed:
        bed.config.write_text(spoil(bed.config.read_text()))
        for command, code in (("run", 2), ("stop", 2), ("diagnose", 3)):
            answer = bed.call(command)
            assert answer.returncode == code
            assert said in one_error(answer.stderr)
            assert len(answer.stderr.splitlines()) == 1, answer.stderr
        assert sorted(os.listdir(bed.root)) == ["tmp", "watchdog.toml"], "the bed's own"
        assert os.listdir(bed.root / "tmp") == []


# --- the trainer's command ----------------------------------------------------------------------------------
def test_a_command_that_vanishes_between_check_and_exec(tmp_path: Path) -> None:
    """Its interpreter is not there: a hold with the kernel's words after one try, no matter how often one asks."""
    program = tmp_path / "trainer"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)
    with make_bed(tmp_path / "bed", [str(program)], level=0) as bed:
        assert bed.ended(bed.start()) == 3, bed.tell()
        assert len(bed.kinds("run_launching")) == 1
        assert f"cannot execute '{program}': No such file or directory" in bed.kinds("hold")[0]["data"]["reason"]
        program.write_text("#!/bin/sh\nexit 0\n")
        assert bed.call("relaunch").returncode == 0
        assert bed.ended(bed.start()) == 0, bed.tell()


def test_a_working_folder_that_is_not_there(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", ["true"], level=0, job={"directory": str(tmp_path / "gone")}) as bed:
        answer = bed.call("run")
        assert answer.returncode == 2
        assert str(tmp_path / "gone") in one_error(answer.stderr)
        assert not bed.state.exists()


def test_a_command_line_longer_than_a_line_of_the_ledger(tmp_path: Path) -> None:
    """Whatever is written of it, the launch must still be known after a restart."""
    words = ["x" * 100_000] * 3
    with make_bed(tmp_path / "bed", ["true", *words], level=0) as bed:
        assert bed.ended(bed.start()) == 0, bed.tell()
        assert bed.status()["state"] == "finished"
        assert bed.ended(bed.start()) == 0
        assert "lines of the ledger are no records" not in bed.screen
        assert len(bed.kinds("run_launching")) == 1, "it was finished"


# --- the state folder ---------------------------------------------------------------------------------------
def in_mounts(setup: str, bed: HostBed) -> subprocess.CompletedProcess[str]:
    """`watchdog run` in a mount namespace of its own, after these commands."""
    command = " ".join(f"'{word}'" for word in bed.command("run"))
    return subprocess.run(
        ["unshare", "-m", "sh", "-ec", f"{setup}\nexec {command}"],
        env=bed.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


@needs_root
@pytest.mark.parametrize(("what", "known"), [("state", False), (".", False), (".", True), ("checkpoints", True)])
def test_a_folder_that_is_read_only(what: str, known: bool, tmp_path: Path) -> None:
    """As after a disk error: the file system was remounted."""
    with make_bed(tmp_path / "bed", ["true"], level=0) as bed:
        for folder in ("state", "checkpoints"):
            (bed.root / folder).mkdir()
        if known:
            assert bed.ended(bed.start()) == 0
        before = {path: path.read_bytes() for path in bed.root.rglob("*.jsonl")}
        place = bed.root / what
        answer = in_mounts(f"mount --bind {place} {place}; mount -o remount,bind,ro {place}", bed)
        if answer.returncode == 1 and "mount" in answer.stderr.split(":")[0]:
            pytest.skip(answer.stderr)
        if what == "checkpoints" and known:
            assert answer.returncode in (0, 2)  # it was finished before; that can be said without writing there
        else:
            assert answer.returncode == 2, answer.stdout + answer.stderr
            assert "Read-only file system" in one_error(answer.stderr)
        assert "Traceback" not in answer.stderr, answer.stderr
        assert before == {path: path.read_bytes() for path in bed.root.rglob("*.jsonl")}


@needs_root
def test_a_state_folder_that_is_full(tmp_path: Path) -> None:
    """What cannot be recorded is not done: nothing is started."""
    flag = tmp_path / "started"
    with make_bed(tmp_path / "bed", ["touch", str(flag)], level=0) as bed:
        place = bed.root / "state"
        place.mkdir()
        setup = f"mount -t tmpfs -o size=64k none {place}; mkdir {place}/bed; cat /dev/zero > {place}/all || true"
        answer = in_mounts(setup, bed)
        assert answer.returncode in (1, 2), answer.stdout + answer.stderr
        assert "No space left on device" in one_error(answer.stderr.replace("cat: write error: No space", ""))
        assert not flag.exists()


def test_a_state_folder_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    # Becomes somebody else after the imports: the interpreter may lie in a folder that only root can enter.
    code = (
        "import ctypes, difflib, encodings.ascii, os, sys, tomllib\n"
        "from watchdog import asking, cli, masking, opening, running, supervisor\n"
        "from watchdog.settings import load\nimport prometheus_client\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        # As after an exec: else /proc/self belongs to root still.
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\ncli.main()\n"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, 65534, 65534)
    environment = {"HOME": str(mine), "PATH": os.environ["PATH"], "GPUHOST_WATCHDOG_STATE__FOLDER": str(state)}
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code, "run", "--", "true"],
        env=environment | {"GPUHOST_WATCHDOG_METRICS__PORT": "off"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "Permission denied" in one_error(answer.stderr)
    assert len(answer.stderr.splitlines()) == 1
    assert os.listdir(state) == []


# --- the ledger ---------------------------------------------------------------------------------------------
BAD_LINES = {
    "binary": bytes(range(256)).replace(b"\n", b""),
    "half a line": b'{"seq": 3, "wall_s": 1, "ev',
    "no object": b"[1, 2, 3]",
    "deep": b"[" * 100_000,
    "no data": b'{"seq": 1, "wall_s": 1, "event": "run_launching", "sentence": "x"}',
    "other data": b'{"seq": 1, "wall_s": 1, "event": "run_weighed", "sentence": "x", "data": {"cause": 1}}',
    "data that is no object": b'{"seq": 1, "wall_s": 1, "event": "hold", "sentence": "x", "data": [1]}',
    "data of another type": b'{"seq": 1, "wall_s": 1, "event": "checkpoint_verified", "sentence": "x", '
    b'"data": {"step": "x", "digest": 1}}',
    "a number beyond": b'{"seq": 1e999, "wall_s": 1, "event": "gap", "sentence": "x"}',
    "a long number": b'{"seq": 1, "wall_s": 1' + b"0" * 400 + b', "event": "gap", "sentence": "x"}',
    "zeros": b"\0" * 5000,
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_garbage_in_the_middle_of_a_ledger(kind: str, tmp_path: Path) -> None:
    """Passed over, counted and never removed; every event around it is there, and what follows is appended."""
    folders = folders_in(tmp_path)
    ledger = open_ledger(folders, CLOCK, this_host())
    with contextlib.closing(ledger):
        ledger.record("checkpoint_verified", "step 5", step=5, digest="d" * 64, run_id="1-a")
        ledger.record("hold", "HOLD: why", reason="why")
    first, second = folders.ledger.read_bytes().splitlines(keepends=True)
    folders.ledger.write_bytes(first + BAD_LINES[kind] + b"\n" + second)
    ledger = open_ledger(folders, CLOCK, this_host())
    with contextlib.closing(ledger):
        history = fold(ledger.events)
        assert history.hold == "why"
        assert [entry.step for entry in history.known] == [5]
        assert ledger.bad_lines == 1
        ledger.record("lifted", "lifted")
    content = folders.ledger.read_bytes()
    assert content.startswith(first + BAD_LINES[kind] + b"\n" + second)
    assert json.loads(content.splitlines()[-1])["event"] == "lifted"


def test_a_supervisor_says_how_many_lines_are_none_and_goes_on(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "24", "--delay", "0.03") as bed:
        supervisor = bed.start()
        run = bed.run_at_step(12)
        bed.kill_supervisor(supervisor)
        bed.harm(run.trainer)
        path = bed.state / "ledger.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        bad = [BAD_LINES[kind] + b"\n" for kind in ("binary", "half a line", "zeros")]
        path.write_bytes(b"".join([*lines[:2], *bad, *lines[2:], b'{"seq": 99, "ev']))
        assert bed.ended(bed.start()) == 0, bed.screen
        assert "4 lines of the ledger are no records" in bed.screen
        resumed = [record["data"]["resume_step"] for record in bed.records() if record["event"] == "run_launching"]
        assert resumed[0] is None
        assert resumed[1] >= 10
        assert value_of(bed) == final_value(24)
        assert bed.status()["restarts"] == 1


# --- beats --------------------------------------------------------------------------------------------------
def beat_text(**changes: object) -> bytes:
    record = {"seq": 1, "monotonic_s": 1.0, "run_id": "1-a", "pid": os.getpid(), "phase": "train"}
    record |= {"start_ticks": contract.start_ticks(), "step": 3}
    text = json.dumps(record | {name: f"\0{value}\0" for name, value in changes.items()})
    return text.replace('"\\u0000', "").replace('\\u0000"', "").encode()


HUGE = "1" + "0" * 400
BAD_BEATS = {
    "truncated": beat_text()[:-20],
    "binary": bytes(range(256)) * 16,
    "torn": beat_text() + b"\n00000000\n",
    "zeros": b"\0" * 4096,
    "deep": b"[" * 4000,
    "from another run": beat_text(run_id="'2-b'").replace(b"'", b'"'),
    "from the future": beat_text(monotonic_s=1e12),
    "at no time": beat_text(monotonic_s="NaN"),
    "at no time, as the contract writes it": beat_text(monotonic_s="'nan'").replace(b"'", b'"'),
    "an endless loss": beat_text(loss=HUGE),
    "a pid that is none": beat_text(pid="1" * 300),
    "a step beyond": beat_text(step=HUGE),
    "no phase": beat_text(phase="'dancing'").replace(b"'", b'"'),
    "a negative step": beat_text(step=-1),
}


@pytest.mark.parametrize("kind", BAD_BEATS)
def test_a_beat_that_cannot_be_believed_is_unknown(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "beat.json"
    path.write_bytes(BAD_BEATS[kind])
    assert isinstance(see_beat(path, run_id="1-a", now=lambda: 100.0, shim=None), Unknown)
    path.write_bytes(beat_text())
    assert isinstance(see_beat(path, run_id="1-a", now=lambda: 100.0, shim=None), Known)


def test_a_beat_file_that_is_no_file(tmp_path: Path) -> None:
    """A pipe, a link, a folder in its place: unknown, and nobody waits for it."""
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    (tmp_path / "beat").write_bytes(beat_text())
    link.symlink_to(tmp_path / "beat")
    folder.mkdir()
    for path in (pipe, link, folder):
        assert isinstance(see_beat(path, run_id="1-a", now=lambda: 100.0, shim=None), Unknown), path
    assert isinstance(see_beat(tmp_path / "none", run_id="1-a", now=lambda: 100.0, shim=None), Absent)


def test_a_beat_whose_process_number_was_given_to_another(tmp_path: Path) -> None:
    """Our own number with another start time, and a stranger's true one: a beat, but of nobody alive in the run."""
    folders = folders_in(tmp_path)
    path = tmp_path / "beat.json"
    with launched(folders) as run:
        for text, shim, alive in (
            (beat_text(start_ticks=1), None, False),
            (beat_text(), run.start.shim, False),
            (beat_text(pid=run.leader.pid, start_ticks=run.leader.start_ticks), run.start.shim, True),
        ):
            path.write_bytes(text)
            fact = see_beat(path, run_id="1-a", now=lambda: 100.0, shim=shim)
            assert isinstance(fact, Known)
            assert fact.value.alive is alive


# A trainer that only ever writes one beat, and leaves when it is told to. The file is written before the shim's leader
# is known to anybody, so no honest beat was ever seen.
_BAD_BEATER = """
import os, sys, time
from watchdog import contract
run = contract.join()
open(os.environ[contract.ENV_BEAT_FILE], "wb").write(open(sys.argv[1], "rb").read())
while not os.path.exists(sys.argv[2]): time.sleep(0.02)
"""


_SHORT = {"start": "1s", "train": "1s", "load": "1s"}


def test_beats_that_are_none_end_neither_the_run_nor_the_supervisor(tmp_path: Path) -> None:
    """One kind after the other, for longer than a run may be silent before its first beat; then a clean end."""
    kinds = [kind for kind in BAD_BEATS if not kind.startswith("at no time")]
    beat, go = tmp_path / "beat", tmp_path / "go"
    beat.write_bytes(BAD_BEATS["truncated"])
    command = [*script(tmp_path, _BAD_BEATER), str(beat), str(go)]
    with make_bed(tmp_path / "bed", command, level=1, deadlines=_SHORT) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda run, _beat: (run.folder / "beat.json").exists(), "a beat file")
        for kind in kinds:
            (run.folder / "beat.json").write_bytes(BAD_BEATS[kind])
            told_s = time.monotonic()
            wait_for(lambda: time.monotonic() - told_s > 0.15 or supervisor.poll() is not None, "a look")  # noqa: B023
            assert supervisor.poll() is None, f"{kind}\n{bed.tell()}"
        go.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert "blind to the beats" in bed.screen
        assert not bed.kinds("run_stopping", "signal_sent"), bed.tell()
        assert len(bed.kinds("run_launching")) == 1


def test_no_stall_from_a_beat_at_no_time(tmp_path: Path) -> None:
    """Everything else of it is this run's own."""
    beat, go = tmp_path / "beat", tmp_path / "go"
    beat.write_bytes(BAD_BEATS["truncated"])
    command = [*script(tmp_path, _BAD_BEATER), str(beat), str(go)]
    with make_bed(tmp_path / "bed", command, level=1, deadlines=_SHORT) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda run, _beat: (run.folder / "beat.json").exists(), "a beat file")
        ticks = contract.start_ticks(run.trainer)
        own = beat_text(run_id=f"'{run.run_id}'", pid=run.trainer, start_ticks=ticks, monotonic_s="NaN")
        (run.folder / "beat.json").write_bytes(own.replace(b"'", b'"'))
        told_s = time.monotonic()
        wait_for(lambda: time.monotonic() - told_s > 1.3 or bed.kinds("run_stopping"), "a deadline")
        go.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert not bed.kinds("run_stopping", "signal_sent"), bed.tell()


_ODD_BEATER = """
import os, sys, time
from watchdog import contract
run = contract.join()
run.beat("prepare", progress=float("nan"), status="caf\\udce9 \\x1b[2J", loss=float("nan"))
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
run.beat("train", step=3, target_step=2, loss=float("inf"))
while not os.path.exists(sys.argv[2]): time.sleep(0.02)
"""


def test_an_odd_beat_is_shown_all_the_same(tmp_path: Path) -> None:
    """Not finite, with bytes in its status that are no text: status answers, for people and for machines."""
    one, two = tmp_path / "one", tmp_path / "two"
    with make_bed(tmp_path / "bed", [*script(tmp_path, _ODD_BEATER), str(one), str(two)], level=1) as bed:
        supervisor = bed.start()
        bed.run_where(lambda _run, beat: beat is not None, "a beat")
        bed.wait_status(run_phase="prepare", run_loss="nan")
        for file, phase in ((one, "prepare"), (two, "train")):
            bed.wait_status(run_phase=phase)
            answer = bed.call("status")
            assert answer.returncode == 0, answer.stderr
            assert phase in answer.stdout or "step 3" in answer.stdout
            file.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert "the job is finished" in bed.screen, "the screen went silent"


# --- what the trainer says it restored ----------------------------------------------------------------------
_ACKNOWLEDGER = """
import os, sys, time
from pathlib import Path
from watchdog import contract
from bench import campaign_counter
real = contract.Run.acknowledge
def acknowledge(self, **what):
    said = open(sys.argv[1], "rb").read().replace(b"1-a", self.run_id.encode())
    Path(os.environ[contract.ENV_ACK_FILE]).write_bytes(said)
    while not os.path.exists(sys.argv[2]): time.sleep(0.02)
    if sys.argv[3] == "mend": real(self, **what)
contract.Run.acknowledge = acknowledge
sys.exit(campaign_counter.main(["--steps", "6", "--delay", "0.02"]))
"""
ACKNOWLEDGED = {"run_id": "1-a", "pid": 1, "fresh": True, "step": 0, "files": []}
_FILES = [{"name": name, "size_bytes": 1, "sha256": "0" * 64} for name in ("a", "\ud800")]
BAD_ACKNOWLEDGEMENTS = {
    "torn": b'{"run_id": "1',
    "numbers": json.dumps(ACKNOWLEDGED | {"pid": 0}).encode(),
    "a name that is no text": json.dumps(ACKNOWLEDGED | {"fresh": False, "files": _FILES}).encode(),
}


@pytest.mark.parametrize("kind", ["torn", "numbers"])
def test_a_broken_acknowledgement_that_is_mended_in_time(kind: str, tmp_path: Path) -> None:
    """Before the first step: said, and nothing is done about it."""
    bad, go = tmp_path / "bad", tmp_path / "go"
    bad.write_bytes(BAD_ACKNOWLEDGEMENTS[kind])
    with make_bed(tmp_path / "bed", [*script(tmp_path, _ACKNOWLEDGER), str(bad), str(go), "mend"]) as bed:
        supervisor = bed.start()
        wait_for(lambda: "the acknowledgement of run 1 cannot be read" in bed.screen, f"a word about it\n{bed.tell()}")
        go.touch()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert value_of(bed) == final_value(6)
        assert not bed.problems(), bed.tell()


@pytest.mark.parametrize("kind", ["torn", "a name that is no text"])
def test_a_broken_acknowledgement_is_none(kind: str, tmp_path: Path) -> None:
    """A damaged file is no reason to stop a run that lives; at its end it has said nothing: refused."""
    bad, go = tmp_path / "bad", tmp_path / "go"
    bad.write_bytes(BAD_ACKNOWLEDGEMENTS[kind])
    go.touch()
    body = _ACKNOWLEDGER.replace('"0.02"', '"0.2"')
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(bad), str(go), "leave"]) as bed:
        assert bed.ended(bed.start()) == 3, bed.tell()
        assert not bed.kinds("run_stopping", "signal_sent", "finished"), bed.tell()
        run_id = bed.kinds("run_launching")[0]["data"]["run_id"]
        assert [event["data"]["run_id"] for event in bed.kinds("run_refused")] == [run_id], bed.tell()
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["not_acknowledged"]
        assert bed.living() is None
        one_error(bed.screen)


def test_a_failure_record_with_bytes_that_are_no_text(tmp_path: Path) -> None:
    """As a file name gives it: the last error is shown, the hold is a hold."""
    body = (
        "from watchdog import contract\nrun = contract.join()\n"
        "run.fail(OSError('cannot read caf\\udce9.txt'))\nraise SystemExit(1)\n"
    )
    with make_bed(tmp_path / "bed", script(tmp_path, body), level=0, relaunch={"failures": 1}) as bed:
        assert bed.ended(bed.start()) == 3, bed.tell()
        assert "OSError: cannot read caf" in one_error(bed.screen)
        answer = bed.call("status")
        assert answer.returncode == 3 or answer.returncode == 0
        assert "OSError: cannot read caf" in answer.stdout, answer.stderr


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b"[]", b'{"chain": [1]}', b"[" * 100_000])
def test_a_broken_failure_record(content: bytes, tmp_path: Path) -> None:
    """Then the last line of the output is the last error."""
    run = RunFolder(path=tmp_path)
    run.failure.write_bytes(content)
    run.log.write_bytes(b"step 1\nout of luck \xff\n\n")
    said = read_last_words(run)
    assert said.failure is None
    assert last_error(Evidence(record=None, log=said.log)) == "out of luck \ufffd"


# --- checkpoints --------------------------------------------------------------------------------------------
def save(folder: Path, step: int, run_id: str = "1-a") -> None:
    written = contract.write_durably(folder / f"s{step}", lambda file: file.write(b"%d" % step))
    manifest = contract.Manifest(step=step, files=(written,), run_id=run_id)
    contract.write_json_durably(folder / f"s{step}{contract.MANIFEST_SUFFIX}", manifest.to_record())


def manifest_text(**changes: object) -> bytes:
    files = [{"name": "s3", "size_bytes": 1, "sha256": "0" * 64}]
    return json.dumps({"format": 1, "step": 9, "files": files, **changes}).encode()


_SURROGATES = [{"name": name, "size_bytes": 1, "sha256": "0" * 64} for name in ("s3", "\ud800")]
BAD_MANIFESTS = {
    "empty": b"",
    "torn": manifest_text()[:-9],
    "binary": bytes(range(256)) * 9,
    "deep": b"[" * 100_000,
    "another format": manifest_text(format=2),
    "out of the folder": manifest_text(files=[{"name": "../x", "size_bytes": 1, "sha256": "0" * 64}]),
    "an endless loss": manifest_text().replace(b'"step"', b'"loss": ' + HUGE.encode() + b', "step"'),
    "an endless step": manifest_text().replace(b'"step": 9', b'"step": ' + HUGE.encode()),
    "a name that is no text": manifest_text(files=_SURROGATES[1:]),
    "names that are no text": manifest_text(files=_SURROGATES),
    "a name of 300 letters": manifest_text(files=[{"name": "x" * 300, "size_bytes": 1, "sha256": "0" * 64}]),
    "a folder for a file": manifest_text(files=[{"name": ".", "size_bytes": 1, "sha256": "0" * 64}]),
}


def choice_in(folder: Path, lineage: Path, known: tuple[KnownCheckpoint, ...] = ()) -> Found:
    verifier = Verifier(folder, lineage)
    runs = tuple(dict.fromkeys(entry.run_id for entry in known if entry.run_id is not None))
    verifier.choose(Knowledge(known=known, run_ids=runs, refused_runs=frozenset(), ledger_knew=bool(known)))
    return wait_for(lambda: (verifier.results() or [None])[0], "a choice", timeout_s=2)


@pytest.mark.parametrize("kind", BAD_MANIFESTS)
def test_a_broken_manifest_is_refused_and_the_good_one_chosen(kind: str, tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / f"zz{contract.MANIFEST_SUFFIX}").write_bytes(BAD_MANIFESTS[kind])
    found = choice_in(tmp_path, tmp_path / "lineage")
    assert found.choice is not None, found.error
    assert found.choice.chosen is not None
    assert found.choice.chosen.step == 3
    assert {refusal.manifest for refusal in found.choice.refused} <= {str(tmp_path / f"zz{contract.MANIFEST_SUFFIX}")}


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_called_a_manifest_and_is_no_file(kind: str, tmp_path: Path) -> None:
    """Nobody waits for it, and the good one is chosen."""
    save(tmp_path, 3)
    path = tmp_path / f"zz{contract.MANIFEST_SUFFIX}"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name)
    try:
        found = choice_in(tmp_path, tmp_path / "lineage")
    finally:
        if kind == "pipe":  # let go of a thread that waits for it
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    assert found.choice is not None, found.error
    assert found.choice.chosen is not None
    assert found.choice.chosen.step == 3


@pytest.mark.parametrize("spoil", [b"\xff\x00\xfe garbage \n", b"x" * 100_000])
def test_garbage_in_the_lineage(spoil: bytes, tmp_path: Path) -> None:
    """What was added to it hides no run of ours, and makes no other one ours."""
    lineage = tmp_path / "lineage"
    save(tmp_path, 3)
    save(tmp_path, 4, "7-of-another-job")
    lineage.write_bytes(b"\n1-a\n" + spoil + b"\n2-b\n")
    found = choice_in(tmp_path, lineage)
    assert found.choice is not None
    assert found.choice.chosen is not None
    assert found.choice.chosen.step == 3
    assert "no run of this job" in found.choice.refused[0].why


def test_a_lineage_that_was_lost_does_not_refuse_what_the_ledger_knows(tmp_path: Path) -> None:
    """It was verified before, with these very bytes and by this run: an overwritten list must not take it away."""
    lineage = tmp_path / "lineage"
    save(tmp_path, 3)
    lineage.write_bytes(b"\0" * 64)
    manifest = contract.Manifest.read(tmp_path / f"s3{contract.MANIFEST_SUFFIX}")
    found = choice_in(tmp_path, lineage, (KnownCheckpoint(step=3, digest=manifest.digest, run_id="1-a"),))
    assert found.choice is not None
    assert found.choice.chosen is not None, found.choice.why


# --- control messages ---------------------------------------------------------------------------------------
@contextlib.contextmanager
def talking_to(bed: HostBed) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        fd = os.open(bed.state, os.O_PATH)
        connection.connect(f"/proc/self/fd/{fd}/control.sock")
        os.close(fd)
        yield connection


def answer_to(bed: HostBed, message: bytes) -> str:
    with talking_to(bed) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
        return connection.makefile(errors="replace").read()


def test_messages_that_are_none(tmp_path: Path) -> None:
    """Each is answered with its error, and the run under the supervisor does not notice."""
    with counter(tmp_path / "bed", "--steps", "1000", "--delay", "0.01") as bed:
        supervisor = bed.start()
        bed.run_at_step(2)
        for message, said in (
            (b"hello\n", "is not JSON"),
            (b"\xff\xfe\x00\n", "is not JSON"),
            (b"[" * 60_000 + b"\n", "is not JSON"),
            (b"[1]\n", "not an object"),
            (b'{"command": "dance"}\n', "known are status, facts, relaunch, stop, stop-now"),
            (b'{"command": ["stop"]}\n', "known are"),
            (b"{}\n", "known are"),
            (b'{"command": "stop"', "incomplete"),
            (b"x" * 10_000_000 + b"\n", "longer than 65536 bytes"),
        ):
            answer = json.loads(answer_to(bed, message))
            assert answer["ok"] is False, message[:50]
            assert said in answer["error"], message[:50]
        with talking_to(bed) as silent, talking_to(bed):
            silent.sendall(b'{"command": ')
            assert bed.status()["state"] == "running"
        assert supervisor.poll() is None
        assert not bed.kinds("run_stopping"), bed.tell()
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5


# --- data ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["missing", "empty", "binary"])
def test_data_that_cannot_be_used(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    if kind != "missing":
        data.mkdir()
    if kind == "binary":
        (data / "weights.txt").write_bytes(bytes(range(256)) * 200)
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "trainer", "prepare", "--data", str(data), "--cache", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert answer.returncode in (2, contract.EXIT_DATA), answer.stderr
    assert str(data) in one_error(answer.stdout + answer.stderr)
    assert not list(tmp_path.glob("cache/**/*.bin"))


def test_names_used_here_are_real() -> None:
    """The helper processes of these tests exist, so that no test passes for want of one."""
    assert subprocess.run([*BARE, "-c", "pass"], check=True).returncode == 0
    assert subprocess.run([*COUNTER, "--help"], check=True, capture_output=True, cwd=ROOT).returncode == 0
