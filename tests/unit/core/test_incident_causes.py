"""What an autopsy blames: the first failure, whatever follows from it and whoever ends it; and what is no evidence."""

from __future__ import annotations

import pytest

from tests.unit.core.ledgers import HandLedger
from watchdog.core.autopsy import Incident
from watchdog.core.incidents import incidents
from watchdog.render_incidents import listing, report


def only(ledger: HandLedger) -> Incident:
    [incident] = incidents(ledger.events)
    return incident


def failed_twice_and_stopped() -> HandLedger:
    """A ValueError, twice; the third run is stopped by a person before its first step."""
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0)
    ledger.at(20).ended(1, "code_error", step=30, died=20.0, confidence="certain", error="ValueError: bad").weighed(
        1, "code_error"
    )
    ledger.at(22).launch(2).at(25).ended(2, "signalled", died=25.0, confidence="certain").weighed(2, "signalled")
    ledger.at(27).launch(3).at(30).stopping(3, "stopped").at(31).ended(3, "stopped", died=31.0, confidence="certain")
    return ledger.write("supervisor_leaving").weighed(3, "stopped")


def test_the_first_failure_stays_the_cause_and_a_persons_stop_closes_it() -> None:
    incident = only(failed_twice_and_stopped())
    assert (incident.cause, incident.confidence, incident.outcome) == ("code_error", "certain", "stopped")
    assert incident.runs == (1, 2, 3)
    later = failed_twice_and_stopped().at(500).write("supervisor_started").at(501).launch(4).at(505).steps(4, 40, 504.0)
    assert only(later) == incident, "what a person begins anew is no part of it"


def test_a_stop_while_it_waits_closes_it_too_and_a_hold_stays_a_hold() -> None:
    ledger = HandLedger().launch(1).at(10).ended(1, died=10.0).weighed(1, wait=60.0)
    assert only(ledger.at(20).write("supervisor_leaving")).outcome == "stopped"
    held = HandLedger().launch(1).at(10).ended(1, died=10.0).write("hold", reason="r").weighed(1)
    assert only(held.at(20).write("supervisor_leaving")).outcome == "held"


def test_one_that_left_too_early_while_it_was_stopped_is_closed_when_it_is_weighed() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, "finished", step=30, died=20.0)
    incident = only(ledger.write("supervisor_leaving").weighed(1, "exit_too_early"))
    assert (incident.outcome, incident.cause) == ("stopped", "exit_too_early")


def test_a_relaunch_by_a_person_blames_nobody_else_and_recovers_what_was_open() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, "numeric", step=30, died=20.0).weighed(1)
    ledger.at(22).launch(2).at(30).stopping(2, "stopped").ended(2, "stopped", died=30.0).weighed(2, "stopped")
    incident = only(ledger.at(31).launch(3).at(40).steps(3, 31, 40.0))
    assert (incident.outcome, incident.cause, incident.next_run) == ("recovered", "killed", 3)


def test_a_stall_that_a_person_cut_short_is_still_a_stall() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(80).stopping(1, beat=20.0)
    incident = only(ledger.at(85).ended(1, "stopped", died=85.0))
    assert (incident.cause, incident.words) == ("stalled", "no beat for a while")


def test_the_title_names_the_first_and_the_last_where_they_differ() -> None:
    ledger = HandLedger().launch(1).at(10)
    for number, words in ((1, "exit 7"), (2, "died of SIGSEGV"), (3, "exit 143"), (4, "exit 9")):
        data = {"number": number, "run_id": f"{number}-a", "cause": "exited", "words": words, "baseline_step": -1}
        ledger.write("run_ended", **data, died_wall_s=None, confidence="certain").launch(number + 1)
    incident = only(ledger)
    assert report(incident)[0] == "incident 1 · open · run 1 exit 7 … run 4 exit 9"
    assert [end.words for end in incident.ends] == ["exit 7", "died of SIGSEGV", "exit 143", "exit 9"]
    assert any("cause       exited: exit 7" in line for line in report(incident))


def test_the_title_of_many_that_ended_alike_is_short() -> None:
    ledger = HandLedger().launch(1)
    for number in range(1, 40):
        ledger.at(number).ended(number, died=float(number)).launch(number + 1)
    assert "runs 1, 2, 3, 4, …, 39 died of SIGKILL" in listing((only(ledger),), "")[1]


@pytest.mark.parametrize("cause", ["exited", "unknown"])
def test_nobody_is_certain_of_what_nobody_understands(cause: str) -> None:
    assert only(HandLedger().launch(1).at(10).ended(1, cause, died=10.0, confidence="certain")).confidence is None
    assert (
        only(HandLedger().launch(1).at(10).ended(1, "killed", died=10.0, confidence="certain")).confidence == "certain"
    )


