"""Words and JSON from views: figures with units, and never more than was proven."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from watchdog.contract import ContractError
from watchdog.core.view import CollectorView, DeviceView, FindingView, RunView, StatusView
from watchdog.render import (
    bar,
    count,
    duration,
    live_line,
    status_lines,
    status_record,
    summary_lines,
    view_from_record,
)

RUN = RunView(
    number=3, run_id="3-c", alive=True, phase="train", step=412, target_step=600, loss=3.41, tokens_per_s=47_700.0,
    eta_s=240.0, beat_age_s=0.2, beat_deadline_s=60.0, leader_pid=48211, log="/s/output.log",
)  # fmt: skip
VIEW = StatusView(
    job="default", state="running", since_wall_s=1000.0, now_wall_s=1100.0, sentence="run 3 starts from step 400",
    run=RUN,
    checkpoint_step=400, checkpoint_digest="9f2c" * 16, checkpoint_age_s=12.0, failures=1, restarts=2, checkpoints="/c",
    ledger="/s/ledger.jsonl",
    collectors={"memory": CollectorView(duration_s=0.1, success=True, last_success_wall_s=None)},
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3.0, "0.0 s"), (0.0, "0.0 s"), (2.14, "2.1 s"), (45.0, "45 s"), (90.0, "2 min"), (3600.0, "60 min"),
        (5 * 3600 + 12 * 60, "5 h 12 min"), (51 * 3600, "2 d 3 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (950, "950"), (1200, "1.2 k"), (7.1e6, "7.1 M"), (3e9, "3.0 G")]
)
def test_counts(number: float, words: str) -> None:
    assert count(number) == words


@pytest.mark.parametrize("fraction", [-1.0, 0.0, 0.5, 1.0, 7.0, math.nan, math.inf])
def test_a_bar_is_always_ten_wide(fraction: float) -> None:
    assert len(bar(fraction)) == 10


def test_the_live_line_says_what_is_known_and_no_more() -> None:
    line = live_line(VIEW)
    assert "step 412/600" in line
    assert "loss 3.410" in line
    assert "47.7 k tok/s" in line
    bare = dataclasses.replace(VIEW, run=RunView(number=3, run_id="3-c", alive=True, leader_pid=7))
    assert live_line(bare) == "run 3     running, without beats"
    assert live_line(dataclasses.replace(VIEW, run=None)) == ""
    waits = dataclasses.replace(
        VIEW, run=None, state="gating", since_wall_s=VIEW.now_wall_s - 48, waiting_for="the lock: next try in 4 s"
    )
    assert live_line(waits) == "gate      waits for 48 s now: the lock: next try in 4 s"
    assert "reading checkpoints back, for 48 s" in live_line(dataclasses.replace(waits, waiting_for=None))
    assert live_line(dataclasses.replace(VIEW, run=dataclasses.replace(RUN, alive=False))) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": math.nan}, {"loss": math.inf}, {"progress": math.nan}, {"progress": math.inf},
        {"step": 0, "target_step": 0},
        {"step": 700, "target_step": 600}, {"eta_s": -5.0}, {"phase": None}, {"step": None}, {"status": "x" * 500},
        {"tokens_per_s": 0.0}, {"step": 2**63, "target_step": 1}, {"beat_age_s": 1e9},
    ],
    ids=str,
)  # fmt: skip
def test_no_figure_makes_a_view_fall_over(changes: dict[str, object]) -> None:
    view = dataclasses.replace(VIEW, run=dataclasses.replace(RUN, **changes))
    assert live_line(view)
    assert status_lines(view)
    json.dumps(status_record(view), allow_nan=False)


def test_status_for_people_names_job_run_checkpoint_budget_and_files() -> None:
    text = "\n".join(status_lines(VIEW))
    for words in (
        "job",
        "running",
        "run 3",
        "step 400",
        "9f2c9f2c9f2c",
        "1 of 3 failures",
        "2 restarts",
        "/s/ledger.jsonl",
        "/c",
    ):
        assert words in text
    assert "no supervisor runs" in text
    assert "HOLD" not in text


@pytest.mark.parametrize(
    ("need_bytes", "stated", "words"),
    [
        (3 * 1024**3, True, "8.0 GiB available, the job states 3.0 GiB"),
        (3 * 1024**3, False, "8.0 GiB available, by default a GPU job is taken to need 3.0 GiB"),
        (1024**3, False, "8.0 GiB available, by default a job is taken to need 1.0 GiB"),
    ],
)
def test_memory_that_nobody_stated_is_called_a_default(need_bytes: int, stated: bool, words: str) -> None:
    view = dataclasses.replace(
        VIEW, memory_available_bytes=8 * 1024**3, memory_need_bytes=need_bytes, memory_need_stated=stated
    )
    assert f"{'memory':<11} {words}" in status_lines(view)


def test_a_hold_says_why_and_what_to_do() -> None:
    text = "\n".join(status_lines(dataclasses.replace(VIEW, state="hold", hold_reason="three", last_error="boom")))
    assert "HOLD" in text
    assert "three" in text
    assert "boom" in text
    assert "watchdog relaunch" in text


@pytest.mark.parametrize("loss", [3.5, math.nan, math.inf, -math.inf, None])
def test_a_view_survives_json(loss: float | None) -> None:
    view = dataclasses.replace(VIEW, run=dataclasses.replace(RUN, loss=loss), collectors={})
    again = view_from_record(json.loads(json.dumps(status_record(view), allow_nan=False)))
    assert again.run is not None
    if loss is not None and math.isnan(loss):
        assert again.run.loss is not None
        assert math.isnan(again.run.loss)
    else:
        assert again == view


HOT = FindingView(check="thermal", severity="critical", subject="a card", reason="91 C for 30 s", next="look at fans")
CARD = DeviceView(uuid="GPU-1", name="a card", power_watts=151.0, memory_used_bytes=7, xids={"79": 2})
WATCHED = dataclasses.replace(
    VIEW,
    findings=(HOT, dataclasses.replace(HOT, severity="warning", check="pcie", next="look at the slot")),
    devices=(CARD, DeviceView(uuid="GPU-2", name="")),
    driver_silent_s=3.5,
)


def through_json(view: StatusView) -> StatusView:
    return view_from_record(json.loads(json.dumps(status_record(view), allow_nan=False)))


def test_a_finding_has_a_line_with_its_figures_and_one_with_what_to_do() -> None:
    lines = status_lines(WATCHED)
    at = lines.index("CRITICAL    a card · thermal · 91 C for 30 s")
    assert lines[at + 1] == "            next: look at fans"
    assert lines[at + 2].startswith("WARNING     a card · pcie · ")
    assert not [line for line in status_lines(VIEW) if "next" in line]


def test_what_a_process_calls_itself_reaches_no_terminal_as_it_is() -> None:
    evil = dataclasses.replace(HOT, subject="pid 7 \x1b]0;owned\a", reason="by\n\udcff\u202eé")
    lines = status_lines(dataclasses.replace(VIEW, findings=(evil,)))
    assert all(line.isprintable() for line in lines)
    assert r"CRITICAL    pid 7 \x1b]0;owned\x07 · thermal · by\n\udcff\u202eé" in lines


def test_findings_devices_and_collectors_survive_json() -> None:
    assert through_json(WATCHED) == WATCHED


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_device_with_a_number_that_is_none_survives_json(number: float) -> None:
    odd = dataclasses.replace(CARD, power_watts=number, temperature_celsius=number)
    (again,) = through_json(dataclasses.replace(VIEW, devices=(odd,))).devices
    for found in (again.power_watts, again.temperature_celsius):
        assert isinstance(found, float)
        assert found == number or (math.isnan(number) and math.isnan(found))


def test_a_supervisor_of_another_version_may_say_more_and_less() -> None:
    record = json.loads(json.dumps(status_record(WATCHED)))
    for part in (record, record["run"], record["devices"][0], record["findings"][0], record["collectors"]["memory"]):
        part["news"] = 7
    assert view_from_record(record) == WATCHED
    for name in ("devices", "findings", "collectors", "driver_silent_s"):
        del record[name]
    assert view_from_record(record) == dataclasses.replace(VIEW, collectors={})


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": 7},
        {"devices": [7]},
        {"devices": [{"name": "no uuid"}]},
        {"devices": [{"uuid": "GPU-1", "name": "", "power_watts": "much"}]},
        {"findings": [{"check": "thermal"}]},
        {"collectors": []},
        {"collectors": {"memory": None}},
        {"run": {"number": 3}},
        {"since_wall_s": "yesterday"},
    ],
    ids=str,
)
def test_what_is_no_view_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises((AttributeError, TypeError, KeyError, ValueError, ContractError)):
        view_from_record(status_record(WATCHED) | changes)


def test_the_summary_without_a_word_of_the_trainer_says_only_what_was_verified() -> None:
    lines = summary_lines(VIEW, None, 90.0)
    assert "400 steps" in lines[0]
    assert "loss" not in lines[0]
    assert "verified 9f2c9f2c9f2c" in lines[1]
    nothing = summary_lines(dataclasses.replace(VIEW, checkpoint_step=None, checkpoint_digest=None), None, None)
    assert "verified" not in "\n".join(nothing)
