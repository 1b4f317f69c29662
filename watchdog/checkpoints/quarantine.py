"""Moving aside: what was refused, and what a person archived. Nothing is ever deleted here.

A rename inside the checkpoint folder, so it works on a full disk and is undone by a rename.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from watchdog import contract
from watchdog.checkpoints.catalogue import ARCHIVE_FOLDER, QUARANTINE_FOLDER, find_candidates


def _free_place(folder: Path, name: str) -> Path:
    place = folder / name
    number = 1
    while place.exists() or place.is_symlink():
        number += 1
        place = folder / f"{name}.{number}"
    return place


def quarantine(manifest: Path) -> Path:
    """Move a manifest and its files into `quarantine/`. Returns where the manifest lies now. Raises OSError.

    The manifest goes first: from then on the files are no checkpoint, whatever happens in between. Files that another
    manifest names as well stay; while another one cannot be read, nothing is moved.
    """
    folder = manifest.parent
    for other in find_candidates(folder):
        if other.unreadable and other.path.name != manifest.name:
            raise OSError(errno.EIO, f"{other.path.name} cannot be read now ({other.problem})")
    aside = folder / QUARANTINE_FOLDER
    aside.mkdir(exist_ok=True)
    try:
        names = [file.name for file in contract.Manifest.read(manifest).files]
    except (OSError, contract.ContractError):
        names = []
    place = _free_place(aside, manifest.name)
    os.rename(manifest, place)
    candidates = find_candidates(folder)
    others = {file.name for other in candidates if other.manifest for file in other.manifest.files}
    if any(other.unreadable for other in candidates):
        names = []  # they stay where they are: nobody loads them without their manifest
    for name in names:
        source = folder / name
        if "/" not in name and name not in others and source.exists():
            os.rename(source, _free_place(aside, name))
    contract.sync_folder(folder)
    return place


def archive(checkpoints: Path, wall_s: float) -> Path:
    """Move everything of a job but the locks and older archives into `archive/<time>/`. Raises OSError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_s))
    base = checkpoints / ARCHIVE_FOLDER
    base.mkdir(parents=True, exist_ok=True)
    place = _free_place(base, stamp)
    place.mkdir()
    for entry in sorted(os.listdir(checkpoints)):
        if entry not in (contract.CONTROL_FOLDER, ARCHIVE_FOLDER):
            os.rename(checkpoints / entry, place / entry)
    contract.sync_folder(checkpoints)
    return place
