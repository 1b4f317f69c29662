"""Autopsies for people and for machines, and the line of ETTR in `watchdog status`."""

from __future__ import annotations

import dataclasses
import json

from tests.unit.core.ledgers import HandLedger
from tests.unit.core.test_ettr import killed_once
from watchdog import render_incidents
from watchdog.core.autopsy import Origin
from watchdog.core.incidents import incidents
from watchdog.core.view import StatusView
from watchdog.render import ettr_line, status_lines

VIEW = StatusView(
    job="x",
    state="running",
    since_wall_s=0.0,
    now_wall_s=1.0,
    sentence="",
    ettr_ratio=0.944,
    down_s=180.0,
    lost_s={"replay": 40.0},
)


def test_a_recovery_in_words_that_can_be_pasted() -> None:
    [incident] = incidents(killed_once().events)
    lines = render_incidents.report(incident)
    assert lines[0] == "incident 1 · recovered · run 1 died of SIGKILL at step 214"
    text = "\n".join(lines)
    for words in (
        "2027-01-15 08:01:40 UTC, the last sign of life",
        "noticed 0.5 s later",
        "first new step after 11 s",
        "killed: died of SIGKILL",
        "17 s: detection 0.5 s · proof 1.5 s · wait 3.0 s · load 6.0 s · replay 6.0 s",
        "14.4 % of the 2 min since the first launch",
        "run 2 resumed step 200 9f2c9f2c9f2c…, 14 steps repeated",
        "+12.00 s  proof  run_recovered",
    ):
        assert words in text


def test_a_long_error_is_quoted_once() -> None:
    [incident] = incidents(killed_once().events)
    long = "CUDA out of memory: " + "tried to allocate 512.00 MiB; " * 4
    moments = tuple(dataclasses.replace(each, sentence=f"run 1 ended: {long}") for each in incident.timeline[:3])
    text = "\n".join(render_incidents.report(dataclasses.replace(incident, words=long, timeline=moments)))
    assert text.count(long.strip()) == 1
    assert text.count("run 1 ended: (the same, see above)") == 3
    assert render_incidents.report(incident) == [
        line for line in render_incidents.report(incident) if "the same" not in line
    ], "what is short is told again"


def test_a_list_names_the_next_command_and_an_empty_one_says_so() -> None:
    assert render_incidents.listing((), "") == [
        "no incident: nothing has ended, stalled or been held that should not have"
    ]
    lines = render_incidents.listing(incidents(killed_once().events), " --job x")
    assert "recovered" in lines[1]
    assert lines[-1] == "next: watchdog incidents show 1 --job x"


def test_control_characters_of_a_trainer_reach_no_terminal() -> None:
    ledger = HandLedger().launch(1).at(1).ended(1, died=1.0, error="\x1b[2Jgone", tail="a\x07b")
    [incident] = incidents(ledger.events)
    assert all(line.isprintable() for line in render_incidents.report(incident))


def test_what_is_unknown_is_said_and_a_forged_moment_breaks_nothing() -> None:
    ledger = HandLedger(wall_s=1e18)
    ledger.launch(1).write("run_ended", number=1, run_id="1-a", cause="unknown", words="w", baseline_step=-1)
    [incident] = incidents(ledger.events)
    text = "\n".join(render_incidents.report(incident))
    assert "at no known time" in text
    assert "unknown     detection: no record tells" in text
    assert "none yet: no run was launched since" in text


def test_machines_get_every_field() -> None:
    [incident] = incidents(killed_once().events)
    record = json.loads(json.dumps(render_incidents.record(incident), allow_nan=False))
    assert record["format"] == 1
    assert set(record) - {"format"} == {field.name for field in dataclasses.fields(incident)}
    assert record["lost_s"]["replay"] == 6.0


def test_the_line_in_status() -> None:
    assert ettr_line(VIEW) == "ETTR 0.94 · down 3 min · replay 40 s"
    assert "time        ETTR 0.94 · down 3 min · replay 40 s" in status_lines(VIEW)
    unknown = dataclasses.replace(
        VIEW, ettr_ratio=None, ettr_why="no step is committed", down_s=0.0, lost_s={"load": 0.0}
    )
    assert ettr_line(unknown) == "ETTR unknown: no step is committed"
    busy = dataclasses.replace(VIEW, saving_s=12.0, incident=3, options=" --job x")
    assert ettr_line(busy).endswith("saving at least 12 s · incident 3 is open: watchdog incidents show 3 --job x")
    assert not any("ETTR" in line for line in status_lines(dataclasses.replace(VIEW, lost_s={})))


def test_the_whole_split_in_words() -> None:
    lost = {"start": 4.0, "detection": 0.5, "proof": 0.0, "hold": 360.0, "replay": 40.0}
    view = dataclasses.replace(VIEW, lost_s=lost, down_s=360.5)
    assert ettr_line(view) == "ETTR 0.94 · down 6 min (detection 0.5 s, hold 6 min) · replay 40 s · start 4.0 s"


def test_whose_autopsy_it_is() -> None:
    [incident] = incidents(killed_once().events)
    origin = Origin(job="phase-4b", host="desk (Linux 6.8)", version="0.1")
    assert "job         phase-4b on desk (Linux 6.8) · gpuhost-watchdog 0.1" in render_incidents.report(
        incident, origin
    )
    record = json.loads(json.dumps(render_incidents.record(incident, origin), allow_nan=False))
    assert (record["job"], record["host"], record["version"], record["ettr"]) == (
        "phase-4b",
        "desk (Linux 6.8)",
        "0.1",
        {},
    )
