"""What a diagnosis knows of the run: from its own look, and from the supervisor where no file tells."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.host.bed import CLOCK, folders_in, record_of
from tests.unit.checks.host import beat, host, progress
from watchdog import contract
from watchdog.control_server import ControlServer
from watchdog.core.fact import Absent, Known
from watchdog.core.limits import Limits
from watchdog.remembered import Remembered, remember, to_record
from watchdog.runfacts import _deadline_s, _run_of, of_run
from watchdog.settings import load

RUN_ID = "7-abc"


@pytest.fixture
def told(tmp_path: Path) -> Remembered:
    """A supervisor's memory of a run that beats by sd_notify and asked for time."""
    facts = host(beat=beat(run_id=RUN_ID, age_s=30.0, deadline_s=math.inf), progress=progress(run_id=RUN_ID))
    return remember(replace(facts, at_s=CLOCK.monotonic() - 5.0))


def run_of(tmp_path: Path, told: Remembered | str) -> object:
    folders = folders_in(tmp_path)
    record = record_of(folders, run_id=RUN_ID, number=7, level=1)
    Path(record.folder).mkdir(parents=True)
    contract.write_json_durably(folders.run_record, record.to_record())
    return _run_of(load(environ={}, home=tmp_path, cwd=tmp_path), folders, CLOCK, told)[0].beat


def test_what_a_run_asked_for_is_known_by_its_supervisor(tmp_path: Path, told: Remembered) -> None:
    fact = run_of(tmp_path, told)
    assert isinstance(fact, Known)
    assert fact.value.deadline_s == math.inf
    assert fact.value.age_s == pytest.approx(35.0, abs=2.0)


def test_what_was_learned_is_known_by_its_supervisor_and_else_the_settings_speak(tmp_path: Path) -> None:
    settings = load(environ={}, home=tmp_path, cwd=tmp_path)
    learned = Known(beat(run_id=RUN_ID, phase="train", deadline_s=30.0), 1.0)
    assert _deadline_s(settings, learned, "train") == 30.0
    assert _deadline_s(settings, learned, "save") == settings.deadlines.save_s
    assert _deadline_s(settings, None, "train") == settings.deadlines.train_s


def test_another_runs_beat_is_not_this_ones(tmp_path: Path, told: Remembered) -> None:
    assert told.beat is not None
    fact = run_of(tmp_path, Remembered(at_s=told.at_s, beat=replace(told.beat, run_id="6-old")))
    assert isinstance(fact, Absent)


def test_without_a_supervisor_the_files_alone_speak(tmp_path: Path) -> None:
    assert isinstance(run_of(tmp_path, "it has no supervisor that remembers"), Absent)


def test_who_supervises_is_asked_at_the_socket(tmp_path: Path) -> None:
    settings, folders = load(environ={}, home=tmp_path, cwd=tmp_path), folders_in(tmp_path)
    folders.state.mkdir(parents=True, exist_ok=True)
    nobody = of_run(settings, folders, CLOCK)[1].supervisor
    assert nobody is not None
    assert (nobody.pid, nobody.silence) == (None, f"nobody listens at {folders.socket}")
    server = ControlServer(folders.socket, lambda message: {"ok": True, "facts": "of another version"}, os.getuid())
    server.start()
    try:
        answering = of_run(settings, folders, CLOCK)[1].supervisor
    finally:
        server.stop()
    assert answering is not None
    assert answering.pid == os.getpid()


def test_the_devices_are_those_of_the_supervisor_that_answers(tmp_path: Path) -> None:
    """And not those that the asker's CUDA_VISIBLE_DEVICES shows."""
    settings, folders = load(environ={}, home=tmp_path, cwd=tmp_path), folders_in(tmp_path)
    folders.state.mkdir(parents=True, exist_ok=True)
    asked, job = Limits(devices=("5",), devices_named=True), Limits(devices=("GPU-1",), devices_named=True)
    assert of_run(settings, folders, CLOCK)[1].limits(asked) == asked
    facts = to_record(remember(host(), job))
    server = ControlServer(folders.socket, lambda message: {"ok": True, "facts": facts}, os.getuid())
    server.start()
    try:
        run = of_run(settings, folders, CLOCK)[1]
    finally:
        server.stop()
    assert run.limits(asked) == job
