"""A stranger on the device: takes all of its memory but so much, says how much it took, and leaves when told to.

python -P holder.py DEVICE      says `ready`; reads how much to leave, in MiB; says what it took; until its input ends
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from devices import Device, open_device  # a neighbour, wherever the checkout lies

_CHUNK_MIB, _LEAST_MIB = 1024, 32  # one block as large as the card is refused where its memory is in pieces


def fill(device: Device, leave_mib: int) -> int:
    """Takes it in blocks; what it took."""
    taken, chunk = 0, _CHUNK_MIB
    while chunk >= _LEAST_MIB:
        size = min(chunk, device.free_mib() - leave_mib)
        if size < _LEAST_MIB:
            break
        try:
            device.take(size)
        except RuntimeError:  # memory that is free and cannot be had in one piece
            chunk //= 2
        else:
            taken += size
    return taken


def main(kind: str) -> None:
    device = open_device(kind)
    print("ready", flush=True)
    leave = sys.stdin.readline()
    if leave:
        print(fill(device, int(leave)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
