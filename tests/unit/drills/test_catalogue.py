"""The catalogue of drills: each can be named, made somewhere, and mended where a person is needed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog import contract
from watchdog.drills import damage, report
from watchdog.drills.faults import FAULTS, Fault, Outcome, by_name
from watchdog.drills.run import Result
from watchdog.errors import SettingsError


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_complete(fault: Fault) -> None:
    assert by_name(fault.name) is fault, "two faults share a name"
    assert set(fault.phases) <= set(contract.PHASES)
    assert len(set(fault.phases)) == len(fault.phases) > 0
    if Outcome.HELD in (fault.outcome, fault.or_else):
        assert fault.mend is not None, "a hold that nobody lifts proves nothing of what comes after"
    if fault.outcome is not Outcome.UNHARMED:
        assert fault.causes or fault.hold, "anything would do as its cause"


def test_what_is_asked_for() -> None:
    assert [fault.name for fault, _ in report.chosen("all", None)] == [fault.name for fault in FAULTS]
    assert [(fault.name, phase) for fault, phase in report.chosen("kill", "save")] == [("kill", "save")]
    assert {phase for _, phase in report.chosen("all", "evaluate")} == {"evaluate"}
    with pytest.raises(SettingsError, match="no drill 'flood'; watchdog drill --list names them"):
        report.chosen("flood", None)
    with pytest.raises(SettingsError, match="freeze is not made in phase 'save', only in train"):
        report.chosen("freeze", "save")


def test_the_list_names_every_fault_and_what_none_makes() -> None:
    lines = "\n".join(report.listing())
    assert all(fault.name in lines and fault.words in lines for fault in FAULTS)
    assert "power cuts" in lines
    assert [each["fault"] for each in report.listing_record()] == [fault.name for fault in FAULTS]


def test_a_row_says_when_something_went_wrong() -> None:
    good = Result(fault="kill", phase="train", expected="recovered", outcome="recovered", detected_as="killed")
    bad = Result(
        fault="kill", phase="train", expected="recovered", outcome="failed", problems=("the outcome is failed",)
    )
    assert report.line(report.row(good)).endswith("as it should")
    assert report.line(report.row(bad)).endswith("NOT AS IT SHOULD")


@pytest.mark.parametrize(("name", "how"), [(name, how) for name, (_, how) in damage.DAMAGES.items()])
def test_each_damage_changes_what_is_loaded(name: str, how: Callable[[Path], None], tmp_path: Path) -> None:
    weights = {"step": 5, "value": random.Random(1).uniform(0.3, 0.7), "chain": "ab"}
    content = json.dumps(weights).encode().ljust(16384)
    written = contract.write_durably(tmp_path / "step-5.json", lambda file: file.write(content))
    manifest = tmp_path / f"step-5{contract.MANIFEST_SUFFIX}"
    contract.write_json_durably(manifest, contract.Manifest(step=5, files=(written,), run_id="1-a").to_record())
    before = manifest.read_bytes()
    how(manifest)
    try:
        after = contract.digest_file(tmp_path / "step-5.json")
        whole = manifest.read_bytes() == before
    except FileNotFoundError:
        return
    assert after != written or not whole, f"{name} changes nothing"
    if name == "replaced":
        assert contract.Manifest.read(manifest).files == (after,), "it must be consistent in itself"
