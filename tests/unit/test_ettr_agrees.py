"""Status, metrics and autopsies made of one ledger tell the same time lost, also while the job is held."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.core.ledgers import HandLedger
from watchdog import render_incidents
from watchdog.clock import SystemClock
from watchdog.core.history import fold
from watchdog.folders import JobFolders
from watchdog.incidents import Reader, read_incidents
from watchdog.ledger import Ledger, read_events
from watchdog.ledgerview import view_of_ledger
from watchdog.metrics import Metrics
from watchdog.render import ettr_line, status_lines
from watchdog.settings import load

HELD_S = 360.0


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    return JobFolders(state=tmp_path, checkpoints=tmp_path / "c", control=tmp_path / "c")


def written(folders: JobFolders, ended: HandLedger, *, ago_s: float) -> None:
    """A ledger by the real writer, whose last record was made `ago_s` ago."""

    class Then(SystemClock):
        def __init__(self) -> None:
            self.event = ended.events[0]
            self.shift_s = SystemClock().wall() - ago_s - ended.events[-1].wall_s

        def wall(self) -> float:
            return self.event.wall_s + self.shift_s

        def monotonic(self) -> float:
            return self.event.monotonic_s or 0.0

    clock = Then()
    ledger = Ledger(folders.ledger, folders.ballast, clock=clock, boot_id="boot")
    for clock.event in ended.events:
        data = dict(clock.event.data)
        if data.get("died_wall_s") is not None:
            data["died_wall_s"] += clock.shift_s
        ledger.record(clock.event.kind, clock.event.sentence, **data)
    ledger.close()


@pytest.mark.parametrize("last", ["hold", "leaving"])
def test_all_three_agree(folders: JobFolders, last: str) -> None:
    ledger = HandLedger().at(0).launch(1).at(2).steps(1, 1, 2.0).write("step_time", step_s=0.02, saving_s=0.0)
    ledger.at(7).verified(1, 100).at(8).ended(1, step=110, died=7.5)
    if last == "hold":
        ledger.write("hold", "HOLD: why", reason="why").weighed(1)
    else:
        ledger.write("supervisor_leaving").weighed(1)
    written(folders, ledger, ago_s=HELD_S)

    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    events = read_events(folders.ledger)[0]
    view = view_of_ledger(settings, folders, fold(events), events)
    registry = CollectorRegistry()
    metrics = Metrics(registry, states=("hold",), version="0")
    metrics.publish(view)
    reader = Reader(folders=folders, now_wall_s=view.now_wall_s)
    [incident] = read_incidents(reader)
    origin = reader.origin("x")
    record = render_incidents.record(incident, origin)

    assert view.down_s == pytest.approx(HELD_S + 0.5, abs=10)
    assert view.ettr_ratio == pytest.approx(2.0 / (8 + HELD_S), abs=0.01)
    assert record["ettr"]["down_s"] == view.down_s
    assert record["ettr"]["lost_s"] == view.lost_s
    assert record["ettr"]["ettr_ratio"] == view.ettr_ratio
    for part, seconds in view.lost_s.items():
        assert registry.get_sample_value("watchdog_lost_seconds_total", {"kind": part}) == seconds
    assert registry.get_sample_value("watchdog_ettr_ratio") == view.ettr_ratio

    words = ettr_line(view).split(" · incident")[0]
    assert any(words in line for line in status_lines(view))
    report = render_incidents.report(incident, origin)
    assert f"{'ettr':<11} of the job up to now: {words}" in report
    part = "hold" if last == "hold" else "away"
    assert f"down 6 min (detection 0.5 s, {part} 6 min) · start 2.0 s" in words
    if last == "hold":
        assert incident.lost_total_s == pytest.approx(view.down_s, abs=0.01)
        assert incident.wall_s == pytest.approx(view.down_s + 7.5, abs=0.01)
        assert any("98.0 % of the 6 min since the first launch" in line for line in report)
    else:
        assert (incident.outcome, incident.lost_s) == ("stopped", {"detection": 0.5})
