"""Asking for a relaunch without a supervisor, the tail of a ledger, and dry runs that nobody can answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.host.bed import CLOCK
from tests.unit.test_branching import save
from watchdog.asking import status_of
from watchdog.branching import wish_from
from watchdog.collectors.processes import this_host
from watchdog.control_server import ControlServer
from watchdog.core.branching import branched
from watchdog.core.choice import Checkpoint
from watchdog.core.history import fold
from watchdog.errors import NotBackError, SettingsError, StateError
from watchdog.ledger import Ledger, read_events
from watchdog.opening import open_ledger, take
from watchdog.places import folders_of
from watchdog.rehearsing import dry_run
from watchdog.relaunching import LedgerTail, Wish, ask_relaunch, relaunch
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
    assert said.code == 0
    assert "the wait before the next run is cut short; start the supervisor" in said.words
    said = ask_relaunch(settings, [], Wish())
    assert (said.code, "nothing was done; start the supervisor" in said.words) == (1, True), "there was nothing to do"
    assert status_of(settings).failures == 2, "a plain relaunch keeps what was counted"
    assert "the failures that were counted are forgotten" in ask_relaunch(settings, [], Wish(afresh=True)).words
    history = fold(read_events(folders_of(settings).ledger)[0])
    assert (history.failures, history.wait) == (0, None)
    before = kinds(settings)
    ask_relaunch(settings, [], Wish(afresh=True))
    assert kinds(settings) == before, "there is nothing left to forget"


def test_a_hold_is_not_lifted_for_a_launch_that_cannot_be(tmp_path: Path) -> None:
    """Every checkpoint is gone: lifting it would lead to the same hold, again and again."""
    environ = {"GPUHOST_WATCHDOG_JOB__LEVEL": "2"}
    settings = load(environ=environ, home=tmp_path, cwd=tmp_path, command=["true"], job="x")
    with ledger_of(settings) as ledger:
        ledger.record("checkpoint_verified", "x", step=40, digest="ab" * 32, run_id="1-a")
        ledger.record("hold", "HOLD: why", reason="why")
    before = kinds(settings)
    for _ in range(2):
        said = ask_relaunch(settings, [], Wish())
        assert (said.code, said.by_supervisor) == (3, False)
        assert "the hold stays, nothing could be launched" in said.words
        assert "is its disk mounted?" in said.words
        assert "watchdog run --new" in said.words
        assert kinds(settings) == before
    save(folders_of(settings).checkpoints, 40)
    assert ask_relaunch(settings, [], Wish()).code == 0
    assert kinds(settings)[-1] == "lifted"


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


def test_what_a_lifted_hold_forgets_of_the_need_is_no_closed_gate(settings: Settings) -> None:
    """As the relaunch itself: what was learned of the last run's memory goes with the hold, or with --force."""
    with ledger_of(settings) as ledger:
        ledger.record("run_launching", "x", number=1, run_id="1-a", baseline_step=-1, command=["true"])
        ledger.record("host_memory", "x", run_id="1-a", peak_bytes=2**50, before_bytes=2**34)
        end = {"number": 1, "run_id": "1-a", "cause": "oom_kill", "words": "killed", "baseline_step": -1}
        ledger.record("run_ended", "x", **end)
        ledger.record("run_weighed", "x", run_id="1-a", cause="oom_kill", failures=0, host_failures=1)
    (why,) = planned(settings)["why_not"]
    assert "its last run had 1048576.0 GiB when memory ran out" in why
    assert why.endswith("(a hold, once a few looks agree)")
    assert planned(settings, Wish(afresh=True))["why_not"] == []
    with ledger_of(settings) as ledger:
        ledger.record("hold", "HOLD: why", reason="why")
    assert planned(settings)["why_not"] == []


def test_an_earlier_step_without_a_supervisor(settings: Settings) -> None:
    failed(settings)
    assert planned(settings, Wish(step=4))["exit_code"] == 2
    checkpoint = Checkpoint(step=4, digest="ab" * 32, manifest="m", run_id="1-a")
    with ledger_of(settings) as ledger:
        record = branched(checkpoint, by="joe", why="w")
        ledger.record("checkpoint_verified", "v", step=4, digest=checkpoint.digest, run_id="1-a")
        ledger.record(record.kind, record.sentence, **record.data)
    record = planned(settings, Wish(step=4))
    assert (record["exit_code"], len(record["why_not"])) == (2, 1), "it is told once"
    assert "of level 0, which has no checkpoints that are verified" in record["why_not"][0]


