"""Asking for a relaunch without a supervisor, the tail of a ledger, and dry runs that nobody can answer."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.host.bed import CLOCK
from watchdog.asking import status_of
from watchdog.collectors.processes import this_host
from watchdog.control import ControlServer
from watchdog.core.branching import branched
from watchdog.core.choice import Checkpoint
from watchdog.core.history import fold
from watchdog.errors import SettingsError, StateError
from watchdog.ledger import Ledger, read_events
from watchdog.opening import open_ledger, take
from watchdog.places import folders_of
from watchdog.rehearsing import dry_run
from watchdog.relaunching import LedgerTail, Wish, ask_relaunch
from watchdog.render_relaunch import plan_lines, plan_record
from watchdog.settings import Settings, load

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/relaunch.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(environ={}, home=tmp_path, cwd=tmp_path, command=["true"], job="x")


def ledger_of(settings: Settings) -> contextlib.closing[Ledger]:
    return contextlib.closing(open_ledger(folders_of(settings), CLOCK, this_host()))


def failed(settings: Settings, wait_s: float = 0.0) -> None:
    with ledger_of(settings) as ledger:
        ledger.record("run_launching", "x", number=1, run_id="1-a", baseline_step=-1, command=["true"])
        end = {"number": 1, "run_id": "1-a", "cause": "exited", "words": "exit 1", "baseline_step": -1}
        ledger.record("run_ended", "x", **end)
        ledger.record("run_weighed", "x", run_id="1-a", cause="exited", failures=2, wait_s=wait_s)


def kinds(settings: Settings) -> list[str]:
    return [event.kind for event in read_events(folders_of(settings).ledger)[0]]


def test_a_new_budget_and_a_wait_that_is_cut_stand_in_the_ledger(settings: Settings) -> None:
    """Nobody supervises: it is put down for who does next."""
    failed(settings, wait_s=30.0)
    said = ask_relaunch(settings, [], Wish())
    assert (said.by_supervisor, kinds(settings)[-1]) == (False, "wait_cut")
    assert "nothing is held; start the supervisor" in said.words
    assert status_of(settings).failures == 2, "a plain relaunch keeps what was counted"
    assert "the failures that were counted are forgotten" in ask_relaunch(settings, [], Wish(afresh=True)).words
    history = fold(read_events(folders_of(settings).ledger)[0])
    assert (history.failures, history.wait) == (0, None)
    before = kinds(settings)
    ask_relaunch(settings, [], Wish(afresh=True))
    assert kinds(settings) == before, "there is nothing left to forget"


def test_a_job_of_another_level_has_no_earlier_step(settings: Settings) -> None:
    failed(settings)
    before = kinds(settings)
    with pytest.raises(SettingsError, match="of level 0"):
        ask_relaunch(settings, [], Wish(step=4))
    assert kinds(settings) == before


def test_the_tail_of_a_ledger_is_what_is_written_from_now_on(settings: Settings) -> None:
    """In whole lines: one that is being written is waited for, one that is none is passed over."""
    failed(settings)
    path = folders_of(settings).ledger
    tail = LedgerTail(path)
    assert list(tail.read()) == []
    with ledger_of(settings) as ledger:
        ledger.record("hold", "HOLD: why", reason="why")
    assert [event.kind for event in tail.read()] == ["hold"]
    record = json.dumps({"seq": 9, "wall_s": 1.0, "event": "lifted", "sentence": "s"}).encode()
    for part, heard in ((record[:20], []), (record[20:] + b"\nno record\n", ["lifted"]), (b"", [])):
        with open(path, "ab") as file:
            file.write(part)
        assert [event.kind for event in tail.read()] == heard


def test_a_tail_of_nothing(tmp_path: Path) -> None:
    tail = LedgerTail(tmp_path / "ledger.jsonl")
    assert list(tail.read()) == []
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(StateError, match="Is a directory"):
        list(tail.read())


def planned(settings: Settings, wish: Wish | None = None) -> dict[str, Any]:
    wish = wish or Wish()
    made = dry_run(settings, wish)
    record = plan_record(made.view, wish, made.plan, made.exit_code)
    jsonschema.validate(json.loads(json.dumps(record)), SCHEMA)
    assert "nothing was done (dry run)" in plan_lines(made.view, made.plan)
    return record


def test_a_job_that_never_ran(settings: Settings, tmp_path: Path) -> None:
    record = planned(settings)
    assert (record["state"], record["run"], record["would_launch"]) == ("never started", None, True)
    assert os.listdir(tmp_path) == [], "a look makes no folders"


def test_another_supervisor_has_the_job(settings: Settings) -> None:
    """Its socket is not ours: a relaunch would be refused, so the dry run says no, and who."""
    failed(settings)
    with contextlib.closing(take(folders_of(settings), CLOCK, ["watchdog", "run"])):
        record = planned(settings)
    assert (record["exit_code"], record["would_launch"], record["supervisor_pid"]) == (4, False, os.getpid())
    assert f"pid {os.getpid()}" in record["why_not"][0]


def test_an_earlier_step_without_a_supervisor(settings: Settings) -> None:
    failed(settings)
    assert planned(settings, Wish(step=4))["exit_code"] == 2
    checkpoint = Checkpoint(step=4, digest="ab" * 32, manifest="m", run_id="1-a")
    with ledger_of(settings) as ledger:
        record = branched(checkpoint, by="joe", why="w")
        ledger.record("checkpoint_verified", "v", step=4, digest=checkpoint.digest, run_id="1-a")
        ledger.record(record.kind, record.sentence, **record.data)
    assert planned(settings, Wish(step=4))["exit_code"] == 3, "of level 0: it has no checkpoints that are verified"


def test_a_supervisor_that_refuses_is_a_wrong_command_line(settings: Settings) -> None:
    """What the socket calls a matter of usage exits with 2, and is told in its own words."""
    asked: list[dict[str, Any]] = []

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        asked.append(message)
        return {"ok": False, "error": "--from 4: step 4 was never verified", "usage": True}

    failed(settings)
    server = ControlServer(folders_of(settings).socket, handle, os.getuid())
    server.start()
    try:
        with pytest.raises(SettingsError, match="never verified"):
            ask_relaunch(settings, [], Wish(step=4), "the loss jumped")
    finally:
        server.stop()
    assert (asked[0]["from"], asked[0]["why"], f"uid {os.getuid()}" in asked[0]["by"]) == (4, "the loss jumped", True)
