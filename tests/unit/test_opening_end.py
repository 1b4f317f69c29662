"""The end that is found when a job is opened: its record keeps what the run left, without secrets, as any other's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.ledger import Ledger, read_events
from watchdog.opening import open_job
from watchdog.places import folders_of
from watchdog.settings import load


def test_a_run_that_is_gone_leaves_its_words_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t!xyz")
    overrides = {"state.folder": str(tmp_path / "state"), "job.checkpoints": str(tmp_path / "checkpoints")}
    settings = load(environ={}, home=tmp_path, cwd=tmp_path, command=["true"], overrides=overrides)
    folders, clock = folders_of(settings), SystemClock()
    folders.ledger.parent.mkdir(parents=True)
    ledger = Ledger(folders.ledger, folders.ballast, clock=clock, boot_id="another")
    ledger.record("run_launching", "run 1 starts", number=1, run_id="1-a", baseline_step=-1)
    ledger.close()
    run = folders.run("1-a")
    run.path.mkdir(parents=True)
    run.log.write_text("connect with s3cr3t!xyz\n")
    run.failure.write_text(
        json.dumps({"chain": [{"class": "OSError", "message": "s3cr3t!xyz"}], "traceback": "x\ny\n"})
    )

    job = open_job(settings, clock, ["watchdog", "run"])
    job.ledger.close()
    job.lock.close()
    [end] = [event for event in read_events(folders.ledger)[0] if event.kind == "run_ended"]
    assert end.data["tail"] == ["connect with ***"]
    assert end.data["failure"] == ["OSError: ***", "traceback:", "  x", "  y"]
    assert "s3cr3t" not in folders.ledger.read_text()
    assert job.history.unweighed is not None
    assert job.history.unweighed["run_id"] == "1-a"
