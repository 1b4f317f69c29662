"""Secrets of a command line, wherever it is shown: ledger, log, lock, status, screen. Never what is executed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.campaign_bed import WATCHDOG, wait_for
from tests.host.bed import make_bed, script

SECRETS = ("hunter2hunter", "s3cr3tvalue9", "hf_AbCdEf123456789012", "p4ssw0rdx")
SHOWING = """
import os, sys, time
open(sys.argv[1], "w").write("\\0".join(sys.argv[2:]))
while True: time.sleep(0.05)
"""


def words() -> list[str]:
    return [
        "--api-key=hunter2hunter",
        "--password",
        "s3cr3tvalue9",
        "hf_AbCdEf123456789012",
        "http://me:p4ssw0rdx@host/",
    ]


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def test_nothing_that_is_shown_holds_a_secret(tmp_path: Path) -> None:
    """The command comes from the configuration; every file and every answer is searched, the trainer gets it whole."""
    got = tmp_path / "got"
    command = [*script(tmp_path, SHOWING), str(got), *words()]
    with make_bed(tmp_path / "bed", command, level=0) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: got.exists() and got.read_text(), "a run")
        assert got.read_text().split("\0") == words()
        asked = (("status",), ("status", "--json"), ("diagnose", "--json"), ("logs",), ("run",))
        said = [bed.call(*each) for each in asked]
        bed.harm(run.trainer)
        bed.run_where(lambda _run, _beat: True, "another run", after=run.number)
        said += [bed.call("stop", "--now"), bed.call("relaunch"), bed.call("status")]
        assert bed.ended(supervisor) == 5
        for answer in said:
            assert not leaks(answer.stdout + answer.stderr), answer.args
        assert not leaks(bed.screen)
        looked_at = 0
        for path in bed.root.rglob("*"):
            if path.is_file() and path.name != "watchdog.toml":
                looked_at += 1
                assert not leaks(path.read_text(errors="replace")), path
        assert looked_at > 8
        assert "--api-key=***" in bed.kinds("run_launching")[0]["data"]["command"]


def test_the_supervisors_own_command_line(tmp_path: Path) -> None:
    """After `--`: in the lock file, in the message to a second supervisor, and in what `relaunch` says to start."""
    got = tmp_path / "got"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GPUHOST_WATCHDOG_METRICS__PORT": "off"}
    environment |= {"GPUHOST_WATCHDOG_MEMORY__NEED": "16MiB", "GPUHOST_WATCHDOG_DISK__NEED": "0"}
    environment |= {"GPUHOST_WATCHDOG_STOP__GRACE": "1s", "HF_TOKEN": "hf_AbCdEf123456789012"}
    trainer = [*script(tmp_path / "code", SHOWING), str(got), *words()]
    command = [*WATCHDOG, "run", "--", *trainer]

    def call(*more: str) -> str:
        answer = subprocess.run(
            [*WATCHDOG, *more], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        return answer.stdout + answer.stderr

    with open(tmp_path / "screen", "wb") as screen:
        supervisor = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=screen, stderr=screen)
    try:
        wait_for(lambda: got.exists() and got.read_text(), "a run")
        held = call("run", "--", *trainer)
        assert "already supervised" in held
        assert "--api-key=***" in held
        said = [held, call("status"), call("diagnose", "--all")]
        lock = next(tmp_path.rglob("supervisor.lock")).read_text()
        assert "--api-key=***" in lock
        assert "hunter2hunter" not in lock
        said += [call("stop", "--now"), call("relaunch")]
        supervisor.wait(20)
        said.append((tmp_path / "screen").read_text())
        for text in said:
            assert not leaks(text)
        for name in ("ledger.jsonl", "watchdog.log", "run.json", "start.json", "exit.json"):
            assert not leaks(next(tmp_path.rglob(name)).read_text(errors="replace")), name
    finally:
        if supervisor.poll() is None:
            call("stop", "--now")
            supervisor.kill()
        supervisor.wait(20)


def test_a_held_run_lock_names_its_holder_without_its_secrets(tmp_path: Path) -> None:
    """Somebody's training, started by hand with a token on its command line."""
    with make_bed(tmp_path / "bed", ["true"], level=0, relaunch={"gate_wait": "0.5s"}) as bed:
        control = bed.checkpoints / ".gpuhost-watchdog"
        control.mkdir(parents=True)
        folder = bed.root / "f"  # a short name: the command line is cut where it is shown
        code = (
            "import sys\nfrom pathlib import Path\nfrom watchdog import contract\n"
            "fd = contract.lock_by_hand(Path(sys.argv[2]))\nprint('held', flush=True)\nsys.stdin.read()\n"
        )
        by_hand = subprocess.Popen(
            [*script(folder, code, "t.py"), "--api-key=hunter2hunter", str(bed.checkpoints), *words()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert by_hand.stdout is not None
            assert by_hand.stdout.readline() == b"held\n"
            assert bed.ended(bed.start()) == 3, bed.tell()
            reason = bed.kinds("hold")[0]["data"]["reason"]
            assert f"pid {by_hand.pid}" in reason
            assert "--api-key=***" in reason
            assert not leaks(bed.screen + (bed.state / "ledger.jsonl").read_text() + bed.call("status").stdout)
        finally:
            by_hand.communicate(timeout=20)
