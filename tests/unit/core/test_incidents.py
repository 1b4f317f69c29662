"""Autopsies made from ledgers written by hand: which incidents there are, and what each one says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.core.ledgers import HandLedger
from tests.unit.core.test_ettr import killed_once
from watchdog.core.autopsy import Incident
from watchdog.core.incidents import incidents
from watchdog.ledger import LINE_LIMIT_BYTES, read_events


def only(ledger: HandLedger) -> Incident:
    [incident] = incidents(ledger.events)
    return incident


def test_a_job_that_only_does_as_it_should_has_none() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).verified(1, 20)
    ledger.at(20).ended(1, "finished", step=40).write("finished").weighed(1, "finished")
    assert incidents([]) == ()
    assert incidents(ledger.events) == ()


def test_a_death_from_its_first_sign_to_the_step_that_is_new() -> None:
    incident = only(killed_once())
    assert (incident.id, incident.outcome, incident.cause, incident.words) == (
        1,
        "recovered",
        "killed",
        "died of SIGKILL",
    )
    assert (incident.runs, incident.next_run, incident.last_step) == ((1,), 2, 214)
    assert (incident.checkpoint_step, incident.steps_repeated) == (200, 14)
    assert incident.began_wall_s == pytest.approx(HandLedger().wall(100.0))
    assert (incident.noticed_after_s, incident.recovered_after_s) == (pytest.approx(0.5), pytest.approx(11.0))
    assert incident.lost_s == {
        "detection": 0.5,
        "proof": 1.5,
        "wait": 3.0,
        "load": 6.0,
        "replay": 6.0,
    }
    assert incident.lost_total_s == 17.0
    assert incident.wall_s == 118.0
    assert incident.unknown == ()
    assert [moment.kind for moment in incident.timeline] == [
        "run_ended",
        "run_weighed",
        "run_launching",
        "run_recovered",
        "run_caught_up",
    ]
    assert [moment.role for moment in incident.timeline] == ["proof", "did", "did", "proof", "proof"]
    assert incident.timeline[1].sentence.endswith("; the next run in 3.0 s")


def test_the_attempts_until_the_next_new_step_are_one_incident() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, step=30, died=20.0).weighed(1)
    ledger.launch(2).at(25).ended(2, died=24.0).weighed(2, repeated=3).at(30).launch(3, 20).steps(3, 21, 29.5)
    incident = only(ledger)
    assert (incident.outcome, incident.runs, incident.next_run) == ("recovered", (1, 2), 3)
    assert incident.lost_s["load"] == 4.0
    again = only(ledger.at(31).write("run_caught_up", run_id="3-a", step=31, made_s=ledger.monotonic(31.0)))
    assert again.lost_total_s == 11.0


def test_one_that_stepped_and_died_between_two_looks_had_recovered_unless_it_had_restored_the_wrong_thing() -> None:
    def ledger(cause: str) -> HandLedger:
        hand = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, step=7, died=20.0).weighed(1)
        return hand.launch(2, 5).at(25).ended(2, cause, step=6, died=24.0).weighed(2, cause)

    first, second = incidents(ledger("killed").events)
    assert (first.outcome, first.lost_s) == ("recovered", {"load": 4.0})
    assert (second.runs, second.lost_s) == ((2,), {"detection": 1.0})
    assert only(ledger("fresh_start")).runs == (1, 2)


def test_one_that_dies_while_it_repeats_is_the_next_incident() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, step=30, died=20.0).weighed(1)
    ledger.launch(2).at(22).steps(2, 1, 22.0).at(25).ended(2, step=9, died=25.0).weighed(2).launch(3)
    first, second = incidents(ledger.events)
    assert (first.outcome, first.lost_s["replay"], first.runs) == ("recovered", 3.0, (1,))
    assert (second.outcome, second.runs, second.next_run) == ("open", (2,), 3)


def test_an_exit_that_was_too_early_becomes_one_when_it_is_weighed() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, "finished", step=30, died=20.0)
    assert incidents(ledger.events) == ()
    assert only(ledger.at(21).weighed(1, "exit_too_early")).cause == "exit_too_early"


def test_a_stall_that_went_on_by_itself_is_told_and_is_over() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(80).stopping(1, beat=20.0).write("run_goes_on")
    assert (only(ledger).outcome, only(ledger).lost_s) == ("went on", {"detection": 60.0})


def test_a_hold_is_open_to_a_person_and_recovers_after_it_was_lifted() -> None:
    ledger = HandLedger().launch(1).at(10).ended(1, died=9.0, error="OSError: [Errno 12]")
    ledger.write("hold", "HOLD: no memory", reason="no memory").weighed(1)
    held = only(ledger)
    assert (held.outcome, held.hold, held.next_run) == ("held", "no memory", None)
    assert held.evidence[0].lines == ("OSError: [Errno 12]",)
    lifted = only(ledger.at(100).write("lifted").launch(2).at(102).steps(2, 1, 102.0))
    assert (lifted.outcome, lifted.lost_s["hold"], lifted.hold) == ("recovered", 90.0, "no memory")


def test_a_hold_without_a_run_is_an_incident_too() -> None:
    incident = only(HandLedger().write("hold", reason="the checkpoints cannot be read"))
    assert (incident.outcome, incident.words, incident.runs) == ("held", "the checkpoints cannot be read", ())


def test_the_findings_that_stood_are_its_evidence_and_those_that_were_over_are_not() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0)
    data = {"severity": "critical", "remedy": "relaunch", "evidence": ["NVRM: Xid (PCI:0000:01:00): 79"]}
    ledger.write("finding", "disk · disk-space · full", check="disk-space", subject="disk", **data)
    ledger.write("finding_over", check="disk-space", subject="disk")
    ledger.at(15).write("finding", "gpu · xid · Xid 79", check="xid", subject="gpu", **data)
    incident = only(ledger.at(20).ended(1, step=5, died=19.0))
    assert incident.findings == ("gpu · xid · Xid 79",)
    assert incident.timeline[0].after_s == -4.0
    assert ("NVRM: Xid (PCI:0000:01:00): 79",) in [source.lines for source in incident.evidence]


def test_what_no_record_tells_is_named() -> None:
    older = HandLedger().launch(1).at(30)
    older.write("run_ended", number=1, run_id="1-a", cause="unknown", words="how is not known", baseline_step=-1)
    older.launch(2).at(90).verified(2, 50)
    incident = only(older)
    assert incident.outcome == "recovered"
    assert "detection" not in incident.lost_s
    told = " ".join(incident.unknown)
    for word in ("detection", "cause", "load", "replay"):
        assert f"{word}: " in told


def test_secrets_are_masked_in_every_text() -> None:
    secret = "hf_" + "A1b2C3d4" * 4
    ledger = HandLedger().launch(1, command=["train", "--api-key", secret]).at(10)
    ledger.ended(1, died=9.0, error=f"token={secret}", tail=[f"HF_TOKEN={secret}"], fault=f"Bearer {secret}")
    ledger.launch(2, command=["train", "--api-key", secret]).write(
        "hold", f"HOLD {secret}", reason=f"password={secret}"
    )
    incident = only(ledger)
    assert secret not in repr(dataclasses.asdict(incident))
    assert "***" in repr(incident.evidence)
    assert any("--api-key ***" in moment.sentence for moment in incident.timeline)


def test_a_job_that_flaps_for_a_week_has_an_autopsy_that_can_be_read() -> None:
    ledger = HandLedger().launch(1).at(1).ended(1, died=1.0, error="x" * 10_000)
    for number in range(2, 2000):
        ledger.at(number).launch(number).ended(number, died=float(number))
    incident = only(ledger)
    assert len(incident.timeline) == 120
    assert max(len(line) for source in incident.evidence for line in source.lines) < 3000


def test_torn_and_foreign_lines_of_a_real_file_change_nothing(tmp_path: Path) -> None:
    import json

    lines = [
        json.dumps(
            {
                "seq": event.seq,
                "wall_s": event.wall_s,
                "monotonic_s": event.monotonic_s,
                "boot_id": event.boot_id,
                "event": event.kind,
                "sentence": event.sentence,
                "data": dict(event.data),
            }
        ).encode()
        for event in killed_once().events
    ]
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"\n".join(lines))
    clean = incidents(read_events(path)[0])
    assert clean == incidents(killed_once().events)
    rubbish = [b'{"seq": 3, "wall', b"\xff\0", b"[]", b'{"seq":1,"wall_s":1,"event":"run_ended","sentence":""}']
    rubbish += [b"x" * (LINE_LIMIT_BYTES + 1), b'{"seq":1,"wall_s":"nan","event":"hold","sentence":"","data":{}}']
    mixed = [part for line in lines for part in (rubbish[len(line) % len(rubbish)], line)]
    path.write_bytes(b"\n".join(mixed) + b'\n{"seq": 9, "wal')
    events, bad = read_events(path)
    assert bad == len(lines) + 1
    assert incidents(events) == clean
