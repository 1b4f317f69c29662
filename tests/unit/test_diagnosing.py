"""From settings to a diagnosis or a measurement: which run there is, who remembers it, and one real probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import WATCHDOG
from tests.host.bed import SLEEPER, folders_in, launched, make_bed, strict_json
from tests.unit.collectors.standin import Standin, answer
from watchdog.checks.catalogue import CATALOGUE
from watchdog.core.findings import Finding, Severity
from watchdog.diagnosing import chosen, diagnose_job, probe_job
from watchdog.errors import SettingsError
from watchdog.folders import JobFolders
from watchdog.places import folders_of
from watchdog.settings import Settings, load


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    return folders_in(tmp_path)


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return Standin(tmp_path).says(answer(device="a CPU", tflops=0.2))


@pytest.fixture
def settings(tmp_path: Path, folders: JobFolders, standin: Standin) -> Settings:
    overrides = {
        "job.name": "bed",
        "job.checkpoints": str(folders.checkpoints),
        "state.folder": str(tmp_path / "state"),
        "probe.python": str(standin.path),
    }
    found = load(environ={}, home=tmp_path, cwd=tmp_path, command=SLEEPER, overrides=overrides)
    assert folders_of(found).run_record == folders.run_record
    return found


def found(settings: Settings, check: str) -> Finding:
    (finding,) = diagnose_job(settings, checks=chosen([check]), probe=False, wait_s=10.0).findings
    return finding


# --- which checks -------------------------------------------------------------------------------------------
def test_checks_are_chosen_by_name_and_told_in_the_order_of_the_list() -> None:
    assert chosen([]) == CATALOGUE
    assert [check.name for check in chosen(["blind", "memory", "blind"])] == ["memory", "blind"]


def test_a_check_that_is_none_is_one_clear_error() -> None:
    with pytest.raises(SettingsError, match=r"there is no check 'memry'; did you mean memory.*diagnose --list"):
        chosen(["memory", "memry"])


# --- the run ------------------------------------------------------------------------------------------------
def test_without_any_run_there_is_nothing_to_be_stale(settings: Settings) -> None:
    diagnosis = diagnose_job(settings, checks=chosen(["beat-stale", "steps-frozen"]), probe=False, wait_s=10.0)
    assert set(diagnosis.absent) == {"beat-stale", "steps-frozen"}
    assert {finding.reason for finding in diagnosis.findings} == {"no run was ever launched"}


def test_a_state_folder_that_never_answers_is_told_in_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be had in a test is the dead mount; the call that does not come back from it is."""
    released = threading.Event()
    monkeypatch.setattr(JobFolders, "run_record", property(lambda self: released.wait(60) or Path("/nowhere")))
    monkeypatch.setattr(JobFolders, "ledger", property(lambda self: released.wait(60) or Path("/nowhere")))
    began_s = time.monotonic()
    diagnosis = diagnose_job(settings, checks=CATALOGUE, probe=False, wait_s=1.0)
    released.set()
    assert time.monotonic() - began_s < 20.0
    assert diagnosis.job is not None
    assert diagnosis.job.state == "unknown"
    (stale,) = [finding for finding in diagnosis.findings if finding.check == "beat-stale"]
    assert stale.severity is Severity.UNKNOWN
    assert str(folders_of(settings).state) in stale.reason


def test_a_run_without_a_supervisor_has_nobody_who_remembers_its_progress(
    settings: Settings, folders: JobFolders
) -> None:
    with launched(folders):
        finding = found(settings, "steps-frozen")
    assert finding.severity is Severity.UNKNOWN
    assert "no supervisor" in finding.reason


@pytest.mark.parametrize("device", [None, "cpu", "0"])
def test_beside_a_living_run_nothing_is_measured(
    settings: Settings, folders: JobFolders, standin: Standin, device: str | None
) -> None:
    with launched(folders):
        report = probe_job(settings, device=device, store=True)
        assert (report.exit_code, report.probes) == (3, ())
        assert report.why is not None
        if device == "cpu":
            assert "a run is alive (pid " in report.why
    assert not standin.asked
    assert probe_job(settings, device="cpu", store=True).exit_code == 0
    assert len(standin.asked) == 1


def test_a_record_that_cannot_be_read_may_hide_a_healthy_run(
    settings: Settings, folders: JobFolders, standin: Standin
) -> None:
    folders.run_record.write_text("{")
    finding = found(settings, "beat-stale")
    assert finding.severity is Severity.UNKNOWN
    report = probe_job(settings, device="cpu", store=True)
    assert report.exit_code == 3
    assert report.why is not None
    assert "whether a run is alive cannot be told" in report.why
    assert not standin.asked


def test_under_a_supervisor_the_command_refuses_with_words(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", SLEEPER, level=0) as bed:
        bed.start()
        bed.wait_status(run_alive=True)
        answered = bed.call("probe", "--json", "--device", "cpu")
        assert answered.returncode == 3, answered
        record = strict_json(answered.stdout)
        assert record["probes"] == []
        assert "is alive" in record["not_measured"]
        people = bed.call("probe", "--device", "cpu")
        assert (people.returncode, people.stdout) == (3, f"not measured: {record['not_measured']}\n")


# --- one real product ---------------------------------------------------------------------------------------
def probe(folder: Path, *words: str, python: Path | None = None) -> dict[str, Any]:
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    if python is not None:
        environment["GPUHOST_WATCHDOG_PROBE__PYTHON"] = str(python)
    argv = [*WATCHDOG, "probe", "--json", "--device", "cpu", *words]
    done = subprocess.run(argv, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert not done.stderr
    return strict_json(done.stdout)


def baselines_of(folder: Path) -> Path:
    return folder / ".local/state/gpuhost-watchdog/baselines.json"


def test_a_real_product_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    record = probe(tmp_path, "--no-store")
    (measured,) = record["probes"]
    assert measured["correct"] is True
    assert measured["dtype"] == "fp32"
    assert 0.0001 < measured["tflops"] < 100
    assert (measured["baseline_tflops"], measured["baseline_count"]) == (None, 0)
    assert {each["severity"] for each in record["findings"]} == {"ok"}
    assert record["not_measured"] is None
    assert not baselines_of(tmp_path).exists()


def test_a_second_product_is_compared_with_the_first(tmp_path: Path) -> None:
    """Of one size: near 20 ms a product, the ladder of sizes ends on either of two."""
    pytest.importorskip("torch")
    python = tmp_path / "python-of-one-size"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --size 256\n')
    python.chmod(0o755)
    (first,) = probe(tmp_path, "--store", python=python)["probes"]
    assert first["baseline_count"] == 0
    stored = json.loads(baselines_of(tmp_path).read_text())
    assert list(stored["tflops"].values()) == [[first["tflops"]]]
    (second,) = probe(tmp_path, "--no-store", python=python)["probes"]
    assert (second["baseline_tflops"], second["baseline_count"]) == (first["tflops"], 1)
