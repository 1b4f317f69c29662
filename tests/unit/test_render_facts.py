"""Facts and findings as JSON: nothing left out, and nothing that JSON cannot carry."""

from __future__ import annotations

import json
import math

import pytest

from tests.unit.checks.host import disk, gpu, host, points, progress
from watchdog.core.facts import Absent, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.render_facts import finding_record, record_of


def test_every_fact_is_there_and_says_how_much_is_known() -> None:
    record = record_of(host(memory=Unknown("hangs"), wsl=Absent("this is no WSL"), disks=(disk("state"),)))
    assert set(record) == set(Facts.__struct_fields__)
    assert record["memory"] == {"state": "unknown", "why": "hangs"}
    assert record["wsl"] == {"state": "absent", "why": "this is no WSL"}
    assert record["disks"][0]["value"]["free_inodes"] == 30_000_000
    assert record["devices"]["value"][0]["recent"][-1]["power_watts"]["value"] == 151.0
    assert len(record["progress"]["value"]["points"]) == len(points())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_a_text(number: float) -> None:
    facts = host(progress=progress(points=points(1, loss=number)), devices=(gpu(power_watts=number),))
    record = json.loads(json.dumps(record_of(facts), allow_nan=False))
    said = record["progress"]["value"]["points"][0]["loss"]
    assert said == record["devices"]["value"][0]["recent"][0]["power_watts"]["value"] == str(number)


def test_keys_and_broken_names_can_be_carried() -> None:
    assert record_of({3: Known((1, True, None, "a\udcff"), 2.0)}) == {
        "3": {"state": "known", "at_s": 2.0, "value": [1, True, None, "a\\udcff"]}
    }
    assert record_of(Remedy.REBOOT) == "reboot the host"


def test_a_finding_keeps_its_figures_and_evidence() -> None:
    finding = Finding(
        check="ecc",
        severity=Severity.CRITICAL,
        subject="card",
        reason="3 errors",
        evidence=("one", "two"),
        cause="memory fails",
        remedy=Remedy.REPLACE,
        device="GPU-1",
    )
    assert finding_record(finding) == {
        "check": "ecc",
        "severity": "critical",
        "subject": "card",
        "device": "GPU-1",
        "reason": "3 errors",
        "evidence": ["one", "two"],
        "cause": "memory fails",
        "remedy": "replace",
    }
