"""The catalogue of drills: each can be named, made somewhere, and mended where a person is needed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog import contract
from watchdog.drills import damage, report, trainers
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
    quick = trainers.Quick()
    assert [fault.name for fault, _ in report.chosen("all", None, quick)] == [fault.name for fault in FAULTS]
    assert [(fault.name, phase) for fault, phase in report.chosen("kill", "save", quick)] == [("kill", "save")]
    assert {phase for _, phase in report.chosen("all", "evaluate", quick)} == {"evaluate"}
    several = report.chosen_of(["kill", "stop", "kill"], None, quick)
    assert [fault.name for fault, _ in several] == ["kill", "stop"]
    with pytest.raises(SettingsError, match="no drill 'ghostt'"):
        report.chosen_of(["kill", "ghostt"], None, quick)
    with pytest.raises(SettingsError, match="no drill 'flood'; watchdog drill --list names them"):
        report.chosen("flood", None, quick)
    with pytest.raises(SettingsError, match="freeze is not made in phase 'save', only in train"):
        report.chosen("freeze", "save", quick)


def test_the_bundled_trainer_is_harmed_from_outside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = trainers.Bundled()
    names = {fault.name for fault, _ in report.chosen("all", None, bundled)}
    assert {"kill", "stop", "checkpoint-truncated", "lock-held"} <= names
    assert not names & {"loss-nan", "data-gone", "deaf", "checkpoint-flipped", "memory-refused"}
    with pytest.raises(SettingsError, match="loss-nan takes the data or the habits of the quick job"):
        report.chosen("loss-nan", None, bundled)
    with pytest.raises(SettingsError, match="'slow', not quick or bundled"):
        report.trainer("slow")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(SettingsError, match="torch not installed: pip install"):
        report.trainer("bundled")
    assert "torch not installed" in report.listing()[-1]
    assert report.trainer("quick").name == "quick"


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


def result(fault: str, outcome: str, *problems: str, phase: str = "train") -> Result:
    return Result(fault=fault, phase=phase, expected=outcome, outcome=outcome, problems=problems)


def test_the_summary_counts_what_ended_how_and_names_what_did_not() -> None:
    disk, log_disk = by_name("disk-full"), by_name("log-disk-full")
    assert disk is not None
    assert log_disk is not None
    results = [
        result("kill", "recovered"),
        result("stop", "recovered"),
        result("loss-nan", "held"),
        result("segv", "recovered", "called stalled, should be signalled\nledger: ...", phase="load"),
    ]
    why = "mounting a small disk needs root"
    assert report.summary(results, [(disk, why), (log_disk, why)], 200.0) == [
        "2 recovered, 1 held as they should, and went on once it was mended, 1 NOT as they should; 3 min",
        "NOT AS IT SHOULD  segv --phase load: called stalled, should be signalled",
        "                  watchdog drill segv --phase load makes it again",
        "2 not made here  disk-full, log-disk-full: mounting a small disk needs root",
    ]


def test_every_fault_of_the_facts_is_a_drill_or_told_why_not() -> None:
    """The list as it is known of other projects and of the field; the words that each must be found under."""
    told = "\n".join(report.listing())
    for words in (
        *("kill ", "stop ", "segv", "abort", "GIL", "endless kernel", "data-hangs", "child ", "ghost", "pid-reused"),
        *("device memory", "supervisor-launching", "memory-refused", "oom-kill", "CUDA out of memory", "disk-full"),
        *("checkpoint-truncated", "checkpoint-flipped", "checkpoint-zeroed", "checkpoint-empty", "checkpoint-replaced"),
        *("checkpoint-older", "checkpoint-lost", "loss-nan", "gradient", "loss-frozen", "driver that hangs", "Xid"),
        *("lost", "clock", "suspend", "lock-replaced", "9p", "settings-broken", "exit-early", "fresh-start", "wall"),
        *("metrics-port", "log-disk-full"),
    ):
        assert words in told, words


@pytest.mark.parametrize(("name", "how"), [(name, how) for name, (_, how) in damage.DAMAGES.items()])
def test_each_damage_changes_what_is_loaded(name: str, how: Callable[[Path], None], tmp_path: Path) -> None:
    weights = {"step": 5, "value": random.Random(1).uniform(0.3, 0.7), "chain": "ab"}
    content = json.dumps(weights).encode().ljust(16384)
    written = contract.write_durably(tmp_path / "step-5.json", lambda file: file.write(content))
    manifest = tmp_path / f"step-5{contract.MANIFEST_SUFFIX}"
    contract.write_json_durably(manifest, contract.Manifest(step=5, files=(written,), run_id="1-a").to_record())
    older = contract.write_durably(tmp_path / "step-0.json", lambda file: file.write(content.replace(b"ab", b"cd")))
    contract.write_json_durably(
        tmp_path / f"step-0{contract.MANIFEST_SUFFIX}", contract.Manifest(step=0, files=(older,)).to_record()
    )
    before = manifest.read_bytes()
    how(manifest)
    try:
        after = contract.digest_file(tmp_path / "step-5.json")
        whole = manifest.read_bytes() == before
    except FileNotFoundError:
        return
    assert after != written or not whole, f"{name} changes nothing"
    if name in ("replaced", "older"):
        assert contract.Manifest.read(manifest).files == (after,), "it must be consistent in itself"
