"""What is checked before anything is started, and what is said at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from watchdog.core.history import Event
from watchdog.errors import SettingsError
from watchdog.launching import shown_command
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


def job_launched_with(command: list[str]) -> OpenJob:
    launch = {"number": 1, "run_id": "1-a", "baseline_step": -1, "command": shown_command(command)}
    events = (Event(seq=1, wall_s=1.0, kind="run_launching", sentence="", data=launch),)
    return cast(OpenJob, SimpleNamespace(ledger=SimpleNamespace(events=events)))


def test_a_finished_job_is_not_mistaken_for_another_command(tmp_path: Path) -> None:
    wanted = settings(tmp_path, ["python", "train.py", "--api-key=hunter2hunter"])
    require_same_command(wanted, job_launched_with(["python", "train.py", "--api-key=other"]))
    require_same_command(wanted, cast(OpenJob, SimpleNamespace(ledger=SimpleNamespace(events=()))))
    with pytest.raises(SettingsError, match="finished with another command") as caught:
        require_same_command(wanted, job_launched_with(["python", "train.py", "--password=topsecret1"]))
    assert "topsecret1" not in str(caught.value)


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