@pytest.fixture
def saving(tmp_path: Path) -> Settings:
    """A job of level 2 whose steps 5, 10 and 15 were verified, and lie in its folder."""
    changes = {"job.level": 2, "job.checkpoints": str(tmp_path / "c")}
    settings = load(environ={}, home=tmp_path, cwd=tmp_path, command=["true"], job="x", overrides=changes)
    failed(settings)
    (tmp_path / "c").mkdir(exist_ok=True)
    with ledger_of(settings) as ledger:
        for step in (5, 10, 15):
            known = save(tmp_path / "c", step)
            ledger.record("checkpoint_verified", "v", step=step, digest=known.digest, run_id=known.run_id)
    return settings


def prune(settings: Settings, step: int) -> None:
    for path in folders_of(settings).checkpoints.glob(f"c-{step}*"):
        path.unlink()
    with ledger_of(settings) as ledger:
        ledger.record("pruned", "p", name=f"c-{step}", step=step, freed_bytes=9, problem=None)


def test_a_step_that_was_pruned_is_told_and_not_offered(saving: Settings) -> None:
    """By the command and by its dry run alike, with the same exit code; when, and what is left."""
    prune(saving, 5)
    at = r"step 5 was pruned at \d\d:\d\d:\d\d; verified and there are 10, 15"
    with pytest.raises(SettingsError, match=at) as refused:
        ask_relaunch(saving, [], Wish(step=5))
    record = planned(saving, Wish(step=5))
    assert (record["exit_code"], refused.value.exit_code) == (2, 2)
    assert re.search(at, record["why_not"][0])
    with pytest.raises(SettingsError, match="step 7 was never verified; verified are 10, 15"):
        ask_relaunch(saving, [], Wish(step=7))
    (folders_of(saving).checkpoints / "c-10.manifest.json").unlink()
    with pytest.raises(SettingsError, match="step 10 was verified, and its checkpoint is not in the folder any more"):
        ask_relaunch(saving, [], Wish(step=10))
    known = save(folders_of(saving).checkpoints, 5)
    with ledger_of(saving) as ledger:
        ledger.record("checkpoint_verified", "v", step=5, digest=known.digest, run_id=known.run_id)
    assert planned(saving, Wish(step=5))["exit_code"] == 0 or "closed" in planned(saving, Wish(step=5))["why_not"][0]


def test_a_step_that_cannot_be_verified_now_is_a_matter_for_a_person(saving: Settings) -> None:
    """As where a supervisor reads it back: 3, and no branch."""
    (folders_of(saving).checkpoints / "c-5.bin").write_bytes(b"spoiled")
    with pytest.raises(NotBackError, match="nobody goes back to step 5") as refused:
        ask_relaunch(saving, [], Wish(step=5))
    assert refused.value.exit_code == 3
    assert kinds(saving)[-1] == "branch_refused"


def test_the_reason_is_recorded_without_what_moves_a_terminal(saving: Settings) -> None:
    """The ledger is cleaned as the socket is."""
    ask_relaunch(saving, [], Wish(step=5), "it \x1b[2J\rjumped\n" + "x" * 500)
    asked, branch = read_events(folders_of(saving).ledger)[0][-2:]
    wish = wish_from({"from": 5, "why": "it \x1b[2J\rjumped\n" + "x" * 500})
    assert wish is not None
    for event in (asked, branch):
        assert event.data["why"] == wish.why
        assert event.sentence.isprintable()
    assert wish.why.startswith("it ?[2J?jumped?xxx")
    assert len(wish.why) == 300


def test_a_finished_job_is_not_relaunched(settings: Settings) -> None:
    """As the dry run says: the supervisor that is told to start would have nothing to do."""
    failed(settings)
    with ledger_of(settings) as ledger:
        ledger.record("finished", "f", step=9, run_id="1-a")
    before = kinds(settings)
    assert planned(settings)["exit_code"] == 3
    for wish in (Wish(), Wish(afresh=True)):
        asked = ask_relaunch(settings, [], wish)
        assert "the job is finished; go back with --from STEP" in asked.words
        assert "start the supervisor" not in asked.words
        said: list[str] = []
        assert relaunch(settings, [], wish, why="", wait_s=1.0, say=said.append) == 3
    assert kinds(settings) == before


def test_a_supervisor_that_refuses_is_a_wrong_command_line(saving: Settings) -> None:
    """What the socket calls a matter of usage exits with 2, and is told in its own words."""
    asked: list[dict[str, Any]] = []

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        asked.append(message)
        return {"ok": False, "error": "--from 5: step 5 was never verified", "usage": True}

    server = ControlServer(folders_of(saving).socket, handle, os.getuid())
    server.start()
    try:
        with pytest.raises(SettingsError, match="never verified"):
            ask_relaunch(saving, [], Wish(step=5), "the loss jumped")
    finally:
        server.stop()
    assert (asked[0]["from"], asked[0]["why"], f"uid {os.getuid()}" in asked[0]["by"]) == (5, "the loss jumped", True)
