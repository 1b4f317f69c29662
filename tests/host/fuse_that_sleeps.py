"""A FUSE file system whose handler sleeps, spoken over /dev/fuse without any library; for processes in state D.

    unshare --mount --propagation private python fuse_that_sleeps.py MOUNT_POINT

Responsible for one file, `stuck`: whoever closes it waits in the kernel (FLUSH is a request that no signal ends) until
a line comes on standard input. It prints "ready", or "refused: ..." where nothing can be mounted. Its end, or the end
of its standard input, aborts the connection, and the mount vanishes with the last process in its namespace.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys

# linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 18, 25, 26, 36, 42
UNANSWERED = (FORGET, INTERRUPT, BATCH_FORGET)
ROOT, FILE = 1, 2
FOR_EVER_S = 1 << 30


def attributes(node: int) -> bytes:
    """struct fuse_attr."""
    mode, links = (0o040755, 2) if node == ROOT else (0o100644, 1)
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
    """(error, payload) for every request but FLUSH."""
    if opcode == INIT:  # protocol 7.31, small writes, nothing optional
        _, _, readahead, _ = struct.unpack_from("<4I", body)
        return 0, struct.pack("<4I2H2I2H8I", 7, 31, readahead, 0, 4, 3, 4096, 1, 1, 0, *(0,) * 8)
    if opcode == LOOKUP and node == ROOT and body.rstrip(b"\0") == b"stuck":
        return 0, struct.pack("<4Q2I", FILE, 0, FOR_EVER_S, FOR_EVER_S, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return 0, struct.pack("<Q2I", FOR_EVER_S, 0, 0) + attributes(node)
    if opcode == OPEN:
        return 0, struct.pack("<Q2I", 1, 0, 0)
    if opcode == RELEASE:
        return 0, b""
    return (-2 if opcode == LOOKUP else -38), b""  # ENOENT, ENOSYS


def mount(point: str) -> int:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"watchdog-test", point.encode(), b"fuse", 6, options) != 0:  # nosuid, nodev
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fuse


def serve(fuse: int) -> None:
    held: list[int] | None = []  # None: let go
    while True:
        ready, _, _ = select.select([fuse, sys.stdin.buffer.raw], [], [])
        if fuse not in ready:
            if not os.read(0, 100):
                return
            for unique in held or ():
                os.write(fuse, struct.pack("<IiQ", 16, 0, unique))
            held = None
            continue
        try:
            request = os.read(fuse, 1 << 20)
        except FileNotFoundError:  # it was interrupted before we read it
            continue
        _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
        if opcode == FLUSH and held is not None:
            held.append(unique)
        elif opcode not in UNANSWERED:
            error, payload = (0, b"") if opcode == FLUSH else answer(opcode, node, request[40:])
            os.write(fuse, struct.pack("<IiQ", 16 + len(payload), error, unique) + payload)


if __name__ == "__main__":
    try:
        opened = mount(sys.argv[1])
    except OSError as failure:
        print(f"refused: {failure}", flush=True)
        sys.exit(1)
    print("ready", flush=True)
    serve(opened)
