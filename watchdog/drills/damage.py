"""What can befall a checkpoint on disk, done from outside.

Refuses chance: the same checkpoint is damaged in the same place each time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from watchdog import contract


def data_file(manifest: Path) -> Path:
    """The (one) file of a checkpoint of the drill's job."""
    return manifest.parent / contract.Manifest.read(manifest).files[0].name


def truncate(manifest: Path) -> None:
    path = data_file(manifest)
    os.truncate(path, path.stat().st_size // 2)


def flip_one_bit(manifest: Path) -> None:
    """In the weights themselves, where no parser would notice."""
    path = data_file(manifest)
    place = path.read_bytes().index(b'"value": 0.') + len('"value": 0.')
    with open(path, "r+b") as file:
        byte = os.pread(file.fileno(), 1, place)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), place)


def zero_a_page(manifest: Path) -> None:
    with open(data_file(manifest), "r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), 0)


def empty(manifest: Path) -> None:
    os.truncate(data_file(manifest), 0)


def remove_data(manifest: Path) -> None:
    data_file(manifest).unlink()


def remove_manifest(manifest: Path) -> None:
    manifest.unlink()


def garble_manifest(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes()[:-20])


def replace(manifest: Path) -> None:
    """Another checkpoint of the same step, consistent in itself and claiming to be of the same run."""
    before = contract.Manifest.read(manifest)
    path = manifest.parent / before.files[0].name
    weights = json.loads(path.read_bytes()) | {"value": 0.25}
    written = contract.write_durably(path, lambda file: file.write(json.dumps(weights).encode().ljust(16384)))
    after = contract.Manifest(step=before.step, files=(written,), target_step=before.target_step, run_id=before.run_id)
    contract.write_json_durably(manifest, after.to_record())


def put_older(manifest: Path) -> None:
    """The checkpoint before it under its name: whole, of this very run, and not of the step that it claims."""
    older = sorted(manifest.parent.glob("step-*" + contract.MANIFEST_SUFFIX))[-2]
    before = contract.Manifest.read(manifest)
    content = data_file(older).read_bytes()
    written = contract.write_durably(manifest.parent / before.files[0].name, lambda file: file.write(content))
    after = contract.Manifest(step=before.step, files=(written,), target_step=before.target_step, run_id=before.run_id)
    contract.write_json_durably(manifest, after.to_record())


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "truncated": ("half of its data is gone", truncate),
    "flipped": ("one bit of its weights is flipped", flip_one_bit),
    "zeroed": ("a page of its data is zeroes", zero_a_page),
    "empty": ("its data file is empty", empty),
    "lost": ("its data file is gone", remove_data),
    "unlisted": ("its manifest is gone", remove_manifest),
    "garbled": ("its manifest ends in the middle", garble_manifest),
    "replaced": ("another job's of the same step lies in its place, manifest and all", replace),
    "older": ("the one of an older step lies in its place, under its name", put_older),
}
