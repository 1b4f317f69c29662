"""Asking a job without a supervisor, and a supervisor whose answer is none."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.bed import CLOCK
from watchdog.asking import how_to_start, start_command, status_of, stop_job
from watchdog.checks.catalogue import CATALOGUE
from watchdog.collectors.processes import this_host
from watchdog.diagnosing import diagnose_job
from watchdog.errors import ControlError, HeldError
from watchdog.opening import open_ledger, take
from watchdog.places import folders_of
from watchdog.relaunching import Wish, ask_relaunch
from watchdog.render import status_record
from watchdog.settings import Settings, load


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(environ={}, home=tmp_path, cwd=tmp_path, command=["true"], job="x")


def relaunch_job(settings: Settings, argv: list[str]) -> str:
    return ask_relaunch(settings, argv, Wish()).words


def hold(settings: Settings, command: list[str]) -> None:
    folders = folders_of(settings)
    ledger = open_ledger(folders, CLOCK, this_host())
    with contextlib.closing(ledger):
        ledger.record("run_launching", "x", number=1, run_id="1-a", baseline_step=-1, command=command)
        end = {"number": 1, "run_id": "1-a", "cause": "exited", "words": "exit 1", "baseline_step": -1}
        ledger.record("run_ended", "x", **end)
        ledger.record("run_weighed", "x", run_id="1-a", cause="exited", failures=1)
        ledger.record("hold", "HOLD: why", reason="why")


def test_a_hold_is_lifted_in_the_ledger(settings: Settings) -> None:
    """And it is said what to start: the very command, words with spaces quoted."""
    hold(settings, ["python", "my train.py"])
    assert (status_of(settings).state, status_of(settings).hold_reason) == ("hold", "why")
    said = relaunch_job(settings, ["watchdog", "relaunch"])
    assert "why" in said
    assert status_of(settings).state == "unsupervised"
    assert "nothing is held" in relaunch_job(settings, ["watchdog", "relaunch"])


def test_what_to_start_without_the_command_at_hand(tmp_path: Path) -> None:
    """`watchdog relaunch --job x` knows the command from the ledger alone."""
    hold(load(environ={}, home=tmp_path, cwd=tmp_path, command=["true"], job="x"), ["python", "my train.py"])
    asked = load(environ={}, home=tmp_path, cwd=tmp_path, job="x")
    assert relaunch_job(asked, []).endswith("watchdog run --job x -- python 'my train.py'")


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"command": ["sh", "-c", "kill -9 $$"], "directory": "/my data"},
         "cd '/my data' && watchdog run --job x -- sh -c 'kill -9 $$'"),
        ({"command": ["sh"], "directory": "/data", "config": "{config}"}, "watchdog run --config {config} --job x"),
        ({"command": ["sh"], "directory": "/data", "config": "/gone.toml"}, "cd /data && watchdog run --job x -- sh"),
        ({"command": ["python", "-m", "trainer"], "directory": "/data", "built_in": True}, "watchdog run --job x"),
        ({"command": ["sh", "--token", "***"], "directory": "/data"},
         "cd /data && watchdog run --job x -- sh --token '***' (with what is hidden or cut here put in again)"),
        ({}, "watchdog run --job x"),
    ],
)  # fmt: skip
def test_the_command_that_supervises_the_very_job_again(launch: dict[str, object], words: str, tmp_path: Path) -> None:
    """From whatever folder, with its own name: else it would be another job."""
    config = tmp_path / "w.toml"
    config.write_text('[jobs.x]\ncommand = ["sh"]\n')
    launch = {name: str(config) if each == "{config}" else each for name, each in launch.items()}
    asked = load(environ={}, home=tmp_path, cwd=tmp_path, job="x")
    folders = folders_of(asked)
    ledger = open_ledger(folders, CLOCK, this_host())
    with contextlib.closing(ledger):
        ledger.record("run_launching", "x", number=1, run_id="1-a", baseline_step=-1, **launch)
    assert start_command(asked) == words.format(config=config)


def test_a_configuration_in_this_folder_is_named_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watchdog.toml").write_text('[job]\nname = "n"\ncommand = ["sh"]\n')
    asked = load(environ={}, home=tmp_path, cwd=tmp_path)
    assert how_to_start(asked, ()) == f"watchdog run --config {tmp_path}/watchdog.toml --job n"


def test_another_supervisor_has_the_lock(settings: Settings) -> None:
    """Its socket is not ours: nothing is lifted, nothing stopped behind its back, and status names it."""
    hold(settings, ["true"])
    lock = take(folders_of(settings), CLOCK, ["watchdog", "run"])
    with contextlib.closing(lock):
        assert status_of(settings).supervisor_pid is not None
        with pytest.raises(HeldError):
            relaunch_job(settings, [])
        with pytest.raises(HeldError):
            stop_job(settings, now=False, argv=[])
    assert status_of(settings).state == "hold"


def test_nothing_to_stop(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert stop_job(settings, now=True, argv=[]) == 0
    assert "nothing to stop" in capsys.readouterr().out
    hold(settings, ["true"])
    assert stop_job(settings, now=False, argv=[]) == 0
    assert "nothing to stop" in capsys.readouterr().out


@contextlib.contextmanager
def answering(settings: Settings, answer: object) -> Iterator[None]:
    path = folders_of(settings).socket
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_PATH)  # a name that fits into a socket address, wherever pytest's folder is
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(json.dumps(answer).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(20)


@pytest.mark.parametrize("reset", [False, True])
def test_a_supervisor_that_leaves_without_an_answer_was_stopped_all_the_same(
    reset: bool, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """It did what it was asked, and was gone before it said so: what came of it is looked at."""
    hold(settings, ["true"])
    path = folders_of(settings).socket
    view = status_of(settings)
    record = {"ok": True, "status": status_record(dataclasses.replace(view, supervisor_pid=os.getpid()))}
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(json.dumps(record).encode() + b"\n")
            with listener.accept()[0] as connection:
                connection.recv(1 if reset else 4096)  # what is not read makes the end a reset
            with contextlib.closing(open_ledger(folders_of(settings), CLOCK, this_host())) as ledger:
                ledger.record("supervisor_leaving", "stopped on request, the job is not finished: nothing was running")
            path.unlink()

        thread = threading.Thread(target=serve)
        thread.start()
        assert stop_job(settings, now=False, argv=[]) == 0
        thread.join(20)
    assert capsys.readouterr().out == "job x: stopped\n"


@pytest.mark.parametrize(
    "answer",
    [
        {"ok": True},
        {"ok": True, "status": None},
        {"ok": True, "status": {"job": "x"}},
        {"ok": True, "status": {"job": "x", "run": {"number": 1}}},
        {"ok": True, "status": [1]},
    ],
)
def test_an_answer_of_another_version(answer: object, settings: Settings) -> None:
    with answering(settings, answer), pytest.raises(ControlError, match="another version"):
        status_of(settings)


def test_a_refusal_is_told_in_its_own_words(settings: Settings) -> None:
    with answering(settings, {"ok": False, "error": "not today"}), pytest.raises(ControlError, match=r"^not today$"):
        status_of(settings)


def test_a_diagnosis_takes_no_lock_and_makes_nothing(settings: Settings, tmp_path: Path) -> None:
    diagnosis = diagnose_job(settings, checks=CATALOGUE, probe=False, wait_s=10.0)
    assert diagnosis.exit_code in (0, 1, 2, 3)
    assert list(tmp_path.iterdir()) == []
