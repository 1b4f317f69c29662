"""Autopsies read from a job's folders: the ledger, and what its runs left of their own end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.core.ledgers import HandLedger
from watchdog.clock import SystemClock
from watchdog.core.autopsy import Incident
from watchdog.errors import SettingsError
from watchdog.folders import JobFolders
from watchdog.incidents import Reader, chosen_incidents, reader_of
from watchdog.ledger import Ledger

SECRET = "hf_" + "A1b2C3d4" * 4


def one_incident(folders: JobFolders, number: int) -> Incident:
    [incident] = chosen_incidents(Reader(folders=folders), "show", number)
    return incident


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    """A job with one death, in a ledger that was written by the real writer."""
    folders = JobFolders(state=tmp_path, checkpoints=tmp_path / "c", control=tmp_path / "c")
    ledger = Ledger(folders.ledger, folders.ballast, clock=SystemClock(), boot_id="boot")
    for event in HandLedger().launch(1).at(10).ended(1, died=9.0).events:
        ledger.record(event.kind, event.sentence, **event.data)
    ledger.close()
    folders.run("1-a").path.mkdir(parents=True)
    return folders


def test_what_the_run_left_is_added_and_masked(folders: JobFolders) -> None:
    run = folders.run("1-a")
    run.failure.write_text(json.dumps({"format": 1, "chain": [{"class": "OSError", "message": f"token={SECRET}"}]}))
    run.log.write_text("\n".join(f"line {number}" for number in range(50)) + f"\nHF_TOKEN={SECRET}\x1b[2J\n")
    incident = one_incident(folders, 1)
    sources = {source.source: source.lines for source in incident.evidence}
    assert any("OSError" in line for line in sources["run 1-a: failure.json"])
    assert len(sources["run 1-a: end of its output"]) == 20
    assert SECRET not in repr(incident)


def test_what_cannot_be_read_is_said_and_what_is_not_there_is_not(folders: JobFolders) -> None:
    assert one_incident(folders, 1).evidence == ()
    folders.run("1-a").failure.write_text("{torn")
    folders.run("1-a").log.mkdir()
    sources = [source.source for source in one_incident(folders, 1).evidence]
    assert sources == ["run 1-a: failure.json cannot be read", "run 1-a: end of its output"]


@pytest.mark.parametrize("run_id", ["../..", "..", "", "/etc", "a/b"])
def test_no_record_leads_out_of_the_folder(folders: JobFolders, run_id: str) -> None:
    ledger = Ledger(folders.ledger, folders.ballast, clock=SystemClock(), boot_id="boot")
    ledger.record("run_ended", "", number=2, run_id=run_id, cause="killed", words="w", baseline_step=-1)
    ledger.close()
    (folders.state / "output.log").write_text("not of a run")
    assert one_incident(folders, 1).evidence == ()


def test_a_number_that_is_none_is_told_with_those_that_are(folders: JobFolders, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="incident 7: there are 1 to 1"):
        one_incident(folders, 7)
    empty = JobFolders(state=tmp_path / "none", checkpoints=tmp_path, control=tmp_path)
    assert chosen_incidents(Reader(folders=empty), "list", None) == ()
    assert chosen_incidents(Reader(folders=empty), "export", None) == ()
    with pytest.raises(SettingsError, match="has none"):
        one_incident(empty, 1)


@pytest.mark.parametrize(
    ("what", "number", "why"), [("shwo", None, "must be"), ("show", None, "name the incident"), ("export", 1, "no ID")]
)
def test_words_that_mean_nothing_are_told(folders: JobFolders, what: str, number: int | None, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        chosen_incidents(Reader(folders=folders), what, number)


def test_what_the_ledger_kept_outlives_the_folder_and_is_not_told_twice(folders: JobFolders) -> None:
    ledger = Ledger(folders.ledger, folders.ballast, clock=SystemClock(), boot_id="boot")
    more = {"tail": ["the end"], "failure": ["OSError: no"], "facts": {"memory": "0.1 of 8.0 GiB available"}}
    ledger.record("run_launching", "", number=2, run_id="2-a", baseline_step=-1)
    ledger.record("run_ended", "", number=2, run_id="2-a", cause="killed", words="w", baseline_step=-1, **more)
    ledger.close()
    gone = [(each.source, each.lines) for each in one_incident(folders, 1).evidence]
    assert gone == [
        ("run 2: last facts", ("memory: 0.1 of 8.0 GiB available",)),
        ("run 2: end of its output", ("the end",)),
        ("run 2: failure.json", ("OSError: no",)),
    ]
    folders.run("2-a").path.mkdir()
    folders.run("2-a").log.write_text("the end\n")
    folders.run("2-a").failure.write_text("{torn")
    assert [(each.source, each.lines) for each in one_incident(folders, 1).evidence] == gone


def test_a_traceback_is_told_line_by_line(folders: JobFolders) -> None:
    record = {"format": 1, "chain": [], "traceback": "Traceback:\n  File x\nOSError: no\n"}
    folders.run("1-a").failure.write_text(json.dumps(record))
    [source] = one_incident(folders, 1).evidence
    assert source.lines == ("traceback:", "  Traceback:", "    File x", "  OSError: no")


def test_secret_values_of_the_environment_are_hidden_under_whatever_name(
    folders: JobFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's own, and those of whoever reads: in the ledger's sentences and data, and in what the run left."""
    monkeypatch.setenv("REDIS_AUTH", "0therS3cret")
    ledger = Ledger(folders.ledger, folders.ballast, clock=SystemClock(), boot_id="boot")
    said = "connected with s3cr3t!xyz, 0therS3cret --wandb-key kkkkkkkk1234"
    ledger.record("run_ended", said, number=2, run_id="2-a", cause="killed", words=said, baseline_step=-1, tail=[said])
    ledger.record("hold", said, reason=said)
    ledger.close()
    folders.run("1-a").log.write_text(said)
    folders.run("1-a").failure.write_text(json.dumps({"chain": [{"class": "E", "message": said}], "traceback": said}))
    reader = reader_of(folders, {"DB_PASSWORD": "s3cr3t!xyz", "HOLD_KEY": "killed"})
    [incident] = chosen_incidents(reader, "show", 1)
    for secret in ("s3cr3t!xyz", "0therS3cret", "kkkkkkkk1234"):
        assert secret not in repr(incident)
    assert "connected with ***, *** --wandb-key ***" in repr(incident)
    assert incident.cause == "killed", "a word that a record is understood by is none"


def test_whose_it_is_and_up_to_when(folders: JobFolders) -> None:
    reader = reader_of(folders, {})
    assert reader.supervised is False
    origin = reader.origin("my-job")
    assert (origin.job, origin.ettr is not None) == ("my-job", True)
    assert os.uname().nodename in origin.host
    assert origin.version[0].isdigit()
    assert (
        Reader(folders=JobFolders(state=folders.state / "none", checkpoints=folders.state, control=folders.state))
        .origin("x")
        .ettr
        is None
    )
