"""What can befall a checkpoint file on disk, done from outside.

Refuses to touch the manifest: a damaged file whose manifest is whole is the harder case.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from watchdog import contract

_PAGE_BYTES = 4096


def data_file(manifest: Path) -> Path:
    """The (one) file of a checkpoint of the bundled trainer."""
    return manifest.parent / contract.Manifest.read(manifest).files[0].name


def truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(1, path.stat().st_size))


def flip_one_bit(path: Path, chance: random.Random) -> None:
    with open(path, "r+b") as file:
        place = chance.randrange(path.stat().st_size)
        byte = os.pread(file.fileno(), 1, place)[0]
        os.pwrite(file.fileno(), bytes([byte ^ (1 << chance.randrange(8))]), place)


def zero_a_page(path: Path, chance: random.Random) -> None:
    """A page that was not zero before: the file must have changed."""
    content = path.read_bytes()
    pages = [place for place in range(0, len(content), _PAGE_BYTES) if any(content[place : place + _PAGE_BYTES])]
    place = chance.choice(pages)
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), bytes(min(_PAGE_BYTES, len(content) - place)), place)


def empty(path: Path, _chance: random.Random) -> None:
    os.truncate(path, 0)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncate": truncate,
    "flip one bit": flip_one_bit,
    "zero a page": zero_a_page,
    "empty": empty,
}
