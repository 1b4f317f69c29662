"""Moving refused checkpoints aside: written down before and after, nothing deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchdog import contract, tidying
from watchdog.core.choice import Refusal
from watchdog.tidying import move_refused


def save(folder: Path, step: int) -> Path:
    written = contract.write_durably(folder / f"s{step}", lambda file: file.write(b"x"))
    path = folder / f"s{step}{contract.MANIFEST_SUFFIX}"
    contract.write_json_durably(path, contract.Manifest(step=step, files=(written,)).to_record())
    return path


def test_moved_and_told(tmp_path: Path) -> None:
    manifest = save(tmp_path, 4)
    told: list[tuple[str, bool]] = []

    def note(kind: str, _sentence: str, **_data: Any) -> None:
        told.append((kind, manifest.exists()))

    move_refused((Refusal(manifest=str(manifest), step=4, why="spoiled"),), note)
    assert told == [("checkpoint_refused", True), ("checkpoint_moved", False)]
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == ["s4", "s4.manifest.json"]


def test_gone_already_or_not_to_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one is no news; the other is told, and the rest is moved all the same."""
    first, second = save(tmp_path, 4), save(tmp_path, 5)
    kinds: list[str] = []
    real = tidying.quarantine

    def quarantine(manifest: Path) -> Path:
        if manifest == first:
            raise OSError(30, "Read-only file system")
        return real(manifest)

    monkeypatch.setattr(tidying, "quarantine", quarantine)
    refused = [Refusal(manifest=str(path), step=None, why="x") for path in (tmp_path / "gone", first, second)]
    move_refused(tuple(refused), lambda kind, _sentence, **_data: kinds.append(kind))
    assert kinds == [
        "checkpoint_refused",
        "checkpoint_refused",
        "checkpoint_stays",
        "checkpoint_refused",
        "checkpoint_moved",
    ]
    assert first.exists()
    assert not second.exists()