def test_findings_from_before_the_launch_stand_apart() -> None:
    data = {"severity": "warning", "remedy": "look", "evidence": ["Out of memory: Killed process 1 (foreign)"]}
    oom = {"check": "oom-kill", "subject": "memory", **data}
    before = HandLedger().write("finding", "memory · oom-kill · 4 processes, 13 min ago", **oom)
    incident = only(before.at(5).launch(1).at(10).ended(1, died=10.0))
    assert (incident.findings, incident.evidence) == ((), ())
    assert incident.also_standing == ("memory · oom-kill · 4 processes, 13 min ago",)
    assert [moment.kind for moment in incident.timeline] == ["run_ended"]
    assert any("also, from before: memory · oom-kill" in line for line in report(incident))

    # Told at the first look of a supervisor: since when it stands nobody knows, so it is not taken for evidence.
    first = HandLedger().launch(1).at(1).write("finding", "memory · oom-kill · x", **oom, stood_before=True)
    assert only(first.at(10).ended(1, died=10.0)).also_standing == ("memory · oom-kill · x",)
    again = HandLedger().launch(1).at(10).ended(1, died=10.0).write("finding", "s", **oom, stood_before=True)
    assert (only(again).also_standing, only(again).findings) == (("s",), ())
    # Told again by the next supervisor: it is as old as it was.
    since = HandLedger().launch(1).at(5).write("finding", "s", **oom).at(6).write("supervisor_started")
    since.write("finding", "s", **oom, stood_before=True)
    for ended in (since.at(10).ended(1, died=10.0), since.at(11).write("finding", "s", **oom, stood_before=True)):
        assert (only(ended).findings, only(ended).also_standing) == (("s",), ())
    twice = HandLedger().write("finding", "s", **oom).at(5).launch(1).at(6).write("finding", "s", **oom)
    assert only(twice.at(10).ended(1, died=10.0)).also_standing == ("s",)


def test_what_was_decided_and_which_gates_were_open_is_told() -> None:
    ledger = HandLedger().launch(1).at(10).ended(1, died=10.0)
    data = {"run_id": "1-a", "cause": "killed", "failures": 0, "host_failures": 1, "wait_s": 2.5}
    ledger.write("run_weighed", "run 1 counts as killed (relaunch); 1 in a row of the host's", **data)
    ledger.at(13).launch(2, gates=["disk 71 GiB ≥ 1", "no run alive"])
    text = "\n".join(report(only(ledger)))
    assert "did    run 1 counts as killed (relaunch); 1 in a row of the host's; the next run in 2.5 s" in text
    held = HandLedger().launch(1).at(10).ended(1, died=10.0).write("hold", reason="r").weighed(1, wait=9.0)
    assert "the next run in" not in "".join(report(only(held)))
    assert "proof  gates held: disk 71 GiB ≥ 1 · no run alive" in text


def test_the_record_of_an_end_is_evidence_in_this_order() -> None:
    left = {"facts": {"memory": "0.2 of 22.9 GiB available"}, "kernel": ["-0.3 s: Out of memory"], "tail": ["a", "b"]}
    incident = only(HandLedger().launch(1).at(10).ended(1, died=10.0, **left, failure=["OSError: x", "traceback:"]))
    assert [(each.source, each.lines) for each in incident.evidence] == [
        ("run 1: last facts", ("memory: 0.2 of 22.9 GiB available",)),
        ("run 1: end of its output", ("a", "b")),
        ("run 1: kernel lines", ("-0.3 s: Out of memory",)),
        ("run 1: failure.json", ("OSError: x", "traceback:")),
    ]


def test_a_private_key_over_many_lines_is_no_evidence() -> None:
    body = [f"MIIEpAIBAAKCAQEA7bq0{number:04}" for number in range(60)]
    for tail in (["-----BEGIN PRIVATE KEY-----", *body], [*body, "-----END PRIVATE KEY-----"]):
        assert "MIIE" not in repr(only(HandLedger().launch(1).at(10).ended(1, died=10.0, tail=tail)))


def test_evidence_of_a_job_that_flaps_stays_bounded() -> None:
    ledger = HandLedger().launch(1)
    for number in range(1, 300):
        ledger.at(number).ended(number, died=float(number), tail=[f"{number}"] * 20).launch(number + 1)
    incident = only(ledger)
    assert len(incident.evidence) == len(incident.ends) == len(incident.run_ids) == 20
    assert incident.runs == tuple(range(1, 300))


def test_an_older_ledger_without_any_of_it_is_read() -> None:
    ledger = HandLedger().launch(1).at(10)
    ledger.write("run_ended", number=1, run_id="1-a", cause="killed", words="died of SIGKILL", baseline_step=-1)
    ledger.write("run_weighed", cause="killed", failures=1).write("branched").at(20).write("supervisor_leaving")
    incident = only(ledger)
    assert (incident.outcome, incident.cause, incident.also_standing) == ("stopped", "killed", ())
    assert incident.ends[0].last_step is None
