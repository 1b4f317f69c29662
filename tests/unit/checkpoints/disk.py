"""Real checkpoints on a real disk, for the tests beside this file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from watchdog import contract
from watchdog.checkpoints.catalogue import choose
from watchdog.core.choice import Choice, Known

SIZE_BYTES = 3 * 4096 + 100


def write(
    folder: Path, step: int, *, run_id: str | None = "1-a", names: tuple[str, ...] = ("model.pt",), salt: str = ""
) -> Path:
    """A checkpoint as a good trainer leaves it; returns the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in names:
        path = folder / f"step-{step}-{name}"
        seed = hashlib.sha256(f"{step}{name}{salt}".encode()).digest()
        content = (seed * (SIZE_BYTES // len(seed) + 1))[:SIZE_BYTES]
        files.append(contract.write_durably(path, lambda out, content=content: out.write(content)))
    manifest = contract.Manifest(step=step, files=tuple(files), target_step=100, run_id=run_id)
    path = folder / f"step-{step}{contract.MANIFEST_SUFFIX}"
    contract.write_json_durably(path, manifest.to_record())
    return path


def pick(
    folder: Path,
    *,
    lineage: tuple[str, ...] | None = ("1-a",),
    known: tuple[Known, ...] = (),
    refused_runs: frozenset[str] = frozenset(),
    ledger_knew: bool = False,
) -> Choice:
    return choose(folder, lineage=lineage, known=known, refused_runs=refused_runs, ledger_knew=ledger_knew)


def forge(manifest: Path, **changes: object) -> None:
    """Rewrite a manifest with other values, as garbage or malice would."""
    record = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(record | changes))


def census(folder: Path) -> set[tuple[int, str]]:
    """Every file below the folder by inode and content: what was there and must not be lost."""
    found = set()
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_symlink() or not path.is_file():
                continue
            found.add((path.stat().st_ino, hashlib.sha256(path.read_bytes()).hexdigest()))
    return found
