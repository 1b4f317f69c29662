"""What is checked before anything is started, and what is said at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from watchdog.core.history import Event, fold
from watchdog.errors import SettingsError
from watchdog.launching import command_digest, shown_command
from watchdog.opening import OpenJob
from watchdog.running import read_summary, require_command, require_same_command
from watchdog.settings import Settings, load


def settings(tmp_path: Path, command: list[str], **overrides: object) -> Settings:
    return load(environ={}, home=tmp_path, cwd=tmp_path, command=command, job="x", overrides=overrides)


def test_a_command_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the job's own PATH or below its own folder, and executable."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "trainer-of-test"
    program.write_text("#!/bin/sh\n")
    for command in (["trainer-of-test"], ["./bin/trainer-of-test"], [str(program)], ["bin"], [str(tmp_path / "bin")]):
        with pytest.raises(SettingsError, match="does not exist or is not executable; nothing was started"):
            require_command(settings(tmp_path, command))
    program.chmod(0o755)
    require_command(settings(tmp_path, ["./bin/trainer-of-test"]))
    require_command(settings(tmp_path, [str(program)]))
    with pytest.raises(SettingsError):
        require_command(settings(tmp_path, ["trainer-of-test"]))
    environment = '{ PATH = "' + str(tmp_path / "bin") + '" }'
    config = tmp_path / "w.toml"
    config.write_text(f'[job]\nname = "x"\ncommand = ["trainer-of-test"]\nenvironment = {environment}\n')
    require_command(load(environ={}, home=tmp_path, cwd=tmp_path, config=config))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    require_command(settings(tmp_path, ["trainer-of-test"]))


COMMAND = ["python", "train.py", "--api-key=hunter2hunter"]


def job_launched_with(command: list[str], folder: Path, /, *, finished: bool, **changes: object) -> OpenJob:
    launch = {
        "number": 1,
        "run_id": "1-a",
        "baseline_step": -1,
        "command": shown_command(command),
        "directory": str(folder),
        "command_sha256": command_digest(command),
    }
    data = {name: value for name, value in (launch | changes).items() if value is not ...}
    events = [Event(seq=1, wall_s=1.0, kind="run_launching", sentence="", data=data)]
    if finished:
        events.append(Event(seq=2, wall_s=2.0, kind="finished", sentence="", data={"step": 0}))
    return cast(OpenJob, SimpleNamespace(ledger=SimpleNamespace(events=tuple(events)), history=fold(events)))


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--password=topsecret1"],
        ["python", "train.py", "--api-key=hunter2hunteR"],  # looks the same where it is shown
        [*COMMAND, *["x"] * 400],
        ["python", "train.py --api-key=hunter2hunter"],
    ],
)
def test_a_finished_job_is_not_mistaken_for_another_command(command: list[str], tmp_path: Path) -> None:
    wanted = settings(tmp_path, COMMAND)
    with pytest.raises(SettingsError, match=r"give this one a name of its own .*--new") as caught:
        require_same_command(wanted, job_launched_with(command, tmp_path, finished=True))
    assert "topsecret1" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    # One that is not finished goes on with a command that was corrected.
    require_same_command(wanted, job_launched_with(command, tmp_path, finished=False))


def test_the_same_command_in_the_same_folder_is_the_same_job(tmp_path: Path) -> None:
    wanted = settings(tmp_path, COMMAND)
    for finished in (False, True):
        require_same_command(wanted, job_launched_with(COMMAND, tmp_path, finished=finished))
    nothing = SimpleNamespace(ledger=SimpleNamespace(events=()), history=fold([]))
    require_same_command(wanted, cast(OpenJob, nothing))


@pytest.mark.parametrize("finished", [False, True])
def test_the_same_words_in_another_folder_are_another_job(finished: bool, tmp_path: Path) -> None:
    """`python train.py` in two projects: both are called `train`."""
    wanted = settings(tmp_path, COMMAND)
    other = job_launched_with(COMMAND, tmp_path / "other", finished=finished)
    with pytest.raises(SettingsError, match=str(tmp_path / "other")):
        require_same_command(wanted, other)


def test_a_job_with_a_configuration_may_move_to_another_folder(tmp_path: Path) -> None:
    """Its name was given to it; it is not made of its program."""
    config = tmp_path / "w.toml"
    config.write_text('[job]\nname = "x"\ncommand = ["python", "train.py"]\n')
    wanted = load(environ={}, home=tmp_path, cwd=tmp_path, config=config)
    for finished in (False, True):
        require_same_command(wanted, job_launched_with(["python", "train.py"], tmp_path / "before", finished=finished))
    with pytest.raises(SettingsError):
        require_same_command(wanted, job_launched_with(["python", "other.py"], tmp_path, finished=True))


def test_a_launch_of_an_older_version_says_neither_folder_nor_digest(tmp_path: Path) -> None:
    job = job_launched_with(COMMAND, tmp_path, finished=True, directory=..., command_sha256=...)
    require_same_command(settings(tmp_path, COMMAND), job)


@pytest.mark.parametrize("command", [None, 5, {"a": 1}, "python train.py"])
def test_a_launch_whose_command_is_no_list_is_no_traceback(command: object, tmp_path: Path) -> None:
    """The ledger's lines are what a person may have edited."""
    job = job_launched_with(COMMAND, tmp_path / "other", finished=False, command=command)
    with pytest.raises(SettingsError):
        require_same_command(settings(tmp_path, COMMAND), job)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\xff", b"[]", b"{}", b'{"steps": "many"}', b'{"steps": 1, "tokens": 1}', b"[" * 100_000],
)
def test_a_summary_that_is_none(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)
    assert read_summary(tmp_path) is None


def test_a_summary(tmp_path: Path) -> None:
    summary = {"steps": 3, "tokens": 9, "first_loss": 2.0, "last_loss": 1.0, "validation_loss": 1.5, "ratio": 0.5}
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"more": "x"}))
    assert read_summary(tmp_path) == summary | {"more": "x"}
