"""What the judges of whole runs cannot read is a problem, and never a run in which nothing was wrong."""

from __future__ import annotations

import json
import signal
import zipfile
from pathlib import Path

import pytest

from bench.campaign_bed import Bed, BedError, tensors_digest

KILLED = {"pid": 4711, "signal": int(signal.SIGKILL), "wall_s": 7.0}


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, name)
    return path


def test_a_checkpoint_without_tensors_has_no_digest(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole", "archive/data.pkl", "archive/data/0", "archive/data/1")
    assert tensors_digest(whole) != tensors_digest(archive(tmp_path / "less", "archive/data.pkl", "archive/data/0"))
    for names in ((), ("archive/data.pkl", "archive/version")):
        with pytest.raises(BedError, match=f"holds no tensors .of its {len(names)} records"):
            tensors_digest(archive(tmp_path / "none", *names))


def test_who_died_of_kill_is_known_or_that_it_is_not(tmp_path: Path) -> None:
    bed = Bed(tmp_path, ["true"])
    for run_id, content in (
        ("1-a", json.dumps({"leader": KILLED, "ended": []})),
        ("2-b", '{"leader": {"pid": 47'),
        ("3-c", "{}"),
    ):
        (bed.state / "runs" / run_id).mkdir(parents=True)
        (bed.state / "runs" / run_id / "exit.json").write_text(content)
    torn, empty, killed = bed.kill_problems([])
    assert "2-b/exit.json cannot be read, so who died of KILL there is not known: JSONDecodeError" in torn
    assert "3-c/exit.json cannot be read" in empty
    assert killed == "pid 4711 died of KILL and no record before says so"
